"""The Tikhonov resolvent: its formula, its exact and absorbing identity, and what it shares with the heat operator."""

import math

import pytest
import torch

from fheat import FractionalHeat, compose, retire
from fheat.ops.heat import frequency_radius
from fheat.ops.resolvent import TikhonovResolvent


def test_the_output_solves_the_tikhonov_problem():
    """w + tau A w = v, with A = C^T diag(r^alpha) C written out as a matrix."""
    gate = TikhonovResolvent(dims=1, initial_strength=0.8).double()
    v = torch.randn(3, 7, dtype=torch.float64)
    n = torch.arange(7, dtype=torch.float64)
    cosines = torch.cos(math.pi * n[:, None] * (2 * n + 1) / 14) * math.sqrt(2 / 7)
    cosines[0] /= math.sqrt(2)
    radius = torch.from_numpy(frequency_radius(7))
    a = cosines.t() @ torch.diag(radius ** gate.alpha.item()) @ cosines
    w = gate(v)
    assert torch.allclose(w + gate.tau.item() * w @ a, v, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_zero_is_the_identity_bit_for_bit(dtype):
    x = torch.randn(1, 2, 5, 4, 3).to(dtype)
    assert torch.equal(TikhonovResolvent(initial_strength=0.0)(x), x)


def test_zero_is_absorbing():
    gate = TikhonovResolvent(initial_strength=0.0)
    optimiser = torch.optim.AdamW(gate.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        gate(torch.randn(1, 2, 5, 4, 3)).square().sum().backward()
        assert gate.delta.grad == 0
        assert gate.theta.grad == 0
        optimiser.step()
    assert gate.closed


def test_it_is_the_heat_operator_to_first_order_and_keeps_more_of_high_frequencies():
    grid = (8, 6, 5)
    for strength, apart in ((1e-8, 1e-4), (5.0, 0.05)):
        heat, resolvent = (
            kind(alpha=0.75, strength=strength).multiplier(grid) for kind in (FractionalHeat, TikhonovResolvent)
        )
        assert (resolvent >= heat - 1e-6).all()
        assert (float((resolvent - heat).abs().max()) < apart) == (strength < 1)


def test_the_slope_in_tau_is_that_of_finite_differences():
    alpha, tau, step = 0.75, 0.4, 1e-5

    def gate(tau):
        made = TikhonovResolvent(dims=1, alpha=alpha).double()
        made.set_strength(tau ** (1 / alpha))
        return made

    above, at, below = (gate(value).multiplier([9]) for value in (tau + step, tau, tau - step))
    radius = torch.from_numpy(frequency_radius(9))
    assert torch.allclose(radius**alpha * gate(tau).tau_slope(at), (below - above) / (2 * step), atol=1e-6)


def test_it_retires_when_closed_and_does_not_merge():
    closed, open_ = TikhonovResolvent(initial_strength=0.0), TikhonovResolvent()
    assert retire(torch.nn.Sequential(closed))[0].retired
    assert not retire(torch.nn.Sequential(open_))[0].retired
    with pytest.raises(ValueError, match="times add for FractionalHeat only"):
        compose([open_, open_])

"""The gate: exact identity, gradients everywhere, parameterisations, refusals."""

import itertools
import math
import pickle

import numpy as np
import pytest
import scipy.fft
import torch

from fheat import FractionalHeat
from fheat.ops.heat import frequency_radius
from fheat.testing import assert_contraction, assert_identity_at_zero


def closed(**options):
    gate = FractionalHeat(**options)
    gate.delta.data.fill_(-0.25)
    return gate


def by_definition(x, strength, alpha):
    """T(v) with numpy and scipy, in float64, straight from the formula."""
    axes = range(2, x.ndim)
    spectrum = scipy.fft.dctn(x, type=2, norm="ortho", axes=axes)
    radius = np.zeros(x.shape[2:])
    for index in itertools.product(*map(range, x.shape[2:])):
        radius[index] = math.sqrt(sum((math.pi * k / n) ** 2 for k, n in zip(index, x.shape[2:], strict=True)))
    return scipy.fft.idctn(np.exp(-((strength * radius) ** alpha)) * spectrum, type=2, norm="ortho", axes=axes)


@pytest.mark.parametrize("transform", ["product", "split", "fft", "auto"])
@pytest.mark.parametrize("grid", [(9,), (6, 7), (5, 4, 6), (1, 1, 8), (1, 1, 1)])
@pytest.mark.parametrize("strength", [0.03, 1.2, 40.0])
def test_equals_the_definition(grid, strength, transform):
    gate = FractionalHeat(dims=len(grid), initial_strength=strength, transform=transform)
    x = torch.randn(2, 3, *grid, dtype=torch.float64)
    D, alpha = float(gate.delta.detach()), 0.3 + 0.6 / (1 + math.exp(2))
    assert np.abs(gate(x).detach().numpy() - by_definition(x.numpy(), D, alpha)).max() < 1e-7  # alpha is float32
    gate = gate.double()
    gate.delta.data.fill_(strength)
    assert np.abs(gate(x).detach().numpy() - by_definition(x.numpy(), strength, alpha)).max() < 1e-12


def test_starts_where_the_design_says():
    gate = FractionalHeat()
    assert gate.theta.item() == -2.0
    assert gate.delta.item() == np.float32(0.03)
    assert gate.alpha.item() == pytest.approx(0.3 + 0.6 / (1 + math.exp(2)))
    assert gate.strength.item() == np.float32(0.03)
    assert gate.tau.item() == pytest.approx(0.03 ** gate.alpha.item(), rel=1e-6)
    assert not gate.retired
    assert {name for name, _ in gate.named_parameters()} == {"theta", "delta"}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("delta", [0.0, -0.0, -1e-45, -3.0])
def test_closed_gate_is_the_identity_bitwise_for_every_size(kind, delta):
    for dims in (1, 2, 3):
        gate = FractionalHeat(dims=dims)
        gate.delta.data.fill_(delta)
        for length, axis in itertools.product(range(1, 65), range(dims)):
            grid = [1 + (length * step) % 5 for step in range(dims)]
            grid[axis] = length
            x = torch.randn(1, 2, *grid).to(kind)
            y = gate(x)
            assert y.dtype == kind
            assert torch.equal(y, x), (dims, grid)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_closed_gate_is_the_identity_on_64_cubed_and_passes_gradients(kind):
    assert_identity_at_zero(closed(), (1, 1, 64, 64, 64), dtype=kind)


def test_closed_gate_selects_it_does_not_multiply():
    x = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1e-45, 3e38]).reshape(1, 1, 6)
    gate = closed(dims=1)
    y = gate(x)
    assert torch.equal(y.view(torch.int32), x.view(torch.int32))
    y.sum().backward()
    assert gate.theta.grad.item() == 0
    assert gate.delta.grad.item() == 0


@pytest.mark.parametrize("delta", [0.0, -1e-30, -5.0])
def test_closed_gate_gives_its_parameters_exactly_zero_gradient(delta):
    gate = FractionalHeat()
    gate.delta.data.fill_(delta)
    x = torch.randn(2, 3, 6, 5, 4, requires_grad=True)
    (gate(x) * torch.randn_like(x)).sum().backward()
    assert gate.theta.grad.item() == 0.0
    assert gate.delta.grad.item() == 0.0


@pytest.mark.parametrize("delta", [0.0, -1.0, 1e-45, 1e-38, 1e-30, 1e-3, 1.0, 1e4, 1e38])
@pytest.mark.parametrize("strength", ["relu", "softplus"])
@pytest.mark.parametrize("alpha", ["bounded", "softplus"])
def test_gradients_are_finite_everywhere(delta, strength, alpha, dtype):
    gate = FractionalHeat(alpha=alpha, strength=strength)
    gate.delta.data.fill_(delta)
    x = torch.randn(2, 3, 6, 5, 4, dtype=dtype, requires_grad=True)
    gate(x).sin().sum().backward()
    for gradient in (x.grad, gate.theta.grad, gate.delta.grad):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("theta", [-1e4, 1e4])
def test_gradients_are_finite_at_extreme_orders(theta):
    for alpha in ("bounded", "softplus"):
        gate = FractionalHeat(alpha=alpha, initial_theta=theta)
        gate(torch.randn(1, 2, 6, 5, 4)).sin().sum().backward()
        assert torch.isfinite(gate.theta.grad)
        assert torch.isfinite(gate.delta.grad)


def test_gradient_at_the_constant_mode():
    gate = FractionalHeat()
    x = torch.full((1, 2, 6, 5, 4), 3.0, requires_grad=True)  # only r = 0 carries energy
    y = gate(x)
    y.square().sum().backward()
    assert torch.allclose(y, x, atol=1e-5)
    assert torch.isfinite(x.grad).all()
    assert abs(gate.delta.grad.item()) < 1e-3
    assert abs(gate.theta.grad.item()) < 1e-3


@pytest.mark.parametrize("strength", ["relu", "softplus", "exp"])
@pytest.mark.parametrize("alpha", ["bounded", "softplus"])
@pytest.mark.parametrize("grid", [(7,), (4, 5), (3, 2, 4)])
def test_gradcheck(strength, alpha, grid):
    gate = FractionalHeat(dims=len(grid), alpha=alpha, strength=strength, initial_strength=0.7).double()
    x = torch.randn(1, 2, *grid, dtype=torch.float64, requires_grad=True)

    def function(x, theta, delta):
        return torch.func.functional_call(gate, {"theta": theta, "delta": delta}, (x,))

    assert torch.autograd.gradcheck(function, (x, gate.theta, gate.delta))
    assert torch.autograd.gradgradcheck(function, (x, gate.theta, gate.delta))


def test_gradient_in_tau_is_the_dirichlet_pairing():
    """Proposition 1: dL/dtau at D -> 0 is -<v, (-Laplace)^(alpha/2) g>."""
    gate = FractionalHeat(alpha=0.75, initial_strength=1e-9).double()
    v, g = torch.randn(2, 1, 1, 6, 5, 4, dtype=torch.float64)
    (gate(v) * g).sum().backward()
    D, alpha = gate.delta.item(), 0.75
    in_tau = gate.delta.grad.item() / (alpha * D ** (alpha - 1))
    v_hat, g_hat = (scipy.fft.dctn(t.numpy(), type=2, norm="ortho", axes=(2, 3, 4)) for t in (v, g))
    pairing = float((frequency_radius(6, 5, 4) ** alpha * v_hat * g_hat).sum())
    assert in_tau == pytest.approx(-pairing, rel=1e-5)


def test_frozen_and_fixed_have_no_parameters():
    gate = FractionalHeat(alpha=0.5, strength=2.0)
    assert list(gate.parameters()) == []
    assert (gate.alpha.item(), gate.strength.item()) == (0.5, 2.0)
    assert gate.tau.item() == pytest.approx(math.sqrt(2))
    x = torch.randn(1, 2, 5, 4, 3, dtype=torch.float64)
    assert np.abs(gate(x).numpy() - by_definition(x.numpy(), 2.0, 0.5)).max() < 1e-12


def test_fixed_order_starts_and_stays_at_the_initial_one():
    gate = FractionalHeat(alpha="fixed")
    assert gate.theta is None
    assert gate.alpha.item() == pytest.approx(FractionalHeat().alpha.item())


def test_frozen_at_zero_is_closed_and_has_no_order_to_learn():
    gate = FractionalHeat(strength=0.0)
    x = torch.randn(1, 1, 4, 4, 4)
    assert gate.closed
    assert gate(x) is x
    assert list(gate.parameters()) == []


@pytest.mark.parametrize(("strength", "value"), [("softplus", 0.03), ("exp", 0.03), ("softplus", 5.0), ("exp", 5.0)])
def test_other_strengths_start_at_the_same_value_and_never_close(strength, value):
    gate = FractionalHeat(strength=strength, initial_strength=value)
    assert gate.strength.item() == pytest.approx(value, rel=1e-5)
    gate.delta.data.fill_(-150.0)
    assert gate.strength.item() == 0.0  # underflow; its logarithm is still -150 and the gate still learns
    assert not gate.closed
    x = torch.randn(1, 1, 6, 6, 6, dtype=torch.float64)
    (gate(x) ** 2).sum().backward()
    assert gate.delta.grad.item() < 0


def test_unbounded_order_passes_the_bound():
    gate = FractionalHeat(alpha="softplus", initial_theta=1.0)
    assert gate.alpha.item() == pytest.approx(0.3 + math.log1p(math.e), rel=1e-6)


def train(gate, wanted, steps, rate=0.01):
    """AdamW with decay on a loss that falls with D where `wanted(step)` > 0 and grows with it where < 0."""
    optimiser = torch.optim.AdamW(gate.parameters(), lr=rate, weight_decay=1e-4)
    x = torch.randn(1, 2, 6, 6, 6)
    history = []
    for step in range(steps):
        optimiser.zero_grad()
        (wanted(step) * (gate(x).square().mean() - gate.strength)).backward()
        optimiser.step()
        history.append(gate.strength.item())
    return history


@pytest.mark.parametrize("rate", [1e-3, 1e-2, 1.0])
def test_zero_is_absorbing_for_relu_under_adamw(rate):
    gate = FractionalHeat()
    history = train(gate, lambda step: -1.0 if step < 60 else 1e4, 1060, rate)
    crossing = history.index(0.0)
    assert crossing < 60
    assert history[crossing:] == [0.0] * (1060 - crossing)
    assert gate.delta.item() <= 0


def test_random_adversary_never_reopens_a_closed_gate():
    generator = torch.Generator().manual_seed(3)
    gate = FractionalHeat()
    gate.delta.data.fill_(-1e-12)
    history = train(gate, lambda _: 1e6 * torch.randn((), generator=generator).item(), 1000, 0.1)
    assert history == [0.0] * 1000


def test_softplus_comes_back():
    gate = FractionalHeat(strength="softplus")
    history = train(gate, lambda step: -1.0 if step < 300 else 1.0, 1000)
    assert min(history) < 0.01
    assert history[-1] > 0.1


@pytest.mark.parametrize("strength", [0.03, 1.0, 20.0])
def test_contraction(strength):
    assert_contraction(FractionalHeat(initial_strength=strength), (2, 3, 8, 6, 5))
    assert_contraction(closed(), (2, 3, 8, 6, 5))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_mixed_in_float32(half):
    gate = FractionalHeat(initial_strength=1.0)
    x = torch.randn(1, 2, 8, 8, 8).to(half)
    assert torch.equal(gate(x), gate(x.float()).to(half))


def test_autocast_does_not_reach_the_gate():
    gate = FractionalHeat(initial_strength=1.0)
    x = torch.randn(1, 2, 8, 8, 8)
    outside = gate(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(gate(x), outside)


def test_unbatched_input():
    gate = FractionalHeat(dims=2)
    x = torch.randn(3, 8, 6)
    assert torch.allclose(gate(x), gate(x[None])[0])


def test_multiplier():
    gate = FractionalHeat(dims=2, alpha=0.5, strength=4.0)
    expected = np.exp(-np.sqrt(4.0 * frequency_radius(6, 5)))
    assert np.abs(gate.multiplier((6, 5)).numpy() - expected).max() < 1e-6
    assert torch.equal(closed(dims=2).multiplier((6, 5)), torch.ones(6, 5))
    assert torch.equal(FractionalHeat(dims=2, strength=0.0).multiplier((6, 5)), torch.ones(6, 5))


def test_retire_removes_parameters_and_remembers_the_order():
    gate = closed()
    alpha = gate.alpha.item()
    gate.retire()
    x = torch.randn(1, 1, 4, 4, 4)
    assert gate.retired
    assert gate.closed
    assert gate(x) is x
    assert list(gate.parameters()) == []
    assert gate.alpha.item() == pytest.approx(alpha)
    assert gate.strength.item() == gate.tau.item() == 0.0


def test_retire_refuses_an_open_gate():
    gate = FractionalHeat()
    with pytest.raises(ValueError, match="the gate is open"):
        gate.retire()
    assert not gate.retired


def test_gates_travel_between_processes():
    for strength, alpha in itertools.product(("relu", "softplus", "exp", 0.5, 0.0), ("bounded", "softplus", 0.7)):
        gate = FractionalHeat(strength=strength, alpha=alpha)
        again = pickle.loads(pickle.dumps(gate))
        x = torch.randn(1, 2, 5, 4, 3)
        assert torch.equal(again(x), gate(x))


def test_retired_gate_has_no_strength_to_set():
    gate = closed()
    gate.retire()
    with pytest.raises(ValueError, match="the gate is retired"):
        gate.set_strength(1.0)


def test_set_strength_inverts_every_kind():
    for kind in ("relu", "softplus", "exp", 0.5):
        gate = FractionalHeat(strength=kind)
        gate.set_strength(1.75)
        assert gate.strength.item() == pytest.approx(1.75)


BAD_INPUT = [
    ({}, torch.randn(4, 4, 4), ValueError, "x has 3 axes"),
    ({}, torch.randn(1, 1, 1, 4, 4, 4), ValueError, "x has 6 axes"),
    ({"size": (4, 4, 4)}, torch.randn(1, 1, 4, 4, 5), ValueError, "size=(4, 4, 4)"),
    ({}, torch.ones(1, 1, 4, 4, 4, dtype=torch.int32), TypeError, "x.float()"),
    ({}, torch.ones(1, 1, 4, 4, 4, dtype=torch.complex64), TypeError, "dtype"),
    ({}, torch.ones(1, 1, 4, 0, 4), ValueError, "empty axis"),
]


@pytest.mark.parametrize(("options", "x", "error", "says"), BAD_INPUT)
def test_refuses_input(options, x, error, says):
    with pytest.raises(error) as caught:
        FractionalHeat(**options)(x)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_ARGUMENTS = [
    ({"size": (4, 4)}, "dims=3"),
    ({"size": (4, 0, 4)}, "size=(4, 0, 4)"),
    ({"size": -1}, "size=(-1, -1, -1)"),
    ({"size": (4.0, 4, 4)}, "size="),
    ({"size": 4.0}, "size=4.0"),
    ({"dims": 4}, "dims=4"),
    ({"alpha": "linear"}, "alpha='linear'"),
    ({"alpha": 2.5}, "alpha=2.5"),
    ({"alpha": 0.0}, "alpha=0.0"),
    ({"alpha": math.nan}, "alpha=nan"),
    ({"strength": -0.1}, "strength=-0.1"),
    ({"strength": math.nan}, "strength=nan"),
    ({"strength": "sigmoid"}, "strength='sigmoid'"),
    ({"initial_theta": math.nan}, "initial_theta=nan"),
    ({"initial_strength": math.nan}, "initial_strength=nan"),
    ({"initial_strength": -1.0}, "initial_strength=-1.0"),
    ({"strength": "exp", "initial_strength": 0.0}, "a strength of 0.0 cannot be reached"),
    ({"initial_strength": 1e300}, "initial_strength=1e+300"),
    ({"transform": "wavelet"}, "transform='wavelet'"),
]


@pytest.mark.parametrize(("options", "says"), BAD_ARGUMENTS)
def test_refuses_arguments(options, says):
    with pytest.raises(ValueError) as caught:
        FractionalHeat(**options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["theta", "delta"])
@pytest.mark.parametrize(("value", "shown"), [(math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "infinite")])
def test_parameters_that_are_no_numbers_are_named(name, value, shown):
    gate = FractionalHeat()
    getattr(gate, name).data.fill_(value)
    x = torch.randn(1, 1, 4, 4, 4)
    with pytest.raises(ValueError, match=f"{name} of this FractionalHeat is {shown}: training diverged"):
        gate(x)
    with pytest.raises(ValueError, match=f"{name} of this FractionalHeat is {shown}"):
        _ = gate.closed


def test_size_takes_any_whole_numbers():
    assert FractionalHeat(size=np.int64(4)).size == (4, 4, 4)
    assert FractionalHeat(size=[np.int32(4), 5, 6]).size == (4, 5, 6)


@pytest.mark.parametrize("name", ["theta", "delta"])
def test_nan_parameters_never_pass_as_closed_where_nobody_looks(name):
    gate = FractionalHeat()
    x = torch.randn(1, 1, 4, 4, 4)
    broken = {"theta": gate.theta.detach().clone(), "delta": gate.delta.detach().clone(), name: torch.tensor(math.nan)}
    assert torch.func.functional_call(gate, broken, (x,)).isnan().all()

"""The theory, as properties over random grids, orders and strengths, in float64."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from fheat import FractionalHeat, compose

grids = st.lists(st.integers(1, 9), min_size=1, max_size=3)
orders = st.floats(0.05, 2.0)
strengths = st.floats(0.0, 30.0)
seeds = st.integers(0, 2**31)


def gate_of(grid, alpha, strength):
    return FractionalHeat(dims=len(grid), alpha=alpha, strength=strength)


def draw(grid, seed):
    return torch.randn(1, 2, *grid, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(grids, orders, strengths, strengths, seeds)
def test_semigroup(grid, alpha, first, second, seed):
    """T_tau1 T_tau2 = T_(tau1 + tau2), and `compose` builds the right-hand side."""
    x = draw(grid, seed)
    one, two = gate_of(grid, alpha, first), gate_of(grid, alpha, second)
    in_turn = one(two(x))
    at_once = gate_of(grid, alpha, (first**alpha + second**alpha) ** (1 / alpha))(x)
    assert (in_turn - at_once).abs().max() < 1e-9
    assert (in_turn - compose([one, two])(x)).abs().max() < 1e-5


@given(grids, orders, strengths, strengths, seeds)
def test_gates_commute(grid, alpha, first, second, seed):
    x = draw(grid, seed)
    one, two = gate_of(grid, alpha, first), gate_of(grid, 2.05 - alpha, second)
    assert (one(two(x)) - two(one(x))).abs().max() < 1e-10


@given(grids, orders, strengths, seeds)
def test_norm_is_never_amplified_and_shrinks_off_the_mean(grid, alpha, strength, seed):
    x = draw(grid, seed)
    gate = gate_of(grid, alpha, strength)
    assert gate(x).norm() <= x.norm() * (1 + 1e-12)
    axes = tuple(range(2, x.ndim))
    fluctuation = x - x.mean(dim=axes, keepdim=True)
    slowest = math.pi / max(grid)
    bound = math.exp(-((strength * slowest) ** alpha))
    assert gate(fluctuation).norm() <= bound * fluctuation.norm() + 1e-10
    if math.prod(grid) > 1 and bound < 1 - 1e-9:
        assert gate(fluctuation).norm() < fluctuation.norm()


@given(grids, strengths, orders)
def test_operator_norm_is_one_and_its_square_root_is_positive(grid, strength, alpha):
    """Eigenvalues are the multiplier: in (0, 1], one exactly at the constant mode, and only there when open."""
    multiplier = (
        gate_of(grid, alpha, strength)._multiplier(tuple(grid), torch.empty((), dtype=torch.float64))[0]
        if (strength > 0)
        else gate_of(grid, alpha, strength).multiplier(grid)
    )
    flat = multiplier.flatten()
    assert flat[0] == 1
    assert (flat <= 1).all()
    largest = (strength * math.pi * math.sqrt(len(grid))) ** alpha
    if largest < 700:  # beyond, exp(-largest) is below the smallest float64
        assert (flat > 0).all()
    if strength > 1e-3 and alpha > 0.1:
        assert (flat[1:] < 1).all()


@given(grids, orders, strengths, seeds)
def test_mean_is_preserved(grid, alpha, strength, seed):
    x = draw(grid, seed)
    axes = tuple(range(2, x.ndim))
    assert (gate_of(grid, alpha, strength)(x).mean(dim=axes) - x.mean(dim=axes)).abs().max() < 1e-12


@given(grids, orders, strengths, seeds, seeds)
def test_self_adjoint_and_linear(grid, alpha, strength, seed, other):
    x, y = draw(grid, seed), draw(grid, other)
    gate = gate_of(grid, alpha, strength)
    assert abs(((gate(x) * y).sum() - (x * gate(y)).sum()).item()) < 1e-9
    assert (gate(2 * x - 3 * y) - (2 * gate(x) - 3 * gate(y))).abs().max() < 1e-10


@given(grids, orders, st.floats(0.01, 10.0), st.floats(1.01, 3.0), seeds)
def test_stronger_means_smoother(grid, alpha, strength, factor, seed):
    x = draw(grid, seed)
    weak, strong = gate_of(grid, alpha, strength)(x), gate_of(grid, alpha, factor * strength)(x)
    assert strong.norm() <= weak.norm() * (1 + 1e-12)


@given(grids, orders, strengths, seeds)
def test_reflection_commutes(grid, alpha, strength, seed):
    """Neumann boundaries have no preferred direction."""
    x = draw(grid, seed)
    gate = gate_of(grid, alpha, strength)
    assert (gate(x.flip(-1)) - gate(x).flip(-1)).abs().max() < 1e-10

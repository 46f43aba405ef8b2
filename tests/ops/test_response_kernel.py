"""The multiplier of a gate by kernels, against the plain gate in float64."""

import pytest
import torch

from fheat import FractionalHeat
from fheat.nn.fused import run_fused
from fheat.ops import kernels
from fheat.ops.kernels import response as room
from fheat.ops.resolvent import TikhonovResolvent
from tests.ops.compare import error

GRIDS = [(3, 4, 5), (1, 1, 7), (17, 9, 8)]


def gate_of(delta, theta=-2.0):
    gate = FractionalHeat(initial_theta=theta)
    with torch.no_grad():
        gate.delta.fill_(delta)
    return gate


def asleep():
    gate = gate_of(-1.0)
    gate.sleep()
    return gate


def retired():
    gate = gate_of(-1.0)
    gate.retire()
    return gate


def plain(gate, grid, weights):
    """Return the multiplier and the gradients to theta and delta by the definition in float64."""
    twin = gate_of(gate.delta.item(), gate.theta.item()).double()
    multiplier, closed = twin.response(grid, torch.empty((), dtype=torch.float64))
    (multiplier * weights.double()).sum().backward()
    return multiplier, closed, twin.theta.grad, twin.delta.grad


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("delta", [0.0003, 0.03, 1.2, 40.0])
@pytest.mark.parametrize("theta", [-2.0, 3.0])
def test_an_open_gate(grid, delta, theta, monkeypatch, poisoned):
    monkeypatch.setattr(room, "_BLOCK", 64)
    monkeypatch.setattr(room, "_BLOCK_OF_SUMS", 128)
    torch.manual_seed(0)
    gate, weights = gate_of(delta, theta), torch.randn(grid)
    multiplier, closed = room.response(gate.theta, gate.delta, grid)
    (multiplier * weights).sum().backward()
    expected, _, theta_gradient, delta_gradient = plain(gate, grid, weights)
    assert not closed
    assert multiplier.flatten()[0] == 1
    assert error(multiplier, expected) < 1e-6
    assert error(gate.theta.grad, theta_gradient) < 1e-5
    assert error(gate.delta.grad, delta_gradient) < 1e-5


@pytest.mark.parametrize("delta", [0.0, -0.0, -0.7])
def test_a_closed_gate_is_one_everywhere_and_learns_nothing(delta):
    gate, grid = gate_of(delta), (5, 3, 2)
    multiplier, closed = room.response(gate.theta, gate.delta, grid)
    (multiplier * torch.randn(grid)).sum().backward()
    assert closed
    assert torch.equal(multiplier, torch.ones(grid))
    assert gate.theta.grad == 0
    assert gate.delta.grad == 0


def test_beyond_the_largest_exponent_nothing_is_kept_and_nothing_learned():
    gate, grid = gate_of(1e30, 5.0), (4, 3, 2)
    multiplier, _ = room.response(gate.theta, gate.delta, grid)
    multiplier.sum().backward()
    assert multiplier.flatten()[0] == 1
    assert multiplier.flatten()[1:].max() == 0
    assert gate.theta.grad == 0
    assert gate.delta.grad == 0


@pytest.mark.parametrize("name", ["theta", "delta"])
def test_nan_in_a_parameter_arrives_in_the_multiplier(name):
    gate = gate_of(0.5)
    with torch.no_grad():
        getattr(gate, name).fill_(float("nan"))
    multiplier, closed = room.response(gate.theta, gate.delta, (2, 3, 4))
    assert not closed
    assert multiplier.flatten()[1:].isnan().all()


@pytest.mark.parametrize(
    ("gate", "by_kernel"),
    [
        (FractionalHeat(), True),
        (FractionalHeat(size=(2, 3, 4)), True),
        (FractionalHeat().double(), False),
        (FractionalHeat(alpha=0.5), False),
        (FractionalHeat(alpha="softplus"), False),
        (FractionalHeat(strength="exp"), False),
        (FractionalHeat(strength=0.5), False),
        (TikhonovResolvent(), False),
        (type("Own", (FractionalHeat,), {})(), False),
        (asleep(), False),
        (retired(), False),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_only_the_gate_of_the_paper_has_this_kernel(gate, by_kernel, monkeypatch):
    called = []
    monkeypatch.setattr(room, "response", lambda *_: called.append(1) or (None, None))
    room.response_of(gate, (2, 3, 4), torch.empty(()))
    assert bool(called) is by_kernel


def test_a_gate_for_another_grid_is_refused():
    gate = FractionalHeat(size=(2, 3, 5))
    with kernels.use("always"), pytest.raises(ValueError, match=r"this gate was built for size=\(2, 3, 5\)"):
        run_fused(torch.zeros(1, 4, 2, 3, 4), [], gate)


class Nothing(torch.autograd.Function):
    """Returns its input, and passes no gradient on."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def test_where_no_gradient_arrives_none_is_passed_on():
    gate, x = gate_of(0.5), torch.randn(3, requires_grad=True)
    multiplier, _ = room.response(gate.theta, gate.delta, (2, 3, 4))
    (Nothing.apply(multiplier).sum() + x.sum()).backward()
    assert gate.theta.grad is None
    assert gate.delta.grad is None
    assert torch.equal(x.grad, torch.ones(3))

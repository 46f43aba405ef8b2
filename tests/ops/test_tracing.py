"""Gate and transform inside torch.compile, torch.export, torch.func, a trace for OpenVINO, and on the meta device."""

import pytest
import torch

from fheat import FractionalHeat
from fheat.inference.compilers import openvino_model
from fheat.ops import Rational, dct, idct
from fheat.ops.dct import _BUILT


def prepare(gate, x, cold):
    """Trace with no table built yet, or with all of them there."""
    _BUILT.clear()
    if not cold:
        gate(x)


@pytest.mark.slow
@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
@pytest.mark.parametrize("transform", ["product", "split"])
def test_compiles_without_graph_breaks(cold, transform):
    gate = FractionalHeat(initial_strength=0.8, transform=transform)
    x = torch.randn(1, 2, 6, 5, 4)
    prepare(gate, x, cold)
    torch._dynamo.reset()
    compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")
    assert (compiled(x) - gate(x)).abs().max() < 1e-5
    if cold:  # for another grid there is no table in either case
        other = torch.randn(2, 2, 7, 5, 4)
        assert (compiled(other) - gate(other)).abs().max() < 1e-5
    compiled(x).square().sum().backward()
    gradient = gate.delta.grad.clone()
    gate.delta.grad = None
    gate(x).square().sum().backward()
    assert gradient.item() == pytest.approx(gate.delta.grad.item(), rel=1e-4)


def test_compiled_closed_gate_is_still_the_identity():
    gate = FractionalHeat()
    gate.delta.data.fill_(-1.0)
    torch._dynamo.reset()
    x = torch.randn(1, 2, 6, 5, 4)
    assert torch.equal(torch.compile(gate, fullgraph=True, backend="aot_eager")(x), x)


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
@pytest.mark.parametrize("transform", ["product", "split", "fft"])
def test_exports(cold, transform):
    gate = FractionalHeat(initial_strength=0.8, transform=transform)
    x = torch.randn(1, 2, 6, 5, 4)
    prepare(gate, x, cold)
    program = torch.export.export(gate, (x,))
    assert torch.equal(program.module()(x), gate(x))
    assert all(type(table) is torch.Tensor for table in _BUILT.values())


def test_retired_gate_exports_to_nothing():
    gate = FractionalHeat(initial_strength=0.0)
    gate.retire()
    program = torch.export.export(gate, (torch.randn(1, 2, 6, 5, 4),))
    assert [node.op for node in program.graph.nodes] == ["placeholder", "output"]


@pytest.mark.parametrize("function", [dct, idct])
def test_transform_compiles(function):
    torch._dynamo.reset()
    x = torch.randn(2, 9, 8, 7)
    assert (torch.compile(function, fullgraph=True, backend="aot_eager")(x) - function(x)).abs().max() < 1e-5


def test_runs_without_values():
    gate = FractionalHeat().to("meta")
    assert gate(torch.empty(1, 2, 6, 5, 4, device="meta")).shape == (1, 2, 6, 5, 4)


def test_vectorises_over_an_ensemble_of_gates():
    gate = FractionalHeat()
    x = torch.randn(1, 2, 6, 5, 4)
    deltas = torch.tensor([-1.0, 0.03, 2.0])
    thetas = torch.tensor([0.0, -2.0, 1.0])
    together = torch.vmap(
        lambda theta, delta: torch.func.functional_call(gate, {"theta": theta, "delta": delta}, (x,))
    )(thetas, deltas)
    assert torch.equal(together[0], x)
    for index in (1, 2):
        gate.theta.data, gate.delta.data = thetas[index], deltas[index]
        assert torch.allclose(together[index], gate(x), atol=1e-6)


def test_rational_compiles_and_exports():
    torch._dynamo.reset()
    module = Rational(12)
    x = torch.randn(2, 12, 3, 4, 5)
    assert torch.allclose(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x), atol=1e-6)
    assert torch.equal(torch.export.export(module, (x,)).module()(x), module(x))


@pytest.mark.slow
def test_a_traced_gate_is_right_in_openvino():
    """OpenVINO takes one constant and its transpose for the same where a graph multiplies by both."""
    openvino = pytest.importorskip("openvino")
    gate, x = FractionalHeat(initial_strength=0.8).requires_grad_(False), torch.randn(1, 2, 6, 5, 4)
    run = openvino.Core().compile_model(openvino_model(gate, x), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert torch.allclose(torch.from_numpy(run(x.numpy())[0]), gate(x), atol=1e-5)

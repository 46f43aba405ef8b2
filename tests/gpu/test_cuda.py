"""What only a GPU can show: selection without asking the host, capture in a graph, agreement with the CPU."""

import copy

import pytest
import torch

from fheat import FractionalHeat, allocation, cost, create_model, retire
from fheat.ops import dct
from fheat.ops.gates import gates_of

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
PATCH = (48, 40, 32)


@pytest.fixture
def no_synchronisation():
    def watch():
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")

    yield watch
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_closed_gate_is_the_identity_bitwise(kind):
    gate = FractionalHeat().cuda()
    gate.delta.data.fill_(-0.5)
    for length in range(1, 65):
        x = torch.randn(1, 2, length, 1 + length % 7, 5, device="cuda").to(kind)
        assert torch.equal(gate(x), x)


@pytest.mark.parametrize("delta", [-0.5, 0.5])
def test_gate_never_asks_the_host(delta, no_synchronisation):
    gate = FractionalHeat().cuda()
    gate.delta.data.fill_(delta)
    x = torch.randn(2, 3, 14, 14, 10, device="cuda", requires_grad=True)
    gate(x).sum().backward()
    no_synchronisation()
    gate(x).sum().backward()


def test_network_never_asks_the_host(no_synchronisation):
    model = create_model("fheat_seg", patch_size=PATCH).cuda()
    x = torch.randn(2, 1, *PATCH, device="cuda")
    model(x).sum().backward()
    no_synchronisation()
    model(x).sum().backward()


def test_captured_gate_closes_during_replay():
    """A CUDA graph captured with an open gate turns into the exact identity when delta crosses zero."""
    gate = FractionalHeat(initial_strength=0.5).cuda()
    x = torch.randn(1, 2, 12, 10, 8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gate(x).square().sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    gate.zero_grad(set_to_none=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gate.zero_grad(set_to_none=False)
        y = gate(x)
        y.square().sum().backward()
    graph.replay()
    assert torch.allclose(y, gate(x), atol=1e-6)
    assert gate.delta.grad.item() != 0
    gate.delta.data.fill_(-1e-3)
    y.fill_(float("nan"))
    graph.replay()
    assert torch.equal(y, x)
    assert gate.delta.grad.item() == 0
    assert gate.theta.grad.item() == 0


@pytest.mark.parametrize("transform", ["product", "split", "fft"])
@pytest.mark.parametrize("grid", [(28, 28, 20), (7, 7, 5), (4, 4, 3), (64, 1, 33)])
def test_transform_agrees_with_the_cpu(transform, grid):
    x = torch.randn(2, 3, *grid, dtype=torch.float64)
    exact = dct(x, transform="product")
    assert (dct(x.cuda(), transform=transform).cpu() - exact).abs().max() < 1e-11
    assert (dct(x.float().cuda(), transform=transform).cpu() - exact).abs().max() < 1e-5


def test_gradients_agree_with_the_cpu():
    gate = FractionalHeat(initial_strength=0.7)
    twin = copy.deepcopy(gate).cuda()
    x, weight = torch.randn(2, 1, 3, 9, 8, 7, dtype=torch.float64)
    (gate(x) * weight).sum().backward()
    (twin(x.cuda()) * weight.cuda()).sum().backward()
    assert gate.theta.grad.item() == pytest.approx(twin.theta.grad.item(), rel=1e-6)
    assert gate.delta.grad.item() == pytest.approx(twin.delta.grad.item(), rel=1e-6)


@pytest.mark.parametrize("name", ["fheat_seg", "fheat_seg_l"])
def test_retirement_is_exact(name):
    model = create_model(name, patch_size=PATCH).cuda().eval()
    for gate in list(gates_of(model).values())[:-1]:
        gate.delta.data.fill_(-0.1)
    small = retire(model)
    x = torch.randn(2, 1, *PATCH, device="cuda")
    with torch.no_grad():
        assert torch.equal(small(x), model(x))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.equal(small(x), model(x))
    assert len(allocation(small).open) == 1
    assert cost(small).macs < cost(create_model(name, patch_size=PATCH)).macs


def test_bf16_autocast_stays_close():
    model = create_model("fheat_seg", patch_size=PATCH).cuda().eval()
    x = torch.randn(1, 1, *PATCH, device="cuda")
    with torch.no_grad():
        full = model(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            half = model(x).float()
    assert (half - full).norm() < 0.1 * full.norm()

"""Work on a stream beside the current one: its results are right, eagerly and in a graph, however memory is reused."""

import pytest
import torch

from fheat.ops import kernels
from fheat.system.capture import beside, capture, rehearse
from tests.gpu.test_training_cuda import build, losses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def work(x):
    """Compute 64 x beside other work that takes memory and gives it back; return it, and the same without streams."""
    source = 2 * x

    def long():
        total = torch.zeros_like(source)
        for _ in range(32):
            total = total + source.clone()
        return total

    join = beside(long, x.device)
    del long
    for _ in range(64):
        torch.full_like(x, float("nan")).mul_(2)
    return join(), 64 * x


def test_work_beside_other_work_eagerly_and_captured():
    x = torch.zeros(2**22, device="cuda")
    for value in range(1, 4):
        x.fill_(value)
        found, expected = work(x)
        assert torch.equal(found, expected)
    rehearse(lambda: work(x))
    graph, (found, expected) = capture(lambda: work(x))
    for value in range(1, 6):
        x.fill_(value)
        graph.replay()
        assert torch.equal(found, expected)
        assert found[0].item() == 64 * value


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_iterations_of_cse_by_kernels_are_the_plain_ones(precision):
    with kernels.use("never"), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        plain = losses(build(8, precision), 8)
    step = build(8, precision)
    found = losses(step, 8)
    assert torch.isfinite(found).all()
    assert torch.allclose(found[:1], plain[:1], rtol=1e-2, atol=1e-3)
    if precision == torch.float32:
        assert torch.allclose(found[:1], plain[:1], rtol=1e-3, atol=1e-4)
        # Only the losses, not the strengths: AdamW's first updates are as large as the rate, however small the gradient
        # is, so rounding may push a gate whose gradient is nearly 0 either way.
        count = len(step.method.names)
        assert torch.allclose(found[:6, :count], plain[:6, :count], rtol=2e-2, atol=2e-3)

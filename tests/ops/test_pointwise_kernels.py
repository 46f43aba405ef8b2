"""Convolutions from one channel or to few, and the norm of each channel, in Triton's interpreter: against float64."""

import pytest
import torch
import torch.nn.functional as F

from fheat.nn.convolutions import Pointwise3d
from fheat.nn.layers import EachChannelNorm
from fheat.ops import kernels
from fheat.ops.kernels import launch
from tests.ops.compare import error

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)

CASES = [
    (1, 32, 2, (3, 4, 5)),
    (2, 5, 1, (7, 3, 9)),
    (2, 20, 4, (1, 1, 1)),
    (2, 1, 32, (3, 4, 9)),
    (1, 1, 5, (2, 2, 1)),
]
"""Samples, channels before and behind, grid."""

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """Few programs, so that some walk several tiles."""
    monkeypatch.setattr(launch, "PROGRAMS", 2)


@pytest.fixture
def calls(monkeypatch):
    """Count of the convolutions that ran by kernels."""
    found = []
    passed = Pointwise3d._passed
    monkeypatch.setattr(Pointwise3d, "_passed", lambda self, x: found.append(1) or passed(self, x))
    return found


@pytest.mark.parametrize("half", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize(("samples", "before", "behind", "grid"), CASES)
def test_the_convolution_and_its_gradients(samples, before, behind, grid, half, calls):
    convolution = Pointwise3d(before, behind)
    x = torch.randn(samples, before, *grid, requires_grad=before > 1)
    inputs = [x, convolution.weight, convolution.bias] if before > 1 else [convolution.weight, convolution.bias]
    exact = [value.detach().double().requires_grad_() for value in (x, convolution.weight, convolution.bias)]
    expected = F.conv3d(*exact)
    slope = torch.randn(expected.shape).half().float()  # so that gradients are not rounded on their way
    with kernels.use("always"), torch.autocast("cpu", torch.float16, enabled=half):
        found = convolution(x)
    rounds = half and before > 1
    assert calls
    assert found.dtype == (torch.float16 if rounds else torch.float32)
    assert error(found, expected) < (1e-3 if rounds else 1e-6)
    slopes = torch.autograd.grad((found.float() * slope).sum(), inputs)
    others = torch.autograd.grad((expected * slope).sum(), exact[-len(inputs) :])
    for one, other in zip(slopes, others, strict=True):
        assert error(one, other) < 1e-5


def test_other_convolutions_are_products(calls):
    with kernels.use("always"):
        Pointwise3d(8, 5)(torch.randn(1, 8, 2, 2, 2))
        Pointwise3d(8, 2, stride=2)(torch.randn(1, 8, 2, 2, 2))
        Pointwise3d(8, 2, bias=False)(torch.randn(1, 8, 2, 2, 2))
        Pointwise3d(1, 8)(torch.randn(1, 1, 2, 2, 2, requires_grad=True))
    assert not calls


@pytest.mark.parametrize("half", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize(
    ("samples", "channels", "grid"), [(2, 5, (3, 4, 9)), (1, 66, (2, 3, 2)), (2, 20, (5, 6, 5)), (1, 150, (9, 5, 5))]
)
def test_the_norm_of_each_channel_and_its_gradients(samples, channels, grid, half):
    norm = EachChannelNorm(channels)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    x = (3 + 2 * torch.randn(samples, channels, *grid)).requires_grad_()
    inputs = [x, norm.weight, norm.bias]
    exact = [value.detach().double().requires_grad_() for value in inputs]
    expected = F.group_norm(exact[0], channels, exact[1], exact[2], norm.eps)
    slope = torch.randn(expected.shape).half().float()  # so that gradients are not rounded on their way
    with kernels.use("always"), torch.autocast("cpu", torch.float16, enabled=half):
        found = norm(x)
    assert found.dtype == (torch.float16 if half else torch.float32)
    assert error(found, expected) < (1e-3 if half else 1e-6)
    slopes = torch.autograd.grad((found.float() * slope).sum(), inputs)
    for one, other in zip(slopes, torch.autograd.grad((expected * slope).sum(), exact), strict=True):
        assert error(one, other) < 1e-5


@pytest.mark.parametrize(("channels", "dtype"), [(257, torch.float32), (5, torch.float16)], ids=["wide", "half"])
def test_other_norms_of_each_channel_run_plain(channels, dtype):
    norm, x = EachChannelNorm(channels).to(dtype), torch.randn(1, channels, 2, 1, 2, dtype=dtype)
    with kernels.use("always"):
        assert torch.equal(norm(x), F.group_norm(x, channels, norm.weight, norm.bias, norm.eps))

"""The stem's convolution kernels in Triton's interpreter, small shapes, outputs poisoned: against float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat.nn.convolutions import SmallConv3d
from fheat.nn.layers import Stem
from fheat.ops import kernels
from fheat.ops.kernels import launch
from tests.ops.compare import error

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)

CASES = [
    (1, 1, 5, (4, 3, 5)),
    (2, 3, 12, (5, 6, 3)),
    (1, 6, 12, (9, 8, 7)),
    (3, 6, 5, (1, 2, 3)),
    (2, 1, 12, (2, 1, 2)),
    (1, 3, 5, (1, 1, 1)),
    (1, 2, 40, (2, 5, 1)),
]


@pytest.fixture(autouse=True)
def _few_programs(poisoned, monkeypatch):
    """Few programs, so that some walk several tiles."""
    monkeypatch.setattr(launch, "PROGRAMS", 6)


def convolved(x, convolution, slope, mode):
    """Return the output and the gradients of input and weights."""
    x = x.clone().requires_grad_()
    with kernels.use(mode):
        out = convolution(x)
    return out, *torch.autograd.grad((out * slope).sum(), [x, *convolution.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("samples", "channels", "out_channels", "grid"), CASES)
def test_the_convolution_and_its_gradients(samples, channels, out_channels, grid, stride):
    convolution = SmallConv3d(channels, out_channels, stride)
    x = torch.randn(samples, channels, *grid)
    exact_x, exact_weight = x.double().requires_grad_(), convolution.weight.detach().double().requires_grad_()
    expected = F.conv3d(exact_x, exact_weight, stride=stride, padding=1)
    slope = torch.randn(expected.shape)
    expected_slopes = torch.autograd.grad((expected * slope).sum(), [exact_x, exact_weight])
    for one, other in zip(convolved(x, convolution, slope, "always"), (expected, *expected_slopes), strict=True):
        assert one.shape == other.shape
        assert error(one, other) < 1e-5


@pytest.mark.parametrize("stride", [1, 2])
def test_under_autocast_operands_are_rounded_and_sums_are_not(stride):
    """In fp16: the interpreter multiplies the bit patterns of bf16."""
    convolution, x = SmallConv3d(6, 12, stride), torch.randn(1, 6, 5, 4, 5)
    exact = convolved(x, convolution, 1.0, "never")
    with torch.autocast("cpu", torch.float16):
        found = convolved(x, convolution, 1.0, "always")
    assert all(one.dtype == torch.float32 for one in found)
    assert all(1e-5 < error(one, other) < 5e-4 for one, other in zip(found, exact, strict=True))


def test_results_repeat_bit_by_bit():
    convolution, x = SmallConv3d(3, 5, 2), torch.randn(2, 3, 11, 9, 8)
    first, again = (convolved(x, convolution, 0.3, "always") for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_the_output_lies_channels_last_and_an_image_gets_no_gradient():
    convolution, x = SmallConv3d(1, 5), torch.randn(2, 1, 3, 4, 2)
    with kernels.use("always"):
        out = convolution(x)
    assert out.permute(0, 2, 3, 4, 1).is_contiguous()
    assert out.grad_fn is not None
    out.sum().backward()
    assert x.grad is None
    assert torch.isfinite(convolution.weight.grad).all()


def test_any_layout_of_input_and_weights_will_do():
    convolution, x = SmallConv3d(3, 5, 2), torch.randn(2, 3, 4, 5, 3)
    expected = convolution(x)
    convolution = convolution.to(memory_format=torch.channels_last_3d)
    with kernels.use("always"):
        found = convolution(x.transpose(2, 4).contiguous().transpose(2, 4))
    assert error(found, expected) < 1e-5


def test_its_parameters_are_those_of_a_plain_convolution():
    convolution, plain = SmallConv3d(3, 5, 2), nn.Conv3d(3, 5, 3, stride=2, padding=1, bias=False)
    plain.load_state_dict(convolution.state_dict())
    x = torch.randn(1, 3, 4, 5, 6)
    assert torch.equal(convolution(x), plain(x))
    with pytest.raises(ValueError, match="stride=3"):
        SmallConv3d(1, 1, 3)


def test_the_stem_is_the_same_with_and_without_kernels():
    stem, x = Stem(1, 24), torch.randn(2, 1, 9, 10, 11)
    slope = torch.randn(2, 24, 3, 3, 3)
    fused, plain = (convolved(x, stem, slope, mode) for mode in ("always", "never"))
    assert all(error(one, other) < 1e-5 for one, other in zip(fused, plain, strict=True))

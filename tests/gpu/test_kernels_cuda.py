"""Fused kernels on a GPU, at the shapes of FHEAT-Seg: against float64 and the plain twins, in float32 and bf16."""

from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F

from fheat import create_model
from fheat.networks.large_u import ConvBlock, ConvDown, ConvUp
from fheat.nn.blocks import FHEATStage
from fheat.nn.convolutions import DepthwiseConv3d, PatchTransposed3d, SmallConv3d
from fheat.nn.layers import Down, Stem, Up
from fheat.nn.light_attention import GatedMixer
from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels import widen_tiles
from fheat.ops.largest_component import largest_component

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PATCH = (112, 112, 80)


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.fixture(scope="module")
def networks():
    return pair("fheat_seg")


def pair(name, **options):
    torch.manual_seed(0)
    options |= {"dropout": 0.0} if name in ("fheat_seg", "light_unetr") else {}
    model, exact = (create_model(name, patch_size=PATCH, **options).cuda() for _ in range(2))
    exact.load_state_dict(model.state_dict())
    return model, exact.double()


def logits_and_gradients(model, x, weights, mode, half):
    """Return the logits and the gradient of each parameter; single numbers of one kind, such as the `delta` of all
    gates, are one gradient."""
    model.zero_grad()
    with kernels.use(mode):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            logits = model(x)
        (logits.double() * weights).sum().backward()
    gradients, numbers = [], defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.numel() == 1:
            numbers[name.split(".")[-1]].append(parameter.grad.flatten())
        else:
            gradients.append(parameter.grad)
    return logits.detach(), *gradients, *map(torch.cat, numbers.values())


def assert_as_exact(fused, plain, expected, half, times=1.2):
    """Compare logits and all gradients together, `times` the error of plain code at most, and then each gradient by its
    own size.

    The latter with more room, as a few numbers may happen to be exact in plain code. Where a gradient is zero but for
    rounding, as that of a bias before a norm, or a sum in which much cancels, as those of gates, the largest one is its
    measure: in bfloat16 the noise of such a bias was 0.2 % of that.
    """
    together = [(logits, torch.cat([one.flatten() for one in rest])) for logits, *rest in (fused, plain, expected)]
    for one, other, truth in zip(*together, strict=True):
        assert torch.isfinite(one).all()
        assert error(one, truth) < times * error(other, truth) + 1e-5
    largest = max(truth.norm() for truth in expected[1:])
    for index, (one, other, truth) in enumerate(zip(fused, plain, expected, strict=True)):
        off, plain_off = ((found.double() - truth).norm() for found in (one, other))
        room = 3e-2 * truth.norm() + 3e-3 * largest if half else 1e-4 * (truth.norm() + 1e-3 * largest)
        assert off < 3 * plain_off + room, f"gradient {index - 1}"


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fheat_seg", {}),
        ("fheat_seg", {"mixer": "gelu"}),
        ("fheat_seg", {"kan_ratio": 2}),
        ("light_unetr", {}),
        ("fheat_seg_l", {}),
        ("segformer3d", {}),
        ("fheat_segformer3d", {}),
    ],
    ids=["fheat_seg", "gelu", "ratio", "light_unetr", "fheat_seg_l", "segformer3d", "fheat_segformer3d"],
)
def test_the_network_is_as_exact_as_the_plain_one(name, options, half):
    model, exact = pair(name, **options)
    x, weights = torch.randn(2, 1, *PATCH, device="cuda"), torch.randn(2, 2, *PATCH, device="cuda")
    expected = logits_and_gradients(exact, x.double(), weights, "never", False)
    plain = logits_and_gradients(model, x, weights, "never", half)
    fused = logits_and_gradients(model, x, weights, "auto", half)
    assert_as_exact(fused, plain, expected, half)


def test_results_repeat_bit_by_bit(networks):
    stage = networks[0].dec2
    assert isinstance(stage, FHEATStage)
    x = torch.randn(2, 48, 14, 14, 10, device="cuda")
    found = []
    for _ in range(3):
        stage.zero_grad()
        stage(x).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in stage.blocks.parameters()])
    for again in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], again, strict=True))


def test_the_largest_component_equals_its_twin():
    masks = torch.stack(
        [F.avg_pool3d(torch.randn(1, 1, *PATCH, device="cuda"), 7, 1, 3)[0, 0] > cut for cut in (0.0, 0.02, 0.06)]
    )
    with kernels.use("never"):
        plain = largest_component(masks)
    assert torch.equal(largest_component(masks), plain)
    assert not largest_component(torch.zeros_like(masks)).any()


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(("channels", "out_channels", "stride"), [(1, 6, 2), (6, 12, 2), (12, 24, 1)])
@pytest.mark.parametrize("grid", [(28, 27, 20), (1, 1, 1), (2, 9, 1)])
def test_the_convolutions_of_the_stem(channels, out_channels, stride, grid, half):
    convolution = SmallConv3d(channels, out_channels, stride).cuda()
    x = torch.randn(3, channels, *grid, device="cuda", requires_grad=True)
    exact_x, exact_weight = (value.detach().double().requires_grad_() for value in (x, convolution.weight))
    expected = F.conv3d(exact_x, exact_weight, stride=stride, padding=1)
    slope = torch.randn_like(expected)
    expected_slopes = torch.autograd.grad((expected * slope).sum(), [exact_x, exact_weight])
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        found = convolution(x)
    slopes = torch.autograd.grad((found * slope).sum(), [x, convolution.weight])
    for one, other in zip((found, *slopes), (expected, *expected_slopes), strict=True):
        assert error(one, other) < (1e-2 if half else 1e-5)


@pytest.mark.parametrize(
    ("samples", "channels", "grid"), [(6, 32, (57, 54, 41)), (6, 60, (29, 28, 19)), (2, 96, (4, 4, 3))]
)
def test_depthwise_convolutions_of_large_and_small_grids(samples, channels, grid):
    convolution = DepthwiseConv3d(channels).cuda()
    x = torch.randn(samples, channels, *grid, device="cuda", requires_grad=True)
    inputs = [x, convolution.weight, convolution.bias]
    exact = [value.detach().double().requires_grad_() for value in inputs]
    expected = F.conv3d(*exact, padding=1, groups=channels)
    slope = torch.randn_like(expected)
    found = convolution(x)
    slopes = torch.autograd.grad((found * slope).sum(), inputs)
    for one, other in zip(
        (found, *slopes), (expected, *torch.autograd.grad((expected * slope).sum(), exact)), strict=True
    ):
        assert error(one, other) < 1e-5


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("samples", "channels", "grid"), [(6, 24, (28, 28, 20)), (6, 48, (14, 14, 10)), (2, 96, (4, 4, 3))]
)
def test_the_gated_mixer_with_its_residual(samples, channels, grid, half):
    torch.manual_seed(0)
    mixer, exact = GatedMixer(channels).cuda(), GatedMixer(channels).cuda().double()
    exact.load_state_dict(mixer.state_dict())
    x = torch.randn(samples, channels, *grid, device="cuda", requires_grad=True)
    exact_x, slope = x.detach().double().requires_grad_(), torch.randn(x.shape, device="cuda")
    expected = torch.autograd.grad((exact.added_to(exact_x) * slope).sum(), [exact_x, *exact.parameters()])
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        out = mixer.added_to(x)
    found = torch.autograd.grad((out * slope).sum(), [x, *mixer.parameters()])
    assert all(error(one, other) < (2e-2 if half else 1e-4) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("build", "channels", "grid"),
    [
        (lambda: ConvBlock(32), 32, (28, 27, 20)),
        (lambda: ConvBlock(60), 60, (14, 15, 10)),
        (lambda: ConvDown(32, 60), 32, (28, 26, 20)),
        (lambda: ConvDown(60, 96), 60, (14, 14, 10)),
        (lambda: ConvUp(60, 32), 60, (14, 13, 10)),
    ],
    ids=["block", "wide block", "down", "wide down", "up"],
)
@pytest.mark.parametrize("shared", [None, 101_376], ids=["", "shared memory of an RTX 40"])
def test_convolution_blocks_are_as_exact_as_plain_ones(build, channels, grid, half, shared, monkeypatch):
    if shared is not None:
        monkeypatch.setattr(widen_tiles, "shared_memory", lambda x: shared)
    torch.manual_seed(0)
    block, exact = build().cuda(), build().cuda().double()
    exact.load_state_dict(block.state_dict())
    x = torch.randn(3, channels, *grid, device="cuda")
    weights = torch.randn_like(exact(x.double()))
    expected = logits_and_gradients(exact, x.double(), weights, "never", False)
    plain = logits_and_gradients(block, x, weights, "never", half)
    fused = logits_and_gradients(block, x, weights, "auto", half)
    assert_as_exact(fused, plain, expected, half)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("grid", [(14, 13, 10), (28, 28, 20)])
def test_a_block_added_to_a_skip_is_as_exact_as_the_plain_one(grid, half):
    class AddedToSkip(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = ConvUp(60, 32)
            self.skip = torch.nn.Parameter(skip)

        def forward(self, x):
            return self.up.added_to(self.skip.to(x.dtype), x)

    torch.manual_seed(0)
    skip = torch.randn(3, 32, *(2 * length for length in grid)).to(memory_format=torch.channels_last_3d)
    block, exact = AddedToSkip().cuda(), AddedToSkip().cuda().double()
    exact.load_state_dict(block.state_dict())
    x, weights = torch.randn(3, 60, *grid, device="cuda"), torch.randn(skip.shape, device="cuda")
    expected = logits_and_gradients(exact, x.double(), weights, "never", False)
    plain = logits_and_gradients(block, x, weights, "never", half)
    fused = logits_and_gradients(block, x, weights, "auto", half)
    assert_as_exact(fused, plain, expected, half)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("channels", "grid"), [(96, (28, 28, 20)), (150, (14, 14, 10)), (198, (8, 8, 6))], ids=["enc3", "enc4", "bottom"]
)
def test_wide_stages_are_as_exact_as_plain_ones(channels, grid, half):
    torch.manual_seed(0)
    stage, exact = (FHEATStage(channels, 1, FractionalHeat()).cuda() for _ in range(2))
    exact.load_state_dict(stage.state_dict())
    x, weights = (torch.randn(6, channels, *grid, device="cuda") for _ in range(2))
    expected = logits_and_gradients(exact.double(), x.double(), weights, "never", False)
    plain = logits_and_gradients(stage, x, weights, "never", half)
    fused = logits_and_gradients(stage, x, weights, "auto", half)
    assert_as_exact(fused, plain, expected, half)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("build", "channels", "grid"),
    [
        (lambda: Stem(1, 24), 1, (56, 54, 40)),
        (lambda: Down(24, 48), 24, (28, 28, 20)),
        (lambda: Down(48, 60), 48, (16, 16, 12)),
        (lambda: Down(60, 96), 60, (8, 8, 6)),
        (lambda: Up(96, 60), 96, (4, 4, 3)),
        (lambda: Up(60, 48), 60, (7, 7, 5)),
        (lambda: Up(48, 24), 48, (14, 14, 10)),
        (lambda: PatchTransposed3d(24, 2, 4), 24, (28, 28, 20)),
        (lambda: PatchTransposed3d(24, 5, 4), 24, (9, 7, 5)),
    ],
    ids=["stem", "down1", "down2", "down3", "up3", "up2", "up1", "head", "head of an odd grid"],
)
@pytest.mark.parametrize("samples", [1, 2, 6])
def test_layers_that_change_the_grid_are_as_exact_as_plain_ones(build, channels, grid, samples, half):
    torch.manual_seed(0)
    layer, exact = build().cuda(), build().cuda().double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(samples, channels, *grid, device="cuda")
    weights = torch.randn_like(exact(x.double()))
    expected = logits_and_gradients(exact, x.double(), weights, "never", False)
    plain = logits_and_gradients(layer, x, weights, "never", half)
    fused = logits_and_gradients(layer, x, weights, "auto", half)
    assert_as_exact(fused, plain, expected, half)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
def test_a_skip_is_added_and_results_repeat_bit_by_bit(half):
    torch.manual_seed(0)
    up, exact = Up(48, 24).cuda(), Up(48, 24).cuda().double()
    exact.load_state_dict(up.state_dict())
    inputs = [torch.randn(6, *shape, device="cuda") for shape in ((24, 28, 28, 20), (48, 14, 14, 10))]
    slope = torch.randn(6, 24, 28, 28, 20, device="cuda")

    def results(module, kind):
        skip, x = (value.to(kind).requires_grad_() for value in inputs)
        with torch.autocast("cuda", torch.bfloat16, enabled=half and kind == torch.float32):
            out = module.added_to(skip, x)
        return out, *torch.autograd.grad((out * slope).sum(), [skip, x, *module.parameters()])

    found, again, expected = results(up, torch.float32), results(up, torch.float32), results(exact, torch.float64)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    for one, other in zip(found[:3], expected, strict=False):
        assert error(one, other) < (1e-2 if half else 1e-5)

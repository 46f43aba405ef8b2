"""Convolution blocks by fused kernels, in Triton's interpreter, outputs poisoned: against float64 and plain twins."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import nn

from fheat.networks.large_u import ConvBlock, ConvDown, ConvUp
from fheat.nn import fused_body
from fheat.nn.convolutions import Pointwise3d
from fheat.ops import kernels
from fheat.ops.kernels import launch, widen_tiles
from fheat.ops.kernels.widen_tiles import Widths, backward_bytes, first_that_fits
from tests.ops.compare import error, shaken

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)

CASES = [
    (lambda: ConvBlock(5), 1, 5, (3, 4, 5)),
    (lambda: ConvBlock(20), 2, 20, (5, 3, 9)),
    (lambda: ConvBlock(36), 1, 36, (2, 3, 2)),
    (lambda: ConvBlock(16), 1, 16, (5, 6, 5)),
    (lambda: ConvDown(5, 9), 2, 5, (4, 6, 2)),
    (lambda: ConvUp(9, 5), 2, 9, (2, 3, 2)),
]
IDS = ["block", "two samples", "wide", "without padding", "down", "up"]


@pytest.fixture(autouse=True)
def _few_programs(poisoned, monkeypatch):
    """Few programs, so that some walk several tiles."""
    monkeypatch.setattr(launch, "PROGRAMS", 2)


@pytest.fixture(params=[False, True], ids=["", "small tiles"])
def _tiles(request, monkeypatch):
    """All tiles, and only those of 32 voxels, as where shared memory is small."""
    every = widen_tiles._tiles
    if request.param:
        monkeypatch.setattr(widen_tiles, "_tiles", lambda *given: [one for one in every(*given) if one["BLOCK"] == 32])


def results(module, x, mode):
    """Return the output and the gradients of input and parameters."""
    x = x.clone().requires_grad_()
    with kernels.use(mode):
        out = module(x)
    slope = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view_as(out).cos()
    return out, *torch.autograd.grad((out * slope).sum(), [x, *module.parameters()])


def assert_close(name, one, other, weight):
    """Compare two gradients; that of the first bias is zero but for rounding, as the norm takes a constant away."""
    assert one.shape == other.shape
    if name == "body.0.bias":
        assert one.abs().max() < 1e-4 * weight.abs().max()
    else:
        assert error(one, other) < 1e-5, name


@pytest.fixture
def calls(monkeypatch):
    """Count of the bodies that ran by kernels."""
    found = []
    weights = fused_body._weights
    monkeypatch.setattr(fused_body, "_weights", lambda body: found.append(1) or weights(body))
    return found


@pytest.mark.parametrize(("build", "samples", "channels", "grid"), CASES, ids=IDS)
def test_a_block_and_all_its_gradients(build, samples, channels, grid, calls):
    torch.manual_seed(0)
    block, x = shaken(build()), torch.randn(samples, channels, *grid)
    expected = results(copy.deepcopy(block).double(), x.double(), "never")
    found = results(block, x, "always")
    assert calls
    names = ["out", "x", *(name for name, _ in block.named_parameters())]
    for name, one, other in zip(names, found, expected, strict=True):
        assert_close(name, one, other, found[names.index("body.0.weight")])


@pytest.mark.parametrize(
    ("shared", "dot", "down", "block", "up", "narrow"),
    [
        (101_376, "bf16", (32, 1), (32, 2), (32, 2), (64, 2)),
        (101_376, "ieee", None, None, None, (32, 2)),
        (166_912, "bf16", (128, 1), (128, 1), (128, 2), (64, 2)),
        (166_912, "ieee", None, (32, 2), (32, 2), (32, 2)),
        (232_448, "bf16", (128, 1), (128, 1), (128, 2), (64, 2)),
        (232_448, "ieee", (32, 2), (32, 2), (32, 2), (32, 2)),
    ],
    ids=["sm_89", "sm_89 float32", "sm_80", "sm_80 float32", "sm_90", "sm_90 float32"],
)
def test_the_voxels_and_stages_of_tiles_that_fit_a_gpu(shared, dot, down, block, up, narrow):
    """Of the blocks of FHEAT-Seg-L; tests/ops/test_compile.py compares the bytes with the compiler's."""
    widths = Widths(60, 120, 96), Widths(60, 120, 60), Widths(60, 120, 32), Widths(32, 64, 32)
    for width, expected in zip(widths, (down, block, up, narrow), strict=True):
        tile = first_that_fits(width, dot, shared)
        assert (tile and (tile["BLOCK"], tile["num_stages"])) == expected
        assert tile is None or tile.get("num_warps") == (None if width.channels == 32 else 8)


@pytest.mark.parametrize("stages", [None, 1, 2])
def test_a_device_with_little_shared_memory(stages, calls, monkeypatch):
    """Without a tile that fits the gradients run plain, and so does all before them; a result alone needs less."""
    widths = Widths(5, 10, 5)
    needed = {2: backward_bytes(widths, "ieee", {"BLOCK": 32, "num_stages": 2})}
    needed[1] = backward_bytes(widths, "ieee", {"BLOCK": 32, "num_stages": 1})
    monkeypatch.setattr(widen_tiles, "shared_memory", lambda x: needed[stages] if stages else needed[1] - 1)
    block, x = shaken(ConvBlock(5)), torch.randn(2, 5, 3, 4, 5)
    expected, found = results(copy.deepcopy(block).double(), x.double(), "never"), results(block, x, "always")
    assert bool(calls) == bool(stages)
    for one, other in zip(found[:2], expected, strict=False):
        assert error(one, other) < 1e-5
    with torch.no_grad(), kernels.use("always"):
        assert fused_body.fusable(block.body, x)


@pytest.mark.usefixtures("_tiles")
@pytest.mark.parametrize("build", [CASES[0], *CASES[2:]], ids=["block", *IDS[2:]])
def test_under_autocast_operands_are_rounded_and_sums_are_not(build):
    """In fp16: the interpreter multiplies the bit patterns of bf16."""
    make, samples, channels, grid = build
    torch.manual_seed(0)
    block, x = shaken(make()), torch.randn(samples, channels, *grid)
    exact = results(block, x, "never")
    with torch.autocast("cpu", torch.float16):
        found = results(block, x, "always")
    assert all(one.dtype == torch.float32 for one in found)
    assert error(found[0], exact[0]) > 1e-6
    names = ["out", "x", *(name for name, _ in block.named_parameters())]
    for name, one, other in zip(names, found, exact, strict=True):
        if name == "body.0.bias":  # the norm takes a constant away again, but not what was rounded behind it
            assert one.abs().max() < 2e-2 * found[names.index("body.0.weight")].abs().max()
        else:
            assert error(one, other) < 2e-3, name


def test_what_runs_back_was_chosen_on_the_way_there(monkeypatch):
    """On a GPU the way back runs in a thread of its own, for which no block of `kernels.use` or autocast holds."""
    block, x = shaken(ConvBlock(5)), torch.randn(1, 5, 3, 4, 5)
    with kernels.use("always"):
        out = block(x)

    def refuse(*_):
        raise AssertionError("asked on the way back")

    monkeypatch.setattr(kernels, "usable", refuse)
    monkeypatch.setattr(torch, "is_autocast_enabled", refuse)
    out.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in block.parameters())


def test_moments_survive_a_mean_far_from_zero():
    block, x = ConvBlock(4), 1000 + torch.randn(2, 4, 5, 4, 5)
    with torch.no_grad():
        block.body[0].weight.zero_()[:, :, 1, 1, 1] = 1
    expected = copy.deepcopy(block).double()(x.double()) - x.double()
    with kernels.use("always"):
        found = block(x).double() - x.double()
    assert error(found, expected) < 1e-3  # float32 keeps the input itself to 6e-5 of its deviation


def test_results_repeat_bit_by_bit():
    block, x = shaken(ConvBlock(5)), torch.randn(2, 5, 5, 4, 5)
    first, again = (results(block, x, "always") for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(("samples", "channels", "behind", "grid"), [(2, 9, 5, (2, 3, 2)), (1, 36, 20, (3, 1, 4))])
def test_a_block_added_to_a_skip_and_all_its_gradients(samples, channels, behind, grid, calls):
    torch.manual_seed(0)
    up, x = shaken(ConvUp(channels, behind)), torch.randn(samples, channels, *grid)
    skip = torch.randn(samples, behind, *(2 * length for length in grid))
    slope = torch.randn_like(skip)

    def results(up, mode, dtype):
        inputs = [value.to(dtype).requires_grad_() for value in (x, skip)]
        with kernels.use(mode):
            out = up.added_to(inputs[1], inputs[0])
        return out, *torch.autograd.grad((out * slope).sum(), [*inputs, *up.parameters()])

    expected, found = results(copy.deepcopy(up).double(), "never", torch.float64), results(up, "always", torch.float32)
    assert calls
    names = ["out", "x", "skip", *(name for name, _ in up.named_parameters())]
    for name, one, other in zip(names, found, expected, strict=True):
        assert_close(name, one, other, found[names.index("body.0.weight")])


@pytest.mark.parametrize(("samples", "channels", "behind", "grid"), [(2, 9, 5, (4, 6, 2)), (1, 20, 36, (3, 5, 4))])
def test_a_block_before_a_skip_and_all_its_gradients(samples, channels, behind, grid, calls):
    torch.manual_seed(0)
    down, x = shaken(ConvDown(channels, behind)), torch.randn(samples, channels, *grid)
    slopes = torch.randn(samples, behind, *(-(-length // 2) for length in grid)), torch.randn_like(x)

    def results(down, mode, dtype):
        inputs = x.to(dtype).requires_grad_()
        with kernels.use(mode):
            out, skip = down.beside(inputs)
        assert torch.equal(skip, inputs)
        total = (out * slopes[0]).sum() + (skip * slopes[1]).sum()
        return out, *torch.autograd.grad(total, [inputs, *down.parameters()])

    exact = copy.deepcopy(down).double()
    expected, found = results(exact, "never", torch.float64), results(down, "always", torch.float32)
    assert calls
    names = ["out", "x", *(name for name, _ in down.named_parameters())]
    for name, one, other in zip(names, found, expected, strict=True):
        assert_close(name, one, other, found[names.index("body.0.weight")])


def test_a_skip_of_another_grid_is_refused_as_in_plain_code():
    with kernels.use("always"), pytest.raises(RuntimeError, match="size"):
        ConvUp(5, 4).added_to(torch.randn(1, 4, 7, 8, 6), torch.randn(1, 5, 4, 4, 3))


def test_a_replaced_convolution_before_a_skip_is_called(calls):
    up, x, skip = ConvUp(5, 4), torch.randn(1, 5, 2, 3, 2), torch.randn(1, 4, 4, 6, 4)
    up.body[0] = nn.ConvTranspose3d(5, 5, 3, stride=2, padding=1)
    with kernels.use("always"):
        found = up.added_to(skip, x)
    assert calls
    assert error(found, up(x) + skip) < 1e-5


@pytest.mark.parametrize("shortcut", [nn.Conv3d(5, 4, 1, stride=2), nn.Sequential(Pointwise3d(5, 4, stride=2))])
def test_a_replaced_shortcut_behind_a_skip_is_called(shortcut, calls):
    down, x = ConvDown(5, 4), torch.randn(1, 5, 4, 6, 2)
    down.shortcut = shortcut
    with kernels.use("always"):
        found, skip = down.beside(x)
    assert calls
    assert skip is x
    assert error(found, down(x)) < 1e-5


def test_a_replaced_shortcut_before_a_skip_is_called(calls):
    up, x, skip = ConvUp(5, 4), torch.randn(1, 5, 2, 3, 2), torch.randn(1, 4, 4, 6, 4)
    up.shortcut = nn.Sequential(nn.ConvTranspose3d(5, 4, 1, stride=2))
    with kernels.use("always"):
        found = up.added_to(skip, x)
    assert calls
    assert error(found, up(x) + skip) < 1e-5


def test_blocks_with_a_hook_are_called_beside_a_skip(calls):
    seen = []
    down, up, x = ConvDown(5, 4), ConvUp(4, 5), torch.randn(1, 5, 4, 6, 4)
    for block in (down, up):
        block.register_forward_hook(lambda *_: seen.append(1))
    with kernels.use("always"):
        y, skip = down.beside(x)
        found = up.added_to(skip, y)
    assert len(seen) == len(calls) == 2
    assert error(found, up(down(x)) + x) < 1e-5


def test_a_shortcut_of_another_shape_is_added_or_refused_as_in_plain_code():
    down, x = ConvDown(5, 4), torch.randn(1, 5, 4, 6, 4)
    down.shortcut = nn.AdaptiveAvgPool3d(1)
    down.body[4] = Pointwise3d(10, 5)
    with kernels.use("always"):
        assert error(down(x), down.body(x) + down.shortcut(x)) < 1e-5
    down.shortcut = nn.Identity()
    with kernels.use("always"), pytest.raises(RuntimeError, match="size"):
        down(x)


def test_kernels_refuse_tensors_that_do_not_share_a_grid():
    from fheat.ops.kernels.widen import WidenWeights, widened, widened_added_to_skip

    weights = WidenWeights(*(torch.ones(*shape) for shape in ((5,), (5,), (10, 5), (10,), (4, 10), (4,))))
    y = torch.randn(1, 3, 5, 3, 5)
    with pytest.raises(ValueError, match="must be"):
        widened(y, torch.randn(1, 3, 5, 2, 4), weights)
    for coarse, skip in (((2, 3, 2), (4, 6, 5)), ((2, 2, 2), (4, 6, 4))):
        with pytest.raises(ValueError, match="must be"):
            widened_added_to_skip(y, torch.randn(1, *coarse, 4), torch.randn(1, *skip, 4), weights)


def test_the_distribution_function_without_branches(monkeypatch):
    """In `gelu_tail`, which is called here as the function of NumPy arrays that it is."""
    from fheat.ops.kernels.device import tiles

    monkeypatch.setattr(tiles, "tl", SimpleNamespace(abs=np.abs, exp2=np.exp2))
    z = np.concatenate([np.linspace(-40, 40, 8001), [0.0, 1e-30, 1e4, -1e4]]).astype(np.float32)
    found = tiles.gelu_tail.fn(z)
    exact = ndtr(-np.abs(z.astype(np.float64)))
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() < 6e-8
    assert np.abs(z * (found - exact)).max() < 1.2e-7
    assert np.all(found[z == 0] == 0.5)


def hook(block):
    block.body[2].register_forward_hook(lambda *_: None)


def hook_body(block):
    block.body.register_forward_pre_hook(lambda *_: None)


def replace_activation(block):
    block.body[3] = nn.SiLU()


def approximate(block):
    block.body[3] = nn.GELU("tanh")


def parametrise(block):
    nn.utils.parametrizations.weight_norm(block.body[4])


def lengthen(block):
    block.body.append(nn.Tanh())


@pytest.mark.parametrize("change", [hook, hook_body, replace_activation, approximate, parametrise, lengthen])
def test_a_block_that_was_changed_inside_is_not_fused(change, calls):
    block, x = ConvBlock(5), torch.randn(1, 5, 3, 2, 3)
    change(block)
    found, expected = results(block, x, "always")[0], results(block, x, "never")[0]
    assert not calls
    assert error(found, expected) < 1e-5


def test_wide_blocks_and_few_voxels_run_plain(calls):
    with kernels.use("always"):
        assert not fused_body.fusable(ConvBlock(96).body, torch.randn(1, 96, 2, 3, 2))
        assert not fused_body.fusable(ConvDown(4, 6).body, torch.randn(1, 4, 2, 2, 2))
        assert fused_body.fusable(ConvBlock(60).body, torch.randn(1, 60, 2, 3, 2))
    assert not fused_body.fusable(ConvBlock(4).body, torch.randn(1, 4, 2, 3, 2))
    block, x = ConvBlock(4), torch.randn(1, 4, 2, 3, 2)
    assert torch.equal(block(x), x + block.body(x))


def test_a_replaced_depthwise_convolution_is_called(calls):
    block, x = ConvBlock(5), torch.randn(1, 5, 3, 2, 3)
    block.body[0] = nn.Conv3d(5, 5, 3, padding=1)
    found, expected = (results(block, x, mode) for mode in ("always", "never"))
    assert calls
    assert error(found[0], expected[0]) < 1e-5
    assert error(found[1], expected[1]) < 1e-5

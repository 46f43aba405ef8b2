"""Stages with any operator in the place of the gate, by kernels around it, in Triton's interpreter, outputs poisoned:
against float64 and their plain twins."""

import copy

import pytest
import torch
from torch import nn

from fheat import create_model
from fheat.nn import fused
from fheat.nn.afno import AFNO3D
from fheat.nn.blocks import FHEATStage
from fheat.nn.fnet import FNet3D
from fheat.nn.gfnet import GFNet3D
from fheat.ops import kernels
from fheat.ops.hard_concrete import HardConcreteHeat
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels import launch
from fheat.ops.stochastic_depth import StochasticDepthHeat
from tests.ops.compare import error, shaken

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")
WAYS = {"programs": 128, "library": 8}
"""Who computes the products of stages with nine channels or more, by the most channels of a program."""


def heat(kind, **options):
    return lambda channels, grid: kind(initial_strength=0.7, **options)


OPERATORS = {
    "l0": heat(HardConcreteHeat, initial_logit=0.2),
    "stochastic_depth": heat(StochasticDepthHeat, drop=0.5),
    "fnet": lambda channels, grid: FNet3D(),
    "gfnet": lambda channels, grid: GFNet3D(channels, (4, 4, 4)),  # on other grids it is interpolated
    "afno": lambda channels, grid: AFNO3D(channels),
    "heat by fft": heat(FractionalHeat, transform="fft"),
}


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """Few programs, so that some walk several tiles."""
    monkeypatch.setattr(launch, "PROGRAMS", 4)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Products by the programs themselves, or by the library."""
    monkeypatch.setattr(fused, "WIDEST", WAYS[request.param])
    return request.param


def stage_of(name, channels, grid, depth=1):
    torch.manual_seed(0)
    stage = FHEATStage(channels, depth, OPERATORS[name](channels, grid))
    shaken(stage.blocks, 0.2 if channels < 20 else 0.05)
    if name in ("gfnet", "afno"):
        shaken(stage.gate, 0.3)
    return stage


def exact_twin(stage):
    """Return a float64 copy that draws what the stage draws: random numbers depend on their type."""
    twin = copy.deepcopy(stage).double()
    if isinstance(twin.gate, HardConcreteHeat):
        twin.gate.logit = nn.Parameter(stage.gate.logit.detach().clone())
    return twin


def results(stage, x, mode, seed=1):
    """Return the output, the attention map and the gradients of input and parameters."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    with kernels.use(mode):
        out, attention = stage.attend(x)
    slope = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view_as(out).cos()
    return out, attention, *torch.autograd.grad((out * slope).sum(), [x, *stage.parameters()])


def calls_of(monkeypatch, name):
    """Return a list that grows with each half of a block that a function of `operator_half` runs."""
    from fheat.ops.kernels import operator_half

    calls, run = [], getattr(operator_half, name)
    monkeypatch.setattr(operator_half, name, lambda *args: (calls.append(name), run(*args))[1])
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_stage_and_all_its_gradients(name, training, way):
    """Two samples on an odd grid; with two light blocks, draws in another order would be other numbers."""
    channels, grid = (9, (3, 2, 5)) if way == "programs" else (10, (3, 4, 2))
    stage, x = stage_of(name, channels, grid, depth=2).train(training), torch.randn(2, channels, *grid)
    expected = results(exact_twin(stage), x.double(), "never")
    with kernels.use("always"):
        assert fused.fusable(x, stage.blocks, stage.gate)
    found = results(stage, x, "always")
    assert error(found[0], expected[0]) < 1e-6
    assert error(found[1], expected[1]) < 1e-6
    names = ["out", "attention", "x", *(name for name, _ in stage.named_parameters())]
    for name, one, other in zip(names, found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == torch.float32
        assert error(one, other) < 1e-4 if other.norm() > 0 else one.norm() == 0, name


@pytest.mark.slow
@pytest.mark.parametrize("channels", [24, 48, 60, 96, 150])
def test_the_widths_of_the_networks(channels):
    stage, x = stage_of("afno", channels, (3, 2, 3)), torch.randn(1, channels, 3, 2, 3)
    expected = results(exact_twin(stage), x.double(), "never")
    for one, other in zip(results(stage, x, "always"), expected, strict=True):
        assert error(one, other) < 1e-4


@pytest.mark.parametrize(
    ("name", "operator_runs"),
    [("l0", 0), ("stochastic_depth", 4), ("fnet", 4), ("gfnet", 4), ("afno", 4), ("heat by fft", 4)],
)
def test_only_what_is_no_multiplier_runs_as_a_module(name, operator_runs, way, monkeypatch):
    calls = calls_of(monkeypatch, "operator_half" if way == "programs" else "wide_operator_half")
    stage, x = stage_of(name, 9, (3, 2, 2), depth=2), torch.randn(1, 9, 3, 2, 2)
    with kernels.use("always"):
        stage(x)
        assert len(calls) == operator_runs
        calls.clear()
        stage.gate.bypass(0.5)
        stage(x)
    assert len(calls) == (4 if name in ("stochastic_depth", "heat by fft") else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["l0", "stochastic_depth"])
def test_equal_seeds_give_equal_bits_and_others_do_not(name, way):
    stage, x = stage_of(name, 9, (3, 2, 2)), torch.randn(3, 9, 3, 2, 2)
    first, again, other = (results(stage, x, "always", seed) for seed in (1, 1, 2))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert error(other[0], first[0]) > 1e-3
    for seed, found in ((1, first), (2, other)):
        assert error(found[0], results(stage, x, "never", seed)[0]) < 1e-6
    stage.eval()
    assert torch.equal(results(stage, x, "always", 1)[0], results(stage, x, "always", 2)[0])


@pytest.mark.parametrize(
    ("way", "half"),
    [("programs", torch.float16), ("library", torch.float16), ("library", torch.bfloat16)],
    indirect=["way"],
    ids=["programs in fp16", "library in fp16", "library in bf16"],
)
@pytest.mark.parametrize("name", OPERATORS)
def test_under_autocast_products_are_rounded_and_results_are_not(name, way, half):
    """All gradients of parameters together, as one alone may happen to be exact in plain code.

    The interpreter has no products in bf16, and where it stores bf16, cuts off digits instead of rounding them: what
    the activation of AFNO passes on to gradients may be something else then.
    """
    stage, x = stage_of(name, 10, (3, 4, 5)), torch.randn(2, 10, 3, 4, 5)
    exact = results(exact_twin(stage), x.double(), "never")
    with torch.autocast("cpu", half):
        found, plain = results(stage, x, "always"), results(stage, x, "never")
    assert found[0].dtype == found[1].dtype == torch.float32
    assert error(found[0], exact[0]) > 1e-5
    together = [(*some[:3], torch.cat([one.flatten() for one in some[3:]])) for some in (found, plain, exact)]
    parts, room = (4, 2) if half == torch.float16 else (2, 4)
    for one, other, truth in list(zip(*together, strict=True))[:parts]:
        assert error(one, truth) < room * error(other, truth) + 1e-4


def test_the_operator_sees_float32_with_channels_first(way):
    class Seen(nn.Module):
        def forward(self, x):
            seen.append((tuple(x.shape), x.dtype, x.requires_grad))
            return x.half()

    seen, x = [], torch.randn(2, 9, 3, 2, 4)
    stage = FHEATStage(9, 1, Seen())
    with torch.autocast("cpu", torch.float16), kernels.use("always"):
        out = stage(x)
    assert seen == [((2, 9, 3, 2, 4), torch.float32, True)] * 2
    assert out.dtype == torch.float32


class Mean(nn.Module):
    """The mean over the grid, (N, C, 1, 1, 1), or another shape of values."""

    def __init__(self, channels=None):
        super().__init__()
        self.channels = channels

    def forward(self, x):
        return x.mean(dim=(2, 3, 4), keepdim=True)[:, : self.channels]


def test_a_result_of_another_shape_is_expanded_or_refused(way):
    stage, x = FHEATStage(9, 1, Mean()), torch.randn(2, 9, 3, 2, 4)
    for one, other in zip(results(stage, x, "always"), results(stage, x, "never"), strict=True):
        assert error(one, other) < 1e-4
    stage.gate.channels = 4
    with kernels.use("always"), pytest.raises(RuntimeError, match="must match the existing size"):
        stage(x)


def hook(stage):
    stage.gate.register_forward_hook(lambda *_: None)


def hook_inside(stage):
    stage.gate = nn.Sequential(nn.Identity(), stage.gate)
    stage.gate[0].register_full_backward_hook(lambda *_: None)


def replace_forward(stage):
    stage.gate.forward = lambda x: 2 * x


def replace_projection(stage):
    stage.blocks[0].second.fheat.project = nn.Conv3d(9, 18, 1)


@pytest.mark.parametrize("change", [hook, hook_inside, replace_forward, replace_projection])
def test_a_stage_whose_operator_is_watched_or_changed_runs_plain(change, way, monkeypatch):
    calls = calls_of(monkeypatch, "operator_half" if way == "programs" else "wide_operator_half")
    stage, x = stage_of("fnet", 9, (3, 2, 2)), torch.randn(1, 9, 3, 2, 2)
    with kernels.use("always"):
        assert fused.fusable(x, stage.blocks, stage.gate)
        change(stage)
        assert not fused.fusable(x, stage.blocks, stage.gate)
        found = stage(x)
    assert not calls
    with kernels.use("never"):
        assert error(found, stage(x)) < 1e-6  # its norms, each by itself, still run as kernels


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gfnet"])  # one that knows its grid; a minute each in the interpreter
def test_a_network_and_its_gradients(name):
    """On a grid that is odd below the first level; the gradient of a bias before a norm is nothing but rounding."""
    torch.manual_seed(0)
    model = create_model("fheat_seg", patch_size=(36, 32, 32), operator=name, dropout=0.0)
    x, found = torch.randn(1, 1, 36, 32, 32), []
    for mode in ("always", "never"):
        model.zero_grad()
        torch.manual_seed(1)
        with kernels.use(mode):
            logits = model(x)
            (logits * torch.linspace(-1, 2, logits.numel()).view_as(logits).cos()).sum().backward()
        found.append((logits.detach(), *(parameter.grad.clone() for parameter in model.parameters())))
    assert error(found[0][0], found[1][0]) < 1e-4
    largest = max(one.norm() for one in found[1][1:])
    for (parameter, _), one, other in zip(model.named_parameters(), found[0][1:], found[1][1:], strict=True):
        assert (one - other).norm() < 1e-2 * other.norm() + 1e-4 * largest, parameter


@pytest.mark.parametrize(
    ("channels", "half", "shared", "wide"),
    [
        (96, False, 101_376, True),
        (96, True, 101_376, False),
        (60, False, 101_376, False),
        (60, False, 65_536, True),
        (24, False, 65_536, False),
        (96, False, 166_912, False),
        (128, False, 232_448, False),
    ],
)
def test_stages_that_need_more_shared_memory_than_the_device_has_are_wide(channels, half, shared, wide, monkeypatch):
    """The limits of an RTX 40, a T4, an A100 and an H200."""
    monkeypatch.setattr(fused, "shared_memory", lambda x: shared)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        assert fused._is_wide(torch.empty(1, 2, 2, 2, channels)) == wide


def test_stages_that_fit_neither_a_program_nor_the_library_run_plain(monkeypatch):
    stage, x = FHEATStage(96, 1, FractionalHeat()), torch.empty(1, 96, 2**30 // 96 + 1, 1, 1, device="meta")
    with kernels.use("always"):
        assert fused.fusable(x, stage.blocks, stage.gate)
        monkeypatch.setattr(fused, "shared_memory", lambda x: 101_376)
        assert not fused.fusable(x, stage.blocks, stage.gate)

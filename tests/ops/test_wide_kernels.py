"""Light blocks with many channels in Triton's interpreter, outputs poisoned: against float64 and their plain twins."""

import copy

import pytest
import torch

from fheat.nn import fused
from fheat.nn.blocks import FHEATStage
from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels import launch
from fheat.ops.rational import Rational
from tests.ops.compare import error, shaken

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Few programs, so that some walk several tiles, and stages that are wide from nine channels on."""
    monkeypatch.setattr(launch, "PROGRAMS", 4)
    monkeypatch.setattr(fused, "WIDEST", 8)


def stage_of(channels, delta, **mixer):
    gate = FractionalHeat()
    stage = shaken(FHEATStage(channels, 1, gate, **mixer), 0.3 if channels < 32 else 0.05)
    if delta is None:
        gate.bypass(0.5)
    else:
        with torch.no_grad():
            gate.delta.fill_(delta)
    return stage


def results(stage, x, mode):
    """Return the output, the attention map and the gradients of input and parameters."""
    x = x.clone().requires_grad_()
    with kernels.use(mode):
        out, attention = stage.attend(x)
    slope = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view_as(out).cos()
    return out, attention, *torch.autograd.grad((out * slope).sum(), [x, *stage.parameters()])


@pytest.mark.parametrize(
    ("samples", "channels", "grid", "delta", "mixer"),
    [
        (1, 10, (3, 4, 5), 0.7, {}),
        (2, 17, (5, 3, 4), None, {}),
        (2, 9, (3, 3, 2), -0.1, {}),
        (1, 16, (3, 1, 6), 0.7, {"kind": "gelu"}),
        (1, 150, (2, 3, 2), 0.7, {}),
    ],
    ids=["open", "retired", "closed", "gelu", "150 channels"],
)
def test_a_stage_and_all_its_gradients(samples, channels, grid, delta, mixer):
    torch.manual_seed(0)
    stage, x = stage_of(channels, delta, **mixer), torch.randn(samples, channels, *grid)
    expected = results(copy.deepcopy(stage).double(), x.double(), "never")
    found = results(stage, x, "always")
    names = ["out", "attention", "x", *(name for name, _ in stage.named_parameters())]
    for name, one, other in zip(names, found, expected, strict=True):
        assert one.shape == other.shape
        assert error(one, other) < 1e-4 if other.norm() > 0 else one.norm() == 0, name


def test_a_number_of_groups_that_is_no_power_of_two():
    stage, x = stage_of(9, None), torch.randn(1, 9, 2, 3, 3)
    for block in (stage.blocks[0].first, stage.blocks[0].second):
        block.mixer[2] = shaken(Rational(9, groups=3))
    expected = results(copy.deepcopy(stage).double(), x.double(), "never")
    for one, other in zip(results(stage, x, "always"), expected, strict=True):
        assert error(one, other) < 1e-4


def test_under_autocast_products_are_rounded_and_results_are_not():
    """In fp16: the interpreter cuts off the digits that bf16 does not have, and does not round them."""
    torch.manual_seed(0)
    stage, x = stage_of(10, 0.7), torch.randn(2, 10, 3, 4, 5)
    exact = results(copy.deepcopy(stage).double(), x.double(), "never")
    with torch.autocast("cpu", torch.float16):
        found, plain = results(stage, x, "always"), results(stage, x, "never")
    assert found[0].dtype == found[1].dtype == torch.float32
    assert error(found[0], exact[0]) > 1e-5
    for one, other, truth in zip(found, plain, exact, strict=True):
        assert error(one, truth) < 1.5 * error(other, truth) + 1e-4


def test_a_closed_gate_is_no_gate_bit_for_bit():
    closed, x = stage_of(9, -0.1), torch.randn(2, 9, 3, 4, 5)
    retired = copy.deepcopy(closed)
    retired.gate.bypass(0.5)
    with torch.autocast("cpu", torch.bfloat16), kernels.use("always"):
        assert torch.equal(closed(x), retired(x))


def test_results_repeat_bit_by_bit():
    stage, x = stage_of(10, 0.7), torch.randn(2, 10, 5, 4, 5)
    first, again = (results(stage, x, "always") for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("channels", "voxels", "wide"),
    [
        (64, 2**14, False),
        (66, 2**14, True),
        (66, 2**14 - 1, False),
        (66, 2**30 // 66, True),
        (66, 2**30 // 66 + 1, False),
        (128, 10, False),
        (129, 10, True),
    ],
)
def test_which_stages_are_wide(channels, voxels, wide, monkeypatch):
    monkeypatch.setattr(fused, "WIDEST", 128)
    assert fused._is_wide(torch.empty(1, voxels, 1, 1, channels, device="meta")) == wide


@pytest.mark.parametrize(
    ("channels", "voxels", "can"),
    [(256, 8, True), (257, 8, False), (150, 2**30 // 150, True), (150, 2**30 // 150 + 1, False)],
)
def test_stages_that_are_too_wide_or_too_large_run_plain(channels, voxels, can, monkeypatch):
    monkeypatch.setattr(fused, "WIDEST", 128)
    stage = FHEATStage(channels, 1, FractionalHeat())
    x = torch.empty(1, channels, voxels, 1, 1, device="meta")
    with kernels.use("always"):
        assert fused.fusable(x, stage.blocks, stage.gate) == can

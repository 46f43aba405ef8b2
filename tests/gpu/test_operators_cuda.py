"""FHEAT-Seg with any operator at its sites on a GPU, by kernels around it: against float64 and the plain twin, in
float32 and bf16, and as captured graphs."""

import pytest
import torch
from torch import nn

from fheat.nn import fused
from fheat.nn.afno import AFNO3D
from fheat.nn.blocks import FHEATStage
from fheat.ops.hard_concrete import HardConcreteHeat
from fheat.ops.heat import FractionalHeat
from fheat.ops.stochastic_depth import StochasticDepthHeat
from fheat.system.capture import capture, rehearse
from tests.gpu.test_kernels_cuda import PATCH, assert_as_exact, error, logits_and_gradients, pair

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def drawn(model, x, weights, mode, half):
    """Return the logits and the gradient of each parameter, with the same random numbers in every call."""
    torch.manual_seed(1)
    return logits_and_gradients(model, x, weights, mode, half)


def compare(model, exact, x, weights, half):
    """Compare with float64. Operators with thresholds, such as AFNO, may amplify what was rounded: twice the room."""
    expected = drawn(exact, x.double(), weights, "never", False)
    plain, found = drawn(model, x, weights, "never", half), drawn(model, x, weights, "auto", half)
    assert_as_exact(found, plain, expected, half, times=2.4)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("operator", ["l0", "stochastic_depth", "fnet", "gfnet", "afno"])
def test_the_network_is_as_exact_as_the_plain_one(operator, half):
    model, exact = pair("fheat_seg", operator=operator)
    for one, other in zip(model.modules(), exact.modules(), strict=True):
        if isinstance(one, HardConcreteHeat):  # random numbers depend on the type of what they are drawn for
            other.logit = nn.Parameter(one.logit.detach().clone())
    for stage in model.children():
        if isinstance(stage, FHEATStage):
            x = torch.empty(2, stage.blocks[0].depthwise.in_channels, 4, 4, 4, device="cuda")
            assert fused.fusable(x, stage.blocks, stage.gate)
    x, weights = torch.randn(2, 1, *PATCH, device="cuda"), torch.randn(2, 2, *PATCH, device="cuda")
    compare(model, exact, x, weights, half)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(("channels", "grid"), [(96, (28, 28, 20)), (150, (14, 13, 10))], ids=["enc3", "enc4"])
def test_wide_stages_around_an_operator(channels, grid, half):
    torch.manual_seed(0)
    stage, exact = (FHEATStage(channels, 1, AFNO3D(channels)).cuda() for _ in range(2))
    exact.load_state_dict(stage.state_dict())
    x, weights = (torch.randn(6, channels, *grid, device="cuda") for _ in range(2))
    compare(stage, exact.double(), x, weights, half)


@pytest.mark.parametrize("build", [FractionalHeat, lambda: AFNO3D(96)], ids=["heat", "afno"])
def test_96_channels_in_float32_with_the_shared_memory_of_an_rtx_40(build, monkeypatch):
    torch.manual_seed(0)
    stage, exact = (FHEATStage(96, 1, build()).cuda() for _ in range(2))
    exact.load_state_dict(stage.state_dict())
    x, weights = (torch.randn(2, 96, 4, 4, 3, device="cuda") for _ in range(2))
    channels_last = x.movedim(1, -1)
    assert not fused._is_wide(channels_last)
    monkeypatch.setattr(fused, "shared_memory", lambda x: 101_376)
    assert fused._is_wide(channels_last)
    compare(stage, exact.double(), x, weights, False)


@pytest.mark.parametrize(
    "build",
    [lambda: HardConcreteHeat(initial_strength=0.7), lambda: StochasticDepthHeat(initial_strength=0.7, drop=0.5)],
    ids=["l0", "stochastic_depth"],
)
def test_a_captured_stage_draws_anew_in_every_replay(build):
    torch.manual_seed(0)
    stage, x = FHEATStage(24, 1, build()).cuda(), torch.randn(16, 24, 14, 14, 10, device="cuda")

    def run():
        out = stage(x)
        return out.detach(), *torch.autograd.grad(out.square().sum(), list(stage.parameters()))

    def replayed():
        graph.replay()
        return [value.clone() for value in captured]

    rehearse(run)
    graph, captured = capture(run)
    torch.manual_seed(3)
    first, second = replayed(), replayed()
    torch.manual_seed(3)
    again = replayed()
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert error(second[0], first[0]) > 1e-3
    torch.manual_seed(3)
    assert error(first[0], run()[0]) < 1e-5

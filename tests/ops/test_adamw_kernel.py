"""AdamW on one vector of all parameters: it updates as torch does, step by step, and its state is exchangeable."""

import math

import pytest
import torch
from torch import nn

from fheat.ops import kernels
from fheat.training.optimiser import AdamW
from fheat.training.settings import OptimiserSettings


@pytest.fixture
def _interpreted(poisoned):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU; see tests/gpu")


def updated(settings, mode, gradients, start=None):
    """Update a small network with these gradients; return its weights, the norms, and the optimiser."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 1, bias=False), nn.LayerNorm(7))
    norms = []
    with kernels.use(mode):
        optimiser = AdamW(model, settings)
        assert (optimiser._vector is not None) == (mode == "always")
        if start is not None:
            model.load_state_dict(start[0])
            optimiser.restore({name: value.clone() for name, value in start[1].items()})
        for index, gradient in enumerate(gradients):
            parts = torch.split(gradient, [one.numel() for one in model.parameters()])
            for one, part in zip(model.parameters(), parts, strict=True):
                one.grad = part.view_as(one).clone()
            norms.append(optimiser.step(torch.tensor(1 / (1 + index))))
    return model, torch.tensor(norms), optimiser


def drawn(count):
    torch.manual_seed(1)
    return [scale * torch.randn(40 * 50 + 50 + 50 + 14) for scale in torch.rand(count) * 0.1]


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
def test_updates_are_those_of_torch(clip, betas):
    settings = OptimiserSettings(clip=clip, betas=betas, weight_decay=0.1)
    gradients = drawn(6)
    gradients[2][5], gradients[4][7] = math.inf, math.nan
    plain, norms, own = updated(settings, "never", gradients)
    found, lengths, other = updated(settings, "always", gradients)
    assert torch.allclose(lengths, norms, rtol=1e-6, equal_nan=True)
    assert own.skipped == other.skipped == 2
    for one, two in zip(found.parameters(), plain.parameters(), strict=True):
        assert (one - two).abs().max() < 1e-6
    states = own.state(), other.state()
    assert states[0].keys() == states[1].keys()
    assert all(torch.allclose(states[1][name], states[0][name], rtol=1e-5, atol=1e-9) for name in states[0])
    assert states[1]["0.step"] == 4


@pytest.mark.usefixtures("_interpreted")
def test_bias_corrections_of_every_age():
    settings = OptimiserSettings(clip=None, weight_decay=0.0)
    gradients = drawn(2)
    for age in (0, 1, 100, 240, 260, 5000, 100000):
        _, _, before = updated(settings, "never", gradients[:1])
        state = before.state()
        state = {name: torch.tensor(float(age)) if name.endswith("step") else value for name, value in state.items()}
        model = updated(settings, "never", [])[0]
        ends = [updated(settings, mode, gradients[1:], (model.state_dict(), state))[0] for mode in ("never", "always")]
        for one, two, first in zip(*(end.parameters() for end in ends), model.parameters(), strict=True):
            assert ((one - two).norm() < 2e-6 * (one - first).norm() + 1e-7 * one.norm()).all()


@pytest.mark.usefixtures("_interpreted")
def test_a_checkpoint_goes_from_one_way_to_the_other_and_back():
    settings, gradients = OptimiserSettings(), drawn(4)
    half, _, optimiser = updated(settings, "always", gradients[:2])
    state = optimiser.state()
    again, other = (updated(settings, mode, gradients[2:], (half.state_dict(), state)) for mode in ("always", "never"))
    for one, two in zip(again[0].parameters(), other[0].parameters(), strict=True):
        assert (one - two).abs().max() < 1e-6
    assert again[2].state()["0.step"] == other[2].state()["0.step"] == 4


@pytest.mark.usefixtures("_interpreted")
def test_without_some_gradient_torch_updates_the_others():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1))
    before = [one.detach().clone() for one in model.parameters()]
    with kernels.use("always"):
        optimiser = AdamW(model, OptimiserSettings())
        model[0].weight.grad = torch.ones(5, 4)
        optimiser.step(torch.tensor(1.0))
    changed = [not torch.equal(one, two) for one, two in zip(model.parameters(), before, strict=True)]
    assert changed == [True, False, False, False]
    assert [optimiser.state()[f"{index}.step"].item() for index in range(4)] == [1, 0, 0, 0]


@pytest.mark.usefixtures("_interpreted")
def test_without_kernels_torch_updates_with_the_moments_of_the_vector():
    settings, gradients = OptimiserSettings(), drawn(4)
    plain, _, _ = updated(settings, "never", gradients)
    model, _, optimiser = updated(settings, "always", gradients[:2])
    optimiser._vector.update = None  # to call it would raise an error
    for index, gradient in enumerate(gradients[2:], 2):
        for one, part in zip(model.parameters(), torch.split(gradient, [40 * 50, 50, 50, 7, 7]), strict=True):
            one.grad = part.view_as(one).clone()
        with kernels.use("never"):
            optimiser.step(torch.tensor(1 / (1 + index)))
    assert optimiser.state()["0.step"] == 4
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        assert (one - two).abs().max() < 1e-6


@pytest.mark.usefixtures("_interpreted")
def test_a_checkpoint_of_torch_lacks_the_moments_of_what_never_had_a_gradient():
    def one_step(mode, state):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1))
        with kernels.use(mode):
            optimiser = AdamW(model, OptimiserSettings(weight_decay=0.5))
            optimiser.restore({name: value.clone() for name, value in state.items()})
            for one in model[0].parameters():
                one.grad = torch.ones_like(one)
            optimiser.step(torch.tensor(1.0))
        return model, optimiser.state()

    _, state = one_step("never", {})
    assert {name.split(".")[0] for name in state} == {"0", "1"}
    (plain, _), (found, after) = (one_step(mode, state) for mode in ("never", "always"))
    assert all(torch.equal(one, two) for one, two in zip(found.parameters(), plain.parameters(), strict=True))
    assert [after[f"{index}.step"].item() for index in range(4)] == [2, 2, 0, 0]

"""Every registered network serves every training method, learns under methods of every kind, and in bfloat16."""

import pytest
import torch

from fheat import create_model, list_models
from fheat.methods.base import Task
from fheat.methods.registry import list_methods, method_class
from fheat.networks.registry import provides
from fheat.training.optimiser import AdamW, Schedule
from fheat.training.settings import OptimiserSettings
from tests.methods.predictions import batch_of
from tests.networks.test_contract import NARROWER, narrowed

pytestmark = pytest.mark.slow

PATCH = (48, 32, 32)
TASK = Task(PATCH, batch=2, iterations=100)
TOO_SMALL_GRIDS = ("segformer3d", "fheat_segformer3d", "amber_afno", "unetr_pp", "swin_unetr")
"""Networks with a 3x3x3 convolution of all channels on a grid of 2x1x1 here, in their last stage. There oneDNN's
gradient in bfloat16 was wrong, up to infinite, in 12 of 29 passes that should have been the same, and in 29 of 30
passes of swin_unetr; in float32 or without oneDNN it never was."""


@pytest.fixture(autouse=True)
def _narrowed():
    with narrowed():
        yield


@pytest.fixture(scope="module")
def batch():
    """Two labelled and two unlabelled crops with a bright ball in each, noise around it."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.meshgrid(*(torch.linspace(-1, 1, length) for length in PATCH), indexing="ij")
    ball = (sum(axis.square() for axis in axes) < 0.4).expand(4, 1, *PATCH)
    crops = ball.float() + 0.3 * torch.randn(ball.shape, generator=generator)
    return batch_of(crops[:2], ball[:2, 0].long(), crops[2:])


def build(name):
    return create_model(name, patch_size=PATCH, **NARROWER.get(name, {})).train()


@pytest.mark.parametrize("method_name", list_methods())
@pytest.mark.parametrize("name", list_models())
def test_one_step(name, method_name, batch):
    """All losses and gradients are finite, and the update moves the weights."""
    kind = method_class(method_name)
    model, method = build(name), kind(kind.Settings(), TASK)
    method.prepare(model, lambda: build(name))
    optimiser = method.own_optimiser(model) or AdamW(model, OptimiserSettings(), method.trained())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    losses = method.losses(model, batch)
    assert all(torch.isfinite(losses[loss]) for loss in method.names)
    losses[method.names[0]].backward()
    norm = optimiser.step(Schedule(100, 0).factor(torch.tensor(0)))
    assert torch.isfinite(norm)
    assert norm > 0
    assert int(optimiser.skipped) == 0
    method.after_update(model, torch.tensor(0))
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > 0.9 * len(moved)


@pytest.mark.parametrize("name", [name for name in list_models() if name not in TOO_SMALL_GRIDS])
def test_learns_in_bfloat16(name, batch):
    """Ten updates under autocast lower the loss by a tenth at least, without an update that is left out."""
    kind = method_class("supervised")
    model, method = build(name), kind(kind.Settings(), TASK)
    optimiser = AdamW(model, OptimiserSettings(learning_rate=0.003))
    totals = []
    for _ in range(10):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            total = method.losses(model, batch)["total"]
        total.backward()
        optimiser.step(torch.tensor(1.0))
        totals.append(total.item())
    assert int(optimiser.skipped) == 0
    assert min(totals[-2:]) < 0.9 * totals[0]


def test_every_network_provides_what_any_method_needs():
    needed = set().union(*(method_class(method).needs.of_the_network for method in list_methods()))
    assert needed
    assert all(needed <= provides(name) for name in list_models())

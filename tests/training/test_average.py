"""The moving average of the weights, augmented crops, stages of methods, and AdamW's betas."""

import pytest
import torch

from fheat import create_model, load
from fheat.data.store import VolumeStore, pack
from fheat.methods import registry
from fheat.methods.supervised import Supervised
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput
from fheat.training.average import WeightAverage
from fheat.training.batches import Batches, augmented, draw, mirrored
from fheat.training.optimiser import AdamW
from fheat.training.settings import OptimiserSettings
from fheat.training.trainer import Stopped
from tests.training.helpers import Run, StopAfter

PATCH = (32, 32, 32)


def shaken(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def test_the_average_is_the_literal_recursion_and_gates_are_taken_over(dtype):
    model = create_model("fheat_seg", patch_size=PATCH).to(dtype)
    average = WeightAverage(model, 0.6)
    expected = {name: value.double().clone() for name, value in model.named_parameters()}
    for t in range(6):
        shaken(model, t)
        decay = min(1 - 1 / (t + 1), 0.6)
        for name, value in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * value.detach().double()
        average.follow(model, torch.tensor(t))
    scalars = {id(p) for gate in gates_of(average.network).values() for p in gate.parameters()}
    assert len(scalars) == 16
    for (name, own), (_, new) in zip(average.network.named_parameters(), model.named_parameters(), strict=True):
        if id(own) in scalars:
            assert torch.equal(own, new)
        else:
            assert own.dtype == dtype
            assert (own.double() - expected[name]).abs().max() < (1e-6 if dtype == torch.float32 else 1e-12)


def test_a_share_of_zero_keeps_the_network_itself():
    model = create_model("light_unetr", patch_size=PATCH)
    average = WeightAverage(model, 0.0)
    shaken(model, 1)
    next(model.buffers()).add_(3)
    average.follow(model, torch.tensor(9))
    assert all(
        torch.equal(own, new)
        for own, new in zip(average.network.state_dict().values(), model.state_dict().values(), strict=True)
    )


def test_the_average_is_validated_saved_and_resumed(config, tmp_path):
    settings = config(**{"optimiser.average": 0.5})
    whole = Run(settings, tmp_path / "whole")
    final = load(whole.train())
    raw, result = whole.step.model.state_dict(), whole.step.result.state_dict()
    assert any(not torch.equal(raw[name], result[name]) for name in raw)
    assert all(torch.equal(value, result[name]) for name, value in final.state_dict().items())
    with pytest.raises(Stopped):
        Run(settings, tmp_path / "parts", observers=[StopAfter(3)]).train()
    again = Run(settings, tmp_path / "parts", resume=True)
    again.train()
    assert all(torch.equal(value, result[name]) for name, value in again.step.result.state_dict().items())


def test_the_average_leaves_training_as_it_is(config, tmp_path):
    histories = []
    for share in (None, 0.9):
        run = Run(config(**{"optimiser.average": share}), tmp_path / str(share))
        run.train()
        histories.append(run.step.history)
    assert torch.equal(*histories)


def test_crops_and_labels_are_mirrored_together():
    image = torch.rand(40, 38, 36).numpy()
    label = (image > 0.5).astype("uint8")
    store = VolumeStore([pack(image, label, PATCH)] * 3)
    draws = draw((1, 2), (2, 2), 20, 0)
    plain, mirroring = (Batches(store, draws, PATCH, augment=kind) for kind in ("none", "mirror"))
    seen = set()
    for t in range(20):
        iteration = torch.tensor(t)
        one, other = plain(iteration), mirroring(iteration)
        assert torch.equal(other.labels, (other.images[:, 0] > 0.5).long())
        for kind, (before, after) in enumerate(((one.images, other.images), (one.unlabelled, other.unlabelled))):
            for row, axes in enumerate(draws.chances[kind][t] < 0.5):
                along = [1 + axis for axis in range(3) if axes[axis]]
                assert torch.equal(after[row], before[row].flip(along))
                seen.add(tuple(along))
    assert len(seen) == 8


def test_mirroring_twice_changes_nothing():
    crops, axes = torch.rand(4, 2, 5, 6, 7), torch.rand(4, 3) < 0.5
    assert torch.equal(mirrored(mirrored(crops, axes), axes), crops)
    assert torch.equal(mirrored(crops, torch.zeros(4, 3, dtype=torch.bool)), crops)


def test_turned_crops_are_quarter_turns_and_one_reflection():
    crops, chances = torch.rand(64, 2, 5, 5, 3), torch.rand(64, 3)
    turned = augmented(crops, chances, "rotate")
    for before, after, (turn, side, _) in zip(crops, turned, chances.tolist(), strict=True):
        quarters, axis = int(4 * turn), 1 if side < 0.5 else 2
        assert torch.equal(after, before.rot90(quarters, (1, 2)).flip(axis))
    assert torch.equal(augmented(crops[:, 0], chances, "rotate"), turned[:, 0])
    assert torch.equal(augmented(crops, chances, "none"), crops)


def test_turning_needs_square_crops(config):
    with pytest.raises(BadInput, match="augment: rotate needs crops that are square"):
        config(**{"data.augment": "rotate", "patch_size": (48, 32, 32)})


class TwoStages(Supervised):
    """Counts what it is asked for; its second stage begins after three iterations."""

    def __init__(self, settings, task):
        super().__init__(settings, task)
        self.begun, self.stages = [], []

    def stage(self, iteration):
        return int(iteration >= 3)

    def begin_stage(self, model, stage):
        self.begun.append(stage)

    def losses(self, model, batch):
        self.stages.append(self.begun[-1] if self.begun else 0)
        return super().losses(model, batch)


def test_a_stage_begins_once_also_after_a_stop(config, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._REGISTERED, "two_stages", TwoStages)
    settings = config(method="two_stages")
    whole = Run(settings, tmp_path / "whole")
    whole.train()
    assert whole.step.method.begun == [1]
    assert whole.step.method.stages == [0, 0, 0, 1, 1, 1]
    for stop, begun in ((2, [1]), (3, [1]), (4, [])):
        with pytest.raises(Stopped):
            Run(settings, tmp_path / str(stop), observers=[StopAfter(stop)]).train()
        again = Run(settings, tmp_path / str(stop), resume=True)
        again.train()
        assert again.step.method.begun == begun


def test_betas_reach_adamw():
    optimiser = AdamW(torch.nn.Linear(2, 2), OptimiserSettings(betas=(0.8, 0.95)))
    assert [group["betas"] for group in optimiser.adamw.param_groups] == [(0.8, 0.95)]

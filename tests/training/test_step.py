"""The training step: schedule, groups, clipping, skipping, order, history; it learns, and repeats itself exactly."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from fheat import create_model
from fheat.data.intensity import zscore
from fheat.data.phantom import phantom
from fheat.data.store import VolumeStore, pack_all
from fheat.methods.base import Needs, Task
from fheat.methods.supervised import Supervised, SupervisedSettings, region_targets
from fheat.methods.teacher import Teacher
from fheat.ops.gates import gates_of
from fheat.ops.hard_concrete import HardConcreteHeat
from fheat.ops.heat import FractionalHeat
from fheat.training import step as engine_step
from fheat.training.batches import Batches, draw, draw_order
from fheat.training.optimiser import AdamW, Schedule, parameters_by_rate
from fheat.training.settings import OptimiserSettings
from fheat.training.step import Step
from tests.methods.predictions import batch_of, cse

PATCH = (32, 16, 16)
LARGER = (32, 32, 32)
"""Crops for the networks of this package."""


def supervised(batch=2, patch=PATCH, **task):
    return Supervised(SupervisedSettings(), Task(patch, batch, **task))


def build(method, iterations, seed=0, clip=1.0, network="miniature", patch=PATCH):
    torch.manual_seed(seed)
    scans = [phantom(index, (36, 36, 36), geometry="canonical") for index in range(5)]
    images, labels = [zscore(scan.image.data) for scan in scans], [scan.label.data for scan in scans]
    store = VolumeStore(pack_all(images, labels, patch))
    model = create_model(network, patch_size=patch).train()
    draws = draw((2, 3), (method.labelled, method.unlabelled), iterations, seed)
    method.prepare(model, lambda: create_model(network, patch_size=patch).train())
    optimiser = AdamW(model, OptimiserSettings(clip=clip), list(method.parameters()))
    return Step(model, method, Batches(store, draws, patch), optimiser, Schedule(iterations, 2))


def test_rates_rise_then_fall_to_zero():
    factor = [Schedule(100, 20).factor(torch.tensor(n)).item() for n in range(100)]
    assert factor[:20] == pytest.approx([(n + 1) / 20 for n in range(20)])
    assert factor[20] == pytest.approx(1.0)
    assert factor[60] == pytest.approx(0.5)
    assert factor[99] == pytest.approx((1 + math.cos(math.pi * 79 / 80)) / 2)
    assert all(a >= b for a, b in itertools.pairwise(factor[20:]))


def test_order_shows_every_scan_before_any_again():
    order = draw_order(7, 2, 21, torch.Generator().manual_seed(0))
    assert order.shape == (21, 2)
    for start in range(0, 42, 7):
        assert sorted(order.flatten()[start : start + 7].tolist()) == list(range(7))
    assert torch.equal(order, draw_order(7, 2, 21, torch.Generator().manual_seed(0)))
    assert draw_order(7, 0, 21, torch.Generator()).shape == (21, 0)


def test_gates_and_rational_coefficients_have_their_own_rate():
    model = create_model("fheat_seg", patch_size=LARGER)
    groups = parameters_by_rate(model, OptimiserSettings(learning_rate=0.01, theta=2.0, delta=3.0, rational=0.05))
    assert {rate: len(parameters) for rate, parameters in groups.items() if rate in (0.02, 0.03)} == {0.02: 8, 0.03: 8}
    coefficients = sum(parameter.numel() for parameter in groups[0.0005])
    assert coefficients == 38 * sum(type(module).__name__ == "Rational" for module in model.modules())
    assert sum(len(parameters) for parameters in groups.values()) == len(list(model.parameters()))


def reference_step(model, clip, rate):
    """Clip, then AdamW, in the plain spelling."""
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-4, foreach=False, fused=False)
    optimiser.step()


@pytest.mark.parametrize("clip", [1e-3, 1e6])
def test_the_update_is_clipped_adamw(clip):
    ours, plain = nn.Linear(5, 3), nn.Linear(5, 3)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(7, 5)
    for model in (ours, plain):
        model(x).square().sum().backward()
    norm = AdamW(ours, OptimiserSettings(learning_rate=0.1, clip=clip)).step(torch.tensor(0.5))
    assert norm.item() == pytest.approx(torch.stack([p.grad.norm() for p in plain.parameters()]).norm().item())
    reference_step(plain, clip, 0.05)
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert (one - other).abs().max() < 1e-6


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(poison):
    model = nn.Linear(4, 2)
    optimiser = AdamW(model, OptimiserSettings(learning_rate=0.1))
    model(torch.randn(3, 4)).sum().backward()
    optimiser.step(torch.tensor(1.0))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model.weight.grad[0, 0] = poison
    optimiser.step(torch.tensor(1.0))
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert optimiser.skipped == 1
    model.weight.grad[0, 0] = 0.1
    optimiser.step(torch.tensor(1.0))
    assert not torch.equal(before[0], model.weight)
    assert torch.isfinite(model.weight).all()


def test_history_tells_losses_and_gates_of_every_iteration():
    step = build(cse(PATCH), 4)
    start = {site: (gate.strength.item(), gate.alpha.item()) for site, gate in gates_of(step.model).items()}
    for _ in range(4):
        step()
    assert step.iteration == 4
    assert step.columns[:7] == ("total", "supervised", "consistency", "mix", "accepted", "norm", "rate")
    rows = {name: step.history[:, index] for index, name in enumerate(step.columns)}
    assert torch.isfinite(step.history).all()
    assert torch.allclose(rows["total"], rows["supervised"] + rows["consistency"] + 4 * rows["mix"], rtol=1e-5)
    assert rows["rate"][:2].tolist() == pytest.approx([0.5, 1.0])
    for site, gate in gates_of(step.model).items():
        assert rows[f"D.{site}"][-1].item() == pytest.approx(gate.strength.item())
        assert rows[f"alpha.{site}"][-1].item() == pytest.approx(gate.alpha.item())
        assert abs(rows[f"D.{site}"][0].item() - start[site][0]) <= 0.0051  # one Adam step at half the rate


def test_two_runs_with_one_seed_are_identical_and_another_seed_is_not():
    def losses(seed):
        step = build(cse(PATCH), 3, seed)
        for _ in range(3):
            step()
        return step.history[:, 0].tolist()

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


@pytest.mark.slow
def test_supervised_training_learns():
    step = build(supervised(1, LARGER), 30, network="fheat_seg", patch=LARGER)
    for _ in range(30):
        step()
    total = step.history[:, 0]
    assert total[-5:].mean() < 0.6 * total[:5].mean()


def test_region_targets():
    labels = torch.tensor([0, 1, 2, 3]).view(1, 4, 1, 1)
    found = region_targets(labels, ((1, 2, 3), (2, 3), (3,)))
    assert found[0, :, :, 0, 0].tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
    model = create_model("miniature", patch_size=PATCH, out_channels=3)
    method = supervised(classes=3, regions=((1, 2, 3), (2, 3), (3,)))

    images = torch.randn(1, 1, *PATCH)
    losses = method.losses(model, batch_of(images, torch.randint(4, (1, *PATCH)), images[:0]))
    assert losses["total"].item() == pytest.approx(losses["ce"].item() + losses["dice"].item())
    assert np.isfinite(losses["total"].item())


class Taught(Supervised):
    """Supervised training that pulls a network to its teacher."""

    needs = Needs(teacher=True)

    def prepare(self, model, build):
        self.teacher = Teacher(model)

    def after_update(self, model, iteration):
        self.teacher.follow(model, iteration)

    def losses(self, model, batch):
        found = super().losses(model, batch)
        with torch.no_grad():
            target = self.teacher(batch.images)
        return found | {"total": found["total"] + 0.01 * (model(batch.images) - target).square().mean()}


def test_a_teacher_follows_and_is_part_of_the_state():
    whole = build(Taught(SupervisedSettings(), Task(PATCH, 2)), 4)
    start = [parameter.detach().clone() for parameter in whole.model.parameters()]
    whole()
    pairs = list(zip(whole.method.teacher.network.parameters(), whole.model.parameters(), strict=True))
    assert all(torch.equal(one, other) for one, other in pairs)
    first = [parameter.detach().clone() for parameter in whole.model.parameters()]
    assert not all(torch.equal(one, other) for one, other in zip(start, first, strict=True))
    whole()
    for (taught, learned), before in zip(pairs, first, strict=True):
        assert torch.allclose(taught, (before + learned) / 2, rtol=1e-5, atol=1e-7)
    state = whole.state()
    assert sum(name.startswith("method.teacher.") for name in state) >= len(pairs)
    whole()
    whole()
    again = build(Taught(SupervisedSettings(), Task(PATCH, 2)), 4)
    again.restore(state)
    again()
    again()
    assert torch.equal(whole.history, again.history)


def test_gates_that_closed_leave_the_iteration_and_nothing_changes(monkeypatch):
    def trained(look):
        monkeypatch.setattr(engine_step, "ITERATIONS_BETWEEN_GATE_CHECKS", look)
        step = build(cse(PATCH), 6)
        for site in ("enc1", "enc2"):
            with torch.no_grad():
                step.gates[site].delta.fill_(-1e-4)
        for _ in range(6):
            step()
        return step

    kept, left = trained(1000), trained(2)
    assert [site for site, gate in kept.gates.items() if gate.asleep] == []
    assert {"enc1", "enc2"} <= {site for site, gate in left.gates.items() if gate.asleep}
    assert torch.equal(kept.history, left.history)
    for (name, one), other in zip(kept.model.named_parameters(), left.model.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_gates_that_left_the_iteration_are_out_of_it_after_a_checkpoint(monkeypatch):
    monkeypatch.setattr(engine_step, "ITERATIONS_BETWEEN_GATE_CHECKS", 2)

    def fresh():
        step = build(supervised(), 6)
        for site in ("enc1", "enc2"):
            step.gates[site].set_strength(0.0)
        return step

    def asleep(step):
        return [site for site, gate in step.gates.items() if gate.asleep]

    whole = fresh()
    for done, sites in ((3, []), (2, ["enc1", "enc2"])):  # asked twice, after two and after four iterations
        for _ in range(done):
            whole()
        state, again = whole.state(), build(supervised(), 6)
        again.restore(state)
        assert asleep(again) == asleep(whole) == sites
        assert [gate.closed for gate in again._closed_before] == [True] * len(whole._closed_before)
    older = {name: value for name, value in state.items() if not name.startswith("gates.")}
    again.restore(older)
    assert asleep(again) == []


def test_only_a_closed_gate_sleeps_and_a_new_strength_wakes_it():
    gate = FractionalHeat()
    with pytest.raises(ValueError, match="open"):
        gate.sleep()
    gate.set_strength(0.0)
    gate.sleep()
    x = torch.randn(1, 2, 4, 4, 4)
    assert gate(x) is x
    gate.set_strength(0.5)
    assert not gate.asleep
    assert not torch.equal(gate(x), x)
    gate.set_strength(0.0)
    gate.sleep()
    gate.load_state_dict(FractionalHeat(initial_strength=0.5).state_dict())
    assert not torch.equal(gate(x), x)


def l0_step(weight, iterations=1):
    step = build(supervised(), iterations)
    for child in list(step.model.modules()):
        if hasattr(child, "gate"):
            child.gate = HardConcreteHeat(weight=weight)
    step.optimiser = AdamW(step.model, OptimiserSettings(clip=None))
    step.gates = gates_of(step.model)
    return step


def test_the_penalty_of_switches_is_part_of_what_is_minimised():
    def gradients(weight):
        step = l0_step(weight)
        torch.manual_seed(1)
        step()
        return [gate.logit.grad.item() for gate in step.gates.values()], step.row(1)["total"]

    (without, loss), (with_penalty, same) = gradients(0.0), gradients(0.7)
    pushed = 0.7 * torch.sigmoid(torch.tensor(-2 / 3 * math.log(1 / 11))).item()
    pushed *= 1 - pushed / 0.7
    assert [b - a for a, b in zip(without, with_penalty, strict=True)] == pytest.approx([pushed] * 3, rel=1e-4)
    assert loss == same  # what is logged is the loss of the method


def test_a_switch_that_is_off_is_not_put_to_sleep(monkeypatch):
    monkeypatch.setattr(engine_step, "ITERATIONS_BETWEEN_GATE_CHECKS", 1)
    step = l0_step(0.0, iterations=4)
    for gate in step.gates.values():
        gate.set_strength(0.0)
    for _ in range(3):
        step()
    assert all(gate.closed and not gate.asleep for gate in step.gates.values())

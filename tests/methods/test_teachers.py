"""Mean teacher and UA-MT against a literal transcription, and what they share."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat.methods.base import Task
from fheat.methods.losses import half_supervised_loss
from fheat.methods.mean_teacher import MeanTeacher, MeanTeacherSettings
from fheat.methods.registry import list_methods, method_class, register_method
from fheat.methods.teacher import noisy, ramped_weight
from fheat.methods.ua_mt import UAMT, UAMTSettings
from tests.methods import literal
from tests.methods.predictions import batch_of

GRID = (6, 5, 4)
KINDS = {"mean_teacher": (MeanTeacher, MeanTeacherSettings), "ua_mt": (UAMT, UAMTSettings)}


class Linear(nn.Module):
    """One weight per class: logits are the image times the weights, so a teacher differs from its student by them."""

    def __init__(self, classes):
        super().__init__()
        self.weights = nn.Parameter(torch.linspace(-1, 2, classes))

    def forward(self, x):
        return x * self.weights.view(1, -1, 1, 1, 1)


def build(name, classes=2, iterations=100, **settings):
    method, kind = KINDS[name]
    method = method(kind(**settings), Task(GRID, 2, classes, iterations=iterations))
    model = Linear(classes)
    method.prepare(model, lambda: Linear(classes))
    return method, model


def batch(classes=2):
    images, unlabelled = torch.randn(2, 1, *GRID), torch.randn(2, 1, *GRID)
    return batch_of(images, torch.randint(classes, (2, *GRID)), unlabelled)


def literal_supervised(logits, labels, classes):
    p, dice = logits.softmax(1), 0.0
    for k in range(1, classes):
        g = (labels == k).float()
        dice += 1 - (2 * (p[:, k] * g).sum() + 1e-5) / ((p[:, k] ** 2).sum() + (g**2).sum() + 1e-5)
    return (F.cross_entropy(logits, labels) + dice / (classes - 1)) / 2


@pytest.mark.parametrize("classes", [2, 4])
def test_the_supervised_half(classes):
    logits, labels = torch.randn(2, classes, *GRID), torch.randint(classes, (2, *GRID))
    assert half_supervised_loss(logits, labels).item() == pytest.approx(
        literal_supervised(logits, labels, classes).item(), rel=1e-5
    )
    perfect = 50 * F.one_hot(labels, classes).movedim(-1, 1).float()
    assert half_supervised_loss(perfect, labels).item() == pytest.approx(0, abs=1e-5)


def literal_ramp(step, length):
    """Spec, section 2.2, in single precision as weights of losses are."""
    return torch.tensor(math.exp(-5 * (1 - min(step, length) / length) ** 2))


def literal_noisy(images):
    return images + (0.1 * torch.randn_like(images)).clamp(-0.2, 0.2)


def literal_mean_teacher(student, teacher, given, step):
    with torch.no_grad():
        target = teacher(literal_noisy(given.unlabelled)).softmax(1)
    logits = student(torch.cat([given.images, given.unlabelled]))
    supervised = literal_supervised(logits[:2], given.labels, logits.shape[1])
    squares = 0.0
    for sample in range(2):
        for k in range(logits.shape[1]):
            squares = squares + ((logits[2 + sample].softmax(0)[k] - target[sample, k]) ** 2).sum()
    consistency, weight = squares / target.numel(), 0.1 * literal_ramp(step, 10)
    total = supervised + weight * consistency
    return {"total": total, "supervised": supervised, "consistency": consistency, "weight": weight}


def literal_ua_mt(student, teacher, given, step):
    """Spec, section 5; the passes of a crop follow each other in one batch, so that they draw what the method draws."""
    with torch.no_grad():
        p = teacher(literal_noisy(given.unlabelled.repeat_interleave(9, dim=0))).softmax(1)
    logits = student(torch.cat([given.images, given.unlabelled]))
    classes = logits.shape[1]
    supervised = literal_supervised(logits[:2], given.labels, classes)
    threshold = (0.75 + 0.25 * literal_ramp(step, 20)) * math.log(classes)
    squares, kept = 0.0, 0
    for sample in range(2):
        target, *passes = p[9 * sample : 9 * sample + 9]
        mean = sum(passes) / 8
        keep = -sum(mean[k] * (mean[k] + 1e-6).log() for k in range(classes)) < threshold
        for k in range(classes):
            squares = squares + ((logits[2 + sample].softmax(0)[k] - target[k]) ** 2)[keep].sum()
        kept += keep.sum().item()
    consistency, weight = squares / (classes * kept + 1e-16), 0.1 * literal_ramp(step, 10)
    terms = {"supervised": supervised, "consistency": consistency, "weight": weight}
    return {"total": supervised + weight * consistency, **terms, "certain": torch.tensor(kept / (2 * 16**3))}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("name", "transcription"), [("mean_teacher", literal_mean_teacher), ("ua_mt", literal_ua_mt)])
def test_twenty_steps_are_those_of_the_transcription(name, transcription, classes):
    """With dropout; the teacher's share is 1 - 1 / (t + 1), at most 0.9 here."""
    model = literal.network(classes, dropout=0.3)
    with torch.no_grad():
        model.head.weight.mul_(3)  # so that the teacher is certain of some voxels
    (kind, settings), student = KINDS[name], copy.deepcopy(model)
    method = kind(settings(ramp=10, decay=0.9), Task(literal.PATCH, 2, classes, iterations=20))
    method.prepare(model, lambda: model)
    teacher, history = copy.deepcopy(student), []
    for t, given in enumerate(literal.batches(20, classes=classes)):
        torch.manual_seed(t)
        losses, gradients = literal.advance(method, model, given, t)
        torch.manual_seed(t)
        expected = transcription(student, teacher, given, t)
        assert losses == pytest.approx({key: value.item() for key, value in expected.items()}, rel=1e-6)
        descended = literal.descend(list(student.parameters()), expected["total"])
        assert literal.relative_difference(gradients, descended) < 1e-6
        share = min(1 - 1 / (t + 1), 0.9)
        for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
            old.data = share * old.data + (1 - share) * new.data
        assert literal.relative_difference(method.teacher.network.parameters(), teacher.parameters()) < 1e-6
        history.append(losses)
    assert max(losses["weight"] * losses["consistency"] for losses in history) > 0.01
    assert name == "mean_teacher" or sum(0 < losses["certain"] < 1 for losses in history) >= 10
    assert not any(parameter.requires_grad for parameter in method.teacher.parameters())


def test_ua_mt_estimates_the_uncertainty_by_single_passes_of_other_noise():
    """One batch of the teacher does what a loop over passes does: the first is the target, the others the estimate."""
    method, model = build("ua_mt", noise=0.5, passes=3, iterations=50)
    given, seen = batch(), []
    method.teacher.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    found = method.losses(model, given)
    (noisy_images,) = seen
    copies = [noisy_images[k::4] for k in range(4)]  # of each of the two crops the k-th
    added = torch.stack([copy - given.unlabelled for copy in copies])
    assert added.flatten(1).std(dim=1).min() > 0.4
    assert torch.corrcoef(added.flatten(1)).fill_diagonal_(0).abs().max() < 0.3
    predictions = [method.teacher.network(copy).softmax(1) for copy in copies]
    mean = (predictions[1] + predictions[2] + predictions[3]) / 3
    certain = -(mean * (mean + 1e-6).log()).sum(1) < (0.75 + 0.25 * math.exp(-5)) * math.log(2)
    difference = (model(given.unlabelled).softmax(1) - predictions[0]).square().sum(1)
    assert found["consistency"].item() == pytest.approx(
        (difference[certain].sum() / (2 * certain.sum())).item(), rel=1e-5
    )
    assert found["certain"].item() == pytest.approx(certain.float().mean().item())


def test_at_the_end_everything_is_certain_and_ua_mt_is_the_mean_teacher():
    given = batch()
    (uncertain, model), (plain, other) = build("ua_mt", noise=0.0, iterations=5), build("mean_teacher", noise=0.0)
    for method in (uncertain, plain):
        method.steps.fill_(5)
        with torch.no_grad():
            method.teacher.network.weights.mul_(1.5)
    found, expected = uncertain.losses(model, given), plain.losses(other, given)
    assert found["certain"] > 0.99  # all but voxels where both classes are equally likely
    assert found["consistency"].item() == pytest.approx(expected["consistency"].item(), rel=1e-2)


def test_noise_is_cut_at_two_deviations():
    added = noisy(torch.zeros(4, 1, 20, 20, 20), 0.1)
    assert added.abs().max().item() == pytest.approx(0.2)
    assert added.std().item() == pytest.approx(0.0959, abs=2e-3)  # of a normal distribution cut at two deviations
    assert torch.equal(noisy(added, 0.0), added)


def test_a_short_ramp_is_smooth_and_the_published_one_has_stairs():
    assert ramped_weight(torch.tensor(3), 30) < ramped_weight(torch.tensor(4), 30)
    assert ramped_weight(torch.tensor(30), 30) == 1
    assert ramped_weight(torch.tensor(151)) == ramped_weight(torch.tensor(299))


def test_the_registry_names_the_nearest_and_checks_what_it_is_given(monkeypatch):
    with pytest.raises(ValueError, match="perhaps mean_teacher is meant"):
        method_class("mean_techer")
    with pytest.raises(ValueError, match="exists already"):
        register_method("cse", MeanTeacher)
    with pytest.raises(ValueError, match="must be a subclass"):
        register_method("mine", nn.Module)
    monkeypatch.setattr("fheat.methods.registry._REGISTERED", {})
    register_method("mine", MeanTeacher)
    assert method_class("mine") is MeanTeacher
    assert list_methods()[-1] == "mine"


@pytest.mark.parametrize("name", list_methods())
def test_every_method_says_what_it_is(name):
    method = method_class(name)
    assert method.title
    assert method.Settings().name == name
    assert all(field.description or key == "name" for key, field in method.Settings.model_fields.items())
    assert method.names[0] == "total"
    assert method.needs.unlabelled == (name != "supervised")

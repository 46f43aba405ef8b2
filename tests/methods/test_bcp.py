"""Bidirectional copy-paste against a literal transcription of its protocol, and the numbers the protocol states."""

import copy

import pytest
import torch
from torch import nn

from fheat.methods.base import Batch, Task
from fheat.methods.bcp import BCP, BCPSettings, first_stage, pseudo_labels, whole_loss
from fheat.methods.boxes import box_length, random_box
from fheat.ops.voxel_sums import voxel_sums
from tests.methods import literal

LA = (112, 112, 80)


def build(model, classes=2, batch=4, iterations=20, **settings):
    method = BCP(BCPSettings(**settings), Task(literal.PATCH, batch, classes, iterations=iterations))
    method.prepare(model, lambda: copy.deepcopy(model))
    return method


def literal_box():
    mask = torch.ones(literal.PATCH)  # 1 outside, 0 inside
    size = int(2 / 3 * 16)
    x, y, z = (int(torch.randint(16 - size, ())) for _ in range(3))
    mask[x : x + size, y : y + size, z : z + size] = 0
    return mask


def literal_pseudo(teacher, images):
    with torch.no_grad():
        p = teacher(images).softmax(dim=1)
    labels = torch.zeros(len(images), *literal.PATCH, dtype=torch.int64)
    for sample in range(len(images)):
        for k in range(1, p.shape[1]):
            labels[sample][literal.largest_component(p[sample].argmax(dim=0) == k)] = k
    return labels


def literal_mixed(logits, outside, inside, weights, mask):
    terms = [
        weight * (literal.masked_dice(logits, target, part) + literal.cross_entropy(logits, target, part))
        for target, weight, part in ((outside, weights[0], mask), (inside, weights[1], 1 - mask))
    ]
    return (terms[0] + terms[1]) / 2


def literal_losses(model, teacher, batch):
    """Return the losses of an iteration; the teacher is None in the first stage."""
    mask = literal_box()
    (x_a, x_b), (y_a, y_b) = (batch.images[0::2], batch.images[1::2]), (batch.labels[0::2], batch.labels[1::2])
    if teacher is None:
        logits, ones = model(x_a * mask + x_b * (1 - mask)), torch.ones(literal.PATCH)
        target = (y_a * mask + y_b * (1 - mask)).long()
        return (literal.cross_entropy(logits, target, ones) + literal.masked_dice(logits, target, ones)) / 2, 0, 0
    u_a, u_b = batch.unlabelled[0::2], batch.unlabelled[1::2]
    guess_a, guess_b = literal_pseudo(teacher, u_a), literal_pseudo(teacher, u_b)
    inward = literal_mixed(model(x_a * mask + u_a * (1 - mask)), y_a, guess_a, (1, 0.5), mask)
    outward = literal_mixed(model(u_b * mask + x_b * (1 - mask)), guess_b, y_b, (0.5, 1), mask)
    return inward + outward, inward, outward


@pytest.mark.parametrize("classes", [2, 3])
def test_twenty_steps_are_those_of_the_transcription(classes):
    """Five of the first stage, then fifteen with a teacher whose share is 1 - 1 / (t + 1), at most 0.9 here."""
    model, plain = literal.network(classes), literal.network(classes)
    method, teacher, found_guesses = build(model, classes, pretraining=0.25, decay=0.9), None, 0
    for t, batch in enumerate(literal.batches(20, crops=4, classes=classes)):
        if t == 5:
            teacher = copy.deepcopy(plain)
        torch.manual_seed(t)
        losses, gradients = literal.advance(method, model, batch, t)
        torch.manual_seed(t)
        expected = literal_losses(plain, teacher, batch)
        assert list(losses.values()) == pytest.approx([torch.as_tensor(value).item() for value in expected], abs=1e-6)
        assert literal.largest_difference(gradients, literal.descend(list(plain.parameters()), expected[0])) < 1e-6
        if teacher is not None:
            share = min(1 - 1 / (t + 1), 0.9)
            for old, new in zip(teacher.parameters(), plain.parameters(), strict=True):
                old.data = share * old.data + (1 - share) * new.data
            assert literal.largest_difference(method.teacher.network.parameters(), teacher.parameters()) < 1e-6
            found_guesses += (literal_pseudo(teacher, batch.unlabelled) > 0).sum()
    assert found_guesses > 100


class Recorder(nn.Module):
    """Remembers what it sees, and is sure of class 1 everywhere."""

    def __init__(self):
        super().__init__()
        self.seen, self.bias = [], nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.bias.view(1, 2, 1, 1, 1).expand(len(x), 2, *x.shape[2:])


def filled(values):
    return torch.tensor(values).view(-1, 1, 1, 1, 1).expand(-1, 1, *literal.PATCH).clone()


def test_what_is_pasted_into_what():
    model = Recorder()
    method = build(model, pretraining=1)
    batch = Batch(
        filled([1.0, 2.0, 3.0, 4.0]), torch.zeros(4, *literal.PATCH).long(), filled([5.0, 6.0, 7.0, 8.0]), *[None] * 2
    )
    literal.advance(method, model, batch, 0)
    (first,) = model.seen
    assert [sorted(crop.unique().tolist()) for crop in first] == [[1, 2], [3, 4]]
    inside = box_length(16) ** 3
    assert [(crop == value).sum().item() for crop, value in zip(first, (2, 4), strict=True)] == [inside, inside]
    literal.advance(method, model, batch, 1)
    second = model.seen[-1]
    assert [sorted(crop.unique().tolist()) for crop in second] == [[1, 5], [3, 7], [2, 6], [4, 8]]
    pasted = zip(second, (5, 7, 2, 4), strict=True)
    assert [(crop == value).sum().item() for crop, value in pasted] == [inside] * 4
    assert torch.equal(second[0] == 5, second[2] == 2)  # one box for the whole batch


def test_boxes_are_those_of_the_protocol():
    assert [box_length(length) for length in (112, 80, 96)] == [74, 53, 64]
    starts = torch.zeros(3, 12)
    for _ in range(1500):
        mask = random_box((12, 9, 7), torch.device("cpu"))
        assert mask.sum() == 8 * 6 * 4
        for axis in range(3):
            along = mask.movedim(axis, 0).flatten(1).any(dim=1)
            starts[axis, int(along.float().argmax())] += 1
    for axis, places in enumerate((4, 3, 3)):  # 12 - 8, 9 - 6, 7 - 4: the last place is never drawn
        assert (starts[axis, :places] / 1500 - 1 / places).abs().max() < 0.05
        assert starts[axis, places:].sum() == 0
    assert random_box(LA, torch.device("cpu")).sum() == 74 * 74 * 53


def test_pseudo_labels_are_the_largest_component_of_every_class():
    logits = torch.zeros(1, 3, 8, 8, 8)
    logits[:, 0] = 1.0
    logits[0, 1, :3, :3, :3], logits[0, 1, 6:, 6:, 6:] = 5.0, 5.0
    logits[0, 2, :2, 6:, :2], logits[0, 2, 4, 0, 0] = 5.0, 5.0
    found = pseudo_labels(logits)[0]
    assert found.dtype == torch.uint8
    assert [(found == k).sum().item() for k in (1, 2)] == [27, 8]
    assert (found[:3, :3, :3] == 1).all()
    assert (found[:2, 6:, :2] == 2).all()


def test_two_equally_likely_classes_are_foreground_and_an_empty_mask_stays_empty():
    assert (pseudo_labels(torch.zeros(2, 2, 4, 4, 4)) == 1).all()
    sure = torch.zeros(2, 2, 4, 4, 4)
    sure[:, 0] = 1e-6
    assert (pseudo_labels(sure) == 0).all()


def test_a_perfect_prediction_costs_nothing_in_the_first_stage():
    labels = torch.randint(2, (2, 6, 5, 4))
    perfect = 50 * torch.nn.functional.one_hot(labels, 2).movedim(-1, 1).float()
    assert whole_loss(voxel_sums(perfect, labels)).item() == pytest.approx(0, abs=1e-5)


def test_the_teacher_waits_and_begins_as_the_network_with_its_buffers():
    model = nn.Sequential(nn.Conv3d(1, 2, 1), nn.BatchNorm3d(2)).double()
    method = build(model, batch=2, pretraining=2)
    at_first = [value.clone() for value in method.teacher.state_dict().values()]
    for t, batch in enumerate(literal.batches(2)):
        literal.advance(method, model, batch, t)
    assert all(torch.equal(a, b) for a, b in zip(at_first, method.teacher.state_dict().values(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(at_first, model.state_dict().values(), strict=True))
    method.begin_stage(model, 1)
    copied = zip(method.teacher.network.state_dict().values(), model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in copied)
    assert not any(parameter.requires_grad for parameter in method.teacher.parameters())
    assert method.trained() == []


def test_the_first_stage_is_a_share_or_a_number():
    assert [first_stage(0.12, 17_000), first_stage(2000, 17_000), first_stage(0, 100), first_stage(1, 100)] == [
        2040, 2000, 0, 1,
    ]  # fmt: skip
    method = BCP(BCPSettings(pretraining=0.25), Task(literal.PATCH, 2, iterations=8))
    assert [method.stage(t) for t in range(4)] == [0, 0, 1, 1]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"data\.batch: method bcp .* needs 2, 4, \.\.\., not 3"):
        BCP.check(BCPSettings(), Task(literal.PATCH, 3))
    with pytest.raises(ValueError, match=r"method\.pretraining: 600 leaves none of 600 iterations"):
        BCP.check(BCPSettings(pretraining=600), Task(literal.PATCH, 2, iterations=600))
    BCP.check(BCPSettings(), Task((30, 20, 17), 2, iterations=1))

"""FixMatch against a literal transcription, and which voxels it learns from."""

import pytest
import torch
from torch import nn

from fheat.methods.base import Task
from fheat.methods.fixmatch import FixMatch, FixMatchSettings
from fheat.methods.supervised import Supervised, SupervisedSettings
from tests.methods import literal
from tests.methods.predictions import batch_of


def build(classes=2, **settings):
    return FixMatch(FixMatchSettings(**settings), Task(literal.PATCH, 2, classes))


def literal_losses(model, batch, threshold):
    with torch.no_grad():
        confidence, label = model(batch.unlabelled).softmax(dim=1).max(dim=1)
        strong = literal.dimmed(literal.changed(batch.unlabelled, batch.low, batch.high))
    supervised = literal.supervised(model(batch.images), batch.labels)
    log_p = model(strong).log_softmax(dim=1)
    total = 0.0
    for sample in range(2):
        accepted = confidence[sample] >= threshold
        for k in range(log_p.shape[1]):
            total = total - log_p[sample, k][accepted & (label[sample] == k)].sum()
    consistency, share = total / label.numel(), (confidence >= threshold).double().mean()
    return supervised + consistency, supervised, consistency, share


@pytest.mark.parametrize("classes", [2, 3])
def test_twenty_steps_are_those_of_the_transcription(classes):
    model, plain, threshold = literal.network(classes), literal.network(classes), 0.4 if classes == 3 else 0.6
    method, shares = build(classes, threshold=threshold), []
    for t, batch in enumerate(literal.batches(20, classes=classes)):
        torch.manual_seed(t)
        losses, gradients = literal.advance(method, model, batch, t)
        torch.manual_seed(t)
        expected = literal_losses(plain, batch, threshold)
        assert list(losses.values()) == pytest.approx([value.item() for value in expected], abs=1e-6)
        assert literal.largest_difference(gradients, literal.descend(list(plain.parameters()), expected[0])) < 1e-6
        shares.append(losses["accepted"])
    assert any(0 < share < 1 for share in shares)


class Given(nn.Module):
    """Predicts `weak` for two crops and `views` for four."""

    def __init__(self, weak, views):
        super().__init__()
        self.weak, self.views = weak, views

    def forward(self, x):
        return self.weak if len(x) == 2 else self.views


def test_only_voxels_above_the_threshold_count_and_all_are_in_the_denominator():
    p = torch.tensor([0.9499, 0.9501]).repeat(8)
    weak = torch.zeros(2, 2, 16, 16, 16)
    weak[:, 1] = (p / (1 - p)).log()  # along the last axis
    views = torch.zeros(4, 2, 16, 16, 16)
    images = torch.zeros(2, 1, 16, 16, 16)
    losses = build().losses(Given(weak, views), batch_of(images, torch.zeros(2, 16, 16, 16).long(), images))
    assert losses["accepted"] == 0.5
    assert losses["consistency"].item() == pytest.approx(0.5 * torch.tensor(2.0).log().item())


def test_without_weight_it_is_supervised_training():
    model, batch = literal.network(), next(literal.batches(1))
    losses = build(consistency=0.0).losses(model, batch)
    expected = Supervised(SupervisedSettings(), Task(literal.PATCH, 2)).losses(model, batch)
    assert losses["total"].item() == pytest.approx(expected["total"].item(), rel=1e-12)


def test_a_threshold_is_a_probability():
    with pytest.raises(ValueError, match="threshold"):
        FixMatchSettings(threshold=1.5)

"""MLRP against a literal transcription, and the bounds that its reliability and its two cross-entropies have."""

import math

import pytest
import torch
import torch.nn.functional as F

from fheat.methods.mlrp import form_opinion, reliability
from fheat.networks.base import Features
from tests.methods.pairs import assert_equal_for_steps, build, crops, ramp_of


def literal_dice(logits, labels, classes):
    p, losses = logits.softmax(1), []
    for k in range(1, classes):
        g = (labels == k).double()
        losses.append(1 - (2 * (p[:, k] * g).sum() + 1e-8) / (p[:, k].sum() + g.sum() + 1e-8))
    return sum(losses) / len(losses)


def literal_reliability(p, features):
    """Sample by sample and class by class; the features lie on cells of four voxels a side."""
    label = p.argmax(1)
    rows = []
    for sample in range(len(p)):
        f = features[sample].flatten(1)
        cells = label[sample, 2::4, 2::4, 2::4].flatten()
        parts = []
        for k in range(p.shape[1]):
            prototype = f[:, cells == k].sum(1) / ((cells == k).sum() + 1e-6)
            prototype = prototype / prototype.norm() if prototype.any() else prototype
            similar = (prototype @ f / f.norm(dim=0)).view(1, 1, 4, 4, 4)
            parts.append(1 - (F.interpolate(similar, scale_factor=4, mode="trilinear")[0, 0] - p[sample, k]) ** 2)
        rows.append((sum(parts) / len(parts)).clamp(min=0))
    return torch.stack(rows)


def literal_teaching(learner, teacher, double_softmax):
    """Network i learns from j: sum of m R CE / (sum of m + 1e-6)."""
    p, q = learner.logits.softmax(1), teacher.logits.softmax(1).detach()
    mask = -(p * (p + 1e-6).log()).sum(1) > -(q * (q + 1e-6).log()).sum(1)
    trust = literal_reliability(q, teacher.penultimate.detach())
    given = p if double_softmax else learner.logits
    numerator, label = 0.0, q.argmax(1)
    for sample in range(len(p)):
        for k in range(p.shape[1]):
            chosen = mask[sample] & (label[sample] == k)
            surprise = given[sample].logsumexp(0) - given[sample, k]
            numerator = numerator + (surprise * trust[sample])[chosen].sum()
    return numerator / (mask.sum() + 1e-6)


def literal(classes, double_softmax):
    def losses(method, model, batch, step):
        images = torch.cat([batch.images, batch.unlabelled])
        one, two = model.forward_features(images), method.second.forward_features(images)
        supervised = 0.5 * sum(literal_dice(seen.logits[:2], batch.labels, classes) for seen in (one, two))
        mutual = literal_teaching(one, two, double_softmax) + literal_teaching(two, one, double_softmax)
        weight = ramp_of(step, 8)
        total = supervised + weight * mutual
        return {"total": total, "supervised": supervised, "mutual": mutual, "weight": weight}

    return losses


@pytest.mark.parametrize(("classes", "double_softmax", "steps"), [(2, False, 20), (2, True, 6), (3, False, 10)])
def test_steps_are_the_literal_ones(classes, double_softmax, steps):
    method, model = build("mlrp", classes, ramp=8, double_softmax=double_softmax)
    history = assert_equal_for_steps(method, model, literal(classes, double_softmax), crops(classes), steps)
    assert all(row["mutual"] > 0 for row in history)


def test_the_second_network_is_trained_and_has_weights_of_its_own():
    method, model = build("mlrp")
    pairs = list(zip(model.parameters(), method.second.parameters(), strict=True))
    assert [id(parameter) for parameter in method.trained()] == [id(own) for _, own in pairs]
    assert not torch.equal(model.head.weight, method.second.head.weight)
    method.losses(model, crops())["total"].backward()
    assert all(own.grad is not None for pair in pairs for own in pair)


def test_without_mutual_learning_the_networks_are_apart():
    method, model = build("mlrp", mutual=0.0)
    batch = crops()
    losses = method.losses(model, batch)
    assert losses["total"] == losses["supervised"]
    alone = 0.5 * literal_dice(model(batch.images), batch.labels, 2)
    expected = torch.autograd.grad(alone, list(model.parameters()))
    for one, other in zip(torch.autograd.grad(losses["total"], list(model.parameters())), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_reliability_is_one_where_similarity_and_probability_agree_and_never_negative():
    """Features that are the one-hot label make similarities of one and zero."""
    label = torch.randint(2, (1, 4, 4, 4))
    hot = F.one_hot(label, 2).movedim(-1, 1).float()
    assert torch.allclose(reliability(hot, label, 3 * hot), torch.ones(1, 4, 4, 4), atol=1e-5)
    assert torch.allclose(reliability(1 - hot, label, 3 * hot), torch.zeros(1, 4, 4, 4), atol=1e-5)
    signed = 2 * hot[:, :1] - 1  # one channel: the prototypes of both classes point into opposite directions
    p = torch.tensor([0.99, 0.01]).view(1, 2, 1, 1, 1).expand(1, 2, 4, 4, 4)
    found = reliability(p, label, signed)
    assert found.min() == 0  # 1 - ((-1 - 0.99)^2 + (1 - 0.01)^2) / 2 is below it
    assert found.max() <= 1


@pytest.mark.parametrize("logits", [-60.0, 0.0, 60.0])
def test_double_softmax_bounds_the_loss_of_a_voxel(logits):
    """Between 0.31 and 1.31, as the specification of the original's slip says."""
    sure = torch.tensor([logits, -logits]).view(1, 2, 1, 1, 1).double()
    method, _ = build("mlrp", double_softmax=True)
    unsure = Features(torch.zeros_like(sure) + torch.tensor([0.0, 1e-9]).view(1, 2, 1, 1, 1), sure, sure)
    teacher = form_opinion(Features(torch.tensor([9.0, -9.0]).view(1, 2, 1, 1, 1).double(), sure, sure))
    found = method._taught(sure, form_opinion(unsure), teacher._replace(reliability=torch.ones(1, 1, 1, 1)))
    p = 1 / (1 + math.exp(-2 * logits))
    assert found.item() == pytest.approx(math.log(1 + math.exp(1 - 2 * p)), rel=1e-5)
    assert 0.3132 <= found.item() <= 1.3133


def test_nothing_is_learned_from_one_who_is_less_certain():
    method, _ = build("mlrp")
    sure, unsure = (torch.tensor([value, -value]).view(1, 2, 1, 1, 1).expand(1, 2, 4, 4, 4) for value in (4.0, 0.1))
    opinions = [form_opinion(Features(logits, logits, logits)) for logits in (sure, unsure)]
    assert method._taught(sure, *opinions) == 0
    assert method._taught(unsure, *reversed(opinions)) > 0

"""SS-Net against a literal transcription of its protocol, with and without the defects of the published code."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat import create_model
from fheat.methods.base import Task
from fheat.methods.losses import linear_foreground_dice
from fheat.methods.smoothness import dice_distance, frozen_statistics, smoothness_loss, uniform_noise, unit
from fheat.methods.ss_net import SSNet, SSNetSettings
from fheat.ops.voxel_sums import voxel_sums
from tests.methods import literal
from tests.methods.captured import Plain, advance_as_captured
from tests.methods.predictions import batch_of

GRID, ENTRIES = (16, 16, 16), 9


def build(model, classes, **settings):
    method = SSNet(SSNetSettings(**({"entries": ENTRIES} | settings)), Task(GRID, 2, classes))
    method.prepare(model, lambda: model)
    return method


def batch(classes, dtype=torch.float64):
    images, unlabelled = torch.randn(2, 1, *GRID, dtype=dtype), torch.randn(2, 1, *GRID, dtype=dtype)
    return batch_of(images, torch.randint(classes, (2, *GRID)), unlabelled)


def layers_of(head):
    """The head as layers of torch that share its weights, with running statistics of their own."""
    norm = nn.BatchNorm1d(head.first.out_features).double()
    norm.weight, norm.bias = head.norm.weight, head.norm.bias
    return nn.Sequential(head.first, norm, nn.LeakyReLU(head.slope), head.last)


class Literal:
    """Spec, section 7, with the vectors of the feature grid (2.9a): boolean masks, loops over classes and pairs."""

    def __init__(self, method, classes):
        published = method.options.as_published
        self.classes, self.published, self.first = classes, published, 1 if published else 0
        self.project, self.predict = layers_of(method.projection), layers_of(method.prediction)
        self.select = [layers_of(head) for head in method.selectors]
        self.select_memory = [layers_of(head) for head in method.memory_selectors]
        self.memory = [None] * classes

    def loss(self, model, given, iteration, noise):
        images, dice = torch.cat([given.images, given.unlabelled]), 0.0
        seen = model.forward_features(images)
        p = seen.logits.softmax(1)
        for k in range(1, self.classes):
            g = (given.labels == k).double()
            dice += 1 - (2 * (p[:2, k] * g).sum() + 1e-8) / (p[:2, k].sum() + g.sum() + 1e-8)
        cells = (slice(None), *[slice(2, None, 4)] * 3)  # voxel 2 of every 4
        labels, guesses = given.labels[cells].reshape(-1), seen.logits.argmax(1)[cells]
        features = seen.penultimate.permute(0, 2, 3, 4, 1).reshape(4, -1, seen.penultimate.shape[1])
        known, unknown = features[:2].flatten(0, 1), features[2:].flatten(0, 1)
        self.remember(known.detach(), labels, guesses[:2].reshape(-1))
        apart = self.separate(known, labels) + self.separate(unknown, guesses[2:].reshape(-1))
        smooth = self.smooth(model, images, p.detach(), noise)
        weight = torch.tensor(math.exp(-5 * (1 - min(iteration, 4) / 4) ** 2)).item()  # ramps are in single precision
        return dice / (self.classes - 1) + weight * (smooth + 0.1 * apart)

    def smooth(self, model, images, p, d):
        def distance(d):
            q = model(images + 10 * d).softmax(1)
            return 1 - (2 * (q * p).sum() + 1e-8) / (q.sum() + p.sum() + 1e-8)

        d = torch.stack([one / one.norm() for one in d]).requires_grad_()
        (gradient,) = torch.autograd.grad(distance(d), d)
        return distance(torch.stack([one / one.norm() for one in gradient]))

    @torch.no_grad()
    def remember(self, rows, labels, guesses):
        for k in range(self.first, self.classes):
            chosen = rows[(labels == k) & (guesses == k)]
            if len(chosen) > 0:
                self.project.eval()
                vectors = self.project(chosen)
                self.project.train()
                if len(chosen) > ENTRIES:
                    score = self.select[k - self.first](vectors)[:, 0].sigmoid()
                    vectors = vectors[score.argsort(descending=not self.published)[:ENTRIES]]
                self.memory[k] = vectors

    def separate(self, rows, labels):
        u, total = self.predict(self.project(rows)), 0.0
        for k in range(self.first, self.classes):
            mine, memory = u[labels == k], self.memory[k]
            if memory is None or len(memory) < 2 or len(mine) < 2:
                continue
            a = self.select[k - self.first](mine.detach())[:, 0].sigmoid()
            a = a * len(a) / a.sum()
            b = torch.ones(len(memory), dtype=torch.float64)
            if not self.published:
                b = self.select_memory[k](memory)[:, 0].sigmoid()
                b = b * len(b) / b.sum()
            pairs = 1 - F.cosine_similarity(mine[:, None], memory[None], dim=2)
            total += (a[:, None] * b * pairs).mean()
        return total / self.classes


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_twenty_steps_equal_the_transcription(classes, as_published):
    model = create_model("miniature", 1, classes, GRID, dropout=0.0).double().train()
    nn.init.normal_(model.head.weight)  # so that every class is predicted somewhere
    method = build(model, classes, ramp=4, as_published=as_published)
    twin, heads = copy.deepcopy((model, method))
    plain = Literal(heads, classes)
    for step in range(20):
        given = batch(classes)
        torch.manual_seed(step)
        losses, gradients = literal.advance(method, model, given, step)
        torch.manual_seed(step)
        noise = torch.cat([torch.rand(2, 1, *GRID, dtype=torch.float64) - 0.5 for _ in range(2)])
        expected = plain.loss(twin, given, step + 1, noise)
        assert losses["total"] == pytest.approx(expected.item(), rel=1e-6)
        descended = literal.descend([*twin.parameters(), *heads.trained()], expected)
        assert literal.relative_difference(gradients, descended) < 1e-6
    assert torch.allclose(method.projection.norm.mean, plain.project[1].running_mean)
    assert torch.allclose(method.projection.norm.variance, plain.project[1].running_var)
    assert all(memory is not None for memory in plain.memory[plain.first :])
    assert losses["separation"] > 0
    assert len(method.memory_selectors) == (0 if as_published else classes)


def test_memory_stays_where_no_voxel_is_correct_and_its_class_waits_for_two():
    model = Plain().double()
    method = build(model, 2)
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([50.0, -50.0]))
    given = batch(2)
    method.losses(model, given)
    assert method.memory.filled.all(dim=1).tolist() == [True, False]
    assert not method.memory.filled[1].any()
    before = method.memory.vectors.clone()
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([-50.0, 50.0]))
    rows = torch.randn(1024, 6, dtype=torch.float64)
    labels = torch.ones(1024, dtype=torch.int64)
    assert method._separation(rows, labels) == 0  # class 1 has no memory yet
    method.losses(model, given)
    assert torch.equal(method.memory.vectors[0], before[0])
    assert method.memory.filled.all()
    assert method._separation(rows, labels) > 0
    labels[1:] = -1
    assert method._separation(rows, labels) == 0  # one vector is not enough


def test_perturbations_have_their_length_and_raise_the_distance_more_than_noise():
    model = create_model("miniature", 1, 2, GRID, dropout=0.0).double().train()
    images = torch.randn(2, 1, *GRID, dtype=torch.float64)
    clean, seen = model(images).softmax(1).detach(), []

    def predict(x):
        seen.append((x - images).detach().flatten(1).norm(dim=1))
        return model(x).softmax(1)

    noise = uniform_noise(images)
    worst = smoothness_loss(predict, images, clean, noise, probe=10.0, radius=3.0)
    assert torch.allclose(torch.stack(seen), torch.tensor([[10.0, 10.0], [3.0, 3.0]], dtype=torch.float64))
    least = dice_distance(clean, clean)
    assert worst > dice_distance(predict(images + 3 * unit(noise)), clean)
    assert worst > least > 0
    sure = F.one_hot(torch.randint(3, (2, *GRID)), 3).movedim(-1, 1).double()
    assert dice_distance(sure, sure) == pytest.approx(0, abs=1e-12)


def test_no_gradients_of_weights_are_made_on_the_way_to_the_direction():
    model = create_model("miniature", 1, 2, GRID, dropout=0.0).double().train()
    images, learned = torch.randn(2, 1, *GRID, dtype=torch.float64), []
    clean, noise, weights = model(images).softmax(1).detach(), uniform_noise(images), list(model.parameters())

    def predict(x):
        learned.append(sum(weight.requires_grad for weight in weights))
        return model(x).softmax(1)

    options = {"probe": 10.0, "radius": 3.0}
    expected = smoothness_loss(predict, images, clean, noise, **options)
    found = smoothness_loss(predict, images, clean, noise, **options, weights=weights)
    assert torch.equal(found, expected)
    assert learned == [len(weights), len(weights), 0, len(weights)]
    gradients = (torch.autograd.grad(loss, weights, allow_unused=True) for loss in (found, expected))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True) if one is not None)

    def fail(x):
        raise RuntimeError("stopped")

    weights[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="stopped"):
        smoothness_loss(fail, images, clean, noise, **options, weights=weights)
    assert [weight.requires_grad for weight in weights] == [False] + [True] * (len(weights) - 1)


def test_unit_images_survive_tiny_and_empty_gradients():
    images = torch.stack([torch.zeros(1, 4, 4, 4), torch.full((1, 4, 4, 4), 1e-30), torch.full((1, 4, 4, 4), 1e30)])
    assert unit(images).flatten(1).norm(dim=1).tolist() == pytest.approx([0, 1, 1])


def test_running_statistics_follow_the_clean_pass_only():
    model, other = Plain(), nn.BatchNorm3d(6)
    method, given = build(model, 2), batch(2, torch.float32)
    other(model.stem(torch.cat([given.images, given.unlabelled])))
    method.losses(model, given)
    assert torch.allclose(model.norm.running_mean, other.running_mean, atol=1e-6)
    assert torch.allclose(model.norm.running_var, other.running_var, atol=1e-6)
    assert model.norm.num_batches_tracked == 1
    with frozen_statistics(model):
        assert not model.norm.track_running_stats
        one, two = model(given.images), model(given.images + 1)
        assert torch.allclose(one, two, atol=1e-4)  # statistics of the batch take away what is added
    assert model.norm.track_running_stats


def test_linear_dice_is_its_formula():
    logits, labels = torch.randn(2, 4, 6, 5, 4), torch.randint(4, (2, 6, 5, 4))
    p, expected = logits.softmax(1), 0.0
    for k in range(1, 4):
        g = (labels == k).float()
        expected += (1 - 2 * (p[:, k] * g).sum() / (p[:, k].sum() + g.sum())) / 3
    assert linear_foreground_dice(voxel_sums(logits, labels)).item() == pytest.approx(expected.item(), rel=1e-5)
    perfect = 50 * F.one_hot(labels, 4).movedim(-1, 1).float()
    assert linear_foreground_dice(voxel_sums(perfect, labels)).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("as_published", [False, True])
def test_nothing_in_an_iteration_asks_the_host(as_published):
    model = Plain(3)
    method = build(model, 3, as_published=as_published)
    assert tuple(advance_as_captured(method, model, batch(3, torch.float32))) == SSNet.names


def test_more_entries_than_voxels():
    model = Plain()
    method = build(model, 2, entries=2000)
    method.losses(model, batch(2, torch.float32))["total"].backward()
    assert 0 < method.memory.filled.sum() < 2000
    assert all(torch.isfinite(parameter.grad).all() for parameter in (*model.parameters(), *method.trained()))

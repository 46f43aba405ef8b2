"""CAML against a literal transcription, cell by cell, and what its memory and its attention do in training."""

import copy

import pytest
import torch
from torch import nn

from fheat.methods.base import Task
from fheat.methods.caml import CAML, CAMLSettings
from fheat.networks.base import Features
from fheat.networks.registry import NetworkSpec
from fheat.system.errors import BadInput
from tests.methods.pairs import PATCH, assert_equal_for_steps, build, crops, parameters_of, ramp_of
from tests.methods.test_mlrp import literal_dice

SMALL = {"memory": 24, "added": 9, "compared": 6, "voxels": 20, "dropout": 0.0, "ramp": 8}
CELLS = [(s, x, y, z) for s in range(2) for x in range(4) for y in range(4) for z in range(4)]
"""Cells of four voxels a side in two crops, in the order in which vectors have them."""


def literal_head(head, rows, training):
    """Linear, batch norm, ReLU, linear."""
    x, norm = rows @ head.first.weight.T + head.first.bias, head.norm
    mean, variance = norm.mean, norm.variance
    if training:
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        if norm.mean is not None:
            norm.mean = (0.9 * norm.mean + 0.1 * mean).detach()
            norm.variance = (0.9 * norm.variance + 0.1 * x.var(0)).detach()
    x = (x - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias
    return x.clamp(min=0) @ head.last.weight.T + head.last.bias


class Literal:
    """One iteration after the other, with lists in place of tensors of fixed size."""

    def __init__(self, classes, scramble):
        self.classes, self.scramble = classes, scramble
        self.memory = [[] for _ in range(classes)]
        self.slots = [[None] * SMALL["memory"] for _ in range(classes)]

    def __call__(self, method, model, batch, step):
        images = torch.cat([batch.images, batch.unlabelled])
        v, a = model.forward_features(images), method.second.forward_features(images)
        supervised = 0.5 * sum(literal_dice(seen.logits[:2], batch.labels, self.classes) for seen in (v, a))
        p, q = v.logits.softmax(1), a.logits.softmax(1)
        consistency = ((p - self.sharpen(q)) ** 2).mean() + ((q - self.sharpen(p)) ** 2).mean()
        with torch.no_grad():
            self.remember(method, v, a, batch.labels)
        correlation = self.correlate(method, v, a)
        total = supervised + ramp_of(step, 8) * (1.0 * consistency + 0.05 * correlation)
        return {"total": total, "supervised": supervised, "consistency": consistency, "correlation": correlation}

    def sharpen(self, p):
        if self.classes == 2:
            return p**10 / (p**10 + (1 - p) ** 10)
        return p**10 / (p**10).sum(1, keepdim=True)

    def remember(self, method, v, a, labels):
        chance = torch.rand(2, 4, 4, 4)
        scrambled = a.penultimate[:2].reshape(-1, 8)
        for k in range(self.classes):
            found = []
            for number, (s, x, y, z) in enumerate(CELLS):
                at = (s, slice(None), 4 * x + 2, 4 * y + 2, 4 * z + 2)
                truth = labels[s, 4 * x + 2, 4 * y + 2, 4 * z + 2]
                if truth == k == v.logits[at].argmax() == a.logits[at].argmax():
                    second = scrambled[number] if self.scramble else a.penultimate[s, :, x, y, z]
                    rows = [v.penultimate[s, :, x, y, z], second]
                    heads = zip(method.projections, rows, strict=True)
                    mean = sum(literal_head(head, row[None], training=False)[0] for head, row in heads) / 2
                    found.append((chance[s, x, y, z].item(), mean))
            for _, vector in sorted(found, key=lambda one: -one[0])[: SMALL["added"]]:
                self.slots[k][len(self.memory[k]) % SMALL["memory"]] = vector
                self.memory[k].append(vector)  # everything ever written; `slots` has what is remembered

    def correlate(self, method, v, a):
        chance, entries = torch.rand(self.classes, SMALL["memory"]), []
        for k in range(self.classes):
            filled = [slot for slot in range(SMALL["memory"]) if self.slots[k][slot] is not None]
            if len(filled) >= SMALL["compared"]:
                drawn = sorted(filled, key=lambda slot: -chance[k, slot].item())[: SMALL["compared"]]
                entries += [self.slots[k][slot] for slot in drawn]
        cells = []
        for k in range(self.classes):
            agreed = []
            for s, x, y, z in CELLS:
                at = (2 + s, slice(None), 4 * x + 2, 4 * y + 2, 4 * z + 2)
                if v.logits[at].argmax() == a.logits[at].argmax() == k:
                    agreed.append((v.logits[at].softmax(0)[k].item(), (2 + s, slice(None), x, y, z)))
            cells += [at for _, at in sorted(agreed, key=lambda one: -one[0])[: SMALL["voxels"]]]
        shares = []
        for seen, project, predict in zip((v, a), method.projections, method.predictions, strict=True):
            rows = torch.stack([seen.penultimate[at] for at in cells])
            z = literal_head(predict, literal_head(project, rows, training=True), training=True)
            shares.append((z @ torch.stack(entries).T / 0.1).softmax(1) if entries else z)
        if not entries:
            return torch.zeros((), dtype=torch.float64)
        losses = [-(two * (one + 1e-8).log()).sum() for one, two in zip(*shares, strict=True)]
        return sum(losses) / len(losses)


@pytest.mark.parametrize(("classes", "scramble", "steps"), [(2, False, 20), (2, True, 6), (3, False, 8)])
def test_steps_are_the_literal_ones(classes, scramble, steps):
    method, model = build("caml", classes, scramble=scramble, **SMALL)
    literal = Literal(classes, scramble)
    history = assert_equal_for_steps(method, model, literal, crops(classes), steps)
    assert history[-1]["correlation"] > 0
    assert method.memory.written.tolist() == [len(vectors) for vectors in literal.memory]
    assert method.memory.written.max() > SMALL["memory"]  # a ring has been full


def test_the_memory_learns_only_what_is_labelled_correctly():
    """Labels that both networks contradict everywhere leave it empty, and the correlations do not count."""
    method, model = build("caml", **SMALL)
    batch = crops()
    images = torch.cat([batch.images, batch.unlabelled])
    predicted = model(images).argmax(1)[:2]
    losses = method.losses(model, batch._replace(labels=1 - predicted))
    assert method.memory.written.sum() == 0
    assert losses["correlation"] == 0
    assert torch.isfinite(losses["total"])
    gradients = torch.autograd.grad(losses["total"], parameters_of(method, model))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_everything_is_trained_and_remembered():
    method, model = build("caml", **SMALL)
    for _ in range(3):
        losses = method.losses(model, crops())
    losses["total"].backward()
    assert all(parameter.grad is not None for parameter in parameters_of(method, model))
    names = method.state_dict()
    for part in ("second.head.weight", "attention.across.norm1.weight", "memory.vectors", "memory.written", "steps"):
        assert part in names
    assert names["memory.vectors"].shape == (2, 24, 32)
    assert method.attention.within.self_attn.embed_dim == 8


def test_a_copy_does_what_the_method_does_and_leaves_it_alone():
    """Probes along a run compute losses on a deep copy, whose hook must refer to its own attention."""
    method, model = build("caml", **SMALL)
    batch, before = crops(), copy.deepcopy(method.state_dict())
    losses = []
    for one in (copy.deepcopy(method), method):
        torch.manual_seed(1)
        losses.append(one.losses(model, batch)["total"])
    assert torch.equal(*losses)
    assert method.steps == before["steps"] + 1  # counted by the method itself, not by its copy


def test_mistakes_are_named():
    for name in ("compared", "added"):
        with pytest.raises(ValueError, match=rf"method\.{name}: 1024 is more than the memory of 256"):
            CAML.check(CAMLSettings(**{"memory": 256, "compared": 256, "added": 256} | {name: 1024}), Task(PATCH, 2))
    CAML.check(CAMLSettings(), Task(PATCH, 2))


class Flat(nn.Module):
    """A network that keeps its grid."""

    spec = NetworkSpec("flat", 1, 2, PATCH)

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(4, 2, 1)

    def forward(self, x):
        return self.forward_features(x).logits

    def forward_features(self, x):
        features = self.body(x)
        return Features(self.head(features), features.detach()[:, :1].abs(), features)


def test_a_network_without_an_encoder_is_refused():
    with pytest.raises(BadInput, match="Flat has no module that returns a coarser grid than its input; use a network"):
        CAML(CAMLSettings(), Task(PATCH, 2)).prepare(Flat(), Flat)

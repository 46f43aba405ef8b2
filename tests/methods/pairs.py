"""A method with two networks in double precision, twice: once as it is, once for a literal transcription of it."""

import copy
import math

import torch

from fheat import create_model
from fheat.methods.base import Task
from fheat.methods.registry import method_class
from tests.methods.predictions import batch_of

PATCH = (16, 16, 16)


def build(name, classes=2, **settings):
    """Return the method and its first network, without dropout."""

    def network():
        return create_model("miniature", out_channels=classes, patch_size=PATCH, dropout=0.0).double().train()

    kind = method_class(name)
    method, model = kind(kind.Settings(**settings), Task(PATCH, 2, classes)), network()
    method.prepare(model, network)
    return method, model


def crops(classes=2):
    """Return two labelled crops and two unlabelled ones: blocks of four voxels a side, as bright as their class, and
    noise."""
    cells = torch.randint(classes, (4, 4, 4, 4))
    labels = cells.repeat_interleave(4, 1).repeat_interleave(4, 2).repeat_interleave(4, 3)
    images = labels[:, None] + torch.randn(4, 1, *PATCH, dtype=torch.float64)
    return batch_of(images[:2], labels[:2], images[2:])


def ramp_of(step, length):
    """Return exp(-5 (1 - step / length)^2), rounded to single precision as ramps are."""
    return torch.tensor(math.exp(-5 * (1 - min(step, length) / length) ** 2)).double()


def parameters_of(method, model):
    """Return all parameters that are trained."""
    return [*model.parameters(), *method.trained()]


def assert_equal_for_steps(method, model, literal, batch, steps, rate=0.01):
    """Compare losses and gradients with those of `literal(method, model, batch, step)` on a copy, step by step.

    Both draw the same random numbers. Each is updated by its own gradients. Return the losses of every step.
    """
    twin_method, twin_model = copy.deepcopy((method, model))
    history = []
    for step in range(steps):
        torch.manual_seed(step)
        found = method.losses(model, batch)
        torch.manual_seed(step)
        expected = literal(twin_method, twin_model, batch, step)
        for name, value in expected.items():
            assert abs(found[name].item() - value.item()) < 1e-6 * max(1, abs(value.item())), (step, name)
        ours, theirs = parameters_of(method, model), parameters_of(twin_method, twin_model)
        pairs = zip(
            torch.autograd.grad(found["total"], ours, allow_unused=True),
            torch.autograd.grad(expected["total"], theirs, allow_unused=True),
            strict=True,
        )
        with torch.no_grad():
            for own, other, (one, two) in zip(ours, theirs, pairs, strict=True):
                assert (one is None or not one.any()) if two is None else (one - two).abs().max() < 1e-6
                own -= 0 if one is None else rate * one
                other -= 0 if two is None else rate * two
        history.append({name: value.item() for name, value in found.items()})
    return history

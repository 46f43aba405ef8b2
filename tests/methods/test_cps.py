"""Cross pseudo supervision against a literal transcription, and what its two networks are."""

import math

import pytest
import torch
from torch import nn

from fheat.methods.base import Task
from fheat.methods.cps import CPS, CPSSettings
from fheat.ops.gates import gates_of
from fheat.training.optimiser import parameters_by_rate
from fheat.training.settings import OptimiserSettings
from tests.methods import literal


def build(model, classes=2, second=1, **settings):
    method = CPS(CPSSettings(**settings), Task(literal.PATCH, 2, classes))
    method.prepare(model, lambda: literal.network(classes, seed=second))
    return method


def literal_losses(first, second, batch, weight):
    crops = torch.cat([batch.images, batch.unlabelled])
    one, other = first(crops), second(crops)
    supervised = literal.supervised(one[:2], batch.labels) + literal.supervised(other[:2], batch.labels)
    ones = torch.ones(literal.PATCH)
    cross = literal.cross_entropy(one, other.argmax(dim=1), ones) + literal.cross_entropy(
        other, one.argmax(dim=1), ones
    )
    agreement = (one.argmax(dim=1) == other.argmax(dim=1)).double().mean()
    return supervised + weight * cross, supervised, cross, weight, agreement


@pytest.mark.parametrize("classes", [2, 3])
def test_twenty_steps_are_those_of_the_transcription(classes):
    model, first, second = (literal.network(classes, seed) for seed in (0, 0, 1))
    method, disagreed = build(model, classes, ramp=10), False
    for t, batch in enumerate(literal.batches(20, classes=classes)):
        losses, gradients = literal.advance(method, model, batch, t)
        weight = 1.5 * torch.tensor(math.exp(-5 * (1 - min(t, 10) / 10) ** 2))  # in float32, as weights of losses are
        expected = literal_losses(first, second, batch, weight)
        assert list(losses) == list(method.names)
        assert list(losses.values()) == pytest.approx([value.item() for value in expected], abs=1e-6)
        parameters = [*first.parameters(), *second.parameters()]
        assert literal.largest_difference(gradients, literal.descend(parameters, expected[0])) < 1e-6
        disagreed |= losses["agreement"] < 1
    assert disagreed


def test_both_networks_are_trained_and_begin_differently():
    model = literal.network()
    method = build(model, ramp=1)
    assert len(method.trained()) == len(list(model.parameters()))
    pairs = zip(model.named_parameters(), method.second.parameters(), strict=True)
    assert any(not torch.equal(one, other) for (_, one), other in pairs)
    batch = next(literal.batches(1))
    losses = method.losses(model, batch)
    losses["total"].backward()
    assert all(parameter.grad is not None for parameter in (*model.parameters(), *method.second.parameters()))


def test_the_rates_of_the_second_network_are_those_of_the_first():
    model = literal.network()
    method = build(model)
    settings = OptimiserSettings(learning_rate=0.01, theta=2.0, delta=3.0, rational=0.05)
    alone = parameters_by_rate(model, settings)
    both = parameters_by_rate(model, settings, method.trained(), method)
    assert {rate: 2 * len(some) for rate, some in alone.items()} == {rate: len(some) for rate, some in both.items()}
    gate = gates_of(method.second)["enc1"]
    assert any(parameter is gate.delta for parameter in both[0.03])


def test_what_a_network_says_of_itself_gets_no_gradient():
    """With one network twice, the cross term is its own entropy of the most likely class: finite and positive."""
    model = literal.network()
    method = CPS(CPSSettings(ramp=1), Task(literal.PATCH, 2))
    method.prepare(model, lambda: model)
    losses = method.losses(model, next(literal.batches(1)))
    assert losses["agreement"] == 1
    assert isinstance(method.second, nn.Module)
    p = model(torch.cat(next(literal.batches(1))[:3:2])).softmax(dim=1)
    assert losses["cross"].item() == pytest.approx(-2 * p.amax(dim=1).log().mean().item(), rel=1e-9)

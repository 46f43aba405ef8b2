"""Stochastic depth: who skips is exact, the rest is scaled, and evaluation is the heat operator."""

import pytest
import torch

from fheat import FractionalHeat
from fheat.ops.stochastic_depth import StochasticDepthHeat


def pair(drop):
    gate = StochasticDepthHeat(drop=drop, initial_strength=0.7)
    return gate, FractionalHeat(strength=0.7)


def test_each_sample_skips_exactly_or_is_scaled():
    torch.manual_seed(0)
    gate, heat = pair(0.25)
    x = torch.randn(400, 1, 4, 3, 2)
    y, expected = gate.train()(x), x + (heat(x) - x) / 0.75
    skipped = (y == x).flatten(1).all(dim=1)
    assert float(skipped.float().mean()) == pytest.approx(0.25, abs=0.06)
    assert torch.allclose(y[~skipped], expected[~skipped], atol=1e-5)
    assert not gate.one_response


def test_evaluation_is_the_heat_operator_and_never_closed():
    gate, heat = pair(0.25)
    x = torch.randn(2, 3, 4, 3, 2)
    assert torch.allclose(gate.eval()(x), heat(x), atol=1e-6)
    gate.delta.data.fill_(-40.0)
    assert not gate.closed
    assert gate.one_response


def test_without_dropping_training_is_the_heat_operator():
    gate, heat = pair(0.0)
    x = torch.randn(2, 3, 4, 3, 2)
    assert torch.allclose(gate.train()(x), heat(x), atol=1e-5)
    assert torch.allclose(gate(x[0]), heat(x[0]), atol=1e-5)
    with pytest.raises(ValueError, match="below 1"):
        StochasticDepthHeat(drop=1.0)

"""The figures that explain the gate show what a gate does."""

import math

import concept_figures
import pytest
import torch

from fheat import FractionalHeat


def test_the_multiplier_is_that_of_the_gate():
    gate = FractionalHeat(dims=1, alpha=0.6, strength=0.3)
    radius = math.pi * torch.arange(16) / 16
    expected = concept_figures.multiplier(0.3, 0.6, radius)
    mode = torch.cos(radius[5] * (torch.arange(16) + 0.5))[None]
    assert torch.allclose(gate(mode), expected[5] * mode, atol=1e-6)
    assert concept_figures.multiplier(0.0, 0.6, radius).tolist() == [1.0] * 16


def test_a_closed_gate_stays_closed_when_the_target_changes_and_softplus_opens_again():
    strengths = concept_figures.trained_strengths(["relu", "softplus"], steps=160, change=60)
    closed = strengths["relu"].index(0.0)
    assert closed < 60
    assert set(strengths["relu"][closed:]) == {0.0}
    assert 0 < strengths["softplus"][60] < 0.3
    assert strengths["softplus"][-1] > strengths["softplus"][60]


@pytest.mark.parametrize("draw", ["multiplier_figure", "signals_figure"])
def test_figures_have_the_same_bytes_every_time(draw):
    first = getattr(concept_figures, draw)()
    assert first == getattr(concept_figures, draw)()
    assert "D = 0.03" in first

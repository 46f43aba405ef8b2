"""Attention inside the target: by hand, by chance, and what is refused."""

import math

import pytest
import torch

from fheat.studies.inside.attention import concentration


def test_by_hand():
    attention = torch.tensor([[1.0, 3.0], [2.0, 4.0]])
    found = concentration(attention, torch.tensor([[False, True], [False, True]]))
    assert (found.share, found.chance) == (0.7, 0.5)
    assert found.over_chance == pytest.approx(1.4)


def test_even_attention_is_chance_at_any_scale():
    target = torch.rand(9, 8, 7) < 0.2
    for scale in (1e-6, 1.0, 1e6):
        found = concentration(torch.full((9, 8, 7), scale), target)
        assert found.share == pytest.approx(found.chance) == pytest.approx(float(target.float().mean()))
        assert found.over_chance == pytest.approx(1)


def test_all_or_nothing():
    target = torch.zeros(4, 4, 4, dtype=torch.bool)
    target[1] = True
    assert concentration(target.float(), target).share == 1
    assert concentration((~target).float(), target).share == 0
    nowhere = concentration(torch.ones(4, 4, 4), torch.zeros(4, 4, 4, dtype=torch.bool))
    assert (nowhere.share, nowhere.chance, nowhere.over_chance) == (0, 0, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_what_is_no_attention_is_refused(value):
    attention = torch.ones(3, 3)
    attention[1, 1] = value
    with pytest.raises(ValueError, match="finite"):
        concentration(attention, torch.ones(3, 3, dtype=torch.bool))


def test_shapes_and_types():
    with pytest.raises(ValueError, match="somewhere positive"):
        concentration(torch.zeros(3), torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="differ in shape"):
        concentration(torch.ones(3), torch.ones(4, dtype=torch.bool))
    with pytest.raises(TypeError, match="label > 0"):
        concentration(torch.ones(3), torch.ones(3))

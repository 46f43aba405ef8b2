"""No change of the output of a network is silent."""

import json
from pathlib import Path

import pytest

from tests.networks.reference import sample
from tests.networks.test_contract import NAMES

REFERENCE = Path(__file__).with_name("reference.json")


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_stored_ones(name):
    """Weights and inputs from fixed seeds give the numbers in reference.json (`python -m tests.networks.reference`)."""
    assert sample(name) == pytest.approx(json.loads(REFERENCE.read_text())[name], abs=2e-4)

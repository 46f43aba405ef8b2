"""Every method, killed with -9 in the middle of its run and resumed: the same files, bit by bit.

The campaign `python -m tests.attack.campaigns.kills` does the same many times, at random moments.
"""

import random
import sys

import pytest

from fheat.methods.registry import list_methods
from tests.attack.campaigns.common import differing, left_by, words
from tests.attack.campaigns.kills import survive

HALFWAY = {"iterations": 14, "checkpoint_every": 6}
"""The kill comes right after the first checkpoint, in the last stage of methods that have several."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("method", list_methods())
def test_a_run_that_was_killed_once_ends_as_if_it_had_not_been(scans, tmp_path, method):
    chance = random.Random(15)  # which kills within a millisecond of a checkpoint, not at any moment
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert survive(words(scans, killed, method=method, **HALFWAY), killed, 1, chance) == (1, "")
    assert survive(words(scans, whole, method=method, **HALFWAY), whole, 0, chance) == (0, "")
    left = left_by(whole)
    assert {"final/model.safetensors", "checkpoints/step-00000014/state.safetensors", "log.jsonl"} <= left.keys()
    assert differing(left, left_by(killed)) == []

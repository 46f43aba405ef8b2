"""Two processes that know nothing of each other, same seed: the same losses, to the last digit."""

import json
import subprocess
import sys

import pytest

from tests.training.helpers import SMALL_WORDS
from tests.training.programs import TRAIN

STEPS = 50


@pytest.mark.slow
def test_two_processes_with_one_seed_log_the_same_losses(scans, tmp_path, environment):
    """Fifty steps of CSE; the hash seeds of Python differ on purpose."""
    command = [sys.executable, "-c", TRAIN, "train", str(scans), *SMALL_WORDS]
    command += ["--batch", "1", "--iterations", str(STEPS), "--validate-every", "1000", "--seed", "7"]
    started = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / name)],
            env=environment | {"PYTHONHASHSEED": name},
            stdout=subprocess.DEVNULL,
        )
        for name in ("1", "2")
    ]
    assert [process.wait(timeout=600) for process in started] == [0, 0]
    one, other = (
        [line for line in map(json.loads, (tmp_path / name / "log.jsonl").read_text().splitlines()) if "total" in line]
        for name in ("1", "2")
    )
    assert [line["iteration"] for line in one] == list(range(1, STEPS + 1))
    assert one == other
    assert len({line["total"] for line in one}) > STEPS // 2

"""Two processes want one run folder: `python -m tests.attack.campaigns.races --pairs 200`.

Each pair starts at almost the same moment: two new runs, a new run and one that goes on, or two that go on. One of them
trains, and the run is what it would have been alone; the other one is refused in one line, or comes after the end and
changes nothing.
"""

import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.attack.campaigns.common import differing, going_on, left_by, options, report, words, workplace
from tests.forks import Fork
from tests.training.programs import train

KINDS = ("begin, begin", "begin, go on", "go on, go on")
LONGEST = 120.0
"""Seconds after which a process hangs."""


def alone(scans: Path, folder: Path) -> dict[str, Any]:
    """Return what the run leaves that nobody disturbs, and begin it once more for pairs that go on with it."""
    code, _, error = Fork(train, *words(scans, folder / "alone")).outcome(LONGEST)
    assert code == 0, error
    shutil.copytree(folder / "alone", folder / "begun")
    for part in ("final", "checkpoints/step-00000012"):
        shutil.rmtree(folder / "begun" / part)
    return left_by(folder / "alone")


def race(scans: Path, folder: Path, kind: str, pause: float) -> tuple[list[int | None], list[str], dict[str, Any]]:
    """Let two processes race for a run folder; return their exit codes, what they said, and what the run left."""
    out = folder / "run"
    if kind == "go on, go on":
        shutil.copytree(folder / "begun", out)
    first = words(scans, out) if kind.startswith("begin") else going_on(out)
    second = words(scans, out) if kind.endswith("begin") else going_on(out)
    racers = [Fork(train, *first)]
    if kind == "begin, go on":
        until = time.monotonic() + LONGEST
        while not (out / "config.toml").exists() and racers[0].code is None and time.monotonic() < until:
            time.sleep(0.001)
    time.sleep(pause)
    racers.append(Fork(train, *second))
    ends = [racer.outcome(LONGEST) for racer in racers]
    left = left_by(out)
    shutil.rmtree(out)
    return [end[0] for end in ends], [end[2] for end in ends], left


def damage(codes: list[int | None], said: list[str], left: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what a race has damaged, an empty text if nothing."""
    if 0 not in codes or not set(codes) <= {0, 3}:
        return f"exit codes {codes}: {said}"
    for code, text in zip(codes, said, strict=True):
        if code == 3 and (text.count("\n") != 1 or "Traceback" in text):
            return f"refused with more than a line: {text}"
    return ", ".join(differing(left, expected))


def main() -> int:
    """Run the campaign."""
    given = options(__doc__, "lock-races-cpu", pairs=200)
    chance, counts, lost = random.Random(given.seed), Counter(), []
    with workplace() as (scans, folder):
        expected = alone(scans, folder)
        for number in range(given.pairs):
            kind = KINDS[number % len(KINDS)]
            pause = chance.choice((0.0, chance.uniform(0, 0.05), chance.uniform(0, 0.5)))
            codes, said, left = race(scans, folder, kind, pause)
            counts[f"{kind}: exit {' and '.join(map(str, sorted(codes, key=str)))}"] += 1
            if found := damage(codes, said, left, expected):
                lost.append(f"pair {number}, {kind}: {found}")
    results = {"pairs": given.pairs, "outcomes": dict(sorted(counts.items())), "faults": lost}
    title = "Pairs of processes that want one run folder: exit codes, and runs that were damaged"
    return report(given, "races", title, {"kinds": KINDS, "iterations": 12}, results)


if __name__ == "__main__":
    sys.exit(main())

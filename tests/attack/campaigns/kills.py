"""Training is killed again and again, with every method: `python -m tests.attack.campaigns.kills --kills 500`.

Each method trains once undisturbed and once with its share of the kills: SIGKILL at random moments, most of them near a
checkpoint. In the end weights, log, checkpoints and settings must be the same, byte by byte.
"""

import random
import signal
import sys
import time
from pathlib import Path

from fheat.methods.registry import list_methods
from tests.attack.campaigns.common import differing, going_on, left_by, options, report, words, workplace
from tests.forks import Fork
from tests.training.programs import train

LONGEST = 300.0
"""Seconds after which a process hangs."""


def killed(job: Fork, out: Path, chance: random.Random) -> bool:
    """Kill a process at a random moment; return whether it was still running.

    A quarter of the lives end at a moment that may be before anything is read. The others end a moment after a
    checkpoint was saved, so that the run comes forward on a machine of any speed.
    """
    saved = sorted((out / "checkpoints").glob("step-*"))
    limit = time.monotonic() + (chance.uniform(0, 1.0) if chance.random() < 0.25 else LONGEST)
    while time.monotonic() < limit and job.code is None and sorted((out / "checkpoints").glob("step-*")) == saved:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.03))
    if job.code is not None:
        return False
    job.send(signal.SIGKILL)
    return True


def survive(begin: list[str], out: Path, kills: int, chance: random.Random) -> tuple[int, str]:
    """Train through so many kills; return how many there were, and what went wrong, if anything."""
    count = 0
    while True:
        job = Fork(train, *(going_on(out) if (out / "config.toml").exists() else begin))
        struck = count < kills and killed(job, out, chance)
        code, _, error = job.outcome(LONGEST)
        if code == -signal.SIGKILL and struck:
            count += 1
        elif code == 0:
            return count, ""
        else:
            return count, f"exit code {code} after {count} kills: {error}"


def main() -> int:
    """Run the campaign."""
    given = options(__doc__, "kills-cpu", kills=500)
    chance, counts, lost = random.Random(given.seed), {}, []
    methods = list_methods()
    with workplace() as (scans, folder):
        for number, method in enumerate(methods):
            share = given.kills // len(methods) + (number < given.kills % len(methods))
            whole, broken = folder / f"{method}-whole", folder / f"{method}-killed"
            length = {"method": method, "iterations": 2 * share + 10, "checkpoint_every": 1}
            counts[method], wrong = survive(words(scans, broken, **length), broken, share, chance)
            survive(words(scans, whole, **length), whole, 0, chance)
            wrong = wrong or ", ".join(differing(left_by(whole), left_by(broken)))
            if wrong:
                lost.append(f"{method}: {wrong}")
            print(f"{method}: {counts[method]} kills {wrong}", file=sys.stderr, flush=True)
    results = {"kills": sum(counts.values()), "by_method": counts, "faults": lost}
    return report(given, "kills", "Kills of training with every method, and runs that ended differently", {}, results)


if __name__ == "__main__":
    sys.exit(main())

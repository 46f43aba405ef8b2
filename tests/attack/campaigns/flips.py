"""One bit of a run folder is flipped: `python -m tests.attack.campaigns.flips --manifests 2000 --elsewhere 2000`.

A finished run of an experiment has settings, a log, two checkpoints, two model folders, scores and an outcome. After
every flip what was changed is read back. It must be refused, or give what it gave before; of a log whose damaged lines
are dropped by a run that goes on, the rest must be what it was.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fheat.experiments.planned import PlannedRun, perform
from fheat.models.folder import load, read_manifest
from fheat.system.errors import BadInput
from fheat.training.checkpoints import _read
from fheat.training.log import is_checked
from fheat.training.run_folder import RunFolder, _logged_until
from fheat.training.runs import read_history
from tests.attack.campaigns.common import options, report, workplace
from tests.miniature import register
from tests.training.helpers import SMALL, settings_of


def finished_run(scans: Path, runs: Path) -> PlannedRun:
    """Do a short run with scores and an outcome."""
    defaults = {"iterations": 12, "warm_up": 2, "validate_every": 6, "checkpoint_every": 6, "method": "supervised"}
    run = PlannedRun("run", settings_of(data=str(scans), **SMALL, **defaults))
    perform(run, runs, device="cpu")
    return run


def readers(run: PlannedRun, runs: Path) -> dict[str, Callable[[], Any]]:
    """Return, by name, everything that reads a run folder back, each as a function that returns what it has read."""
    folder = run.folder(runs)

    def network(part: str) -> Any:
        model = load(folder / part)
        return read_manifest(folder / part), {name: value.tolist() for name, value in model.state_dict().items()}

    def checkpoint(step: Path) -> Any:
        found = _read(step)
        if found is None:
            raise BadInput(step, "is passed over", "go on from the one before")
        return found.iteration, found.facts, {name: value.tolist() for name, value in found.tensors.items()}

    return {
        "config.toml": RunFolder(folder).settings,
        "log.jsonl": partial(read_history, folder),
        "best": partial(network, "best"),
        "final": partial(network, "final"),
        "outcome.json": partial(run.outcome, runs),
        "scores.json": lambda: run.scores(runs).to_json(),
        **{f"checkpoints/{step.name}": partial(checkpoint, step) for step in folder.glob("checkpoints/step-*")},
    }


def kept_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the log that a run which goes on would keep."""
    texts = (folder / "log.jsonl").read_bytes().split(b"\n")
    lines = (_logged_until(text, 10**9, checked=is_checked(texts)) for text in texts)
    return [line for line in lines if line is not None]


class Campaign:
    """A finished run whose bits are flipped one at a time, and what it gave before."""

    def __init__(self, run: PlannedRun, runs: Path) -> None:
        self.folder, self.readers = run.folder(runs), readers(run, runs)
        self.expected = {name: read() for name, read in self.readers.items()}
        self.lines = kept_lines(self.folder)

    def files(self) -> list[Path]:
        """Return the files that are read back."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and ".claims" not in path.parts)

    def flip(self, path: Path, bit: int) -> str:
        """Flip a bit of a file, read it back, and put it back; return what happened, or what was lost."""
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            return self._look(next(name for name in self.readers if path.is_relative_to(self.folder / name)))
        finally:
            path.write_bytes(whole)

    def _look(self, name: str) -> str:
        try:
            found = self.readers[name]()
        except BadInput as error:
            if "\n" in str(error):
                return f"LOST: more than a line: {error}"
            found = None
        except Exception as error:
            return f"LOST: {type(error).__name__}: {error}"
        if name == "log.jsonl" and not all(line in self.lines for line in kept_lines(self.folder)):
            return "LOST: a line that was never logged"
        if found is None:
            return "refused"
        return "unchanged" if found == self.expected[name] else "LOST: accepted with other values"


def main() -> int:
    """Run the campaign."""
    given = options(__doc__, "flips-cpu", manifests=2000, elsewhere=2000)
    chance, counts, lost = random.Random(given.seed), Counter(), []
    torch.set_num_threads(1)
    register()
    with workplace() as (scans, runs):
        campaign = Campaign(finished_run(scans, runs), runs)
        manifests = [path for path in campaign.files() if path.name == "manifest.json"]
        others = [path for path in campaign.files() if path.name != "manifest.json"]
        plan = [chance.choice(manifests) for _ in range(given.manifests)]
        plan += [chance.choice(others) for _ in range(given.elsewhere)]
        for path in plan:
            bit = chance.randrange(8 * path.stat().st_size)
            end = campaign.flip(path, bit)
            counts[f"{path.relative_to(campaign.folder)}: {end.partition(':')[0]}"] += 1
            if end.startswith("LOST"):
                lost.append(f"{path.relative_to(campaign.folder)}, bit {bit}: {end}")
    results = {"flips": len(plan), "outcomes": dict(sorted(counts.items())), "faults": lost}
    title = "Single flipped bits of a run folder, and what was accepted with other values"
    return report(given, "flips", title, {"iterations": 12}, results)


if __name__ == "__main__":
    sys.exit(main())

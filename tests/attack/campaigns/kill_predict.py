"""`fheat predict` is killed again and again: `python -m tests.attack.campaigns.kill_predict --count 200`.

Each story begins with an empty folder. The program is killed up to four times at random moments of its run, then it is
left alone. Masks, pictures and run.json must be those of a run that nobody disturbed, but for what a process
measures of itself: seconds and memory.
"""

import json
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.attack.campaigns.common import options, report
from tests.attack.campaigns.predicting import make_model, make_scans, start, to_files

SCANS = 6
MOST_KILLS = 4


def left(out: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return what run.json says but for times, memory and the name of the folder, and all masks and pictures."""
    record = json.loads((out / "run.json").read_text())
    del record["date"], record["command"]
    for case in record["cases"]:
        case["mask"] = Path(case["mask"]).name
        for measured in ("seconds", "memory_bound_bytes", "memory_parts_bytes"):  # of the process that made it
            del case[measured]
    return record, {file.name: file.read_bytes() for file in sorted(out.glob("[!.r]*"))}


def main() -> int:
    """Tell stories until there are kills enough."""
    said = options(__doc__, "kill-predict-cpu", count=200)
    chance = random.Random(said.seed)
    faults: list[str] = []
    killed = stories = hidden = 0
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        scans = make_scans(base / "scans", [f"case{number}" for number in range(SCANS)])
        model = make_model(base / "model")
        streams = partial(to_files, base / "stdout", base / "stderr")

        def begin(out: Path) -> Any:
            child = start(["predict", str(model), str(scans), str(out), "--runtime", "torch"], streams)
            child.wait_until_it_begins()
            return child

        began = time.monotonic()
        if begin(base / "whole").code() != 0:
            raise SystemExit((base / "stderr").read_text())
        longest, whole = time.monotonic() - began, left(base / "whole")
        while killed < said.count:
            stories += 1
            out = base / f"out{stories}"
            for _ in range(min(chance.randint(1, MOST_KILLS), said.count - killed)):
                child = begin(out)
                time.sleep(chance.uniform(0, longest))
                child.send(signal.SIGKILL)
                killed += child.code() == -signal.SIGKILL
            code = begin(out).code()
            hidden += len(list(out.glob(".*")))
            if code != 0:
                faults.append(f"story {stories}: exit code {code}: {(base / 'stderr').read_text()[-300:]}")
            elif left(out) != whole:
                faults.append(f"story {stories}: other masks or another run.json")
            shutil.rmtree(out)
    results = {"kills": killed, "stories": stories, "hidden_files_left": hidden}
    return report(
        said,
        "kill_predict",
        "Prediction killed at random moments: how many folders ended as undisturbed",
        {},
        {**results, "faults": faults},
    )


if __name__ == "__main__":
    sys.exit(main())

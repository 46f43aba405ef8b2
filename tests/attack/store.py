"""Store what a campaign counted, in the form of all results of this repository."""

import shlex
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.attack.kinds import Kind
from tests.attack.run import SECONDS, Tally
from tests.attack.worker import CLASSES, HEADROOM

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from results import write_result


def store(tally: Tally, kinds: Sequence[Kind], options: Namespace, seconds: float) -> None:
    """Write the counts by kind and class, and by kind and first mutation."""
    by_kind = {
        kind.name: {
            "cases": sum(tally.outcomes[kind.name, name] for name in CLASSES),
            "outcomes": {name: tally.outcomes[kind.name, name] for name in CLASSES},
            "mutations": {label: count for (name, label), count in tally.mutations.items() if name == kind.name},
        }
        for kind in kinds
    }
    write_result(
        options.store.stem,
        title="Hostile files by the hundred thousand: how many were read right, refused, or went wrong",
        command=f"make attack N={options.cases} SEED={options.seed} STORE=1",
        seed=options.seed,
        settings={"seconds_per_case": SECONDS, "bytes_beyond_start": HEADROOM, "workers": options.workers},
        results={
            "cases": sum(row["cases"] for row in by_kind.values()),
            "failures": len(tally.failures),
            "seconds": seconds,
            "slowest_case_seconds": tally.slowest,
            "peak_bytes": tally.peak,
            "kinds": by_kind,
        },
        out=options.store,
    )


def _some(specials: Sequence[str]) -> str:
    """Return the command of a matrix with some of the special files."""
    return f"python -m tests.attack.special_files --specials {shlex.join(specials)}"


def store_matrix(rows: Sequence[dict[str, Any]], specials: Sequence[str] | None, out: Path) -> None:
    """Write the number of calls by verb and exit code, and the faults."""
    verbs = {
        verb: {
            "places": len({(row["place"], row["words"]) for row in rows if row["verb"] == verb}),
            "calls": sum(row["verb"] == verb for row in rows),
            "codes": dict(sorted(Counter(str(row["code"]) for row in rows if row["verb"] == verb).items())),
        }
        for verb in dict.fromkeys(row["verb"] for row in rows)
    }
    write_result(
        out.stem,
        title="Special files in every place where a verb opens a file: exit codes, hangs and tracebacks",
        command="make special-files STORE=1" if specials is None else _some(specials),
        seed=None,
        results={
            "calls": len(rows),
            "special": list(dict.fromkeys(row["special"] for row in rows)),
            "faults": [row for row in rows if row["fault"]],
            "verbs": verbs,
        },
        out=out,
    )

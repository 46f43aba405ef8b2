"""What the campaigns share: a small dataset, a short run and what it must leave, and how a count is stored."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fheat.data.phantom import write_phantoms
from fheat.training.log import from_line
from tests.training.helpers import SMALL_WORDS

ROOT = Path(__file__).parents[3]


@contextmanager
def workplace() -> Iterator[tuple[Path, Path]]:
    """Provide a dataset and an empty folder, both gone at the end; programs that are started use one thread each."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        scans = Path(name) / "scans"
        write_phantoms(scans, 10, test=0, shape=(26, 24, 25))
        yield scans, Path(name)


def words(
    scans: Path, out: Path, *, method: str = "supervised", iterations: int = 12, checkpoint_every: int = 3
) -> list[str]:
    """Return the command of a short run: `fheat train` with the miniature network."""
    every = ["--checkpoint-every", str(checkpoint_every), "--validate-every", "6", "--warm-up", "2", "--batch", "2"]
    what = ["--method", method, "--iterations", str(iterations), *every]
    return ["train", str(scans), *SMALL_WORDS, *what, "--out", str(out)]


def going_on(out: Path) -> list[str]:
    """Return the command that goes on with a run."""
    return ["train", "--resume", "--out", str(out), "--device", "cpu"]


def left_by(folder: Path) -> dict[str, Any]:
    """Return all that a run left but the speed it logged: file by file, and the log line by line."""
    left: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(".claims"):
            left[name] = path.read_bytes()
    lines = [from_line(text, checked=True) for text in left.pop("log.jsonl").splitlines()]
    left["log.jsonl"] = [line for line in lines if "per_second" not in line]
    return left


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of what two runs left differently."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def options(description: str | None, name: str, **counts: int) -> argparse.Namespace:
    """Read the command line of a campaign: its counts, `--seed`, and `--store` to keep the result."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for count, default in counts.items():
        parser.add_argument(f"--{count}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, help=f"store the counts, such as benchmarks/results/{name}.json")
    return parser.parse_args()


def report(given: argparse.Namespace, name: str, title: str, settings: dict[str, Any], results: dict[str, Any]) -> int:
    """Print the counts, store them if that was asked, and return 1 if `results["faults"]` lists any."""
    print(json.dumps(results, indent=1))
    if given.store is not None:
        sys.path.insert(0, str(ROOT / "tools"))
        from results import write_result  # the schema of all stored results

        counts = [f"--{key} {value}" for key, value in vars(given).items() if key != "store"]
        write_result(
            given.store.stem,
            title=title,
            command=" ".join(["python -m", f"tests.attack.campaigns.{name}", *counts]),
            seed=given.seed,
            settings=settings,
            results=results,
            out=given.store,
        )
    return 1 if results["faults"] else 0

"""One process that runs cases: it writes the files, calls the reader, and tells the parent how each case ended."""

import json
import os
import resource
import shutil
import sys
import time
import warnings
from pathlib import Path
from random import Random
from typing import Any

from fheat import BadInput
from fheat.io import trusting
from fheat.io.confined import _close_idle
from tests.attack.kinds import Kind, Made, Recipe, Verdict

GOOD = ("read right", "refused")
FAILURES = (
    "traceback",
    "killed",
    "hang",
    "memory",
    "contradiction accepted",
    "wrong read",
    "sound file refused",
    "noise",
    "unclear message",
)
CLASSES = (*GOOD, *FAILURES)
HEADROOM = 2**30
"""Bytes of address space that a worker may take beyond what it has when it begins."""


def recipe_of(kind: Kind, seed: int, index: int) -> Recipe:
    """Return the recipe of a case; it depends on nothing else."""
    return kind.draw(Random(f"{seed}:{kind.name}:{index}"))


def run_case(kind: Kind, made: Made, folder: Path) -> tuple[str, str]:
    """Write the files of a case into an empty folder and read them; return the class of what happened, and details."""
    for name, content in made.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with trusting(made.trusted):
                found = kind.read(folder)
    except BadInput as refusal:
        return _refused(made.verdict, refusal)
    except MemoryError as error:
        return "memory", f"MemoryError {error}"
    except BaseException as error:
        return "traceback", f"{type(error).__name__}: {error}"
    foreign = [each for each in warned if not issubclass(each.category, UserWarning)]
    if foreign:
        return "noise", f"warning {foreign[0].category.__name__}: {foreign[0].message}"
    return _read(kind, made.verdict, found)


def _refused(verdict: Verdict, refusal: BadInput) -> tuple[str, str]:
    text = str(refusal)
    if not text.isprintable() or not refusal.remedy or len(text) > 2000:
        return "unclear message", text[:300]
    if not verdict.reason:
        return "sound file refused", text
    return "refused", text


def _read(kind: Kind, verdict: Verdict, found: Any) -> tuple[str, str]:
    if verdict.reason and not verdict.optional:
        return "contradiction accepted", verdict.reason
    if verdict.value is not None and not kind.agrees(found, verdict.value):
        return "wrong read", verdict.reason or "a healthy file was read as something else"
    return "read right", verdict.reason


def work(kind: Kind, seed: int, first: int, last: int, scratch: Path, report: int) -> None:
    """Run the cases `first` to `last` - 1 and write a line of JSON for each to the descriptor `report`."""
    printed = _capture(scratch)
    _limit_memory()
    folder = scratch / "case"
    for index in range(first, last):
        recipe = recipe_of(kind, seed, index)
        folder.mkdir(parents=True)
        with warnings.catch_warnings(action="ignore"):
            made = kind.make(recipe, folder)
        began = time.perf_counter()
        outcome, details = run_case(kind, made, folder)
        seconds = time.perf_counter() - began
        sys.stdout.flush()
        sys.stderr.flush()
        if size := os.fstat(printed).st_size:
            if outcome in GOOD:
                outcome, details = "noise", os.pread(printed, min(size, 300), 0).decode(errors="replace")
            os.ftruncate(printed, 0)
        shutil.rmtree(folder)
        line = [index, outcome, details[:300], kind.label(recipe), seconds, _peak()]
        os.write(report, json.dumps(line).encode() + b"\n")
    _close_idle()
    os.write(report, json.dumps([None, "", "", "", 0.0, _peak()]).encode() + b"\n")


def _capture(scratch: Path) -> int:
    """Send standard output and standard error to a file and return its descriptor."""
    descriptor = os.open(scratch / "printed", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.stdout = os.fdopen(os.dup(1), "w")
    sys.stderr = os.fdopen(os.dup(2), "w")
    return descriptor


def _limit_memory() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + HEADROOM, held + HEADROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _peak() -> int:
    """Return the largest number of bytes that this process or one of its ended children has held in memory."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

"""Fresh processes of this Python, which have imported nothing, each with the cache of compilers that it is told."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from fheat.system import cache as kept
from fheat.system.errors import BadInput

_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
_THREADS: Final = "OMP_NUM_THREADS"


def environment() -> dict[str, str]:
    """Return environment variables with which a process uses as many threads as this one, and Python keeps bytecode.

    A user's Python keeps the bytecode of what it has imported, so a measured one does so as well.
    """
    inherited = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    return {**inherited, _THREADS: str(torch.get_num_threads())}


def environment_with_cache(cache: Path | None) -> dict[str, str]:
    """Return `environment` with the folder in which compilers keep what they make; with None OpenVINO keeps none."""
    found = {**environment(), kept.VARIABLE: str(cache or "")}
    return found | ({kept.KERNELS_VARIABLE: str(cache / "triton")} if cache else {})


def run_fresh(words: Sequence[str], surroundings: Mapping[str, str]) -> str:
    """Run `python -m` with these words to its end and return what it printed; raise `BadInput` where it fails."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, env=dict(surroundings), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise BadInput(f"python -m {words[0]}", f"ended with code {done.returncode} ({said})", "time another network")
    return done.stdout


def seconds_fresh(words: Sequence[str], surroundings: Mapping[str, str]) -> float:
    """Return the seconds from the start of `python -m` with these words to its end."""
    start = time.perf_counter()
    run_fresh(words, surroundings)
    return time.perf_counter() - start

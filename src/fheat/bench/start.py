"""The cold start: from the command to the first mask in fresh processes, beside the time of the scan itself."""

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from fheat.bench.first_mask import SECOND_SCAN, Order, Split
from fheat.bench.process import environment_with_cache, run_fresh, seconds_fresh
from fheat.bench.timing import turns
from fheat.inference.replay import Precision
from fheat.inference.runtimes import FASTEST, RuntimeName, missing_packages
from fheat.inference.windows import Triple
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent

NO_CACHE: Final = "no cache"
EMPTY_CACHE: Final = "empty cache"
FILLED_CACHE: Final = "filled cache"


@dataclass(frozen=True)
class Start:
    """A model, by folder or zoo name, and the scan whose mask is waited for."""

    model: str
    scan: Path
    device: str
    runtime: RuntimeName
    precision: Precision = "auto"
    stride: Triple | None = None

    def command(self, out: Path) -> list[str]:
        """Return the words after `python -m` of the command that segments the scan."""
        words = ["fheat", "predict", self.model, str(self.scan), str(out), "--no-preview", "--device", self.device]
        words += ["--runtime", self.runtime, "--precision", self.precision]
        return words if self.stride is None else [*words, "--stride", *map(str, self.stride)]

    def split(self, mask: Path) -> list[str]:
        """Return the words after `python -m` of the program that does the same and times its parts."""
        order = Order(
            model=self.model,
            scan=str(self.scan),
            mask=str(mask),
            device=self.device,
            precision=self.precision,
            runtime=self.runtime,
            stride=None if self.stride is None else list(self.stride),
        )
        return ["fheat.bench.first_mask", json.dumps(order)]


def runtime_of(device: str) -> RuntimeName:
    """Return the runtime of a start: on a CPU OpenVINO if it is installed, else torch; on a GPU `auto`, as for users.

    On a CPU `auto` would not compile a network for a single scan, and a cache keeps only what was compiled.
    """
    if device.startswith("cuda"):
        return "auto"
    return "torch" if missing_packages(FASTEST) else "openvino"


def states_of(runtime: RuntimeName) -> tuple[str, ...]:
    """Return the states of the cache that a start can find; torch compiles nothing, and Triton always keeps kernels."""
    if runtime == "auto":
        return EMPTY_CACHE, FILLED_CACHE
    return (NO_CACHE,) if runtime == "torch" else (NO_CACHE, EMPTY_CACHE, FILLED_CACHE)


def start_times(
    starts: Mapping[str, Start], rounds: int, progress: Progress = silent, notes: list[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return what each start takes, by name; all are medians of `rounds`, in which the starts take turns.

    - `command_s`: seconds of `fheat predict` from the command to its end, by the state of the cache;
    - `parts_s`: seconds of the parts of a start in another process, by the state of the cache;
    - `scan_s`: seconds of one more scan in that process, which is the time of the scan itself;
    - `ratio`: the command over the scan itself;
    - `windows`, `window` and `stride`: what the scan was cut into.

    Every round begins with caches that are empty; a filled one is what the process before has left. A network that
    cannot be started, because OpenVINO refuses it for example, is left out and `notes` says why; without `notes`, and
    where no other is left, that raises `BadInput`.
    """
    commands: dict[str, dict[str, list[float]]] = {name: {} for name in starts}
    splits: dict[str, dict[str, list[Split]]] = {name: {} for name in starts}
    total = 2 * rounds * sum(len(states_of(start.runtime)) for start in starts.values())
    done, number = count(1), count()

    def tell() -> None:
        progress(next(done), total)

    with tempfile.TemporaryDirectory() as place:
        for order in turns(list(starts), rounds):
            for name in [name for name in order if name in commands]:
                try:
                    _once(starts[name], Path(place) / str(next(number)), commands[name], splits[name], tell)
                except BadInput as error:
                    del commands[name]
                    if notes is None or not commands:
                        raise
                    notes.append(f"start: {name} was left out: {error.reason}")
    return {name: _summary(commands[name], splits[name]) for name in commands}


def _once(
    start: Start,
    place: Path,
    commands: dict[str, list[float]],
    splits: dict[str, list[Split]],
    tell: Callable[[], None],
) -> None:
    """Start twice for each state of the cache: the command, whose seconds `commands` gets, and the program that times
    its parts, whose answer `splits` gets."""
    for state in states_of(start.runtime):
        out = place / state
        seconds = seconds_fresh(start.command(out), _surroundings(state, place / "command"))
        commands.setdefault(state, []).append(seconds)
        tell()
        said = run_fresh(start.split(out / "again.nii.gz"), _surroundings(state, place / "split"))
        splits.setdefault(state, []).append(json.loads(said.splitlines()[-1]))
        tell()


def _surroundings(state: str, cache: Path) -> dict[str, str]:
    return environment_with_cache(None if state == NO_CACHE else cache)


def _summary(commands: Mapping[str, Sequence[float]], splits: Mapping[str, Sequence[Split]]) -> dict[str, Any]:
    command = {state: statistics.median(values) for state, values in commands.items()}
    parts = {
        state: {part: statistics.median(split["parts"][part] for split in found) for part in found[0]["parts"]}
        for state, found in splits.items()
    }
    alone = [split.pop(SECOND_SCAN) for split in parts.values()][-1]
    last = list(splits.values())[-1][-1]
    return {
        "command_s": command,
        "scan_s": alone,
        "parts_s": parts,
        "ratio": {state: value / alone for state, value in command.items()},
        "windows": last["windows"],
        "window": last["window"],
        "stride": last["stride"],
    }

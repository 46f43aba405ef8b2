"""How anything is timed: candidates take turns in a shuffled order, and the median of each is its time."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import torch

from fheat.ops import kernels
from fheat.system.capture import capture, rehearse
from fheat.system.progress import Progress

Precision = Literal["float32", "bfloat16"]
Candidate = Callable[[], object]
"""A function without arguments whose time is measured."""
MOST_REPEATS = 20
"""Largest number of calls in one turn."""
SECONDS_OF_A_TURN = 0.01
"""A candidate that takes less is called several times in its turn, because reading the clock takes time as well."""


@dataclass(frozen=True)
class Timer:
    """Times candidates on one device, in one precision, with one number of rounds."""

    device: str = "cpu"
    rounds: int = 5
    """Number of measured turns of each candidate."""
    precision: Precision = "float32"
    seed: int = 0
    """Seed of weights and inputs."""
    progress: Progress | None = None
    """Called with the number of turns done and their total."""
    notes: list[str] = field(default_factory=list)
    """Remarks that a reader of the times must know, collected while measuring."""

    def times(self, candidates: dict[str, Candidate], *, warm_up: int = 2, capture: bool = True) -> dict[str, float]:
        """Return the median milliseconds of each candidate; see `interleaved`."""
        return interleaved(
            candidates,
            self.rounds,
            self.device,
            warm_up=warm_up,
            capture=capture,
            progress=self.progress,
            notes=self.notes,
        )

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which networks run: autocast to bfloat16 for that precision, else no change."""
        kind = torch.device(self.device).type
        # Without a cache of cast weights, which a captured graph could not hold.
        return torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bfloat16", cache_enabled=False)

    def forward(self, network: Callable[[torch.Tensor], object], x: torch.Tensor) -> Candidate:
        """Return the candidate that runs one forward pass without gradients."""

        def run() -> object:
            with torch.no_grad(), self.autocast():
                return network(x)

        return run


def without_kernels(run: Candidate) -> Candidate:
    """Return `run` by plain PyTorch, without the fused kernels of this package."""

    def plainly() -> object:
        with kernels.use("never"):
            return run()

    return plainly


def captured(run: Candidate) -> Candidate:
    """Return a replay of `run` as a CUDA graph: the work of the device without the launches of eager mode."""

    def thrice() -> None:
        for _ in range(3):
            run()

    rehearse(thrice)
    graph, _ = capture(run)
    return graph.replay


def interleaved(
    candidates: Mapping[str, Candidate],
    rounds: int,
    device: str = "cpu",
    *,
    warm_up: int = 2,
    capture: bool = True,
    progress: Progress | None = None,
    notes: list[str] | None = None,
) -> dict[str, float]:
    """Return the median milliseconds of each candidate over `rounds` turns.

    Args:
        candidates: functions to time, by name.
        rounds: number of measured turns; each candidate has one turn in each round, in a shuffled order.
        device: `cpu`; or `cuda`, where the host waits for the device at both ends of a turn.
        warm_up: number of rounds before those, which are not measured; they tell how often a short candidate is called
            in one turn.
        capture: whether candidates are replayed as captured graphs on a GPU. One that cannot be captured runs eagerly,
            and `notes` says so.
        progress: called with the number of turns done and their total.
        notes: list that remarks for the reader are added to.
    """
    cuda = device.startswith("cuda")
    runs = {name: _as_graph(name, run, notes) if cuda and capture else run for name, run in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    repeats = dict.fromkeys(runs, 1)
    done, total = 0, (warm_up + rounds) * len(runs)
    for turn, order in enumerate(turns(list(runs), warm_up + rounds)):
        for name in order:
            seconds = seconds_of(runs[name], repeats[name], cuda)
            if turn < warm_up:
                repeats[name] = min(MOST_REPEATS, max(1, int(SECONDS_OF_A_TURN / seconds)))
            else:
                times[name].append(1e3 * seconds)
            done += 1
            if progress is not None:
                progress(done, total)
    return {name: statistics.median(values) for name, values in times.items()}


def turns(names: Sequence[str], count: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield `count` shuffled orders of the names.

    In a fixed order one candidate would always find the caches as the same other one left them.
    """
    generator = random.Random(seed)
    for _ in range(count):
        yield generator.sample(list(names), len(names))


def ratios(times: Mapping[str, float]) -> dict[str, float]:
    """Return every time divided by the first one."""
    first = next(iter(times.values()))
    return {name: value / first for name, value in times.items()}


def seconds_of(run: Candidate, repeats: int, cuda: bool) -> float:
    """Return the mean seconds of one call, from several calls in a row."""
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def _as_graph(name: str, run: Candidate, notes: list[str] | None) -> Candidate:
    """Return the candidate as a captured graph or, with a note, as it is where it cannot be captured."""
    try:
        return captured(run)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if notes is None:
            raise
        torch.cuda.synchronize()
        notes.append(f"{name} ran without a captured graph: {str(error).splitlines()[0]}")
        return run

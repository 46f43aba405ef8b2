"""How anything is timed: candidates take turns in a shuffled order, the median counts."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from fheat.system.capture import capture, rehearse
from fheat.system.progress import Progress

Work = Callable[[], object]
"""Called with the turns done and those there are."""
REPEATS = 20
"""At most so many runs in one turn."""
TURN = 0.01
"""Seconds: a run that is shorter is repeated in its turn, since looking at the clock or waiting for a GPU costs too."""


def captured(run: Work) -> Work:
    """Return a replay of `run` as a CUDA graph: what the device does, without the launches of eager mode."""

    def thrice() -> None:
        for _ in range(3):
            run()

    rehearse(thrice)
    graph, _ = capture(run)
    return graph.replay


def interleaved(
    candidates: Mapping[str, Work],
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
        candidates: what to run, by name.
        rounds: measured turns; each candidate runs once in each, in an order of its own.
        device: `cpu`, or `cuda` where the host waits for the device at both ends of a turn.
        warm_up: turns before those, not measured; from them on, short runs are repeated within a turn.
        capture: replay candidates as captured graphs on a GPU. One that cannot be captured runs eagerly, and `notes`
            says so.
    """
    cuda = device.startswith("cuda")
    runs = {name: _as_graph(name, run, notes) if cuda and capture else run for name, run in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    repeats = dict.fromkeys(runs, 1)
    done, total = 0, (warm_up + rounds) * len(runs)
    for turn, order in enumerate(turns(list(runs), warm_up + rounds)):
        for name in order:
            seconds = _seconds(runs[name], repeats[name], cuda)
            if turn < warm_up:
                repeats[name] = min(REPEATS, max(1, int(TURN / seconds)))
            else:
                times[name].append(1e3 * seconds)
            done += 1
            if progress is not None:
                progress(done, total)
    return {name: statistics.median(values) for name, values in times.items()}


def turns(names: Sequence[str], count: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield `count` orders of the names, each name once in each.

    A fixed order would always hand one candidate the caches its neighbour left.
    """
    order = random.Random(seed)
    for _ in range(count):
        yield order.sample(list(names), len(names))


def ratios(times: Mapping[str, float]) -> dict[str, float]:
    """Return every time over the first one."""
    first = next(iter(times.values()))
    return {name: value / first for name, value in times.items()}


def _seconds(run: Work, repeats: int, cuda: bool) -> float:
    """Return the seconds of one run, from several in a row."""
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def _as_graph(name: str, run: Work, notes: list[str] | None) -> Work:
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

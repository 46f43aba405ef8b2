"""Time reading scans in this process and in a confined one: `python benchmarks/reading.py --data FOLDER`.

FOLDER is a dataset in any layout that `fheat data check` knows. Its first scans are read by turns with `trusting` and
without, each scan in both ways one after the other; the best time of several rounds counts for each scan, and only the
ratio of the sums is claimed. `start_s` is what the first confined reading takes more than a later one, once in a run of
the program. `threads` is the ratio where four threads read at a time, as training does.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
from record import arguments, write_result

from fheat.data.case import Case
from fheat.data.layouts import open_dataset
from fheat.data.read import read_image
from fheat.io import trusting

SCANS = 10
THREADS = 4
WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "trusted": trusting,
    "confined": partial(trusting, False),
}


def seconds(way: str, read: Callable[[], object]) -> float:
    with WAYS[way]():
        begin = time.perf_counter()
        read()
        return time.perf_counter() - begin


def alone(cases: Sequence[Case], rounds: int) -> dict[str, float]:
    """Return the sum over scans of the best time of each, by way."""
    best = {way: np.full(len(cases), np.inf) for way in WAYS}
    for _ in range(rounds):
        for index, case in enumerate(cases):
            for way, times in best.items():
                times[index] = min(times[index], seconds(way, lambda case=case: read_image(case)))
    return {way: float(times.sum()) for way, times in best.items()}


def in_threads(cases: Sequence[Case], rounds: int) -> dict[str, float]:
    """Return the best time of all scans together, by way."""
    with ThreadPoolExecutor(THREADS) as pool:

        def read_all() -> list[object]:
            return list(pool.map(read_image, cases))

        return {way: min(seconds(way, read_all) for _ in range(rounds)) for way in WAYS}


def main() -> None:
    options = arguments(__doc__, "reading", rounds=5, data="a dataset; its first scans are read")
    if options.data is None:
        raise SystemExit("give --data FOLDER")
    cases = open_dataset(options.data).cases[:SCANS]
    first = seconds("confined", lambda: read_image(cases[0])) - seconds("confined", lambda: read_image(cases[0]))
    times, together = alone(cases, options.rounds), in_threads(cases, options.rounds)
    results = {
        "seconds": {way: round(total, 3) for way, total in times.items()},
        "ratio": round(times["confined"] / times["trusted"], 3),
        "threads_seconds": {way: round(total, 3) for way, total in together.items()},
        "threads_ratio": round(together["confined"] / together["trusted"], 3),
        "start_s": round(first, 2),
    }
    print(results)
    write_result(
        options.name,
        title="Time of reading scans in a confined process beside reading them in this one",
        command="python benchmarks/reading.py --data LA",
        seed=None,
        settings={
            "unit": "best of the rounds, in turns in one process; only ratios are claimed",
            "rounds": options.rounds,
            "scans": len(cases),
            "first_scan_bytes": read_image(cases[0]).data.nbytes,
            "threads": THREADS,
        },
        results=results,
        out=options.out,
    )


if __name__ == "__main__":
    main()

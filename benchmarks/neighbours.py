"""Time work on a CPU beside busy programs, with all threads, with one, and as `fheat.system.pace` chooses them:
`python benchmarks/neighbours.py`.

The work is that of `fheat train` and of `fheat predict` in PyTorch with FHEAT-Seg: iterations with crops of 32x48x32
(supervised) and 64x64x48 (CSE), and batches of four windows of 112x112x80. Busy programs count in a loop, up to as
many as there are processors. A turn lasts `--seconds`, and longer where few units were done by then. Pace begins anew
in every turn.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from record import arguments, write_result

from fheat import create_model
from fheat.bench.step import build_step
from fheat.bench.timing import Timer
from fheat.system.neighbours import Neighbours
from fheat.system.pace import TRIED, WARM_UP, Pace
from fheat.system.processors import processors
from fheat.system.threads import limited_threads

UNITS = WARM_UP + TRIED + 3
"""Least number of units of a turn."""
PATIENCE = 6
"""Number of times as long as it should that a turn may take for them."""


def main() -> None:
    options = arguments(__doc__, "neighbours", rounds=2, seconds="least seconds of a turn (default: 3)")
    seconds = float(options.seconds or 3)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, unit in works().items():
        found[name] = {}
        for count in range(processors() + 1):
            with busy_programs(count):
                times = [ways(unit, seconds) for _ in range(options.rounds)]
            found[name][str(count)] = {way: min(one[way] for one in times) for way in times[0]}
            print(name, "beside", count, found[name][str(count)], flush=True)
    write_result(
        options.name,
        title="Work on a CPU beside busy programs: with all threads, with one, and as `fheat train` chooses them",
        command="python benchmarks/neighbours.py",
        seed=0,
        device="cpu",
        settings={"rounds": options.rounds, "unit": "milliseconds of a unit, the faster of the rounds"},
        results=found,
        out=options.out,
    )


def works() -> dict[str, Callable[[], object]]:
    """Return the kinds of work by name, each as a function that does a unit of it."""
    torch.manual_seed(0)
    network = create_model("fheat_seg", patch_size=(112, 112, 80)).eval()
    windows = torch.randn(4, 1, 112, 112, 80)
    works: dict[str, Callable[[], object]] = {"four windows of 112x112x80": torch.no_grad()(lambda: network(windows))}
    for method, patch in (("supervised", (32, 48, 32)), ("cse", (64, 64, 48))):
        step = build_step(Timer(), create_model("fheat_seg", patch_size=patch), method, patch, 2, 10_000)
        works[f"an iteration of {method}, {'x'.join(map(str, patch))}"] = step
    return works


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Let so many programs run in the body. They are no children of this process, which would not count them."""
    loop = f"{sys.executable} -c 'while True: pass' > /dev/null 2>&1 & echo $!"
    started = [subprocess.run(["sh", "-c", loop], capture_output=True, check=True).stdout for _ in range(count)]
    try:
        time.sleep(1)
        yield
    finally:
        subprocess.run(["kill", *(number.decode().strip() for number in started)] if started else ["true"], check=True)


def ways(unit: Callable[[], object], seconds: float) -> dict[str, float]:
    """Return the mean milliseconds of a unit by the way in which its threads are chosen."""
    neighbours = Neighbours()
    chosen = {
        "all threads": lambda: nullcontext,
        "one thread": lambda: lambda: limited_threads(1),
        "pace": lambda: Pace(neighbours).unit,
    }
    times = {}
    for way, choose in chosen.items():
        context, begin, done, passed = choose(), time.perf_counter(), 0, 0.0
        while passed < seconds or (done < UNITS and passed < PATIENCE * seconds):
            with context():
                unit()
            done, passed = done + 1, time.perf_counter() - begin
        times[way] = round(1e3 * passed / done, 1)
    return times


if __name__ == "__main__":
    main()

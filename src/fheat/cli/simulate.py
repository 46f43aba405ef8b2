"""`fheat simulate`: train gates on signals instead of scans and show which close (Fig. 3 of the paper)."""

import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import ValidationError

from fheat.cli.main import UsageError
from fheat.cli.options import parse, without_out
from fheat.studies.simulation.experiments import SimulationPlan, simulate
from fheat.studies.simulation.presentation import PICTURE, simulation_picture, simulation_table
from fheat.studies.simulation.record import FORMAT, Simulation, read_simulation
from fheat.studies.simulation.record import NAME as RECORD
from fheat.system.files import check_folder, check_new_file, write_file
from fheat.system.machine import machine
from fheat.system.progress import progress_bar
from fheat.system.text import printable


@dataclass(frozen=True)
class Simulate:
    """Train gates on 1D signals: interchangeable gates share the work, and of eight sites only the one that needs
    mixing keeps its gate, as the sign of the pairing P predicts. Controls follow. It takes under a minute and no data.

    Example: fheat simulate --out simulation
    """

    seeds: int = SimulationPlan.seeds
    """Number of seeds for signals and starts; each seed has one run for every planted site."""
    iterations: int = SimulationPlan.iterations
    """Number of AdamW iterations."""
    rate: float = SimulationPlan.rate
    """Learning rate; that of the paper is 0.02 to 0.03."""
    decay: float = SimulationPlan.decay
    """Decoupled weight decay."""
    alpha: float = SimulationPlan.alpha
    """Order of all gates, in (0, 2]; it is not trained."""
    controls: bool = True
    """Leave out the controls: other strengths, orders, learning rates and starts, and no weight decay."""
    out: Path | None = None
    """Folder for simulation.json and simulation.png; nothing is written if not given."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A simulation.json from which simulation.png is drawn into --out; nothing is run."""
    json: bool = False
    """Print JSON instead of text."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Simulate, "simulate", arguments)
    if options.out is not None:
        if options.from_ is None:
            check_new_file(options.out, RECORD)
        else:
            check_folder(options.out)
    if options.from_ is not None:
        _redraw(options)
        return
    try:
        plan = SimulationPlan(options.seeds, options.iterations, options.rate, options.decay, options.alpha)
    except ValueError as error:
        raise UsageError(str(error)) from None
    head = {"format": FORMAT, "command": shlex.join(["fheat", "simulate", *without_out(arguments)])}
    begin = time.perf_counter()
    with progress_bar("simulating", quiet=options.json) as show:
        results = simulate(plan, controls=options.controls, progress=show)
    seconds = round(time.perf_counter() - begin, 1)
    content = {**head, "machine": machine(), "seed": list(range(plan.seeds)), "seconds": seconds, **results}
    try:
        record = Simulation.model_validate(content)
    except ValidationError:  # a strength that is not finite
        raise UsageError(f"the gates diverged at rate {plan.rate:g}: give a smaller --rate") from None
    text = _text(content) if options.json else simulation_table(record)
    if options.out is not None:  # before printing, so that a closed pipe does not lose the result
        write_file(options.out / RECORD, _text(content).encode() + b"\n")
        write_file(options.out / PICTURE, simulation_picture(record))
        text += "" if options.json else f"\n\n{printable(f'wrote {options.out / RECORD}, {options.out / PICTURE}')}"
    print(text)


def _redraw(options: Simulate) -> None:
    if options.out is None:
        raise UsageError("--from draws a picture and needs --out for where to put it")
    if replace(options, out=None, from_=None, json=False) != Simulate():
        raise UsageError("--from runs nothing: leave out the options of a run")
    assert options.from_ is not None
    record, content = read_simulation(options.from_)
    write_file(options.out / PICTURE, simulation_picture(record))
    print(_text(content) if options.json else f"{simulation_table(record)}\n\nwrote {printable(options.out / PICTURE)}")


def _text(content: dict[str, Any]) -> str:
    """Return JSON with one line for each field, and one for each list of numbers."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[[-+\d.eE,\s]+\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), text)

"""`fheat simulate`: why gates close, on signals instead of scans (Fig. 3 of the paper)."""

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

from fheat.bench.show import check_target
from fheat.cli.main import UsageError
from fheat.cli.options import parse, without_out
from fheat.studies.simulation.plan import SimulationPlan, simulate
from fheat.studies.simulation.record import FORMAT, Simulation, read_simulation
from fheat.studies.simulation.record import NAME as RECORD
from fheat.studies.simulation.show import PICTURE, simulation_picture, simulation_table
from fheat.system.files import write_file
from fheat.system.machine import machine
from fheat.system.progress import progress_bar


@dataclass(frozen=True)
class Simulate:
    """Train gates on 1D signals: interchangeable ones share the work, and of eight sites only the one that needs mixing
    keeps its gate, which the sign of the pairing P tells beforehand. Then controls. Under a minute, no data.

    Example: fheat simulate --out simulation
    """

    seeds: int = SimulationPlan.seeds
    """Draws of signals and starts; each is run with every site planted."""
    iterations: int = SimulationPlan.iterations
    """Of AdamW."""
    rate: float = SimulationPlan.rate
    """Learning rate; the paper's is 0.02 to 0.03."""
    decay: float = SimulationPlan.decay
    """Decoupled weight decay."""
    alpha: float = SimulationPlan.alpha
    """Order of all gates, fixed, in (0, 2]."""
    controls: bool = True
    """Leave out the controls: other strengths, orders, rate and start, and no weight decay."""
    out: Path | None = None
    """Folder for simulation.json and simulation.png; nothing is written if not given."""
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A simulation.json: draw simulation.png from it into --out and run nothing."""
    json: bool = False
    """Print JSON instead of text."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Simulate, "simulate", arguments)
    if options.out is not None:
        check_target(options.out, RECORD if options.from_ is None else None)
    if options.from_ is not None:
        _redraw(options)
        return
    try:
        settings = SimulationPlan(options.seeds, options.iterations, options.rate, options.decay, options.alpha)
    except ValueError as error:
        raise UsageError(str(error)) from None
    said = {"format": FORMAT, "command": shlex.join(["fheat", "simulate", *without_out(arguments)])}
    begin = time.perf_counter()
    with progress_bar("simulating", quiet=options.json) as show:
        found = simulate(settings, controls=options.controls, progress=show)
    seconds = round(time.perf_counter() - begin, 1)
    content = {**said, "machine": machine(), "seed": list(range(settings.seeds)), "seconds": seconds, **found}
    try:
        record = Simulation.model_validate(content)
    except ValidationError:  # a strength that is not finite
        raise UsageError(f"the gates diverged at rate {settings.rate:g}: give a smaller --rate") from None
    text = _text(content) if options.json else simulation_table(record)
    if options.out is not None:  # before printing: a reader that leaves must not cost the result
        write_file(options.out / RECORD, _text(content).encode() + b"\n")
        write_file(options.out / PICTURE, simulation_picture(record))
        text += "" if options.json else f"\n\nwrote {options.out / RECORD}, {options.out / PICTURE}"
    print(text)


def _redraw(options: Simulate) -> None:
    if options.out is None:
        raise UsageError("--from draws a picture and needs --out for where to put it")
    if replace(options, out=None, from_=None, json=False) != Simulate():
        raise UsageError("--from runs nothing: leave out the options of a run")
    assert options.from_ is not None
    record, content = read_simulation(options.from_)
    write_file(options.out / PICTURE, simulation_picture(record))
    print(_text(content) if options.json else f"{simulation_table(record)}\n\nwrote {options.out / PICTURE}")


def _text(content: dict[str, Any]) -> str:
    """Return JSON with a line for each field, and for each list of numbers."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[[-+\d.eE,\s]+\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), text)

"""`simulation.json`: every number of a simulation, enough to print its table and draw its picture again."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic import model_validator as check

from fheat.studies.inside.record import Stored, parsed, read_stored

NAME, FORMAT = "simulation.json", 1
LONGEST = 10_000_000
"""Iterations of a run."""
_REMEDY = f"give the {NAME} of a run"
Curves = tuple[tuple[NonNegativeFloat, ...], ...]
"""D of every site at every kept iteration, (kept, sites)."""


class EvenRun(Stored):
    """Interchangeable gates with one seed: D at the start and at the end, SD of the gates as the whole population."""

    seed: NonNegativeInt
    mean: NonNegativeFloat
    sd: NonNegativeFloat
    start_mean: NonNegativeFloat
    start_sd: NonNegativeFloat
    pairing: float
    D: tuple[NonNegativeFloat, ...]


class Even(Stored):
    """Interchangeable gates, and the share that each would have exactly."""

    runs: Annotated[tuple[EvenRun, ...], Field(min_length=1)]
    exact: NonNegativeFloat
    closed: NonNegativeInt
    gates: PositiveInt


class PlantedRun(Stored):
    """Sites of which one, counted from 1, is planted: pairing before training, D after it, best D of the planted."""

    seed: NonNegativeInt
    planted: PositiveInt
    best: NonNegativeFloat
    pairing: tuple[float, ...]
    D: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=2)]

    @check(mode="after")
    def _has_its_sites(self) -> Self:
        if len(self.pairing) != len(self.D) or self.planted > len(self.D):
            raise ValueError("pairing and D must have one value per site, the planted one among them")
        return self


class Planted(Stored):
    """Differentiated sites, and at how many the sign of the pairing told the end."""

    runs: Annotated[tuple[PlantedRun, ...], Field(min_length=1)]
    sites: PositiveInt
    predicted: NonNegativeInt
    idle: PositiveInt
    idle_closed: NonNegativeInt
    largest_idle: NonNegativeFloat
    smallest_idle: NonNegativeFloat


class Control(Stored):
    """What a control repeats: one experiment or both."""

    interchangeable: Even | None = None
    differentiated: Planted | None = None


class Trajectories(Stored):
    """D over the iterations, of the first seed."""

    iterations: Annotated[tuple[Annotated[int, Field(ge=0, le=LONGEST)], ...], Field(min_length=2)]
    planted: PositiveInt
    interchangeable: Curves
    differentiated: Curves
    softplus: Curves | None = None
    exp: Curves | None = None

    @check(mode="after")
    def _fit_their_iterations(self) -> Self:
        curves = [
            self.interchangeable,
            self.differentiated,
            *(one for one in (self.softplus, self.exp) if one is not None),
        ]
        even = len({len(row) for one in curves for row in one}) == 1
        if not even or any(len(one) != len(self.iterations) for one in curves):
            raise ValueError("trajectories must have one row per iteration and one value per site")
        if (self.softplus is None) != (self.exp is None):
            raise ValueError("trajectories of softplus and exp must come together")
        return self


class SimulationSettings(Stored):
    """How the experiments were run."""

    seeds: PositiveInt
    iterations: Annotated[int, Field(ge=1, le=LONGEST)]
    rate: PositiveFloat
    decay: NonNegativeFloat
    alpha: PositiveFloat
    strength: str
    grid: PositiveInt
    sites: PositiveInt
    start: tuple[NonNegativeFloat, NonNegativeFloat]
    uneven_start: tuple[NonNegativeFloat, NonNegativeFloat]
    shared_strength: PositiveFloat
    blur: PositiveFloat


class Remark(Stored):
    """Remark 3: sum D^2 of a total time shared evenly and at one gate."""

    time: PositiveFloat
    even: NonNegativeFloat
    concentrated: NonNegativeFloat


class Simulation(Stored):
    """The content of the file."""

    format: Literal[1]
    command: str
    machine: dict[str, Any]
    seed: tuple[NonNegativeInt, ...]
    seconds: NonNegativeFloat
    settings: SimulationSettings
    remark_3: Remark
    interchangeable: Even
    differentiated: Planted
    controls: dict[str, Control]
    trajectories: Trajectories

    @check(mode="after")
    def _shows_one_of_its_runs(self) -> Self:
        if len(self.trajectories.differentiated[0]) != len(self.shown.D):
            raise ValueError("trajectories must have the sites of the run they show")
        return self

    @property
    def shown(self) -> PlantedRun:
        """The run that the trajectories are of: the first seed with the planted site that they name."""
        for run in self.differentiated.runs:
            if run.planted == self.trajectories.planted:
                return run
        raise ValueError(f"no run has site {self.trajectories.planted} planted, which the trajectories show")


def read_simulation(path: Path) -> tuple[Simulation, dict[str, Any]]:
    """Return what `simulation.json` says and its content as it is, or raise `BadInput`."""
    content = read_stored(path, "simulation", _REMEDY)
    return parsed(Simulation, content, path, _REMEDY), content

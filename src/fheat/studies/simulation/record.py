"""`simulation.json`: every number of a simulation, so that its table and picture can be made again."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic import model_validator as check

from fheat.studies.stored import Stored, read_object, validated

NAME, FORMAT = "simulation.json", 1
MOST_ITERATIONS = 10_000_000
"""Largest number of iterations of a run."""
_REMEDY = f"give the {NAME} of a run"
Curves = tuple[tuple[NonNegativeFloat, ...], ...]
"""D of every site at every kept iteration, (kept, sites)."""


class InterchangeableRun(Stored):
    """Interchangeable gates with one seed. Standard deviations are over the gates as the whole population."""

    seed: NonNegativeInt
    mean: NonNegativeFloat
    """Mean of D after training."""
    sd: NonNegativeFloat
    """Standard deviation of D after training."""
    start_mean: NonNegativeFloat
    """Mean of D at the start."""
    start_sd: NonNegativeFloat
    """Standard deviation of D at the start."""
    pairing: float
    D: tuple[NonNegativeFloat, ...]
    """D of every gate after training."""


class Interchangeable(Stored):
    """The experiment with interchangeable gates."""

    runs: Annotated[tuple[InterchangeableRun, ...], Field(min_length=1)]
    exact: NonNegativeFloat
    """D of each gate if all share the total time exactly evenly."""
    closed: NonNegativeInt
    """Number of gates, over all runs, that are closed after training."""
    gates: PositiveInt
    """Number of gates, over all runs."""


class DifferentiatedRun(Stored):
    """Sites of which one is planted, with one seed."""

    seed: NonNegativeInt
    planted: PositiveInt
    """The planted site, counted from 1."""
    best: NonNegativeFloat
    """D at which the gate of the planted site fits best."""
    pairing: tuple[float, ...]
    """Pairing P of every site before training."""
    D: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=2)]

    @check(mode="after")
    def _has_its_sites(self) -> Self:
        if len(self.pairing) != len(self.D) or self.planted > len(self.D):
            raise ValueError("pairing and D must have one value per site, the planted one among them")
        return self


class Differentiated(Stored):
    """The experiment with differentiated sites; a site that is not planted is idle."""

    runs: Annotated[tuple[DifferentiatedRun, ...], Field(min_length=1)]
    sites: PositiveInt
    """Number of sites, over all runs."""
    predicted: NonNegativeInt
    """Number of sites where P > 0 before training goes with D > 0 after it, and P <= 0 with D = 0."""
    idle: PositiveInt
    """Number of idle sites, over all runs."""
    idle_closed: NonNegativeInt
    """Number of idle sites that are closed after training."""
    largest_idle: NonNegativeFloat
    """Largest D of an idle site after training."""
    smallest_idle: NonNegativeFloat
    """Smallest D of an idle site after training."""


class Control(Stored):
    """A control: one experiment or both, repeated with one change."""

    interchangeable: Interchangeable | None = None
    differentiated: Differentiated | None = None


class Trajectories(Stored):
    """D over the iterations, in the runs of the first seed that the picture shows."""

    iterations: Annotated[tuple[Annotated[int, Field(ge=0, le=MOST_ITERATIONS)], ...], Field(min_length=2)]
    planted: PositiveInt
    """The planted site of the run that is shown, counted from 1."""
    interchangeable: Curves
    differentiated: Curves
    softplus: Curves | None = None
    exp: Curves | None = None

    @check(mode="after")
    def _fit_their_iterations(self) -> Self:
        curves = [
            self.interchangeable,
            self.differentiated,
            *(curve for curve in (self.softplus, self.exp) if curve is not None),
        ]
        same_sites = len({len(row) for curve in curves for row in curve}) == 1
        if not same_sites or any(len(curve) != len(self.iterations) for curve in curves):
            raise ValueError("trajectories must have one row per iteration and one value per site")
        if (self.softplus is None) != (self.exp is None):
            raise ValueError("trajectories of softplus and exp must come together")
        return self


class SimulationSettings(Stored):
    """Settings of the experiments: those of `SimulationPlan`, and the constants of their signals."""

    seeds: PositiveInt
    iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)]
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
    """Remark 3: sum D^2 of a total time that gates share evenly, and of the whole time at one gate."""

    time: PositiveFloat
    even: NonNegativeFloat
    concentrated: NonNegativeFloat


class Simulation(Stored):
    """The content of `simulation.json`."""

    format: Literal[1]
    command: str
    machine: dict[str, Any]
    seed: tuple[NonNegativeInt, ...]
    seconds: NonNegativeFloat
    settings: SimulationSettings
    remark_3: Remark
    interchangeable: Interchangeable
    differentiated: Differentiated
    controls: dict[str, Control]
    trajectories: Trajectories

    @check(mode="after")
    def _shows_one_of_its_runs(self) -> Self:
        if len(self.trajectories.differentiated[0]) != len(self.shown.D):
            raise ValueError("trajectories must have the sites of the run they show")
        return self

    @property
    def shown(self) -> DifferentiatedRun:
        """Run that the trajectories show: that of the first seed with the planted site they name."""
        for run in self.differentiated.runs:
            if run.planted == self.trajectories.planted:
                return run
        raise ValueError(f"no run has site {self.trajectories.planted} planted, which the trajectories show")


def read_simulation(path: Path) -> tuple[Simulation, dict[str, Any]]:
    """Return the simulation in a file and the content of the file as plain data, or raise `BadInput`."""
    content = read_object(path, "simulation", _REMEDY)
    return validated(Simulation, content, path, _REMEDY), content

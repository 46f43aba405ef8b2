"""The two experiments of Fig. 3 and their controls: what is drawn, what is varied, what is recorded."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fheat.ops.dct import dct
from fheat.ops.heat import frequency_radius
from fheat.studies.simulation.train import Chains, descend, even_share, penalties, side_by_side
from fheat.system.progress import Progress, silent

GRID, SITES = 256, 8
SHARED_STRENGTH: Final = 4.0
"""D of the one low-pass target that the interchangeable gates share."""
BLUR: Final = 1.0
"""Standard deviation, in samples, of the Gaussian blur that is planted; a gate of alpha < 2 can only come close."""
REMARK_TIME: Final = 2.0
"""Total time for which Remark 3 compares the penalties."""
START, UNEVEN_START = (0.02, 0.04), (0.01, 0.5)
"""Range of D at the start, drawn evenly: 0.03 give or take a third, and a start that is not even at all."""
SHOWN_SITE: Final = 5
"""The planted site, counted from 1, that the picture shows, as the paper's does."""
KEPT: Final = 100


@dataclass(frozen=True)
class SimulationPlan:
    """How long, how fast and how often; the paper's values are the defaults."""

    seeds: int = 5
    iterations: int = 6000
    rate: float = 0.02
    decay: float = 1e-3
    alpha: float = 0.75
    strength: str = "relu"

    def __post_init__(self) -> None:
        for name, low, high in (("seeds", 1, 1000), ("iterations", 1, 10_000_000), ("decay", 0.0, 1.0)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is not usable: give {low} to {high}")
        for name, high in (("rate", 1.0), ("alpha", 2.0)):
            if not 0 < getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is not usable: give more than 0, at most {high}")


@dataclass(frozen=True)
class Experiment:
    """Chains and where they come from: seed by seed, and for planted ones the site (from 1) that has the blur."""

    chains: Chains
    seeds: tuple[int, ...]
    planted: tuple[int, ...] = ()


def interchangeable(settings: SimulationPlan, start: tuple[float, float] = START) -> Experiment:
    """Eight gates in a chain for each seed, fitted to one target that a single gate with D = 4 makes."""
    drawn = [_draw(seed, 1, start) for seed in range(settings.seeds)]
    spectrum = torch.cat([signal[:, 0] for signal, _ in drawn])
    target = _response(SHARED_STRENGTH, settings.alpha) * spectrum
    chain = torch.arange(settings.seeds).repeat_interleave(SITES)
    begin = torch.cat([begin[0] for _, begin in drawn])
    return Experiment(_chains(spectrum, target, settings.alpha, begin, chain), tuple(range(settings.seeds)))


def differentiated(settings: SimulationPlan, *, every_site: bool = True) -> Experiment:
    """Eight sites, each a gate of its own with a signal of its own; one of them, the planted one, is to blur.

    The others are to return their signal. One run for each seed and planted site, each with its own draws; or, with
    `every_site` off, one for each seed, the planted site moving along.
    """
    spectra, targets, starts, seeds, planted = [], [], [], [], []
    for seed in range(settings.seeds):
        signals, begins = _draw(seed, SITES, START)
        for site in range(SITES) if every_site else [(SHOWN_SITE - 1 + seed) % SITES]:
            target = signals[site].clone()
            target[site] *= _response(BLUR / math.sqrt(2), 2.0)
            spectra.append(signals[site])
            targets.append(target)
            starts.append(begins[site])
            seeds.append(seed)
            planted.append(site + 1)
    begin = torch.cat(starts)
    chains = _chains(torch.cat(spectra), torch.cat(targets), settings.alpha, begin, torch.arange(len(begin)))
    return Experiment(chains, tuple(seeds), tuple(planted))


def simulate(settings: SimulationPlan, *, controls: bool = True, progress: Progress = silent) -> dict[str, Any]:
    """Run both experiments, and the controls, and return plain data: the fields of `simulation.json`."""
    main = {"interchangeable": interchangeable(settings), "differentiated": differentiated(settings)}
    jobs: list[tuple[SimulationPlan, dict[str, Experiment]]] = [(settings, main)]
    if controls:
        jobs[0][1].update(_alike(settings))
        jobs += _apart(settings)
    keep = kept_iterations(settings.iterations)
    found: dict[str, Any] = {}
    shown: dict[str, Any] = {"iterations": keep, "planted": SHOWN_SITE}
    for number, (each, experiments) in enumerate(jobs):
        for name, (experiment, strengths) in _train(
            each, experiments, keep, _part(progress, number, len(jobs))
        ).items():
            found[name] = _record(experiment, strengths)
            shown |= _shown(name, experiment, strengths)
    record: dict[str, Any] = {
        "settings": {**asdict(settings), "grid": GRID, "sites": SITES, "start": START, "uneven_start": UNEVEN_START}
        | {"shared_strength": SHARED_STRENGTH, "blur": BLUR},
        "remark_3": {"time": REMARK_TIME, **penalties(REMARK_TIME, SITES, settings.alpha)},
        "interchangeable": found.pop("interchangeable"),
        "differentiated": found.pop("differentiated"),
        "controls": {},
        "trajectories": shown,
    }
    for name, result in found.items():
        control, experiment_name = name.split("/")
        record["controls"].setdefault(control, {})[experiment_name] = result
    return record


def kept_iterations(iterations: int) -> list[int]:
    """Return the iterations that a record keeps: all of the first ones, later ones ever further apart, and the last."""
    return [0, *np.unique(np.geomspace(1, iterations, KEPT).round().astype(int)).tolist()]


def _alike(settings: SimulationPlan) -> dict[str, Experiment]:
    """Controls that differ in what is drawn alone, so that they can be trained beside the rest."""
    found = {"uneven start/interchangeable": interchangeable(settings, UNEVEN_START)}
    for alpha in (0.3, 0.5, 0.9, 1.5):
        found |= _both(f"alpha {alpha}", replace(settings, alpha=alpha))
    return found


def _apart(settings: SimulationPlan) -> list[tuple[SimulationPlan, dict[str, Experiment]]]:
    """Controls that differ in how they are trained."""
    undecayed, slow = replace(settings, decay=0.0), replace(settings, rate=1e-4)
    varied = {
        "rate 0.03": replace(settings, rate=0.03),
        "softplus": replace(settings, strength="softplus"),
        "exp": replace(settings, strength="exp"),
    }
    uneven = {"uneven start, no weight decay/interchangeable": interchangeable(undecayed, UNEVEN_START)}
    slowly = {
        f"alpha {alpha}, rate 0.0001/differentiated": differentiated(replace(slow, alpha=alpha), every_site=False)
        for alpha in (0.75, 1.5)
    }
    return [
        (undecayed, _both("no weight decay", undecayed) | uneven),
        *((each, _both(name, each)) for name, each in varied.items()),
        (slow, slowly),
    ]


def _both(name: str, settings: SimulationPlan) -> dict[str, Experiment]:
    return {
        f"{name}/interchangeable": interchangeable(settings),
        f"{name}/differentiated": differentiated(settings, every_site=False),
    }


def _train(
    settings: SimulationPlan, experiments: dict[str, Experiment], keep: Sequence[int], progress: Progress
) -> dict[str, tuple[Experiment, Tensor]]:
    """Train experiments side by side; return each with its D, (kept, chains or runs, sites)."""
    strengths = descend(
        side_by_side([experiment.chains for experiment in experiments.values()]),
        iterations=settings.iterations,
        rate=settings.rate,
        decay=settings.decay,
        strength=settings.strength,
        keep=keep,
        progress=progress,
    )
    parts = torch.split(strengths, [len(experiment.chains.start) for experiment in experiments.values()], dim=1)
    return {
        name: (experiment, part.reshape(len(part), -1, SITES))
        for (name, experiment), part in zip(experiments.items(), parts, strict=True)
    }


def _record(experiment: Experiment, strengths: Tensor) -> dict[str, Any]:
    return _planted_record(experiment, strengths) if experiment.planted else _even_record(experiment, strengths)


def _even_record(experiment: Experiment, strengths: Tensor) -> dict[str, Any]:
    """Mean and standard deviation (of the eight gates as the whole population) at the end, run by run."""
    runs = []
    for seed, pairing, first, last in zip(
        experiment.seeds, experiment.chains.pairing().tolist(), strengths[0], strengths[-1], strict=True
    ):
        spread = {"mean": last.mean().item(), "sd": last.std(correction=0).item()}
        started = {"start_mean": first.mean().item(), "start_sd": first.std(correction=0).item()}
        runs.append({"seed": seed, **spread, **started, "pairing": pairing, "D": last.tolist()})
    alpha = experiment.chains.alpha[0].item()
    exact = even_share(SHARED_STRENGTH**alpha, SITES, alpha)
    return {"runs": runs, "exact": exact, "closed": int((strengths[-1] == 0).sum()), "gates": strengths[-1].numel()}


def _planted_record(experiment: Experiment, strengths: Tensor) -> dict[str, Any]:
    """Pairing before training, D after it, and whether the sign of the one told whether the other is zero."""
    last = strengths[-1]
    pairing = experiment.chains.pairing().reshape(-1, SITES)
    best = experiment.chains.best_strength().reshape(-1, SITES)
    runs = []
    for row, (seed, planted) in enumerate(zip(experiment.seeds, experiment.planted, strict=True)):
        values = {"pairing": pairing[row].tolist(), "D": last[row].tolist()}
        runs.append({"seed": seed, "planted": planted, "best": best[row, planted - 1].item(), **values})
    idle = torch.ones_like(last, dtype=torch.bool)
    idle[torch.arange(len(last)), torch.tensor(experiment.planted) - 1] = False
    return {
        "runs": runs,
        "sites": last.numel(),
        "predicted": int(((pairing > 0) == (last > 0)).sum()),
        "idle": int(idle.sum()),
        "idle_closed": int((last[idle] == 0).sum()),
        "largest_idle": last[idle].max().item(),
        "smallest_idle": last[idle].min().item(),
    }


def _shown(name: str, experiment: Experiment, strengths: Tensor) -> dict[str, Any]:
    """D of the runs that the picture shows, (kept, sites): those of the first seed."""
    if name == "interchangeable":
        return {name: _five_digits(strengths[:, 0])}
    if name in ("differentiated", "softplus/differentiated", "exp/differentiated"):
        return {name.removesuffix("/differentiated"): _five_digits(strengths[:, experiment.planted.index(SHOWN_SITE)])}
    return {}


def _five_digits(values: Tensor) -> list[list[float]]:
    return [[float(f"{value:.5g}") for value in row] for row in values.tolist()]


def _part(progress: Progress, number: int, parts: int) -> Progress:
    return lambda done, total: progress(number * total + done, parts * total)


def _chains(spectrum: Tensor, target: Tensor, alpha: float, start: Tensor, chain: Tensor) -> Chains:
    return Chains(spectrum, target, torch.full((len(spectrum),), alpha, dtype=torch.float64), start, chain)


def _draw(seed: int, runs: int, start: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return spectra of white noise, (runs, sites, grid), and strengths to start from, (runs, sites)."""
    dice = torch.Generator().manual_seed(seed)
    noise = torch.randn(runs, SITES, GRID, generator=dice, dtype=torch.float64)
    low, high = start
    return dct(noise, dims=1), low + (high - low) * torch.rand(runs, SITES, generator=dice, dtype=torch.float64)


def _response(strength: float, alpha: float) -> Tensor:
    return torch.exp(-((strength * torch.from_numpy(frequency_radius(GRID))) ** alpha))

"""The two experiments of Fig. 3 and their controls: signals are drawn, gates are trained, results are recorded."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fheat.ops.dct import dct
from fheat.ops.heat import frequency_radius
from fheat.studies.simulation.chains import Chains, even_share, penalties, side_by_side, train
from fheat.system.progress import Progress, silent

GRID: Final = 256
"""Number of samples of a signal."""
SITES: Final = 8
"""Number of gates in a chain, and of sites in a run."""
SHARED_STRENGTH: Final = 4.0
"""D of the single gate whose output is the target of the interchangeable gates."""
BLUR: Final = 1.0
"""Standard deviation, in samples, of the Gaussian blur of a planted site; a gate with alpha < 2 only comes close."""
REMARK_TIME: Final = 2.0
"""Total time for which Remark 3 compares the penalties."""
START, UNEVEN_START = (0.02, 0.04), (0.01, 0.5)
"""Ranges from which D is drawn at the start: 0.03 plus or minus a third, and a range that makes a very uneven start."""
SHOWN_SITE: Final = 5
"""The planted site, counted from 1, whose run the picture shows, as in the paper."""
MOST_KEPT: Final = 100
"""Largest number of iterations after the start that a record keeps."""


@dataclass(frozen=True)
class SimulationPlan:
    """Settings of both experiments; the defaults are the values of the paper."""

    seeds: int = 5
    """Number of seeds; each draws its own signals and starts."""
    iterations: int = 6000
    """Number of AdamW iterations."""
    rate: float = 0.02
    """Learning rate."""
    decay: float = 1e-3
    """Decoupled weight decay."""
    alpha: float = 0.75
    """Order of all gates; it is not trained."""
    strength: str = "relu"
    """How the parameter delta becomes the strength D."""

    def __post_init__(self) -> None:
        for name, low, high in (("seeds", 1, 1000), ("iterations", 1, 10_000_000), ("decay", 0.0, 1.0)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is not usable: give {low} to {high}")
        for name, high in (("rate", 1.0), ("alpha", 2.0)):
            if not 0 < getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is not usable: give more than 0, at most {high}")


@dataclass(frozen=True)
class Experiment:
    """Chains of gates, grouped into runs."""

    chains: Chains
    seeds: tuple[int, ...]
    """Seed of each run."""
    planted: tuple[int, ...] = ()
    """Planted site of each run, counted from 1; empty for interchangeable gates."""


def interchangeable(plan: SimulationPlan, start: tuple[float, float] = START) -> Experiment:
    """Return one chain of eight gates for each seed; its target is the output of a single gate with D = 4."""
    drawn = [_draw(seed, 1, start) for seed in range(plan.seeds)]
    spectrum = torch.cat([signal[:, 0] for signal, _ in drawn])
    target = _response(SHARED_STRENGTH, plan.alpha) * spectrum
    chain = torch.arange(plan.seeds).repeat_interleave(SITES)
    begin = torch.cat([begin[0] for _, begin in drawn])
    return Experiment(_chains(spectrum, target, plan.alpha, begin, chain), tuple(range(plan.seeds)))


def differentiated(plan: SimulationPlan, *, every_site: bool = True) -> Experiment:
    """Return runs of eight sites, each with one gate and one signal, of which one, the planted one, is to blur.

    The target of the other sites is their own signal. There is one run for each seed and planted site, with its own
    signals and starts. Without `every_site` there is one run for each seed, and the planted site moves on by one.
    """
    spectra, targets, starts, seeds, planted = [], [], [], [], []
    for seed in range(plan.seeds):
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
    chains = _chains(torch.cat(spectra), torch.cat(targets), plan.alpha, begin, torch.arange(len(begin)))
    return Experiment(chains, tuple(seeds), tuple(planted))


def simulate(plan: SimulationPlan, *, controls: bool = True, progress: Progress = silent) -> dict[str, Any]:
    """Run both experiments and, with `controls`, the controls; return the fields of `simulation.json` as plain data."""
    main = {"interchangeable": interchangeable(plan), "differentiated": differentiated(plan)}
    jobs: list[tuple[SimulationPlan, dict[str, Experiment]]] = [(plan, main)]
    if controls:
        jobs[0][1].update(_controls_trained_alike(plan))
        jobs += _controls_trained_apart(plan)
    keep = kept_iterations(plan.iterations)
    results: dict[str, Any] = {}
    trajectories: dict[str, Any] = {"iterations": keep, "planted": SHOWN_SITE}
    for number, (each, experiments) in enumerate(jobs):
        for name, (experiment, strengths) in _train(
            each, experiments, keep, _part(progress, number, len(jobs))
        ).items():
            results[name] = _record(experiment, strengths)
            trajectories |= _trajectory(name, experiment, strengths)
    record: dict[str, Any] = {
        "settings": {**asdict(plan), "grid": GRID, "sites": SITES, "start": START, "uneven_start": UNEVEN_START}
        | {"shared_strength": SHARED_STRENGTH, "blur": BLUR},
        "remark_3": {"time": REMARK_TIME, **penalties(REMARK_TIME, SITES, plan.alpha)},
        "interchangeable": results.pop("interchangeable"),
        "differentiated": results.pop("differentiated"),
        "controls": {},
        "trajectories": trajectories,
    }
    for name, result in results.items():
        control, experiment_name = name.split("/")
        record["controls"].setdefault(control, {})[experiment_name] = result
    return record


def kept_iterations(iterations: int) -> list[int]:
    """Return the iterations that a record keeps: the start and a geometric series up to the last iteration."""
    return [0, *np.unique(np.geomspace(1, iterations, MOST_KEPT).round().astype(int)).tolist()]


def _controls_trained_alike(plan: SimulationPlan) -> dict[str, Experiment]:
    """Return the controls that differ in what is drawn only, so that they are trained together with the experiments."""
    experiments = {"uneven start/interchangeable": interchangeable(plan, UNEVEN_START)}
    for alpha in (0.3, 0.5, 0.9, 1.5):
        experiments |= _both(f"alpha {alpha}", replace(plan, alpha=alpha))
    return experiments


def _controls_trained_apart(plan: SimulationPlan) -> list[tuple[SimulationPlan, dict[str, Experiment]]]:
    """Return the controls that differ in how they are trained, each group with its settings."""
    undecayed, slow = replace(plan, decay=0.0), replace(plan, rate=1e-4)
    varied = {
        "rate 0.03": replace(plan, rate=0.03),
        "softplus": replace(plan, strength="softplus"),
        "exp": replace(plan, strength="exp"),
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


def _both(name: str, plan: SimulationPlan) -> dict[str, Experiment]:
    return {
        f"{name}/interchangeable": interchangeable(plan),
        f"{name}/differentiated": differentiated(plan, every_site=False),
    }


def _train(
    plan: SimulationPlan, experiments: dict[str, Experiment], keep: Sequence[int], progress: Progress
) -> dict[str, tuple[Experiment, Tensor]]:
    """Train experiments side by side and return each with the D of its gates, (kept, runs, sites)."""
    strengths = train(
        side_by_side([experiment.chains for experiment in experiments.values()]),
        iterations=plan.iterations,
        rate=plan.rate,
        decay=plan.decay,
        strength=plan.strength,
        keep=keep,
        progress=progress,
    )
    parts = torch.split(strengths, [len(experiment.chains.start) for experiment in experiments.values()], dim=1)
    return {
        name: (experiment, part.reshape(len(part), -1, SITES))
        for (name, experiment), part in zip(experiments.items(), parts, strict=True)
    }


def _record(experiment: Experiment, strengths: Tensor) -> dict[str, Any]:
    return (
        _differentiated_record(experiment, strengths)
        if experiment.planted
        else _interchangeable_record(experiment, strengths)
    )


def _interchangeable_record(experiment: Experiment, strengths: Tensor) -> dict[str, Any]:
    """Return mean and standard deviation (over the eight gates as the whole population) of D, run by run."""
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


def _differentiated_record(experiment: Experiment, strengths: Tensor) -> dict[str, Any]:
    """Return the pairing before training and D after it, and the number of sites where P > 0 goes with D > 0."""
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


def _trajectory(name: str, experiment: Experiment, strengths: Tensor) -> dict[str, Any]:
    """Return D of the run of the first seed that the picture shows, (kept, sites), if this experiment has one."""
    if name == "interchangeable":
        return {name: _five_digits(strengths[:, 0])}
    if name in ("differentiated", "softplus/differentiated", "exp/differentiated"):
        return {name.removesuffix("/differentiated"): _five_digits(strengths[:, experiment.planted.index(SHOWN_SITE)])}
    return {}


def _five_digits(values: Tensor) -> list[list[float]]:
    return [[float(f"{value:.5g}") for value in row] for row in values.tolist()]


def _part(progress: Progress, number: int, parts: int) -> Progress:
    """Return the progress of one of several parts of equal length."""
    return lambda done, total: progress(number * total + done, parts * total)


def _chains(spectrum: Tensor, target: Tensor, alpha: float, start: Tensor, chain: Tensor) -> Chains:
    return Chains(spectrum, target, torch.full((len(spectrum),), alpha, dtype=torch.float64), start, chain)


def _draw(seed: int, runs: int, start: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Return the spectra of white noise, (runs, sites, grid), and strengths to start from, (runs, sites)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(runs, SITES, GRID, generator=generator, dtype=torch.float64)
    low, high = start
    return dct(noise, dims=1), low + (high - low) * torch.rand(runs, SITES, generator=generator, dtype=torch.float64)


def _response(strength: float, alpha: float) -> Tensor:
    """Return exp(-(D r)^alpha) of every mode, (grid,)."""
    return torch.exp(-((strength * torch.from_numpy(frequency_radius(GRID))) ** alpha))

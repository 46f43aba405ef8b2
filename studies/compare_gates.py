"""Gates in well-known networks: which of their stages keep global mixing, what retiring leaves, Dice with and without.

    fheat sweep studies/gates/la.toml --out OUT
    python studies/compare_gates.py OUT --store gates-la-cuda --figure docs/images/gates-la.svg

The sweep trains each network plain and with gates, from the same weights and on the same crops. For each run with gates
this prints: Dice on the validation scans beside that of the plain network; the gates that are open at the end, with D,
alpha and the share of a wave at frequency radius pi that they let pass; whether the output of the retired network is
that of the trained one, bit for bit; its Dice, which is measured again; and the multiply-adds of all transforms and of
those that are left. The figure has D of every gate over the iterations, a panel for each network.

With `--store` the result is written after each network, so that nothing is lost where a later one fails, and names the
networks of the sweep that have no pair of finished runs. With `--add` the rows of a stored result that OUT does not
have stay, so that a sweep can be spread over several days.
"""

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from recipe import by_case, means
from record import ROOT, Result, from_root, read_result, result_names, write_result
from torch import nn

from fheat.experiments.planned import OUTCOME, SCORES, Outcome, read_outcome
from fheat.experiments.scoring import Scoring, score
from fheat.figures.picture import Picture, svg_picture
from fheat.figures.plots import plot
from fheat.figures.strengths import draw_closings, draw_gates
from fheat.gates.cost import COUNTER, cost
from fheat.gates.hook import placed_by, with_gates_of
from fheat.gates.retire import retire
from fheat.gates.table import allocation
from fheat.metrics.table import Table
from fheat.models.folder import load
from fheat.networks.registry import spec_of
from fheat.ops.gates import gates_of
from fheat.system.files import write_file
from fheat.system.text import aligned, grid_name
from fheat.training.runs import read_history
from fheat.training.settings_sources import make_settings

POINTS = 41
"""Number of iterations of a course that are stored and drawn."""
Rows = dict[str, dict[str, Any]]
"""What was measured, by network and seed."""


@dataclass(frozen=True)
class Run:
    """A finished run of the sweep."""

    folder: Path
    outcome: Outcome

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings by section."""
        return self.outcome.settings

    @property
    def name(self) -> str:
        """Name of the network."""
        return str(self.settings["network"]["name"])

    @property
    def gated(self) -> bool:
        """Whether gates were put into the network."""
        return bool(self.settings["network"].get("instrument"))

    @property
    def seed(self) -> int:
        """Seed of weights and crops."""
        return int(self.settings["schedule"]["seed"])

    def pair(self) -> str:
        """Return what the plain run and the run with gates have in common: all settings but those of the gates."""
        network = {name: value for name, value in self.settings["network"].items() if name not in GATES}
        return repr({**self.settings, "network": network})

    def network(self) -> nn.Module:
        """Return the network that was scored."""
        return load(self.folder / (self.outcome.scoring["network"] if self.outcome.best is not None else "final"))


GATES = ("instrument", "initial_strength")
"""Settings of the section network in which the two runs of a pair differ."""


def main(
    out: Annotated[Path, tyro.conf.Positional],
    /,
    device: str | None = None,
    store: str | None = None,
    add: bool = False,
    figure: Path | None = None,
    sweep: Path = Path("studies/gates/la.toml"),
) -> None:
    """Print the table, and store it and the figure.

    Args:
        out: folder of the sweep; relative paths to its data start where the sweep was started.
        device: cpu or cuda; a GPU where there is one.
        store: name of the stored result.
        add: keep the networks that are stored under that name already.
        figure: SVG file to draw.
        sweep: file of the sweep, which the stored result names, and whose networks are looked for.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    runs = [Run(path.parent, read_outcome(path)) for path in sorted(out.glob(f"*/{OUTCOME}"))]
    plain = {run.pair(): run for run in runs if not run.gated}
    pairs = [(run, plain[run.pair()]) for run in runs if run.gated and run.pair() in plain]
    if not pairs:
        raise SystemExit(f"{out}: has no network that was trained plain and with gates; do the sweep first")
    earlier = read_result(store) if add and store in result_names() else None
    rows: Rows = dict(earlier.results) if earlier is not None else {}
    common, own = settings_of([run for run, _ in pairs], earlier)
    for run, other in sorted(pairs, key=lambda pair: (pair[0].name, pair[0].seed)):
        try:
            rows.setdefault(run.name, {})[str(run.seed)] = measured(run, other, device)
        except Exception as error:  # one that fails must not cost the rows of the others
            print(f"failed {run.name}, seed {run.seed}: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"measured {run.name}, seed {run.seed}", flush=True)
        if store is not None:
            keep(store, run, rows, {**common, **own, "not_run": not_run(rows, sweep)}, sweep)
    rows = dict(sorted(rows.items()))
    if not rows:
        raise SystemExit(f"{out}: no network could be measured")
    print(f"{table(rows)}\n\n{open_table(rows)}")
    if missing := not_run(rows, sweep):
        print(f"without a pair of runs: {', '.join(missing)}")
    if figure is not None:
        write_file(figure, strengths(rows, figure.stem).data)


def settings_of(runs: Sequence[Run], earlier: Result | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that all networks have in common, and those of each network, stored ones among them.

    Stops where the stored result, or one of the runs, has others in common.
    """
    common = [
        {
            "method": run.settings["method"]["name"],
            "labelled": run.settings["data"]["labelled"],
            "fold": run.settings["data"]["fold"],
            "patch_size": run.settings["data"]["patch_size"],
            "optimiser": run.settings["optimiser"],
            "scoring": run.outcome.scoring,
            "counter": COUNTER,
        }
        for run in runs
    ]
    known = [*common, {name: earlier.settings[name] for name in common[0]}] if earlier is not None else common
    for name, value in common[0].items():
        if any(other[name] != value for other in known):
            raise SystemExit(f"{name} is not the same in all runs, and the stored ones: their rows cannot be compared")
    own = {
        kind: {
            **({} if earlier is None else earlier.settings[kind]),
            **{run.name: run.settings[section] for run in runs},
        }
        for kind, section in (("networks", "network"), ("schedules", "schedule"))
    }
    return common[0], own


def not_run(rows: Rows, sweep: Path) -> list[str]:
    """Return the networks that a sweep plans and that have no row."""
    planned = tomllib.loads(sweep.read_text())["run"]
    return [name for name in dict.fromkeys(run["network"]["name"] for run in planned) if not rows.get(name)]


def measured(run: Run, plain: Run, device: str) -> dict[str, Any]:
    """Return what a run with gates reached beside its plain twin, and what retiring its closed gates leaves."""
    trained = run.network()
    small = retire(trained)
    settings, scoring = make_settings(run.settings, run.folder), Scoring(**run.outcome.scoring)
    fresh = with_gates_of(spec_of(trained).build(), trained)
    before, after = cost(fresh), cost(small)
    history = read_history(run.folder)
    shown = history.steps[:: max(1, math.ceil(len(history.steps) / (POINTS - 1)))]
    shown = shown if shown[-1] is history.steps[-1] else [*shown, history.steps[-1]]
    ends = {site: gate.closed_at for site, gate in run.outcome.gates.items()}
    paths = {site: hook.site for site, gate in gates_of(trained).items() if (hook := placed_by(gate)) is not None}
    grids = {row.site: (row.grid, row.channels) for row in allocation(fresh)}
    rescored = means(by_case(score(small, settings, scoring, device=device)))
    return {
        "iterations": settings.schedule.iterations,
        "dice": dice(run),
        "plain": dice(plain),
        "retired": round(rescored[0], 5),
        "retired_equal": same_output(trained, small, device),
        "sites": {
            paths[row.site]: {
                "grid": grid_name(grids[row.site][0]),
                "channels": grids[row.site][1],
                "D": round(row.D, 4),
                "alpha": round(row.alpha, 4),
                "passes": round(math.exp(-((row.D * math.pi) ** row.alpha)), 4),
                "closed_at": ends[row.site],
                "course": [round(step[f"D.{row.site}"], 4) for step in shown],
            }
            for row in allocation(trained)
            if row.site in paths
        },
        "logged": [int(step["iteration"]) for step in shown],
        "macs": {"rest": after.rest, "all open": before.transform, "left": after.transform},
        "skipped": [run.outcome.skipped, plain.outcome.skipped],
    }


def dice(run: Run) -> float:
    """Return the mean Dice of a run on the scans of the scoring."""
    return round(means(by_case(Table.read(run.folder / SCORES)))[0], 5)


@torch.no_grad()
def same_output(trained: nn.Module, small: nn.Module, device: str) -> bool:
    """Return whether two networks give the same logits for a batch of noise, bit for bit."""
    shape = spec_of(trained).example_shape
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    return torch.equal(*(network.to(device).eval()(x) for network in (trained, small)))


def table(rows: Rows) -> str:
    """Return a line for every network: means over the seeds, and for counts the values of the seeds."""
    head = ["network", "iterations", "sites", "open", "Dice", "plain", "retired", "equal"]
    head += ["G MACs", "transforms", "left", "saved"]
    lines = [head]
    for name, seeds in rows.items():
        runs = list(seeds.values())
        first = runs[0]
        cells = [name, str(first["iterations"]), str(len(first["sites"]))]
        cells.append("/".join(str(len(opened(run))) for run in runs))
        cells += [f"{100 * statistics.fmean(run[kind] for run in runs):.2f}" for kind in ("dice", "plain", "retired")]
        cells.append("yes" if all(run["retired_equal"] for run in runs) else "no")
        left = statistics.fmean(run["macs"]["left"] for run in runs)
        total, rest = first["macs"]["all open"], first["macs"]["rest"]
        cells += [f"{value / 1e9:.3f}" for value in (rest, total, left)] + [f"{1 - left / total:.1%}"]
        lines.append(cells)
    return str(aligned(lines))


def open_table(rows: Rows) -> str:
    """Return a line for every gate that is open at the end."""
    lines = [["network", "seed", "open at", "grid", "channels", "D", "alpha", "passes at pi"]]
    for name, seeds in rows.items():
        for seed, run in seeds.items():
            for path, gate in opened(run).items():
                numbers = [f"{gate[key]:.4f}" for key in ("D", "alpha")]
                lines.append([name, seed, path, gate["grid"], str(gate["channels"]), *numbers, f"{gate['passes']:.1%}"])
    return str(aligned(lines))


def opened(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gates of a measured run that are open in the network that was scored, by site."""
    return {path: gate for path, gate in run["sites"].items() if gate["D"] > 0}


def strengths(rows: Rows, name: str) -> Picture:
    """Return the figure: D of every gate over the iterations of the first seed, a panel for each network."""
    runs = {network: next(iter(seeds.values())) for network, seeds in rows.items()}
    said = [f"{len(opened(run))} of {len(run['sites'])} gates are open in {network}" for network, run in runs.items()]
    words = f"Strength D of every gate over the iterations. At the end {', '.join(said)}."
    with plot(name, words, panels=len(runs), size=(3.3 * len(runs), 3.4)) as drawing:
        for axes, (network, run) in zip(drawing.panels, runs.items(), strict=True):
            gates = {short(path, gate): gate for path, gate in run["sites"].items()}
            values = {label: gate["course"] for label, gate in gates.items()}
            closed = {label: gate["closed_at"] for label, gate in gates.items() if gate["closed_at"] is not None}
            draw_gates(axes, run["logged"], values, closed)
            draw_closings(axes, closed.values())
            axes.set(xlabel="iteration", ylabel="strength D" if axes is drawing.axes else "")
            axes.set_title(network, fontsize=10)
            axes.set_ylim(top=axes.get_ylim()[1] * (1.1 + 0.08 * (len(values) - len(closed))))  # room for the legend
            axes.legend(fontsize=7, loc="upper left")
    return svg_picture(name, drawing.svg, words)


def short(path: str, gate: Mapping[str, Any]) -> str:
    """Return the name of a gate in the legend: the last three parts of the path of its module, and its grid."""
    return f"{'.'.join(path.split('.')[-3:])}, {gate['grid']}"


def keep(name: str, run: Run, rows: Rows, settings: Mapping[str, Any], sweep: Path) -> None:
    """Store the rows under a name, with the machine of a run and the settings of the networks that have a row."""
    own = {kind: {name: settings[kind][name] for name in sorted(rows)} for kind in ("networks", "schedules")}
    write_result(
        name,
        title="Gates in well-known networks: Dice with and without, gates that stay open, and what retiring leaves",
        command=f"fheat sweep {from_root(sweep)} --out OUT, then python studies/compare_gates.py OUT --store {name} "
        f"--sweep {from_root(sweep)}",
        seed=sorted({int(seed) for seeds in rows.values() for seed in seeds}),
        machine=run.outcome.machine,
        note="dice: with gates, plain: the same network without any, retired: with gates, closed ones retired; means "
        "over the validation scans, which also chose the network where there was more than one look. retired_equal: "
        "logits of noise are equal bit for bit. passes: share of a wave at frequency radius pi behind the gate. "
        "closed_at: logged iteration from which a gate stays closed. course: D at the iterations `logged`. macs: "
        "multiply-adds of one window; transforms of the gates with all of them open, and those that are left. skipped: "
        "updates left out, with gates and plain.",
        settings={**settings, **own},
        results=dict(sorted(rows.items())),
        out=ROOT / "benchmarks" / "results" / f"{name}.json",
    )


if __name__ == "__main__":
    tyro.cli(main)

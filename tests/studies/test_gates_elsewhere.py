"""The study of gates in well-known networks: the sites of its sweeps, what is measured, the tables and the figure."""

import importlib
import shutil
import tomllib
from types import SimpleNamespace

import pytest
import results
from pages.gates import gates_once_run
from results import ROOT, read_result

from fheat import allocation, create_model, instrument
from fheat.data.phantom import write_phantoms
from fheat.experiments.planned import OUTCOME, PlannedRun, perform, read_outcome
from fheat.experiments.scoring import Scoring
from fheat.system.text import grid_name
from fheat.training.settings_sources import make_settings
from tests.training.helpers import SMALL

NETWORKS = {"unet": 8, "segformer3d": 8, "segresnet": 7, "swin_unetr": 14}
"""Networks of the sweeps, in their order, and the number of sites of each."""
GRIDS = {
    "unet": ["16x24x16", "8x12x8", "4x6x4", "2x3x2", "2x3x2", "4x6x4", "8x12x8", "16x24x16"],
    "segresnet": ["32x48x32", "16x24x16", "8x12x8", "4x6x4", "8x12x8", "16x24x16", "32x48x32"],
    "segformer3d": ["8x12x8", "4x6x4", "2x3x2", "1x2x1", "1x2x1", "2x3x2", "4x6x4", "8x12x8"],
}
"""Grids of the sites for a patch of 32x48x32: down and up again, each stage once. Swin UNETR has blocks on its skips
besides."""


def plan(name):
    return tomllib.loads((ROOT / "studies" / "gates" / f"{name}.toml").read_text())


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return importlib.import_module("compare_gates")


@pytest.mark.parametrize("name", ["la", "hippocampus"])
def test_each_network_is_trained_plain_and_with_gates_and_nothing_else_differs(name):
    runs = plan(name)["run"]
    assert [run["name"] for run in runs] == [f"{one}{end}" for one in NETWORKS for end in ("", "-gates")]
    for plain, gated in zip(runs[::2], runs[1::2], strict=True):
        sites = gated["network"].pop("instrument")
        assert plain | {"name": ""} == gated | {"name": ""}
        assert sites == next(
            run["network"]["instrument"] for run in plan("la")["run"] if run["name"] == f"{plain['name']}-gates"
        )


@pytest.mark.parametrize(
    "name", [one if one == "unet" else pytest.param(one, marks=pytest.mark.slow) for one in NETWORKS]
)
def test_the_sites_are_the_outputs_of_the_stages(name):
    options = next(run["network"] for run in plan("hippocampus")["run"] if run["name"] == f"{name}-gates")
    sites = options.pop("instrument")
    network = create_model(**options, out_channels=3, patch_size=(32, 48, 32))
    gates = allocation(instrument(network, sites))
    assert len(gates) == NETWORKS[name]
    if name in GRIDS:
        assert [grid_name(row.grid) for row in gates] == GRIDS[name]


def test_a_pair_of_runs_is_measured(study, tmp_path):
    write_phantoms(tmp_path / "scans", 6, test=1, shape=(26, 24, 25))
    values = {
        "data": str(tmp_path / "scans"),
        "iterations": 4,
        "warm_up": 1,
        "validate_every": 4,
        "method": "supervised",
    }
    runs = {}
    for name, network in (("plain", {}), ("gates", {"network.instrument": ["stem", "dec1.project"]})):
        run = PlannedRun(name, make_settings(SMALL | values | network), Scoring(split="test"))
        perform(run, tmp_path / "runs", device="cpu")
        folder = run.folder(tmp_path / "runs")
        runs[name] = study.Run(folder, read_outcome(folder / OUTCOME))
    assert [runs[name].gated for name in ("plain", "gates")] == [False, True]
    assert runs["plain"].pair() == runs["gates"].pair()
    found = study.measured(runs["gates"], runs["plain"], "cpu")
    assert list(found["sites"]) == ["stem", "dec1.project"]
    assert found["logged"] == [1, 2, 3, 4]
    assert found["sites"]["stem"]["course"][-1] == pytest.approx(found["sites"]["stem"]["D"], abs=1e-4)
    assert found["dice"] == found["retired"]
    assert found["retired_equal"]
    rows = allocation(runs["gates"].network())
    assert found["macs"]["left"] == sum(row.macs for row in rows if row.state == "open")
    assert found["macs"]["all open"] >= found["macs"]["left"] > 0


def row(strengths, dice):
    sites = {
        path: {
            "grid": "4x4x4", "channels": 8, "D": D, "alpha": 0.5, "passes": 0.25, "closed_at": None if D else 3,
            "course": [0.03, D],
        }
        for path, D in strengths.items()
    }  # fmt: skip
    macs = {"rest": 5_000_000_000, "all open": 2_000_000_000, "left": 500_000_000}
    scores = {"dice": dice, "plain": 0.8, "retired": dice, "retired_equal": True}
    return scores | {"iterations": 200, "sites": sites, "macs": macs, "logged": [1, 4]}


def pair(study, network, learning_rate=0.001):
    """The two runs of a network, as far as the script looks at them before it measures."""
    settings = {
        "network": {"name": network}, "method": {"name": "cse"}, "schedule": {"seed": 0, "iterations": 4},
        "data": {"labelled": 4, "fold": None, "patch_size": [32, 32, 32]},
        "optimiser": {"learning_rate": learning_rate},
    }  # fmt: skip
    machine = {"device": "cuda", "name": "some GPU", "threads": 1, "torch": "2.11"}
    for sites in ({}, {"instrument": ["body.0"]}):
        own = settings | {"network": settings["network"] | sites}
        yield study.Run(network, SimpleNamespace(settings=own, machine=machine, scoring={"split": "validation"}))


def test_what_is_there_is_stored_and_added_to(study, tmp_path, monkeypatch, capsys):
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "benchmarks" / "results")

    def measured(run, plain, device):
        if run.name == "segresnet":
            raise RuntimeError("no memory")
        return row({"body.0": 0.2, "head": 0.0}, 0.8)

    monkeypatch.setattr(study, "measured", measured)

    def finish(**options):
        (tmp_path / "runs").mkdir(exist_ok=True)
        for number in range(len(runs)):
            (tmp_path / "runs" / str(number)).mkdir(exist_ok=True)
            (tmp_path / "runs" / str(number) / OUTCOME).touch()
        monkeypatch.setattr(study, "read_outcome", lambda path: runs[int(path.parent.name)].outcome)
        study.main(
            tmp_path / "runs", device="cpu", store="made-up-gates", sweep=ROOT / "studies/gates/la.toml", **options
        )

    assert gates_once_run("made-up-gates") == "No result of it is stored yet."
    runs = [*pair(study, "unet"), *pair(study, "segresnet")]
    finish()
    said = capsys.readouterr().out
    assert "failed segresnet, seed 0: RuntimeError: no memory" in said
    assert "without a pair of runs: segformer3d, segresnet, swin_unetr" in said
    assert list(read_result("made-up-gates").results) == ["unet"]
    runs = list(pair(study, "segformer3d"))
    shutil.rmtree(tmp_path / "runs")
    finish(add=True)
    stored = read_result("made-up-gates")
    assert list(stored.results) == list(stored.settings["schedules"]) == ["segformer3d", "unet"]
    assert stored.settings["not_run"] == ["segresnet", "swin_unetr"]
    assert stored.command.startswith("fheat sweep studies/gates/la.toml --out OUT, ")
    page = gates_once_run("made-up-gates")
    assert "| `unet` | 0 | 200 | 1 of 2 | 80.00 | 80.00 | 80.00 |" in page
    assert "Not run: `segresnet`, `swin_unetr`." in page
    assert "(../images/made-up.svg)" in page
    runs = list(pair(study, "unet", learning_rate=0.1))
    with pytest.raises(SystemExit, match="optimiser is not the same in all runs"):
        finish(add=True)


def test_the_tables_have_means_and_counts(study):
    rows = {"unet": {"0": row({"body.0": 0.2, "head": 0.0}, 0.8), "1": row({"body.0": 0.0, "head": 0.0}, 0.9)}}
    head, line = study.table(rows).splitlines()
    assert head.split()[:8] == ["network", "iterations", "sites", "open", "Dice", "plain", "retired", "equal"]
    assert line.split() == [
        "unet",
        "200",
        "2",
        "1/0",
        "85.00",
        "80.00",
        "85.00",
        "yes",
        "5.000",
        "2.000",
        "0.500",
        "75.0%",
    ]
    assert [line.split() for line in study.open_table(rows).splitlines()[1:]] == [
        ["unet", "0", "body.0", "4x4x4", "8", "0.2000", "0.5000", "25.0%"]
    ]


def test_the_figure_has_a_panel_for_each_network(study):
    rows = {name: {"0": row({"body.0": 0.2, "head": 0.0}, 0.8)} for name in ("unet", "segresnet")}
    picture = study.strengths(rows, "gates")
    assert picture.caption.endswith("1 of 2 gates are open in unet, 1 of 2 gates are open in segresnet.")
    text = picture.data.decode()
    assert all(f">{word}<" in text for word in ("unet", "segresnet", "body.0, 4x4x4", "head, 4x4x4 (closed)"))


def test_gates_are_told_apart_in_the_legend(study):
    options = next(run["network"] for run in plan("hippocampus")["run"] if run["name"] == "unet-gates")
    sites = options.pop("instrument")
    gates = allocation(instrument(create_model(**options, patch_size=(32, 48, 32)), sites))
    labels = [study.short(row.site, {"grid": grid_name(row.grid)}) for row in gates]
    assert labels[:2] == ["body.0, 16x24x16", "1.submodule.0, 8x12x8"]
    assert len(set(labels)) == len(labels) == 8


def test_the_page_says_what_is_stored():
    """Each network closes gates and keeps some; in two of them the strongest stands behind the first stage; one is
    worse with gates by far more than the others."""
    runs = {name: seeds["0"] for name, seeds in read_result("gates-hippocampus-cpu").results.items()}
    assert {name: len(run["sites"]) for name, run in runs.items()} == NETWORKS
    for name, run in runs.items():
        strengths = {path: gate["D"] for path, gate in run["sites"].items()}
        assert 0 < sum(D > 0 for D in strengths.values()) < len(strengths), name
        assert (run["retired"], run["retired_equal"]) == (run["dice"], True)
        if name in ("unet", "segresnet"):
            assert max(strengths, key=strengths.get) == next(iter(strengths))
    changes = {name: run["dice"] - run["plain"] for name, run in runs.items()}
    assert changes.pop("swin_unetr") < -0.05 < min(changes.values())
    assert max(map(abs, changes.values())) < 0.01

"""The study of operators: what sites do on scans, the plan of the sweep, and the table that is printed."""

import importlib
import tomllib
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import results
import torch
from pages.mixers import mixers_once_run
from results import ROOT, read_result, write_result

from fheat import create_model, retire
from fheat.data.case import Case
from fheat.gates.similarity import measured_similarity
from fheat.io import Volume, trusting, write_nifti
from fheat.networks.operators import Operator
from fheat.networks.registry import NetworkSpec
from fheat.ops.gates import gates_of
from fheat.studies.mixing import similarity_on_scans


def test_similarity_on_scans_is_that_of_their_windows(tmp_path):
    torch.manual_seed(0)
    model = create_model("miniature", patch_size=(16, 16, 16)).eval()
    gates_of(model)["enc1"].set_strength(0.0)
    cases, windows = [], []
    for name in ("a", "b"):
        data = np.random.default_rng(len(cases)).normal(size=(16, 16, 16)).astype(np.float32)
        write_nifti(Volume(data, np.eye(4)), tmp_path / f"{name}.nii.gz")
        cases.append(Case(name, (tmp_path / f"{name}.nii.gz",)))
        windows.append(torch.from_numpy(data)[None, None])
    with trusting():
        found = similarity_on_scans(model, cases, device="cpu")
        assert similarity_on_scans(model, cases, device="cpu", compared="blocks") == {}  # it has none
    with measured_similarity(model) as record, torch.no_grad():
        for window in windows:
            model(window)
    expected = record.results()
    assert list(found) == ["enc1", "enc2", "dec1"]
    for site, one in expected.items():
        assert found[site].cosine == pytest.approx(one.cosine, abs=1e-6)
        assert found[site].distance == pytest.approx(one.distance, rel=1e-3, abs=1e-7)
        assert (found[site].samples, found[site].unchanged) == (2, one.unchanged)
    assert found["enc1"].unchanged
    assert not found["dec1"].unchanged


def test_the_sweep_plans_every_operator_and_none():
    plan = tomllib.loads((ROOT / "studies" / "mixers" / "hippocampus.toml").read_text())
    planned = dict.fromkeys(run["network"].get("operator") for run in plan["run"])
    assert list(planned) == [*get_args(Operator), None]
    assert [run["network"]["l0_weight"] for run in plan["run"] if "l0_weight" in run["network"]] == [0.001, 0.01]
    assert plan["run"][-1]["network"] == {"gates": "closed"}
    assert plan["grid"] == {"seed": [0, 1, 2]}


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return importlib.import_module("compare_mixers")


SPEC = NetworkSpec("fheat_seg", 1, 3, (32, 32, 32))


@pytest.mark.parametrize(
    ("operator", "off", "closed"),
    [
        ("heat", ["enc2", "dec1"], 2),
        ("resolvent", ["dec4"], 1),
        ("l0 0.01", ["enc2"], 1),
        ("fnet", [], 0),
        ("stochastic_depth", [], 0),
        ("none", [], 8),
    ],
)
def test_networks_that_are_timed_have_the_sites_closed_that_training_closed(study, operator, off, closed):
    model = study.in_state(operator, off, SPEC)
    found = [site for site, gate in gates_of(model).items() if gate.closed]
    assert len(found) == closed
    assert set(off) <= set(found)
    assert sum(gate.retired for gate in gates_of(retire(model)).values()) == closed


def test_all_rows_are_timed_and_come_in_the_order_of_the_table(study):
    rows = {"none": {"0": {"exactly_off": []}}, "heat": {"0": {"exactly_off": ["enc1"]}, "1": {"exactly_off": []}}}
    times = study.milliseconds(rows, SPEC, "cpu", 1)
    assert list(times) == [("none", "0"), ("heat", "0"), ("heat", "1")]
    for row in times.values():
        assert list(row) == ["plain, trained", "plain, bypassed", "as it runs, bypassed"]
        assert min(row.values()) > 0
    assert sorted(["none", "l0 0.01", "l0", "heat"], key=study.place_of) == ["heat", "l0", "l0 0.01", "none"]


def test_rows_of_another_training_are_not_added_to(study):
    stored = read_result("mixers-hippocampus-cpu")
    settings = {"schedule": stored.settings["schedule"] | {"seed": 2}, "data": {"patch_size": [32, 48, 32]}}
    assert study.stored_rows(stored.name, SimpleNamespace(outcome=SimpleNamespace(settings=settings))) == stored.results
    settings["schedule"]["iterations"] = 7
    with pytest.raises(SystemExit, match="is of another training"):
        study.stored_rows(stored.name, SimpleNamespace(outcome=SimpleNamespace(settings=settings)))


def row(dice, off):
    return {
        "dice": dice,
        "exactly_off": off,
        "unchanged_on_scans": off,
        "distance": {"dec1": 0.5},
        "macs": {"all sites": 2_000_000, "bypassed": 1_000_000},
        "milliseconds": {"plain, trained": 2.0, "plain, bypassed": 1.0},
        "similar": {"0.99": {"bypassed": ["enc1"], "dice": dice - 0.1}},
    }


def finished(operator, seed=0, iterations=4000):
    """A run of the sweep, as far as the script looks at it before it measures."""
    settings = {
        "schedule": {"iterations": iterations, "seed": seed},
        "data": {"patch_size": [112, 112, 80]},
    }
    outcome = SimpleNamespace(settings=settings, machine={"name": "some GPU"}, scoring={"voxels": True})
    network = SimpleNamespace(spec=SPEC)
    return SimpleNamespace(
        place=0, operator=operator, seed=seed, outcome=outcome, folder=operator, trained=network, name=operator
    )


@pytest.fixture
def some_runs(study, tmp_path, monkeypatch):
    """Finished runs of two operators, of which the second cannot be measured; results are stored in a new folder."""
    runs = {"heat": finished("heat"), "fnet": finished("fnet")}
    for name in runs:
        (tmp_path / name).mkdir()
        (tmp_path / name / study.OUTCOME).touch()

    def measured(run, *_):
        if run.operator == "fnet":
            raise RuntimeError("no memory")
        return {key: value for key, value in row(0.8, ["enc1"]).items() if key != "milliseconds"}

    monkeypatch.setattr(study, "opened", lambda path: runs[path.parent.name])
    monkeypatch.setattr(study, "measured", measured)
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "benchmarks" / "results")
    results.RESULTS.mkdir(parents=True)
    return runs


def test_what_is_there_is_stored_and_what_is_missing_is_named(study, some_runs, tmp_path, monkeypatch, capsys):
    study.main(tmp_path, store="some-mixers", device="cpu", times="none")
    said = capsys.readouterr().out
    assert "failed fnet: RuntimeError: no memory" in said
    others = ["resolvent", "l0", "stochastic_depth", "fnet", "gfnet", "afno", "none"]
    assert f"without a run: {', '.join(others)}" in said
    stored = read_result("some-mixers")
    assert (list(stored.results), stored.settings["not_run"]) == (["heat"], others)
    assert "milliseconds" not in stored.results["heat"]["0"]
    monkeypatch.setattr(study, "measured", None)  # times alone measure nothing else
    study.main(tmp_path, store="some-mixers", device="cpu", times="only", rounds=1)
    timed = read_result("some-mixers").results["heat"]["0"]
    assert timed.pop("milliseconds")["plain, trained"] > 0
    assert timed == stored.results["heat"]["0"]


def test_runs_of_different_trainings_are_not_put_into_one_table(study, some_runs, tmp_path):
    some_runs["fnet"] = finished("fnet", iterations=4)
    with pytest.raises(SystemExit, match="was trained in another way than"):
        study.main(tmp_path)


def test_the_page_has_the_table_as_soon_as_a_result_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert mixers_once_run("made-up-mixers") == "No result of it is stored yet."
    rows = {"heat": {"0": row(0.8, ["enc1"])}, "fnet": {"0": row(0.7, [])}}
    del rows["fnet"]["0"]["milliseconds"]
    words = {"title": "Operators after the same training", "command": "python some.py", "seed": 0}
    write_result("made-up-mixers", **words, settings={"not_run": ["afno"]}, results=rows)
    command, head, *_, below, link = mixers_once_run("made-up-mixers").split("\n\n")
    assert command == "    python some.py"
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in head.splitlines()[2:]] == [
        ["`heat`", "80.00", "1", "1", "0.500", "2.0", "1.0", "2.00", "1.00", "1", "70.00"],
        ["`fnet`", "70.00", "0", "0", "0.500", "2.0", "1.0", "", "", "1", "60.00"],
    ]
    assert below == "Not run: `afno`."
    assert link.endswith("(../../benchmarks/results/made-up-mixers.json).")


def test_the_table_has_means_deviations_and_counts(study):
    head, line = study.table({"heat": {"0": row(0.8, ["enc1"]), "1": row(0.9, [])}}).splitlines()
    assert head.split() == (
        [
            "operator",
            "Dice",
            "SD",
            "exactly",
            "off",
            "unchanged",
            "distance",
            "M",
            "MACs",
            "bypassed",
            "ms",
            "bypassed",
            "cos",
            ">=",
            "0.99",
            "Dice",
        ]
    )
    assert line.split() == [
        "heat",
        "85.00",
        "7.07",
        "1/0",
        "1/0",
        "0.500",
        "2.00",
        "1.00",
        "2.000",
        "1.000",
        "1/1",
        "75.00",
    ]

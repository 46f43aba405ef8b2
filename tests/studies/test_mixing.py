"""The study of operators: what sites do on scans, the plan of the sweep, and the table that is printed."""

import importlib
import tomllib
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from results import ROOT, read_result

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


def test_the_table_has_means_deviations_and_counts(study):

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

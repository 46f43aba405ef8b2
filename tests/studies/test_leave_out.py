"""What is left out by similarity: every comparison at every threshold, and each network that remains is scored once."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from results import ROOT

from fheat import create_model
from fheat.gates.similarity import Similarity
from fheat.ops.gates import gates_of

SITES = {"enc1": (0.999, 0.97), "dec1": (0.96, 0.5), "dec2": (0.2, 0.995)}


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return importlib.import_module("leave_out")


def test_each_remaining_network_is_scored_once(study, monkeypatch):
    network = create_model("fheat_seg", patch_size=(32, 32, 32)).eval()
    scored = []

    def score(model, settings, scoring, device):
        scored.append({site for site, gate in gates_of(model).items() if gate.retired})
        return len(scored[-1])

    def similar(model, cases, *, device, compared):
        assert model is network
        assert cases == ["a", "b"]
        return {site: Similarity(cosine, 0.1, False, 8, cka) for site, (cosine, cka) in SITES.items()}

    replaced = {
        "score": score,
        "similarity_on_scans": similar,
        "cases_to_score": lambda data, split: ["a", "b", "c"],
        "make_settings": lambda settings, folder: SimpleNamespace(data=None),
        "Scoring": lambda **words: SimpleNamespace(split="validation"),
        "by_case": lambda left_out: left_out,
        "means": lambda left_out: (0.9 - 0.01 * left_out, 4.0),
    }
    for name, instead in replaced.items():
        monkeypatch.setattr(study, name, instead)
    outcome = SimpleNamespace(settings={}, scoring={})
    run = study.Run(0, "heat", 0, outcome, Path("run"), network, network)
    rows = study.measured(run, (0.99, 0.95), "cpu", 2)
    assert list(rows) == ["sites", "blocks", "branches"]
    for row in rows.values():
        assert row["similarity"]["dec2"] == {"cosine": 0.2, "cka": 0.995}
        assert {by: {at: one["left_out"] for at, one in row[by].items()} for by in ("cosine", "cka")} == {
            "cosine": {"0.99": ["enc1"], "0.95": ["enc1", "dec1"]},
            "cka": {"0.99": ["dec2"], "0.95": ["enc1", "dec2"]},
        }
        assert [row["cosine"][at]["dice"] for at in ("0.99", "0.95")] == pytest.approx([0.89, 0.88])
    assert scored == [{"enc1"}, {"enc1", "dec1"}, {"dec2"}, {"enc1", "dec2"}]
    head, *lines = study.table({"heat, seed 0": rows}).splitlines()
    assert head.split() == ["network", "compared", "by", "0.99", "0.95"]
    assert len(lines) == 6
    assert lines[0].endswith("1: 89.00  2: 88.00")

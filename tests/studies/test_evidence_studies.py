"""The studies behind docs/evidence/evidence.md: stored numbers are those that the scripts compute."""

import importlib
import json

import pytest
from pages import methods
from pages.claims import contradictions, read_claims
from pages.common import stored_value
from results import ROOT, read_result

SLOW = {"absorption", "left_closed", "lock", "architecture", "mirrored_grids", "zoo_responses"}
"""Measures that take longer than a second; tests of the operator and of the networks assert the same properties."""


@pytest.fixture
def study(monkeypatch):
    """Return a function that imports a script of `studies`."""
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return importlib.import_module


def as_json(value):
    return json.loads(json.dumps(value))


def test_arithmetic_with_the_printed_tables(study):
    assert as_json(study("tables").compute()) == read_result("paper-tables").results


def test_bound_between_dice_and_jaccard(study):
    def found(dice, jaccard):
        row = {"settings": ["x"], "columns": ["dice", "jaccard"], "rows": {"a": [dice, jaccard]}}
        empty = {"settings": [], "columns": [], "rows": {}}
        published = {"table2": row, "table3": empty, "table4": empty, "table6": {"rows": {}}}
        return study("tables").jaccard_bounds(published)["impossible"]

    assert [found(80.0, 66.67), found(80.0, 80.0), found(80.0, 66.6), found(80.0, 80.1)] == [0, 0, 1, 1]


def test_counts_of_gates(study):
    assert as_json(study("allocations").count()) == read_result("allocations").results


def test_blind_tests_are_gathered_from_their_scans(study):
    stored = read_result("blind").results
    assert as_json(study("blind").gather(stored["evaluations"])) == stored
    scans = {name: len({row["case"] for row in file["rows"]}) for name, file in stored["evaluations"].items()}
    assert {name.split()[0]: count for name, count in scans.items()} == {
        "la-4": 20, "la-8": 20, "la": 20, "brats-25": 59, "hippocampus": 60,
    }  # fmt: skip
    for name, file in stored["evaluations"].items():
        for label, summary in file["summary"].items():
            rows = [row["dice"] for row in file["rows"] if row["class"] == label]
            assert sum(rows) / len(rows) == pytest.approx(summary["metrics"]["dice"]["mean"], abs=1e-12), name


def test_theory_measured_again_agrees_with_the_verdicts(study):
    theory = study("theory")
    fresh = {
        name: as_json(theory._measured(module, name))
        for module, names in theory.MEASURES.items()
        for name in names
        if name not in SLOW
    }
    measured = []

    def lookup(path):
        result, name, *keys = path.split(": ")
        if result != "theory-cpu" or name in SLOW:
            return stored_value(path)
        measured.append(path)
        value = fresh[name]
        for key in keys:
            value = value[key]
        return value

    assert contradictions(read_claims(), lookup) == []
    assert len(measured) > 40


def test_every_measure_is_stored(study):
    names = {name for names in study("theory").MEASURES.values() for name in names}
    assert names == set(read_result("theory-cpu").results)


def test_runs_are_added_to_those_that_are_stored(study):
    """A seed that was run again replaces its own; other seeds, rows and lengths stay."""

    def row(**dice):
        return {"title": "t", "seeds": {seed.removeprefix("s"): {"dice": value} for seed, value in dice.items()}}

    stored = {"16000": {"a": row(s0=1.0, s1=2.0)}, "4000": {"b": row(s0=3.0)}, "survivors": {"runs": 1}}
    found = {"16000": {"a": row(s1=4.0), "c": row(s0=5.0)}, "2000": {"d": row(s0=6.0)}}
    assert study("reproduced").with_stored(found, stored) == {
        "16000": {"a": row(s0=1.0, s1=4.0), "c": row(s0=5.0)},
        "4000": {"b": row(s0=3.0)},
        "2000": {"d": row(s0=6.0)},
    }


def test_a_stored_comparison_of_methods_is_printed_as_the_page_has_it(study, capsys):
    script = study("compare_methods")
    script.main(stored="methods-phantom")
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "method"
    page = (ROOT / "docs" / "evidence" / "runs.md").read_text().split("<!--text methods_table: methods-phantom-->")[1]
    cells = [line.strip("|").replace("`", "").split("|") for line in page.split("<!--/-->")[0].splitlines()[4:-1]]
    assert [row.split() for row in rows] == [" ".join(line).split() for line in cells]
    with pytest.raises(SystemExit, match="--stored with one of methods-hippocampus-cuda, methods-phantom"):
        script.main(stored="sizes")


def test_what_the_page_says_of_few_scans():
    assert methods.methods_least_p("methods-phantom", "single") == "0.008"  # 2 of 2^8 signs
    assert methods.methods_least_p("methods-phantom") == "0.078"
    assert methods.methods_lower_everywhere("methods-phantom") == "`bcp`, `caml`, `mlrp` and `ss_net`"
    assert methods.methods_lower_everywhere("methods-hippocampus-cuda") == "none"

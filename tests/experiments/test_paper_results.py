"""Scores over seeds, tests between rows, and how they are written."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wilcoxon

from fheat.experiments.items import dynamics
from fheat.experiments.items.presented import notes_on, scored_on
from fheat.experiments.items.scores import few_scans
from fheat.experiments.plan import Plan
from fheat.experiments.records import Published, Row, item
from fheat.experiments.row_plan import RowPlan
from fheat.experiments.row_result import RowResult, differences, score_of, seed_average, title_of
from fheat.experiments.sheet import CSV_HEAD, Number, Sheet, numbers_csv, with_deviation
from fheat.metrics.evaluate import Scores
from fheat.metrics.statistics import moments
from fheat.metrics.table import ScoreRow, Table
from fheat.training.runs import RunHistory
from fheat.training.settings_sources import make_settings
from tests.refusals import refused


def scores(dice, distance=None):
    kind = "missed" if distance is None else "both"
    return Scores(dice, dice / (2 - dice), distance, distance, distance, distance, None if distance is None else 0.5,
                  kind, "voxels")  # fmt: skip


def table(values, label="target"):
    """Return a table with these pairs of Dice and distance, case by case."""
    return Table(tuple(ScoreRow(f"case{n}", label, scores(*pair)) for n, pair in enumerate(values)), "voxels")


def result(system, tables, published=None, split="test"):
    row = Row(
        setting="la-4", system=system, title=system, dataset="la", labels=4, network="fheat_seg",
        published=published or {},
    )  # fmt: skip
    plan = RowPlan(row, 16_000, split=split, scans=len(tables[0].cases))
    return RowResult(plan, dict(enumerate(tables)), dict(enumerate(tables)))


def test_means_and_deviations_are_over_seeds():
    one, two = table([(0.8, 4.0), (0.9, 6.0)]), table([(0.6, 2.0), (0.7, 2.0)])
    found = result("a", [one, two])
    assert found.score("dice").mean == pytest.approx((85 + 65) / 2)
    assert found.score("dice").sd == pytest.approx(np.std([85, 65], ddof=1))
    assert found.score("hd95").mean == pytest.approx((5 + 2) / 2)
    assert found.score("dice").n == 2
    assert result("a", [one]).score("dice").sd is None


def test_a_column_is_of_one_class_or_the_mean_of_all():
    rows = [ScoreRow("case0", "liver", scores(0.9, 1.0)), ScoreRow("case0", "spleen", scores(0.5))]
    both = Table(tuple(rows), "voxels")
    assert score_of(both, "dice") == pytest.approx(70)
    assert score_of(both, "dice.liver") == pytest.approx(90)
    assert score_of(both, "hd95") == 1.0  # that of the spleen is not defined
    found = result("a", [both])
    assert score_of(both, "hd95.spleen") is None
    assert found.score("hd95.spleen").mean is None
    assert found.undefined == 1
    assert refused(score_of, both, "dice.kidney").reason == "has no class kidney"
    assert [title_of(name) for name in ("dice", "dice.whole_tumour")] == ["Dice, %", "whole tumour, Dice, %"]


def test_a_scan_has_its_mean_over_the_seeds():
    average = seed_average([table([(0.8, 4.0), (0.9, None)]), table([(0.6, None), (0.7, None)])])
    first, second = (row.scores for row in average.rows)
    assert first.dice == pytest.approx(0.7)
    assert (first.hd95, first.case) == (4.0, "both")  # of the one seed that has a distance
    assert (second.hd95, second.case) == (None, "missed")
    assert second.dice == pytest.approx(0.8)
    alone = table([(0.8, 4.0)])
    assert seed_average([alone]) is alone


def test_differences_are_those_of_scipy_corrected_over_the_setting():
    rng = np.random.default_rng(0)
    ours = [rng.uniform(0.7, 0.9, 12) for _ in range(3)]
    other = [rng.uniform(0.65, 0.88, 12) for _ in range(3)]
    third = [rng.uniform(0.6, 0.8, 12) for _ in range(2)]

    def tables(values):
        return [table([(float(dice), 10 * float(1 - dice)) for dice in seed]) for seed in values]

    results = [result("ours", tables(ours)), result("other", tables(other)), result("third", tables(third))]
    found = differences(results, "ours", ("dice", "hd95"))
    assert [(one.row, one.test.metric) for one in found] == [
        ("other", "dice"), ("other", "hd95"), ("third", "dice"), ("third", "hd95"),
    ]  # fmt: skip
    for one, rival in zip(found[::2], (other, third), strict=True):
        gap = np.mean(ours, axis=0) - np.mean(rival, axis=0)
        assert one.test.p == pytest.approx(wilcoxon(gap).pvalue)
        assert one.test.difference == pytest.approx(gap.mean())
        assert one.test.n == 12
    raw = sorted(one.test.p for one in found)
    corrected = np.maximum.accumulate([min(1, (len(raw) - rank) * p) for rank, p in enumerate(raw)])
    assert sorted(one.p_holm for one in found) == pytest.approx(corrected)
    assert differences(results[1:], "ours", ("dice",)) == []


def test_few_scans_are_said_to_prove_nothing():
    def found(scans):
        results = [result(name, [table([(0.5 + 0.01 * n + gap, 1.0) for n in range(scans)])])
                   for name, gap in (("ours", 0.1), ("other", 0.0))]  # fmt: skip
        tests = {"la-4": differences(results, "ours", ("dice",))}
        return tests["la-4"][0].p_holm, few_scans(tests)

    assert found(5) == (2**-4, ["la-4: 5 scans and 1 test cannot give a p Holm below 0.062."])
    assert found(6) == (2**-5, [])


def test_scores_on_validation_scans_are_never_shown_as_those_of_test_scans():
    some = [result("ours", [table([(0.8, 4.0)])], split="validation")]
    assert scored_on(some) == "Ours: LA, 1 validation scan scored, 16,000 iterations."
    notes = notes_on(item("table2"), some, Plan({"la": Path("scans")}, Path("out")))
    assert (
        "LA: scans has no labelled test scans, so networks are scored on its 1 validation scan, which also chose the"
        in notes[1]
    )
    assert scored_on([]) == ""


def history(**gates):
    """Return a run with these strengths and orders of every gate, iteration by iteration."""
    steps = [
        {"iteration": number + 1, "total": 1.0}
        | {
            f"{kind}.{site}": values[number]
            for site, pair in gates.items()
            for kind, values in zip(("D", "alpha"), pair, strict=True)
        }
        for number in range(len(next(iter(gates.values()))[0]))
    ]
    settings = make_settings({"data": "scans", "spike_at": 1})
    return RunHistory(Path("run"), settings, steps, [], {})


def test_the_survivor_is_the_strongest_of_several_open_gates():
    log = history(enc1=([0.0, 0.3, 0.3], [0.4, 0.5, 0.5]), dec1=([0.5, 1.0, 1.2], [0.6, 0.8, 0.9]))
    ours = dynamics.quantities({"ffn": log}, {})
    assert ours["(a) survivors"].mean == 2
    assert (ours["(b) alpha of the survivor"].mean, ours["(b) alpha of the survivor"].sd) == (0.9, None)


def test_a_closed_gate_that_opens_later_is_counted():
    """It opens in the second iteration after the perturbation, and one that opens for a while counts as well."""
    ones = [1.0] * 4
    log = history(a=([0.0, 0.0, 0.1, 0.1], ones), b=([0.0, 0.0, 0.1, 0.0], ones), c=([0.0] * 4, ones), d=(ones, ones))
    assert dynamics.opened_after(log, 1) == ["a", "b"]
    assert dynamics.quantities({"spike": log}, {})["(h) closed gates that opened"].mean == 2


def test_numbers_are_written_with_their_deviation():
    assert with_deviation(90.468, 0.2149) == "90.47 ± 0.21"
    assert with_deviation(90.468) == "90.47"
    assert with_deviation(None) == "-"
    assert with_deviation(0.8999, 0.0004, ".3f") == "0.900 ± 0.000"


def test_a_table_prints_and_is_written():
    sheet = Sheet("T", ("row", "Dice, %"), (("a|b", "90.47 ± 0.21"), ("c", "-")))
    assert sheet.markdown().splitlines() == [
        "| row | Dice, % |", "|---|---|", "| a\\|b | 90.47 ± 0.21 |", "| c | - |",
    ]  # fmt: skip
    assert sheet.text().splitlines()[1] == "a|b  90.47 ± 0.21"
    assert Sheet("T", ("row",), ()).text() == ""
    numbers = [
        Number(
            "la-4/a", "dice", Published(90.0, 0.5), moments([91.0, 92.0]), "4,000 of 16,000", "8 validation", "done"
        ),
        Number("", "D"),
    ]
    first, second = csv.DictReader(io.StringIO(numbers_csv("table2", numbers)))
    assert tuple(first) == CSV_HEAD
    assert (first["published_sd"], first["ours"], first["n"], first["iterations"]) == (
        "0.5",
        "91.5",
        "2",
        "4,000 of 16,000",
    )
    assert (second["row"], second["published"], second["ours"], second["n"]) == ("", "", "", "0")

"""Scores over seeds, tests between rows, and how they are written."""

import csv
import io

import numpy as np
import pytest
from scipy.stats import wilcoxon

from fheat.experiments.plan import RowPlan
from fheat.experiments.records import Published, Row
from fheat.experiments.results import RowResult, differences, score_of, seed_average, title_of
from fheat.experiments.tables import CSV_HEAD, Number, Sheet, numbers_csv, with_deviation
from fheat.metrics.evaluate import Scores
from fheat.metrics.statistics import moments
from fheat.metrics.table import ScoreRow, Table
from tests.refusals import refused


def scores(dice, distance=None):
    kind = "missed" if distance is None else "both"
    return Scores(dice, dice / (2 - dice), distance, distance, distance, distance, None if distance is None else 0.5,
                  kind, "voxels")  # fmt: skip


def table(values, label="target"):
    """Return a table with these pairs of Dice and distance, case by case."""
    return Table(tuple(ScoreRow(f"case{n}", label, scores(*pair)) for n, pair in enumerate(values)), "voxels")


def result(system, tables, published=None):
    row = Row(
        setting="la-4", system=system, title=system, dataset="la", labels=4, network="fheat_seg",
        published=published or {},
    )  # fmt: skip
    plan = RowPlan(row, 16_000, split="test", scans=len(tables[0].cases))
    return RowResult(plan, {}, dict(enumerate(tables)))


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


def test_numbers_are_written_with_their_deviation():
    assert with_deviation(90.468, 0.2149) == "90.47 ± 0.21"
    assert with_deviation(90.468) == "90.47"
    assert with_deviation(None) == "-"
    assert with_deviation(0.8999, 0.0004, 3) == "0.900 ± 0.000"


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

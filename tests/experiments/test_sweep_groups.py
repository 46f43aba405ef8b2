"""Runs that differ only by their seed, as one row: against sums over lists and against scipy itself."""

from statistics import mean, stdev

import pytest
from scipy.stats import wilcoxon

from fheat.experiments.sweep_groups import groups_sheet, sweep_groups
from fheat.experiments.sweep_table import SUMMARY, SweepRow, SweepTable
from fheat.metrics.evaluate import Scores
from fheat.metrics.table import ScoreRow, Table

BASE = (0.81, 0.72, 0.93, 0.64, 0.55, 0.86, 0.47)


def scores(dice, hd95):
    kind = "missed" if hd95 is None else "both"
    return Scores(dice, dice, hd95, hd95, hd95, hd95, hd95, kind, "voxels")


def table(dice, hd95=None, label="organ"):
    distances = hd95 or [10 * (1 - one) for one in dice]
    pairs = enumerate(zip(dice, distances, strict=True))
    return Table(tuple(ScoreRow(f"scan-{number}", label, scores(*pair)) for number, pair in pairs), "voxels")


def shifted(by, seed):
    return [one + by + 0.003 * seed * (-1) ** place for place, one in enumerate(BASE)]


@pytest.fixture
def two_by_two(planned):
    """Two settings with two seeds each, of which the second is better in every scan, and their scores."""
    runs = [planned(f"clip-{clip}-seed-{seed}", clip=clip, seed=seed) for clip in (1.0, 2.0) for seed in (0, 1)]
    tables = {run.name: table(shifted(0.02 * (place // 2), place % 2)) for place, run in enumerate(runs)}
    return runs, tables


def test_mean_and_deviation_are_over_seeds_and_p_over_scans(two_by_two):
    runs, tables = two_by_two
    first, second = sweep_groups(runs, tables)
    assert [(group.name, group.planned) for group in (first, second)] == [("clip-1.0", 2), ("clip-2.0", 2)]
    of_runs = [mean(shifted(0.02, seed)) for seed in (0, 1)]
    dice = second.scores["dice"]
    assert (dice.mean, dice.sd) == (pytest.approx(mean(of_runs)), pytest.approx(stdev(of_runs)))
    assert [test.p for test in first.tests.values()] == [None, None]
    smallest = 2 / 2 ** len(BASE)  # all scans changed in one direction
    assert second.tests["dice"].scans == len(BASE)
    assert second.tests["dice"].p == pytest.approx(2 * smallest)  # two tests, by Holm


def test_p_is_that_of_scipy_on_the_means_of_each_scan(planned):
    runs = [
        planned(f"{name}-seed-{seed}", clip=clip, seed=seed) for name, clip in (("a", 1), ("b", 2)) for seed in (0, 1)
    ]
    values = {
        "a-seed-0": (0.1, 0.2, 0.3, 0.4, 0.5),
        "a-seed-1": (0.3, 0.1, 0.6, 0.2, 0.4),
        "b-seed-0": (0.7, 0.3, 0.1, 0.9, 0.2),
        "b-seed-1": (0.2, 0.8, 0.4, 0.5, 0.1),
    }
    tables = {name: table(each, [5.0] * 5) for name, each in values.items()}
    a, b = ([mean(pair) for pair in zip(values[f"{x}-seed-0"], values[f"{x}-seed-1"], strict=True)] for x in "ab")
    expected = wilcoxon([after - before for before, after in zip(a, b, strict=True)]).pvalue
    tests = sweep_groups(runs, tables)[1].tests
    assert tests["dice"].p == pytest.approx(min(1.0, 2 * expected))
    assert tests["hd95"].p == 1.0  # no pair differs


def test_runs_that_are_not_done_are_counted_and_scans_without_a_distance_are_no_pair(two_by_two):
    runs, tables = two_by_two
    tables = {name: one for name, one in tables.items() if name != "clip-2.0-seed-1"}
    tables["clip-2.0-seed-0"] = table(shifted(0.02, 0), [None, *[1.0] * 6])
    first, second = sweep_groups(runs, tables)
    assert (second.scores["dice"].n, second.planned, second.scores["dice"].sd) == (1, 2, None)
    assert (second.tests["dice"].scans, second.tests["hd95"].scans, second.undefined) == (7, 6, 1)
    sheet = groups_sheet((first, second), "voxels")
    cells = dict(zip(sheet.head, sheet.rows[1], strict=True))
    assert cells["seeds"] == "1 of 2"
    assert cells["95HD voxels"] == "1.00 (1 undefined)"


def test_other_scans_are_not_compared(planned, two_by_two, tmp_path):
    runs, tables = two_by_two
    elsewhere = [planned(f"x-seed-{seed}", data=str(tmp_path), seed=seed) for seed in (0, 1)]
    tables |= {run.name: table(shifted(0.1, 0)) for run in elsewhere}
    group = sweep_groups([*runs, *elsewhere], tables)[2]
    assert (group.name, group.tests["dice"].p, group.tests["dice"].scans) == ("x", None, 0)


def test_there_are_no_groups_without_seeds_or_results(planned, two_by_two):
    runs, tables = two_by_two
    assert sweep_groups(runs, {}) == ()
    assert sweep_groups([runs[0], runs[3]], tables) == ()
    alone = [planned(f"seed-{seed}", seed=seed) for seed in (0, 1)]
    (group,) = sweep_groups(alone, {"seed-0": table(BASE)})
    assert group.name == "all"


def test_the_summary_is_below_the_table_in_text_and_markdown(two_by_two):
    runs, tables = two_by_two
    rows = tuple(SweepRow(run.name, "done", {}, dice=0.5, unit="voxels") for run in runs)
    shown = SweepTable(rows, "Scored.", sweep_groups(runs, tables))
    for text in (str(shown), shown.to_markdown()):
        assert text.index("Scored.") < text.index("p Dice") < text.index(SUMMARY)
    assert "| clip-2.0 | 2 | 0.7" in shown.to_markdown()
    assert SUMMARY not in str(SweepTable(rows, "Scored."))
    assert shown.to_csv() == SweepTable(rows, "Scored.").to_csv()

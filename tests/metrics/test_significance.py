"""Paired tests: against scipy, against the enumeration of all signs, and in the cases with nothing to test."""

import itertools
import json
import re

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fheat.metrics.evaluate import Scores
from fheat.metrics.significance import compare
from fheat.metrics.statistics import holm
from fheat.metrics.table import ScoreRow, Table


def table(values, label="liver", *, unit="mm", tolerance=2.0, start=0):
    """Dice per case; None stands for an empty prediction."""
    rows = []
    for index, value in enumerate(values, start=start):
        kind, share = ("missed", 0.0) if value is None else ("both", value)
        surfaces = (None,) * 5 if value is None else (10 * share,) * 4 + (share,)
        rows.append(ScoreRow(f"c{index}", label, Scores(share, share, *surfaces, case=kind, unit=unit)))
    return Table(tuple(rows), unit, tolerance)


def enumerated(changes):
    """Two-sided p from all sign patterns: how often the smaller rank sum is as small as the one seen."""
    changes = np.array([change for change in changes if change != 0])
    ranks = scipy.stats.rankdata(np.abs(changes))

    def smaller(signs):
        return min(ranks[signs > 0].sum(), ranks[signs < 0].sum())

    seen = smaller(np.sign(changes))
    patterns = [np.array(signs) for signs in itertools.product((-1, 1), repeat=len(changes))]
    return np.mean([smaller(signs) <= seen + 1e-9 for signs in patterns])


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64)), min_size=1, max_size=8))
@settings(max_examples=60)
def test_equal_to_the_enumeration_of_all_signs(pairs):
    first, second = ([value / 64 for value in column] for column in zip(*pairs, strict=True))  # exact, so ties are ties
    (test,) = compare(table(first), table(second)).tests
    changes = [after - before for before, after in zip(first, second, strict=True)]
    moved = sum(change != 0 for change in changes)
    assert test.p == (pytest.approx(enumerated(changes), abs=1e-12) if moved else 1.0)
    assert (test.n, test.zeros) == (len(pairs), len(pairs) - moved)
    assert test.difference == pytest.approx(np.mean(changes), abs=1e-15)
    assert test.p >= test.smallest_p - 1e-12


@pytest.mark.parametrize("n", [6, 20, 50, 51, 80])
def test_equal_to_scipy(n):
    rng = np.random.default_rng(n)
    first = rng.uniform(size=n)
    second = np.clip(first + rng.normal(0.02, 0.05, size=n), 0, 1)
    (test,) = compare(table(first.tolist()), table(second.tolist())).tests
    expected = scipy.stats.wilcoxon(second, first, zero_method="wilcox").pvalue
    assert test.p == test.p_holm == pytest.approx(expected, rel=1e-12)
    assert (test.first, test.second) == (pytest.approx(first.mean()), pytest.approx(second.mean()))


def test_six_pairs_in_one_direction_by_hand():
    better = [0.5 + 0.01 * step for step in range(1, 7)]
    (test,) = compare(table([0.5] * 6), table(better)).tests
    assert test.p == test.smallest_p == 2 / 2**6
    assert test.difference == pytest.approx(0.035)


def test_few_pairs_say_what_they_can_reach():
    found = compare(table([0.5] * 5), table([0.6, 0.61, 0.62, 0.63, 0.5]))
    assert (found.tests[0].p, found.tests[0].smallest_p) == (0.125, 0.125)
    assert "liver, dice: 4 differing pairs cannot give a p below 0.125; 0.05 takes 6" in str(found)


def test_a_table_against_itself():
    found = compare(table([0.1, 0.9, 0.4]), table([0.1, 0.9, 0.4]), ["dice", "hd95"])
    assert [(test.p, test.p_holm, test.zeros, test.difference) for test in found.tests] == [(1.0, 1.0, 3, 0.0)] * 2


def test_undefined_and_missing_cases_are_named():
    found = compare(table([0.1, None, 0.3, 0.2]), table([None, 0.9, 0.4, 0.3, 0.1], start=1), "hd95")
    (test,) = found.tests
    assert test.dropped == {"c1": "undefined in the first and second"}
    assert (test.n, test.first, test.second) == (2, pytest.approx(2.5), pytest.approx(6.5))
    assert (found.only_first, found.only_second) == (("c0",), ("c4", "c5"))
    text = str(found)
    assert "liver, hd95: 1 of 3 common cases dropped: c1 (undefined in the first and second)" in text
    assert "only in the first, not compared: c0" in text
    assert "only in the second, not compared: c4, c5" in text
    assert json.loads(found.to_json())["tests"][0]["dropped"] == test.dropped | {}


def test_a_class_that_one_table_lacks_is_a_test_without_pairs():
    both = Table(table([0.1, 0.2]).rows + table([0.1, 0.2], "tumour").rows, "mm")
    found = compare(table([0.1, 0.2]), both)
    liver, tumour = found.tests
    assert (liver.n, liver.p) == (2, 1.0)
    assert (tumour.n, tumour.p, tumour.p_holm, tumour.difference) == (0, None, None, None)
    assert tumour.dropped == dict.fromkeys(["c0", "c1"], "no such class in the first")
    assert liver.p_holm == liver.p


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_against_its_definition(values):
    ordered = sorted(values)
    steps = [min(1.0, (len(values) - rank) * p) for rank, p in enumerate(ordered)]
    running = {p: max(steps[: rank + 1]) for rank, p in reversed(list(enumerate(ordered)))}
    found = holm(values)
    for p, corrected in zip(values, found, strict=True):
        assert corrected >= p
        assert corrected >= running[p]
    assert sorted(found) == [max(steps[: rank + 1]) for rank in range(len(steps))]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
    assert holm([0.2]) == [0.2]


def test_holm_spans_classes_and_metrics():
    rng = np.random.default_rng(0)
    first, second = rng.uniform(0, 1, size=(2, 8))
    a = Table(table(first.tolist()).rows + table(second.tolist(), "tumour").rows, "mm")
    b = Table(table((first * 0.9).tolist()).rows + table((second * 0.99).tolist(), "tumour").rows, "mm")
    found = compare(a, b, ["dice", "jaccard"])
    assert [(test.metric, test.label) for test in found.tests] == [
        ("dice", "liver"), ("dice", "tumour"), ("jaccard", "liver"), ("jaccard", "tumour"),
    ]  # fmt: skip
    assert [test.p_holm for test in found.tests] == holm([test.p for test in found.tests])
    assert found.tests[0].p_holm == 4 * found.tests[0].p


@pytest.mark.parametrize(
    ("second", "metric", "says"),
    [
        (table([0.5], start=7), "dice", "no case is in both: the first has c0, the second c7"),
        (Table((), "mm"), "dice", "the second none"),
        (table([0.5]), "hd96", "no metric 'hd96': use one of dice, jaccard"),
        (table([0.5]), (), "metric names nothing"),
        (table([0.5], unit="voxels"), "hd95", "hd95 is in mm and in voxels"),
        (table([0.5], tolerance=1.0), ["dice", "surface_dice"], "tolerance 2 and 1"),
    ],
)
def test_refuses(second, metric, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        compare(table([0.5]), second, metric)


def test_overlap_may_be_compared_across_units():
    assert compare(table([0.5]), table([0.5], unit="voxels", tolerance=1.0)).tests[0].p == 1.0

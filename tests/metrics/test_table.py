"""Many cases: numbers by hand, the documented table of empty masks, files that come back exactly or are refused."""

import csv
import io
import json
import math
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fheat
from fheat.metrics.evaluate import METRICS, NEEDS_SURFACES, Scores, evaluate_labels
from fheat.metrics.statistics import moments
from fheat.metrics.table import KINDS, ScoreRow, Table
from fheat.system.errors import BadInput

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def scores(dice=0.5, kind="both", unit="mm", distance=1.0):
    surfaces = (distance,) * 4 + (0.75,) if kind == "both" else (None,) * 5
    return Scores(dice, dice / (2 - dice), *surfaces, case=kind, unit=unit)


def table(*values, **facts):
    return Table(
        tuple(ScoreRow(f"c{index}", "liver", scores(value)) for index, value in enumerate(values)), "mm", **facts
    )


def test_every_class_counts_alike_in_a_mean_over_classes():
    """Also where a distance exists in fewer cases of one class: 1, 3 and 8 are 5, not 4."""
    found = [scores(0.0, distance=1.0), scores(0.1, distance=3.0), scores(0.2, distance=8.0), scores(0.3, "missed")]
    names = [("c0", "liver"), ("c1", "liver"), ("c0", "spleen"), ("c1", "spleen")]
    some = [ScoreRow(*name, one) for name, one in zip(names, found, strict=True)]
    both = Table(tuple(some), "mm")
    assert (both.mean("hd95"), both.mean("hd95", "spleen")) == (5.0, 8.0)
    assert both.mean("dice") == pytest.approx(0.15)
    assert Table(tuple(some[3:]), "mm").mean("hd95") is None


def test_classes_and_regions_by_hand():
    reference = np.array([[1, 1, 2, 2, 0, 0]])
    prediction = np.array([[1, 2, 2, 0, 0, 3]])
    found = evaluate_labels(prediction, reference, {"one": (1,), "two": (2,), "both": (1, 2), "three": [3]})
    assert list(found) == ["one", "two", "both", "three"]
    assert [found[name].dice for name in found] == [2 / 3, 1 / 2, 6 / 7, 0.0]
    assert [found[name].case for name in found] == ["both", "both", "both", "spurious"]
    assert found["both"].hd95 == pytest.approx(0.7)  # of 0 0 0 and 0 0 0 1, at place 0.95 * 6 = 5.7


@given(st.integers(0, 2**31))
@settings(max_examples=50)
def test_labels_are_evaluate_on_each_mask(seed):
    rng = np.random.default_rng(seed)
    prediction, reference = rng.integers(0, 4, size=(2, 4, 5, 6))
    found = evaluate_labels(prediction.astype(np.float32), reference, {"a": (1,), "b": (2, 3)}, (1, 2, 3), tolerance=1)
    for name, values in (("a", (1,)), ("b", (2, 3))):
        masks = [np.isin(array, values) for array in (prediction, reference)]
        assert found[name] == fheat.evaluate(*masks, (1, 2, 3), tolerance=1)


@pytest.mark.parametrize(
    ("prediction", "labels", "error", "says"),
    [
        (np.ones((2, 2)), {}, ValueError, "labels is empty"),
        (np.ones((2, 2)), {"a": ()}, ValueError, "labels['a'] is empty"),
        (np.full((2, 2), 0.5), {"a": (1,)}, ValueError, "prediction holds 0.5"),
        (np.full((2, 2), np.nan), {"a": (1,)}, ValueError, "prediction holds nan"),
        (np.full((2, 2), "x"), {"a": (1,)}, TypeError, "prediction has dtype"),
        (np.ones((2, 3)), {"a": (1,)}, ValueError, "resample"),
    ],
)
def test_labels_that_are_refused(prediction, labels, error, says):
    with pytest.raises(error) as caught:
        evaluate_labels(prediction, np.ones((2, 2)), labels)
    assert says in str(caught.value)


def test_summary_by_hand():
    rows = [
        ScoreRow("a", "liver", scores(0.8, distance=2.0)),
        ScoreRow("b", "liver", scores(0.6, distance=4.0)),
        ScoreRow("c", "liver", scores(0.0, "missed")),
        ScoreRow("a", "tumour", scores(1.0, "both_empty")),
    ]
    found = Table(tuple(rows), "mm").summary()
    liver, tumour = found["liver"], found["tumour"]
    assert (liver.cases, liver.kinds) == (3, {"both": 2, "missed": 1, "spurious": 0, "both_empty": 0})
    dice, hd95 = liver.metrics["dice"], liver.metrics["hd95"]
    assert (dice.n, dice.mean) == (3, pytest.approx(1.4 / 3))
    assert dice.sd == pytest.approx(statistics.stdev([0.8, 0.6, 0.0]), abs=1e-15)
    assert (hd95.n, hd95.mean, hd95.sd) == (2, 3.0, math.sqrt(2.0))
    assert (tumour.metrics["dice"].mean, tumour.metrics["dice"].sd, tumour.metrics["dice"].n) == (1.0, None, 1)
    assert (tumour.metrics["asd"].mean, tumour.metrics["asd"].sd, tumour.metrics["asd"].n) == (None, None, 0)


MASKS = {
    "both": (np.eye(4) > 0, np.ones((4, 4)) > 0),
    "missed": (np.zeros((4, 4)), np.ones((4, 4))),
    "spurious": (np.ones((4, 4)), np.zeros((4, 4))),
    "both_empty": (np.zeros((4, 4)), np.zeros((4, 4))),
}


def documented():
    """Return (metric, kind, value, what the mean does with it) for every cell of the table in the documentation."""
    text = DOCS.read_text()
    head = "| metric | both | missed | spurious | both_empty |\n|---|---|---|---|---|\n"
    kinds = [cell.strip() for cell in head.split("\n")[0].split("|")[2:-1]]
    for line in text[text.index(head) + len(head) :].split("\n\n")[0].splitlines():
        name, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        for kind, cell in zip(kinds, cells, strict=True):
            yield name.strip("`"), kind, *cell.split(", ")


def test_the_documented_table_is_complete():
    assert {(name, kind) for name, kind, *_ in documented()} == {(name, kind) for name in METRICS for kind in KINDS}
    assert len(list(documented())) == len(METRICS) * len(KINDS)


@pytest.mark.parametrize(("metric", "kind", "value", "fate"), list(documented()))
def test_empty_masks_as_documented(metric, kind, value, fate):
    found = fheat.evaluate(*MASKS[kind])
    assert found.case == kind
    if value == "measured":
        assert isinstance(found[metric], float)
    else:
        assert found[metric] == {"None": None, "0": 0.0, "1": 1.0}[value]
    base = [ScoreRow("base", "x", scores(0.25, unit="voxels"))]
    alone = Table(tuple(base), "voxels").summary()["x"].metrics[metric]
    both = Table((*base, ScoreRow("new", "x", found)), "voxels").summary()["x"]
    assert both.kinds[kind] == (2 if kind == "both" else 1)
    if fate == "counted":
        assert both.metrics[metric].n == 2
        assert both.metrics[metric].mean == pytest.approx((alone.mean + found[metric]) / 2)
    else:
        assert fate == "left out"
        assert both.metrics[metric] == alone


def test_print_says_what_is_undefined():
    rows = (
        ScoreRow("a", "liver", scores(0.90471)),
        ScoreRow("b", "liver", scores(0.0, "missed")),
        ScoreRow("a", "new\nline", scores()),
    )
    text = str(Table(rows, "mm", tolerance=1.5))
    lines = text.splitlines()
    assert lines[0].split("  ")[0] == "case"
    assert "hd95 mm" in lines[0]
    assert "dice mm" not in text
    assert lines[1].split()[:3] == ["a", "liver", "0.9047"]
    assert lines[2].split()[2:] == ["0.0000", "0.0000", *"-----", "missed"]
    assert "new\\nline: 1 case" in text
    assert re.search(r"n +2 of 2 +2 of 2 +1 of 2", text)
    assert (
        "liver: 2 cases: 1 both, 1 missed, 0 spurious, 0 both_empty. Distances and surface_dice are undefined in 1"
        in text
    )
    assert lines[-1] == "surface_dice is within 1.5 mm; SD has ddof = 1."


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            (ScoreRow("a", "x", scores()), ScoreRow("b", "x", scores(unit="voxels"))),
            "'b' is in voxels in a table in mm",
        ),
        ((ScoreRow("a", "x", scores()), ScoreRow("a", "x", scores())), "case 'a' has 2 rows for class 'x'"),
    ],
)
def test_refuses_rows_that_do_not_fit(rows, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Table(rows, "mm")


def test_refuses_numbers_that_contradict_the_kind():
    with pytest.raises(ValueError, match="hd95 is a number though kind is 'missed'"):
        ScoreRow("a", "x", Scores(0.0, 0.0, 1.0, None, None, None, None, case="missed", unit="mm"))
    with pytest.raises(ValueError, match="asd is nothing though kind is 'both'"):
        ScoreRow("a", "x", Scores(0.5, 0.4, 1.0, 1.0, None, 1.0, 1.0, case="both", unit="mm"))


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
shares, lengths = st.floats(0, 1), st.floats(0, allow_infinity=False, allow_nan=False)


@st.composite
def tables(draw):
    unit, rows = draw(st.sampled_from(["mm", "voxels"])), []
    for case, label in draw(st.lists(st.tuples(names, names), min_size=1, max_size=5, unique=True)):
        kind = draw(st.sampled_from(KINDS))
        surfaces = [draw(lengths) for _ in range(4)] + [draw(shares)] if kind == "both" else [None] * 5
        rows.append(ScoreRow(case, label, Scores(draw(shares), draw(shares), *surfaces, case=kind, unit=unit)))
    return Table(tuple(rows), unit, draw(lengths))


@given(tables(), names, st.dictionaries(names, names, max_size=2), st.lists(names, max_size=2))
@settings(max_examples=150)
def test_files_come_back_exactly(written, name, refused, notes):
    assert Table.from_csv(written.to_csv()) == written
    full = Table(written.rows, written.unit, written.tolerance, name, name, refused, tuple(notes), {"fheat": "1"})
    assert Table.from_json(full.to_json()) == full


def test_empty_table_only_as_json():
    empty = Table((), "voxels", refused={"a": "broken"})
    assert Table.from_json(empty.to_json()) == empty
    assert "case" in str(empty)
    with pytest.raises(BadInput, match="holds no rows"):
        Table.from_csv(empty.to_csv())


def test_json_says_what_it_holds():
    content = json.loads(table(0.5, 0.7, prediction="ours", reference="truth", versions={"fheat": "9"}).to_json())
    assert (content["format"], content["versions"], content["unit"], content["tolerance"]) == (
        1,
        {"fheat": "9"},
        "mm",
        2,
    )
    assert (content["prediction"], content["reference"]) == ("ours", "truth")
    assert set(METRICS) < set(content["definitions"])
    assert content["summary"]["liver"]["metrics"]["dice"]["n"] == 2


def test_read_picks_the_format_and_bears_a_byte_order_mark(tmp_path):
    written = table(0.5, 0.7)
    (tmp_path / "a.json").write_text(written.to_json())
    (tmp_path / "a.csv").write_text("\ufeff" + written.to_csv())
    assert Table.read(tmp_path / "a.json") == Table.read(tmp_path / "a.csv") == written


def changed(**fields):
    content = json.loads(table(0.5).to_json())
    for name, value in fields.items():
        place = content["rows"][0] if name in content["rows"][0] else content
        if value is ...:
            del place[name]
        else:
            place[name] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "field at the top is []"),
        (changed(hd95=...), "field rows.0.hd95 is missing"),
        (changed(tolerance=...), "field tolerance is missing"),
        (changed(dice="0.5"), "field rows.0.dice is '0.5': Input should be a valid number"),
        (changed(dice=True), "field rows.0.dice is True"),
        (changed(dice=math.nan), "field rows.0.dice is nan: Input should be a finite number"),
        (changed(asd=math.inf), "field rows.0.asd is inf"),
        (changed(dice=1.5), "field rows.0.dice is 1.5"),
        (changed(assd=-1.0), "field rows.0.assd is -1.0"),
        (changed(kind="lost"), "field rows.0.kind is 'lost'"),
        (changed(kind="missed"), "hd95 is a number though kind is 'missed'"),
        (changed(hd95=None), "hd95 is nothing though kind is 'both'"),
        (changed(unit="inch"), "field unit is 'inch'"),
        (changed(format=2), "field format is 2"),
        (changed(case=""), "field rows.0.case is ''"),
        (changed(rows=[json.loads(table(0.5).to_json())["rows"][0]] * 2), "has 2 rows"),
    ],
)
def test_damaged_json_is_refused_in_one_line(text, says):
    with pytest.raises(BadInput) as caught:
        Table.from_json(text, "ours.json")
    assert str(caught.value).startswith("ours.json: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def cells(**fields):
    rows = list(csv.DictReader(io.StringIO(table(0.5, 0.7).to_csv())))
    rows[1].update(fields)
    text = io.StringIO()
    writer = csv.DictWriter(text, [name for name, value in rows[1].items() if value is not ...], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "column case is missing"),
        (cells(asd=...), "column asd is missing"),
        (cells(colour="red"), "row 1, column colour"),
        (cells(dice="high"), "row 2, column dice is 'high'"),
        (cells(dice=""), "row 2, column dice is ''"),
        (cells(hd95="nan"), "row 2, column hd95 is 'nan': Input should be a finite number"),
        (cells(hd95="1e999"), "column hd95 is '1e999'"),
        (cells(hd95=""), "hd95 is nothing though kind is 'both'"),
        (cells(unit="voxels"), "'c1' is in voxels in a table in mm"),
        (cells(tolerance="3"), "column tolerance holds 2.0 and 3.0"),
        (table(0.5).to_csv() + "c9,liver,0.5\n", "row 2 does not have one cell per column"),
        (table(0.5).to_csv().rstrip() + ",1\n", "row 1 does not have one cell per column"),
        (table(0.5).to_csv().replace("jaccard", "dice"), "column dice is there twice"),
        (table(0.5).to_csv() + '"', "is not CSV"),
    ],
)
def test_damaged_csv_is_refused_in_one_line(text, says):
    with pytest.raises(BadInput) as caught:
        Table.from_csv(text, "ours.csv")
    assert str(caught.value).startswith("ours.csv: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(0, 10_000), st.integers(0, 255))
@settings(max_examples=100)
def test_any_changed_byte_is_read_or_refused(place, byte):
    for text, read in ((table(0.5, 0.7).to_json(), Table.from_json), (table(0.5, 0.7).to_csv(), Table.from_csv)):
        at = place % len(text)
        complaint = ""
        try:
            read(text[:at] + chr(byte) + text[at + 1 :])
        except BadInput as error:
            complaint = str(error)
        assert "\n" not in complaint


def test_unreadable_files_are_refused(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="is not text"):
        Table.read(tmp_path / "a.json")
    with pytest.raises(BadInput, match="cannot be read"):
        Table.read(tmp_path / "absent.csv")


def test_every_metric_is_either_overlap_or_needs_surfaces():
    assert ("dice", "jaccard", *NEEDS_SURFACES) == METRICS


def test_moments_of_the_largest_numbers_are_numbers():
    """A table from outside may hold any distance; 1e308 once ended the summary with an OverflowError."""
    found = moments([1e308, 0.0, 1.7e308])
    assert found.mean == pytest.approx(0.9e308)
    assert found.sd == pytest.approx(8.544e307, rel=1e-3)

"""`fheat evaluate` as a user meets it: folders with faults in them, names of classes, units, comparisons."""

import json

import numpy as np
import pytest

import fheat
from fheat.cli.main import main
from fheat.io import Volume, write_nifti
from fheat.metrics.files import distinct_values, evaluate_files
from fheat.metrics.table import Table

AFFINE = np.diag([1.0, 1.0, 2.5, 1.0])


def cube(shift=0, value=1, dtype=np.uint8):
    """A 4-cube at (4 + shift, 4, 4) of 12 x 12 x 12; a second value sits in its upper half."""
    mask = np.zeros((12, 12, 12), dtype=dtype)
    mask[4 + shift : 8 + shift, 4:8, 4:8] = value
    mask[4 + shift : 8 + shift, 4:8, 6:8] *= 2
    return mask


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Three cases, the prediction shifted by 0, 1, 2 voxels along the first axis."""
    monkeypatch.chdir(tmp_path)
    for index in range(3):
        write_nifti(Volume(cube(), AFFINE), tmp_path / "ref" / f"case_{index}.nii.gz")
        write_nifti(Volume(cube(index), AFFINE), tmp_path / "pred" / f"case_{index}.nii.gz")
    return tmp_path


def result(capsys, *arguments, code=0):
    assert main(["evaluate", *map(str, arguments), "--json"]) == code
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_two_files_by_hand(folders, capsys):
    found, err = result(capsys, "pred/case_1.nii.gz", "ref/case_1.nii.gz")
    assert err == ""
    first, second = found["rows"]
    assert (first["case"], first["class"], second["class"]) == ("case_1", "1", "2")
    assert first["dice"] == second["dice"] == 0.75  # 3 of 4 slices in common
    assert first["jaccard"] == 0.6
    assert (first["hd95"], found["unit"]) == (1.0, "mm")
    assert (found["prediction"], found["reference"]) == ("pred/case_1.nii.gz", "ref/case_1.nii.gz")


def test_distances_in_millimetres_of_the_reference_or_in_voxels(folders, capsys):
    shifted = np.roll(cube(), 2, axis=2)
    write_nifti(Volume(shifted, AFFINE), folders / "up.nii")
    millimetres, _ = result(capsys, "up.nii", "ref/case_0.nii.gz", "--labels", "cube=1,2", "--tolerance", "4.9")
    voxels, _ = result(capsys, "up.nii", "ref/case_0.nii.gz", "--labels", "cube=1,2", "--voxels", "--tolerance", "1")
    assert (millimetres["rows"][0]["hd95"], millimetres["unit"]) == (5.0, "mm")
    assert (voxels["rows"][0]["hd95"], voxels["unit"]) == (2.0, "voxels")
    assert millimetres["rows"][0]["surface_dice"] == voxels["rows"][0]["surface_dice"] < 1
    assert voxels["tolerance"] == 1.0


def test_folders_in_order_whatever_the_workers(folders, capsys):
    found, _ = result(capsys, "pred", "ref", "--workers", "3", "--out", "new/a.json", "--csv", "new/a.csv")
    again, _ = result(capsys, "pred", "ref", "--workers", "1")
    assert found == again
    assert [(row["case"], row["class"]) for row in found["rows"]] == [
        (f"case_{index}", label) for index in range(3) for label in "12"
    ]
    assert [row["dice"] for row in found["rows"][::2]] == [1.0, 0.75, 0.5]
    summary = found["summary"]["1"]
    assert summary["metrics"]["dice"] == {"mean": 0.75, "sd": 0.25, "n": 3}
    assert found["versions"] == {"fheat": fheat.__version__}
    assert json.loads((folders / "new" / "a.json").read_text()) == found
    assert Table.read(folders / "new" / "a.csv").rows == Table.read(folders / "new" / "a.json").rows


def test_table_for_people(folders, capsys):
    assert main(["evaluate", "pred", "ref"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no progress bar off the terminal
    assert captured.out.splitlines()[2].split()[:4] == ["case_0", "2", "1.0000", "1.0000"]
    assert "1: 3 cases: 3 both, 0 missed, 0 spurious, 0 both_empty." in captured.out


def test_a_damaged_file_does_not_stop_the_rest(folders, capsys):
    (folders / "pred" / "case_1.nii.gz").write_bytes(b"not a scan")
    found, err = result(capsys, "pred", "ref", "--out", "a.json", code=3)
    assert sorted({row["case"] for row in found["rows"]}) == ["case_0", "case_2"]
    assert list(found["refused"]) == ["case_1"]
    assert "gzip stream is damaged" in found["refused"]["case_1"]
    refusal, last = err.splitlines()
    assert refusal == f"refused case_1: {found['refused']['case_1']}"
    assert last == "fheat: pred: 1 of 3 cases refused; see the lines above for each"
    assert json.loads((folders / "a.json").read_text()) == found


def test_no_table_without_a_case(folders, capsys):
    (folders / "bad.nii.gz").write_bytes(b"no mask")
    assert main(["evaluate", "bad.nii.gz", "bad.nii.gz"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fheat: bad.nii.gz: gzip stream is damaged")
    assert captured.err.count("\n") == 1  # of a single case nothing else is to be said
    found, _ = result(capsys, "bad.nii.gz", "bad.nii.gz", code=3)
    assert (found["rows"], list(found["refused"])) == ([], ["bad"])


def _rewrite(folder, data, affine=AFFINE):
    write_nifti(Volume(data, affine), folder / "pred" / "case_1.nii.gz")


@pytest.mark.parametrize(
    ("data", "affine", "says"),
    [
        (cube()[:, :, :8], AFFINE, "field shape is (12, 12, 8), that of the reference (12, 12, 12)"),
        (cube(), np.diag([1, 1, 2.0, 1]), "field spacing is (1, 1, 2), that of the reference (1"),
        (cube().astype(np.float32) / 4, AFFINE, "holds 0.25: label values are whole numbers"),
        (np.stack([cube()] * 2, axis=-1), AFFINE, "has shape (12, 12, 12, 2)"),
        (
            np.arange(12**3, dtype=np.int16).reshape(12, 12, 12),
            AFFINE,
            "holds 1,728 distinct values: it looks like a scan",
        ),
    ],
)
def test_what_may_not_be_compared_is_refused_with_both_values(folders, capsys, data, affine, says):
    _rewrite(folders, data, affine)
    found, err = result(capsys, "pred", "ref", code=3)
    assert says in found["refused"]["case_1"]
    assert says in err
    assert len(found["rows"]) == 4


@pytest.mark.parametrize(("error", "code"), [(0.04, 0), (0.06, 3), (1.0, 3)])
def test_origins_may_differ_by_rounding(folders, capsys, error, code):
    moved = AFFINE.copy()
    moved[2, 3] += error
    _rewrite(folders, cube(1), moved)
    result(capsys, "pred", "ref", code=code)


@pytest.mark.parametrize(("empty", "what"), [("pred", "predicted"), ("ref", "reference")])
def test_an_empty_folder_is_told_in_one_line(folders, capsys, empty, what):
    for path in (folders / empty).iterdir():
        path.unlink()
    assert main(["evaluate", "pred", "ref"]) == 3
    expected = f"{empty}: holds no .nii, .nii.gz or .dcm file; give the folder with the {what} masks"
    assert capsys.readouterr().err.splitlines() == [f"fheat: {expected}"]


def test_missing_and_extra_predictions_are_reported(folders, capsys):
    (folders / "pred" / "case_0.nii.gz").rename(folders / "pred" / "case_9.nii.gz")
    found, err = result(capsys, "pred", "ref", code=3)
    assert found["refused"] == {"case_0": "pred: has no prediction for 'case_0'; predict it or pass --only-predicted"}
    assert found["notes"] == ["predictions without a reference: case_9.nii.gz"]
    assert "note: predictions without a reference: case_9.nii.gz" in err
    assert "fheat: pred: 1 of 3 cases refused" in err


def test_two_files_for_one_case_are_refused(folders, capsys):
    write_nifti(Volume(cube(), AFFINE), folders / "pred" / "case_1.nii")
    found, _ = result(capsys, "pred", "ref", code=3)
    assert found["refused"] == {"case_1": "pred: holds case_1.nii and case_1.nii.gz for one case; keep one"}


def test_everything_refused_is_still_written(folders, capsys):
    for file in (folders / "pred").iterdir():
        file.write_bytes(b"")
    found, err = result(capsys, "pred", "ref", "--out", "a.json", code=3)
    assert (found["rows"], len(found["refused"])) == ([], 3)
    assert "3 of 3 cases refused" in err
    assert Table.read(folders / "a.json").cases == ()


def test_nnunet_folder(folders, capsys):
    for name in ("plan.json", ".hidden.nii.gz", "case_0.npz"):
        (folders / "pred" / name).write_text("{}")
    (folders / "pred" / "case_2.nii.gz").rename(folders / "pred" / "case_2_0000.nii.gz")
    labels = {"background": 0, "whole": [1, 2], "upper": 2}
    (folders / "dataset.json").write_text(json.dumps({"labels": labels}))
    found, err = result(capsys, "pred", "ref")
    assert err == ""
    assert list(found["summary"]) == ["whole", "upper"]
    assert [row["dice"] for row in found["rows"] if row["class"] == "whole"] == [1.0, 0.75, 0.5]


def test_a_number_at_the_end_is_part_of_the_name(folders, capsys):
    for folder in ("pred", "ref"):
        for number in range(3):
            (folders / folder / f"case_{number}.nii.gz").rename(folders / folder / f"case_000{number}.nii.gz")
    found, err = result(capsys, "pred", "ref")
    assert err == ""
    assert sorted({row["case"] for row in found["rows"]}) == ["case_0000", "case_0001", "case_0002"]


def test_decathlon_names_and_values_of_no_class(folders, capsys):
    (folders / "ref" / "dataset.json").write_text(json.dumps({"labels": {"0": "background", "2": "upper"}}))
    write_nifti(Volume(cube(value=100), AFFINE), folders / "pred" / "case_0.nii.gz")
    found, err = result(capsys, "pred", "ref")
    assert list(found["summary"]) == ["upper"]
    assert found["summary"]["upper"]["kinds"] == {"both": 2, "missed": 1, "spurious": 0, "both_empty": 0}
    assert "note: predictions hold values that belong to no class: 1, 100, 200 (cases: 3)\n" in err
    assert "note: references hold values that belong to no class: 1 (cases: 3)\n" in err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "dataset.json: is not JSON"),
        ("[]", "field labels is missing"),
        ('{"labels": {"background": 0}}', "names only the background"),
        ('{"labels": {"a": "b"}}', "field labels.a is 'b'"),
        ('{"labels": {"a": [1, 1.5]}}', "field labels.a is [1, 1.5]"),
        ('{"labels": {"a": true}}', "field labels.a is True"),
        ('{"labels": {"1": "a", "2": "a"}}', "names 'a' twice"),
        ('{"labels": {"a": 1, "ignore": 2}}', "field labels.ignore"),
    ],
)
def test_dataset_json_that_says_nothing_useful_is_refused(folders, capsys, content, says):
    (folders / "dataset.json").write_text(content)
    assert main(["evaluate", "pred", "ref"]) == 3
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert main(["evaluate", "pred", "ref", "--labels", "1"]) == 0


def test_references_without_a_class(folders, capsys):
    for file in (folders / "ref").iterdir():
        write_nifti(Volume(np.zeros((12, 12, 12), np.uint8), AFFINE), file)
    assert main(["evaluate", "pred", "ref"]) == 3
    assert capsys.readouterr().err.startswith("fheat: ref: holds no value other than 0")


def test_paired_comparison(folders, capsys):
    result(capsys, "pred", "ref", "--out", "worse.json", "--csv", "worse.csv")
    result(capsys, "ref", "ref", "--out", "better.json")
    found, _ = result(capsys, "worse.json", "better.json", "--metrics", "dice", "hd95", "--out", "both.json")
    first = found["tests"][0]
    assert (first["n"], first["zeros"], first["difference"], first["p"]) == (3, 1, 0.25, 0.5)
    assert [test["metric"] for test in found["tests"]] == ["dice", "dice", "hd95", "hd95"]
    assert json.loads((folders / "both.json").read_text()) == found
    assert main(["evaluate", "worse.csv", "better.json"]) == 0
    out = capsys.readouterr().out
    assert "+0.2500" in out
    assert "2 differing pairs cannot give a p below 0.5" in out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pred", "nowhere"], 3, "nowhere: does not exist"),
        (["pred", "ref/case_0.nii.gz"], 3, "pred: is a folder and ref/case_0.nii.gz a file"),
        (["pred", "empty"], 3, "empty: holds no .nii"),
        (["pred", "ref", "--labels", "liver"], 2, "label 'liver' is not NAME=VALUE"),
        (["pred", "ref", "--labels", "a=1", "a=2"], 2, "name every class once"),
        (["pred", "ref", "--labels", "=1"], 2, "has no name"),
        (["pred", "ref", "--tolerance", "-1"], 2, "tolerance=-1.0"),
        (["pred", "ref", "--tolerance", "nan"], 2, "tolerance=nan"),
        (["pred", "ref", "--workers", "0"], 2, "workers=0"),
        (["pred", "ref", "--out", "a.txt"], 2, "a.txt is not a .json file"),
        (["pred", "ref", "--csv", "a.json"], 2, "a.json is not a .csv file"),
        (["pred", "ref", "--metrics", "dice"], 2, "--metrics does not apply to masks"),
        (["a.json", "ref"], 2, "give two of a kind"),
        (["a.json", "b.json"], 3, "a.json: cannot be read"),
        (["a.json", "b.json", "--voxels"], 2, "--voxels does not apply to two files of results"),
        (["a.json", "b.json", "--tolerance", "3"], 2, "--tolerance does not apply"),
        (["a.json", "b.json", "--metrics", "hd96"], 2, "no metric 'hd96'"),
        (["a.json", "b.json", "--out", "b.json"], 2, "b.json is an input"),
        (["pred"], 2, "REF"),
    ],
)
def test_failures_are_one_line(folders, capsys, arguments, code, says):
    (folders / "empty").mkdir()
    assert main(["evaluate", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_results_of_other_cases_are_not_compared(folders, capsys):
    result(capsys, "pred/case_0.nii.gz", "ref/case_0.nii.gz", "--out", "a.json")
    result(capsys, "pred/case_1.nii.gz", "ref/case_1.nii.gz", "--out", "b.json")
    assert main(["evaluate", "a.json", "b.json"]) == 3
    assert "no case is in both: the first has case_0, the second case_1" in capsys.readouterr().err


def test_progress_passes_over_every_case_once(folders):
    seen = []

    table = evaluate_files("pred", "ref", progress=lambda *step: seen.append(step))
    assert seen == [(1, 3), (2, 3), (3, 3)] * 2  # classes, then scores
    assert table.cases == ("case_0", "case_1", "case_2")


@pytest.mark.parametrize("values", [[0, 3, 255], [-5, 0, 7], [0, 2**31], [4]])
def test_distinct_values(values):
    data = np.resize(np.array(values), (3, 4, 5))
    assert distinct_values(data) == distinct_values(data.astype(np.float64)) == set(values)

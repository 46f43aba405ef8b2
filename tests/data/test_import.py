"""`fheat data import`: names of files become pairs, and pairs a datalist that training reads."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fheat import BadInput
from fheat.cli import data
from fheat.cli.main import UsageError, main
from fheat.data.check import check
from fheat.data.importing.datalist import MOST_READ, Values, hold_out, label_values, named_classes
from fheat.data.importing.names import patient_of, pattern_key
from fheat.data.importing.pairs import Pair, guess
from fheat.data.layouts import open_dataset
from fheat.data.read import read_label
from fheat.io import Volume, trusting, write_nifti
from tests.data.downloads import tree

AFFINE = np.diag([0.8, 0.8, 1.5, 1.0])
SHAPE = (36, 34, 33)


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def scan(seed, shape=SHAPE):
    return np.random.default_rng(seed).integers(0, 200, shape).astype(np.int16)


def mask(*values, shape=SHAPE, dtype=np.uint8):
    label = np.zeros(shape, dtype)
    for index, value in enumerate(values):
        label[6:14, 6:14, 4 + 5 * index : 9 + 5 * index] = value
    return label


def put(path, voxels, affine=AFFINE):
    write_nifti(Volume(voxels, affine), path)


def write_lge(root, count=40, labelled=6, shape=SHAPE):
    for index in range(count):
        put(root / "images" / f"pat{index:03d}_LGE.nii.gz", scan(index, shape) + 100 * mask(1, shape=shape))
        if index < labelled:
            put(root / "masks" / f"pat{index:03d}_LGE_seg.nii.gz", mask(1, shape=shape))
    return root


def write_brats(root, cases=4, values=(1, 2, 4), shape=SHAPE):
    """One folder per case, four modalities, labels 0, 1, 2 and 4, as the challenge distributes them."""
    for index in range(cases):
        name = f"BraTS19_CBICA_A{index:02d}_1"
        folder = root / ("HGG" if index % 2 else "LGG") / name
        for channel, modality in enumerate(("t1", "t1ce", "t2", "flair")):
            put(folder / f"{name}_{modality}.nii.gz", scan(10 * index + channel, shape))
        put(folder / f"{name}_seg.nii.gz", mask(*values, shape=shape))
    return root


def write_msd(root, cases=4, shape=SHAPE):
    """The Decathlon's layout, with the hidden files that its archives have."""
    names = [f"hippocampus_{index:03d}" for index in range(1, cases + 1)]
    for index, name in enumerate(names):
        put(root / "imagesTr" / f"{name}.nii.gz", scan(index, shape))
        put(root / "labelsTr" / f"{name}.nii.gz", mask(1, 2, shape=shape))
    put(root / "imagesTs" / "hippocampus_900.nii.gz", scan(90, shape))
    touch(root, *(f"{part}/._{name}.nii.gz" for name in names for part in ("imagesTr", "labelsTr")))
    content = {
        "name": "Hippocampus",
        "modality": {"0": "MRI"},
        "labels": {"0": "background", "1": "Anterior", "2": "Posterior"},
        "numTraining": cases,
        "numTest": 1,
        "training": [{"image": f"./imagesTr/{n}.nii.gz", "label": f"./labelsTr/{n}.nii.gz"} for n in names],
        "test": ["./imagesTs/hippocampus_900.nii.gz"],
    }
    (root / "dataset.json").write_text(json.dumps(content))
    return root


def write_dicom(root, patients=3, segmented=2):
    """Patient, study and series folders; the first patients have a SEG beside their series, and one has a localiser."""
    pytest.importorskip("highdicom")
    from fheat.io.dicom import read_dicom
    from fheat.io.dicom_seg import write_dicom_seg
    from tests.io.dicom_series import save, slices

    for index in range(patients):
        study = root / f"patient-{index}" / "CT-study"
        save(slices(scan(index) - 1000, AFFINE, PatientID=f"P{index}"), study / "1.000000-thorax")
        if index < segmented:
            series = read_dicom(study / "1.000000-thorax")
            (study / "300.0-segmentation").mkdir()
            label = Volume(mask(1, 2), series.volume.affine)
            write_dicom_seg(label, series, study / "300.0-segmentation" / "1-1.dcm", ("background", "lung", "heart"))
    save(slices(scan(99)[:, :, :3], AFFINE), root / "patient-0" / "CT-study" / "2.000000-scout")
    return root


# Names.


LAYOUTS = {
    "masks with a suffix": (
        ["images/p1_LGE.nii.gz", "images/p2_LGE.nii.gz", "masks/p1_LGE_seg.nii.gz"],
        {"p1_LGE": ("images/p1_LGE.nii.gz", "masks/p1_LGE_seg.nii.gz"), "p2_LGE": ("images/p2_LGE.nii.gz", None)},
    ),
    "a folder per case": (
        ["p1/image.nii.gz", "p1/label.nii.gz", "p2/image.nii.gz"],
        {"p1": ("p1/image.nii.gz", "p1/label.nii.gz"), "p2": ("p2/image.nii.gz", None)},
    ),
    "prefixes and numbers (LiTS)": (
        ["volume-0.nii", "volume-11.nii", "segmentation-0.nii", "segmentation-11.nii"],
        {"0": ("volume-0.nii", "segmentation-0.nii"), "11": ("volume-11.nii", "segmentation-11.nii")},
    ),
    "prefixes without a gap (BTCV)": (
        ["img/img0001.nii.gz", "img/img0002.nii.gz", "label/label0002.nii.gz"],
        {"0001": ("img/img0001.nii.gz", None), "0002": ("img/img0002.nii.gz", "label/label0002.nii.gz")},
    ),
    "frames of patients (ACDC)": (
        ["patient001/patient001_frame01.nii.gz", "patient001/patient001_frame01_gt.nii.gz"],
        {"patient001_frame01": ("patient001/patient001_frame01.nii.gz", "patient001/patient001_frame01_gt.nii.gz")},
    ),
    "BIDS": (
        ["sub-01/anat/sub-01_T1w.nii.gz", "derivatives/labels/sub-01/anat/sub-01_T1w_label-lesion_mask.nii.gz"],
        {
            "sub-01_T1w": (
                "sub-01/anat/sub-01_T1w.nii.gz",
                "derivatives/labels/sub-01/anat/sub-01_T1w_label-lesion_mask.nii.gz",
            )
        },
    ),
    "equal names": (
        ["images/a.nrrd", "labels/a.nrrd"],
        {"a": ("images/a.nrrd", "labels/a.nrrd")},
    ),
    "numbers that are no channels": (
        ["images/c_0000.nii.gz", "images/c_0001.nii.gz", "labels/c_0000.nii.gz", "labels/c_0001.nii.gz"],
        {
            "c_0000": ("images/c_0000.nii.gz", "labels/c_0000.nii.gz"),
            "c_0001": ("images/c_0001.nii.gz", "labels/c_0001.nii.gz"),
        },
    ),
    "a modality in the names of the scans alone": (
        ["a_flair.nii.gz", "a_seg.nii.gz", "b_flair.nii.gz"],
        {"a_flair": ("a_flair.nii.gz", "a_seg.nii.gz"), "b_flair": ("b_flair.nii.gz", None)},
    ),
    "a label for each modality": (
        ["a_t1.nii.gz", "a_t2.nii.gz", "a_t1_seg.nii.gz", "a_t2_seg.nii.gz"],
        {"a_t1": ("a_t1.nii.gz", "a_t1_seg.nii.gz"), "a_t2": ("a_t2.nii.gz", "a_t2_seg.nii.gz")},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scans_and_labels_are_paired_by_their_names(tmp_path, layout):
    names, expected = LAYOUTS[layout]
    touch(tmp_path, *names, ".hidden/a.nii.gz", "images/._a.nii.gz", "readme.txt")
    found = guess(tmp_path)
    paired = {
        pair.case: (str(pair.images[0].relative_to(tmp_path)), relative(tmp_path, pair.label)) for pair in found.pairs
    }
    assert paired == expected
    assert all(len(pair.images) == 1 for pair in found.pairs)
    assert (found.unsure, found.left_out) == ([], [])


def relative(root, path):
    return None if path is None else str(path.relative_to(root))


@pytest.mark.parametrize(
    ("names", "channels"),
    [
        ([f"HGG/B_1/B_1_{one}.nii.gz" for one in ("t1", "seg", "t2", "flair", "t1ce")], ("flair", "t1", "t1ce", "t2")),
        ([f"B-1/B-1-{one}.nii.gz" for one in ("t1n", "t1c", "t2w", "t2f", "seg")], ("t1c", "t1n", "t2f", "t2w")),
        (["imagesTr/a_0001.nii.gz", "imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz"], ("0000", "0001")),
        (["t1/7.nii.gz", "t2/7.nii.gz", "labels/7.nii.gz"], ("t1", "t2")),
    ],
    ids=["BraTS", "BraTS 2023", "nnU-Net", "folders"],
)
def test_channels_are_one_case(tmp_path, names, channels):
    touch(tmp_path, *names)
    found = guess(tmp_path)
    (pair,) = found.pairs
    assert (pair.channels, found.channels, len(pair.images)) == (channels, channels, len(channels))
    assert all(channel in path.as_posix() for channel, path in zip(channels, pair.images, strict=True))
    assert pair.label is not None
    assert not pair.unsure


def test_what_does_not_fit_is_named(tmp_path):
    touch(tmp_path, *(f"B_{case}/B_{case}_{one}.nii.gz" for case in "123" for one in ("t1", "t2", "seg")))
    (tmp_path / "B_3" / "B_3_t2.nii.gz").unlink()
    touch(tmp_path, "labels/nobody.nii.gz")
    found = guess(tmp_path)
    assert [pair.case for pair in found.pairs] == ["B_1", "B_2"]
    assert {(one.path.name, one.reason) for one in found.left_out} == {
        ("B_3_t1.nii.gz", "has one channel, and most have the channels t1, t2"),
        ("nobody.nii.gz", "is a label that fits no scan"),
    }


def test_a_pair_that_is_a_guess_says_so(tmp_path):
    touch(tmp_path, "CT/PANCREAS_0001.nii.gz", "CT/PANCREAS_0002.nii.gz", "TCIA_labels/label0002.nii.gz")
    found = guess(tmp_path)
    assert [(pair.case, pair.unsure) for pair in found.pairs] == [
        ("PANCREAS_0001", ""),
        ("PANCREAS_0002", "paired by the number of label0002.nii.gz"),
    ]
    assert found.pairs[1].label.name == "label0002.nii.gz"


def test_several_labels_of_a_scan_are_never_chosen_from(tmp_path):
    touch(tmp_path, "images/a.nii.gz", "images/b.nii.gz", "masks/a_mask.nii.gz", "masks/a_seg.nii.gz")
    found = guess(tmp_path)
    assert [pair.case for pair in found.pairs] == ["b"]
    assert found.left_out[0].reason == "has 2 labels (a_mask.nii.gz, a_seg.nii.gz)"
    narrowed = guess(tmp_path, labels="*_seg.nii.gz")
    assert [(pair.case, pair.label and pair.label.name) for pair in narrowed.pairs] == [
        ("a", "a_seg.nii.gz"),
        ("b", None),
    ]


def test_folders_state_splits_and_cases_of_one_name_are_told_apart(tmp_path):
    for split in ("train", "val", "test"):
        touch(tmp_path, f"{split}/images/1.nii.gz", f"{split}/masks/1.nii.gz")
    touch(tmp_path, "imagesUn/2.nii.gz")
    pairs = guess(tmp_path).pairs
    assert [(pair.case, pair.split, relative(tmp_path, pair.label)) for pair in pairs] == [
        ("2", "unlabelled", None),
        ("test_1", "test", "test/masks/1.nii.gz"),
        ("train_1", "train", "train/masks/1.nii.gz"),
        ("validation_1", "validation", "val/masks/1.nii.gz"),
    ]


def test_patterns(tmp_path):
    touch(tmp_path, *(f"Training Set/{case}/{name}.nrrd" for case in ("AA", "BB") for name in ("lgemri", "laendo")))
    touch(tmp_path, "drawn/x1-final.nii.gz", "raw/ct_x1.nii.gz")
    found = guess(tmp_path, images="**/lgemri.nrrd", labels="**/laendo.nrrd")
    assert [(pair.case, pair.label.name) for pair in found.pairs] == [
        ("Training Set_AA", "laendo.nrrd"),
        ("Training Set_BB", "laendo.nrrd"),
    ]
    found = guess(tmp_path, images="raw/ct_*.nii.gz", labels="drawn/*-final.nii.gz")
    assert [(pair.case, pair.label.name) for pair in found.pairs] == [("x1", "x1-final.nii.gz")]


@pytest.mark.parametrize(
    ("pattern", "path", "key"),
    [
        ("*.nii.gz", "deep/a.nii.gz", "a"),
        ("im/*_x.nii", "im/a_x.nii", "a"),
        ("im/*_x.nii", "im/b/a_x.nii", None),
        ("**/a.nii", "a.nii", ""),
        ("**/a.nii", "b/c/a.nii", "b_c"),
        ("a?.nii", "ab.nii", ""),
        ("a.nii", "abnii", None),
    ],
)
def test_stars_stand_for_the_name(pattern, path, key):
    from pathlib import PurePosixPath

    assert pattern_key(pattern, PurePosixPath(path)) == key


@pytest.mark.parametrize(
    ("case", "patient"),
    [("pat007_ED", "pat007"), ("sub-01_ses-2_T1w", "sub-01"), ("Patient_3", "patient_3"), ("BraTS19_1", "BraTS19_1")],
)
def test_scans_of_a_patient(case, patient):
    assert patient_of(case) == patient


# Splits.


@settings(max_examples=50)
@given(count=st.integers(1, 30), scans=st.integers(1, 3), wanted=st.integers(0, 20), seed=st.integers(0, 5))
def test_patients_are_held_out_whole_and_by_the_seed_alone(count, scans, wanted, seed):
    pairs = [Pair(f"pat{index:03d}_{one}", (), None) for index in range(count) for one in range(scans)]
    chosen = hold_out(pairs, wanted, seed)
    assert min(wanted, count * scans) <= len(chosen) < wanted + scans
    assert chosen == hold_out(pairs[::-1], wanted, seed)
    for name in chosen:
        assert {f"{patient_of(name)}_{one}" for one in range(scans)} <= chosen
    more = hold_out([*pairs, Pair("pat999_0", ())], wanted, seed)  # a patient more: at most that one changes places
    assert len({patient_of(name) for name in chosen - more}) <= 1


def test_seeds_differ():
    pairs = [Pair(f"case{index}", ()) for index in range(50)]
    assert len({frozenset(hold_out(pairs, 5, seed)) for seed in range(5)}) == 5


# The verb.


@pytest.fixture
def lge(tmp_path):
    return write_lge(tmp_path / "heart", count=10, labelled=6, shape=(12, 10, 8))


def run(capsys, *words):
    data.run(["import", *map(str, words)])
    return capsys.readouterr().out


def test_a_folder_becomes_a_datalist_and_no_scan_changes(lge, capsys):
    before = tree(lge)
    result = json.loads(run(capsys, lge, "--classes", "atrium=1", "--validation", "2", "--seed", "3", "--json"))
    assert result["counts"] == {
        "train": {"labelled": 4, "unlabelled": 4},
        "validation": {"labelled": 2, "unlabelled": 0},
    }
    content = json.loads((lge / "datalist.json").read_text())
    assert content["labels"] == {"0": "background", "1": "atrium"}
    first = content["training"][0]
    assert first["image"] == f"images/{first['case']}.nii.gz"
    assert first["label"] == f"masks/{first['case']}_seg.nii.gz"
    after = tree(lge)
    assert after.pop("datalist.json")
    assert after == before
    dataset = open_dataset(lge)  # the folder itself is a dataset now
    assert dataset.layout == "MONAI datalist"
    report = check(dataset)
    assert report.problems == ()
    assert report.counts["train"] == {"labelled": 4, "unlabelled": 4, "missing": 0}
    assert {case.id for case in dataset.split("validation")} == {
        one["case"] for one in result["cases"] if one["split"] == "validation"
    }
    with pytest.raises(BadInput, match="exists already; give another --out, or --overwrite"):
        run(capsys, lge)
    again = run(capsys, lge, "--overwrite", "--classes", "atrium=1", "--validation", "2", "--seed", "3")
    assert json.loads((lge / "datalist.json").read_text()) == content
    assert "train              4           4" in again
    moved = lge.rename(lge.parent / "elsewhere")
    assert check(open_dataset(moved)).problems == ()  # paths are relative


def test_a_datalist_elsewhere(lge, tmp_path, capsys):
    run(capsys, lge, "--out", tmp_path / "heart.json")
    content = json.loads((tmp_path / "heart.json").read_text())
    assert content["training"][0]["image"].startswith("heart/images/")
    run(capsys, lge, "--out", tmp_path / "other" / "heart.json")
    content = json.loads((tmp_path / "other" / "heart.json").read_text())
    assert content["training"][0]["image"].startswith(str(lge))
    for name in ("heart.json", "other/heart.json"):
        assert len(open_dataset(tmp_path / name).cases) == 10


def test_values_with_gaps_are_numbered_anew(tmp_path, capsys):
    write_brats(tmp_path / "brats", shape=(14, 14, 20))
    out = run(capsys, tmp_path / "brats", "--classes", "core=1", "oedema=2", "enhancing=4", "--validation", "1")
    assert "The values [0, 1, 2, 4] are read as [0, 1, 2, 3]" in out
    assert "channels: flair, t1, t1ce, t2" in out
    dataset = open_dataset(tmp_path / "brats")
    assert dataset.labels == {"background": (0,), "core": (1,), "oedema": (2,), "enhancing": (3,)}
    assert dataset.channels == ("flair", "t1", "t1ce", "t2")
    assert check(dataset).problems == ()
    case = dataset.cases[0]
    expected = mask(1, 2, 3, shape=(14, 14, 20))
    assert np.array_equal(read_label(case).data, expected)
    put(case.label, mask(1, 3, 4, shape=(14, 14, 20)))  # 3 is no class: it must not become one of the others
    with pytest.raises(BadInput, match="holds the label 3; the datalist has 0, 1, 2, 4"):
        read_label(case)
    assert [problem.field for problem in check(open_dataset(tmp_path / "brats")).errors] == ["label"]


def test_regions(tmp_path, capsys):
    write_brats(tmp_path / "brats", shape=(14, 14, 20))
    run(capsys, tmp_path / "brats", "--classes", "whole=1,2,4", "core=1,4", "enhancing=4")
    dataset = open_dataset(tmp_path / "brats")
    assert dataset.labels == {"background": (0,), "whole": (1, 2, 3), "core": (1, 3), "enhancing": (3,)}


def test_masks_of_zero_and_255(tmp_path, capsys):
    for index in range(3):
        put(tmp_path / "images" / f"{index}.nii.gz", scan(index, (8, 8, 8)))
        put(tmp_path / "labels" / f"{index}.nii.gz", 255 * (scan(index, (8, 8, 8)) > 100).astype(np.uint8))
    run(capsys, tmp_path)
    dataset = open_dataset(tmp_path / "datalist.json")
    assert dataset.labels == {"background": (0,), "foreground": (1,)}
    assert set(np.unique(read_label(dataset.cases[0]).data)) == {0, 1}


def test_msd_as_downloaded(tmp_path, capsys):
    root = write_msd(tmp_path / "Task04_Hippocampus", shape=(14, 14, 20))
    run(capsys, root, "--validation", "1")
    dataset = open_dataset(root / "datalist.json")
    assert dataset.labels == {"background": (0,), "Anterior": (1,), "Posterior": (2,)}
    assert {split: len(dataset.split(split)) for split in ("train", "validation", "test")} == {
        "train": 3,
        "validation": 1,
        "test": 1,
    }
    assert check(dataset).problems == ()


@pytest.mark.slow
def test_dicom_as_downloaded(tmp_path, capsys):
    root = write_dicom(tmp_path / "download")
    with pytest.raises(BadInput, match=r"1 file is unsure or left out.*scout: is a series of 3 slices"):
        run(capsys, root)
    out = run(capsys, root, "--yes")
    assert "classes: background 0, lung 1, heart 2" in out
    assert "P0" not in out  # no patient's id
    dataset = open_dataset(root)
    assert sorted(case.id for case in dataset.cases) == ["patient-0", "patient-1", "patient-2"]
    assert dataset.labels == {"background": (0,), "lung": (1,), "heart": (2,)}
    with trusting():
        report = check(dataset)
    assert report.errors == ()
    assert report.counts == {
        "train": {"labelled": 1, "unlabelled": 1, "missing": 0},
        "validation": {"labelled": 1, "unlabelled": 0, "missing": 0},
    }
    assert report.fingerprint.looks_like_ct
    labelled = next(case for case in dataset.cases if case.label is not None)
    label = read_label(labelled)  # in a confined process
    assert {value: int((label.data == value).sum()) for value in (1, 2)} == {1: 320, 2: 320}


@pytest.mark.slow
def test_dicom_series_with_nifti_labels(tmp_path, capsys):
    pytest.importorskip("pydicom")
    from fheat.io.dicom import read_dicom

    root = write_dicom(tmp_path / "download", segmented=0)
    for index in range(2):
        grid = read_dicom(root / f"patient-{index}" / "CT-study" / "1.000000-thorax").volume
        put(root / "labels" / f"patient-{index}.nii.gz", mask(1), grid.affine)
    run(capsys, root, "--yes")
    dataset = open_dataset(root)
    assert {case.id: case.label and case.label.name for case in dataset.cases} == {
        "patient-0": "patient-0.nii.gz",
        "patient-1": "patient-1.nii.gz",
        "patient-2": None,
    }
    assert check(dataset).errors == ()


def test_what_is_no_image_in_dicom_folders_is_left_out(tmp_path):
    """A deflated file is not unpacked, a damaged one not guessed at, and other objects are named by their kind."""
    pytest.importorskip("pydicom")
    from tests.io.dicom_series import save, slices

    images = slices(scan(0, (6, 5, 9)), AFFINE)
    save(images, tmp_path / "good")
    images[0].file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1.99"
    save(images[:1], tmp_path / "deflated")
    plan = slices(scan(0, (6, 5, 9)), AFFINE, modality="RTSTRUCT")[0]
    plan.SOPClassUID = "1.2.840.10008.5.1.4.1.1.481.3"
    del plan.PixelSpacing, plan.ImagePositionPatient
    save([plan], tmp_path / "plan")
    (tmp_path / "plan" / "notes.txt").write_text("no DICOM")
    found = guess(tmp_path)
    assert [pair.case for pair in found.pairs] == ["good"]
    assert {one.path.relative_to(tmp_path).as_posix(): one.reason for one in found.left_out} == {
        "deflated/000.dcm": "is deflated",
        "plan": "is RT Structure Set Storage, not a scan",
    }


def test_a_damaged_description_is_not_passed_over(lge):
    (lge / "dataset.json").write_text("{")
    with pytest.raises(BadInput, match=r"dataset\.json: is not JSON"):
        data.run(["import", str(lge)])


def test_questions_on_a_terminal(lge, monkeypatch, capsys):
    answers = iter(["left atrium\n", "3\n"])
    monkeypatch.setattr(
        sys, "stdin", type("", (), {"isatty": lambda self: True, "readline": lambda self: next(answers)})()
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    data.run(["import", str(lge)])
    asked = capsys.readouterr().err
    assert "Name of the label value 1, in 6 of 6 labels [foreground]: " in asked
    assert "Labelled scans that validate, of 6 (a number or a share) [1]: " in asked
    content = json.loads((lge / "datalist.json").read_text())
    assert content["labels"] == {"0": "background", "1": "left atrium"}
    assert len(content["validation"]) == 3


def test_only_some_labels_are_read_and_damaged_ones_are_unsure(tmp_path):
    root = write_lge(tmp_path, count=MOST_READ + 5, labelled=MOST_READ + 5, shape=(6, 6, 6))
    found = guess(root)
    seen = []
    values = label_values(found.pairs, lambda done, total: seen.append((done, total)))
    assert (values.read, values.labels, seen[-1]) == (MOST_READ, MOST_READ + 5, (MOST_READ, MOST_READ))
    assert found.unsure == []
    found.pairs[0].label.write_bytes(b"no label")
    label_values(found.pairs)
    assert [pair.case for pair in found.unsure] == ["pat000_LGE"]
    assert found.pairs[0].unsure.startswith("label cannot be used: ")


def refused(capsys, *words):
    code = main(["data", "import", *map(str, words)])
    return code, capsys.readouterr().err


def test_refusals_are_one_line(lge, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "plain/a.nii.gz", "listed/train.list", "listed/data/a.h5")
    (tmp_path / "listed" / "train.list").write_text("a\n")
    for words, code, says in (
        ((tmp_path / "none",), 3, "does not exist"),
        ((lge / "images" / "pat000_LGE.nii.gz",), 3, "is no folder"),
        ((tmp_path / "empty",), 3, "holds no scan that could be told by its name; give --images PATTERN"),
        ((tmp_path / "plain",), 3, "holds 1 scan and no label that fits one; give --labels PATTERN"),
        ((tmp_path / "listed",), 3, "has the layout h5 lists, which needs no import; give it to fheat train"),
        ((lge, "--out", tmp_path / "x.txt"), 3, "give a name that ends with .json"),
        ((lge, "--out", tmp_path / "dataset.json"), 3, "is the description of a dataset in other layouts"),
        ((lge, "--validation", "many"), 2, "--validation takes a number of scans or a share such as 0.2, not 'many'"),
        ((lge, "--validation", "1.5"), 2, "--validation is 1.5: give a whole number, or a share below 1"),
        ((lge, "--validation", "-1"), 2, "--validation"),
        ((lge, "--validation", "4", "--test", "2"), 2, "leave none of 6 to train with"),
        ((lge, "--classes", "atrium=2"), 2, "labels hold the values [0, 1], and --classes does not name [1]"),
        ((lge, "--classes", "atrium"), 2, "is not NAME=VALUE"),
    ):
        got, said = refused(capsys, *words)
        assert (got, said.count("\n")) == (code, 1), (words, said)
        assert says in said
    assert not (lge / "datalist.json").exists()


def test_what_is_unsure_needs_yes(lge, capsys):
    touch(lge, "masks/nobody_seg.nii.gz")
    code, said = refused(capsys, lge)
    assert code == 3
    assert "1 file is unsure or left out" in said
    assert "nobody_seg.nii.gz: is a label that fits no scan; give --yes" in said
    assert not (lge / "datalist.json").exists()
    assert "left out: " in run(capsys, lge, "--yes")
    assert (lge / "datalist.json").exists()


def test_a_name_in_a_datalist_names_files_and_may_not_lead_elsewhere(tmp_path):
    touch(tmp_path, "a.nii.gz")
    for name, fine in (("pat 1", True), ("../x", False), (".x", False), ("a\\b", False), ("a\nb", False), ("", False)):
        entry = {"case": name, "image": "a.nii.gz", "unlabelled": True}
        (tmp_path / "list.json").write_text(json.dumps({"training": [entry]}))
        if fine:
            assert open_dataset(tmp_path / "list.json").cases[0].id == name
        else:
            with pytest.raises(BadInput, match=r"field training\.0\.case: "):
                open_dataset(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"0": "background", "1": "a"}, {"background": (0,), "a": (1,)}),
        ({"background": 0, "a": 1}, {"background": (0,), "a": (1,)}),
        ({"background": 0, "whole": [1, 2], "core": 2}, {"background": (0,), "whole": (1, 2), "core": (2,)}),
    ],
)
def test_classes_of_a_datalist_are_written_either_way(tmp_path, labels, expected):
    (tmp_path / "list.json").write_text(json.dumps({"labels": labels, "training": [{"image": "a.nii.gz"}]}))
    assert open_dataset(tmp_path / "list.json").labels == expected


def test_classes_that_are_neither_are_refused(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps({"labels": {"a": "b"}, "training": [{"image": "a.nii.gz"}]}))
    with pytest.raises(BadInput, match=r"field labels: .*'a' is no label value"):
        open_dataset(tmp_path / "list.json")


def test_wrong_words(lge):
    with pytest.raises(UsageError, match="FOLDER is missing"):
        data.run(["import"])


# From import to training with two commands.

TRAIN = ["--patch-size", "32", "32", "32", "--iterations", "2", "--warm-up", "1", "--device", "cpu", "--trust"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("layout", ["lge", "brats", "msd", "dicom"])
def test_two_commands_from_a_folder_to_a_model(tmp_path, layout, capsys):
    root = tmp_path / "folder"
    write = {"lge": write_lge, "brats": write_brats, "msd": write_msd, "dicom": write_dicom}[layout]
    write(root)
    imported = ["data", "import", str(root), "--out", str(tmp_path / "list.json"), "--yes", "--json", "--trust"]
    assert main(imported) == 0
    result = json.loads(capsys.readouterr().out)
    words = result["next"].split()
    assert words[1:3] == ["train", str(tmp_path / "list.json")]
    assert words[-6:] == ["--patch-size", "32", "32", "32", "--out", "run"]
    method = words[words.index("--method") :][:2] if "--method" in words else []
    assert bool(method) == (layout in ("brats", "msd"))  # all scans have labels there
    assert main(["train", words[2], *method, *TRAIN, "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "plan for folder (MONAI datalist):" in out
    assert "2 iterations, best validation Dice" in out
    assert (tmp_path / "run" / "best" / "model.json").exists()
    if layout == "lge":
        assert result["counts"] == {
            "train": {"labelled": 5, "unlabelled": 34},
            "validation": {"labelled": 1, "unlabelled": 0},
        }


def test_segments_of_one_name_stay_apart():
    values = Values({0: 3, 1: 2, 2: 3})
    assert named_classes(values, {1: "Lesion", 2: "Lesion"}) == {
        "background": (0,),
        "Lesion 1": (1,),
        "Lesion 2": (2,),
    }
    assert named_classes(values, {1: "background"})["background"] == (0,)

"""`fheat data prepare`: deterministic, complete or absent, and refusing what does not fit."""

import gzip
import json
import shutil

import nibabel
import numpy as np
import pytest

from fheat import BadInput
from fheat.cli.data_prepare import run
from fheat.cli.main import UsageError
from fheat.data.crop import bounding_box, crop, enlarge, pad, stretch
from fheat.data.intensity import clip_above, min_max, moments, window, zscore
from fheat.data.recipes import RECIPES
from fheat.data.recipes.prepare import prepare
from fheat.io import Volume, write_nifti
from tests.data.downloads import AFFINE, MAKE, make_hnc, make_msd, noise, output, save, slow_box, tree, world


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_twice_gives_the_same_bytes_and_any_number_of_workers(tmp_path, name):
    MAKE[name](tmp_path / "src")
    first = prepare(name, tmp_path / "src", tmp_path / "a", version="1")
    again = prepare(name, tmp_path / "src", tmp_path / "b", version="1", workers=2 if name == "hnc" else 1)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert not first.refused
    assert not again.refused
    ids = [*first.train, *first.validation, *first.test, *first.unlabelled]
    assert len(ids) == len(set(ids)) >= 3
    written = json.loads((tmp_path / "a" / "dataset.json").read_text())
    assert written["numTraining"] == len(list((tmp_path / "a" / "labelsTr").iterdir()))
    assert written["preparation"]["recipe"] == name
    assert written["preparation"]["fheat"] == "1"
    assert written["preparation"]["steps"]
    splits = json.loads((tmp_path / "a" / "splits.json").read_text())
    assert set(splits["order"]) | set(splits["validation"]) == {*first.train, *first.validation}
    for case in ids:
        test = case in first.test or case in first.unlabelled
        image, label = output(tmp_path / "a", case, part="Ts" if test else "Tr")
        assert image.data.dtype == np.float32
        assert (label is None) == (case in first.unlabelled)
        if label is not None:
            assert label.data.dtype == np.uint8
            assert label.data.shape == image.data.shape
            assert np.array_equal(label.affine, image.affine)


@pytest.mark.parametrize("name", RECIPES)
def test_a_damaged_case_and_a_missing_label_are_refused_and_the_others_written(tmp_path, name, capsys):
    MAKE[name](tmp_path / "src")
    whole = prepare(name, tmp_path / "src", tmp_path / "whole")
    ids = sorted({*whole.train, *whole.validation, *whole.test})
    scans = sorted(
        file
        for pattern in (
            "lgemri.nrrd",
            "PANCREAS*.nii.gz",
            "*flair.nii.gz",
            "imagesTr/*.nii.gz",
            "preRT/[!.]*_T2.nii.gz",
        )
        for file in (tmp_path / "src").rglob(pattern)
    )
    labels = sorted(
        file
        for pattern in ("laendo.nrrd", "label0*.nii.gz", "*seg.nii.gz", "labelsTr/*.nii.gz", "preRT/*_mask.nii.gz")
        for file in (tmp_path / "src").rglob(pattern)
    )
    scans[0].write_bytes(scans[0].read_bytes()[:-9])
    labels[1].unlink()
    with pytest.raises(BadInput, match="2 cases are refused and left out") as caught:
        run([name, str(tmp_path / "src"), str(tmp_path / "dst"), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["refused"]) == 2
    assert all(case in str(caught.value) for case in shown["refused"])
    assert any("label" in reason or "_seg" in reason or "mask" in reason for reason in shown["refused"].values())
    left = [case for case in ids if case not in shown["refused"]]
    assert {*shown["train"], *shown["validation"], *shown["test"]} == set(left)
    written = json.loads((tmp_path / "dst" / "dataset.json").read_text())
    assert written["preparation"]["refused"] == sorted(shown["refused"])
    assert written["preparation"]["cropped_around_label"] is False
    kept = {key: value for key, value in tree(tmp_path / "whole").items() if not key.endswith(".json")}
    gone = {key for key in kept if any(key.split("/")[1].startswith((f"{c}_", f"{c}.")) for c in shown["refused"])}
    assert len(gone) >= 4
    new = {key: value for key, value in tree(tmp_path / "dst").items() if not key.endswith(".json")}
    assert new == {key: value for key, value in kept.items() if key not in gone}


@pytest.mark.parametrize("name", RECIPES)
def test_when_all_are_refused_nothing_is_written(tmp_path, name):
    MAKE[name](tmp_path / "src")
    for file in (tmp_path / "src").rglob("*"):
        if file.name.endswith((".nii.gz", ".nrrd")):
            file.write_bytes(b"nothing")
    with pytest.raises(BadInput, match="cases are refused, the first"):
        prepare(name, tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()
    shutil.rmtree(tmp_path / "src")
    (tmp_path / "src").mkdir()
    with pytest.raises(BadInput, match=r"holds no|is missing"):
        prepare(name, tmp_path / "src", tmp_path / "dst")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda case, folder: save(folder / f"{case}_preRT_mask.nii.gz", noise((10, 9, 8), 0, 0, 7)),
            "label holds 3, 4",
        ),
        (lambda case, folder: save(folder / f"{case}_preRT_mask.nii.gz", np.zeros((9, 9, 8), np.uint8)), "field shape"),
        (
            lambda case, folder: save(
                folder / f"{case}_preRT_mask.nii.gz", np.zeros((10, 9, 8), np.uint8), AFFINE @ np.diag([1, 1, 1.1, 1])
            ),
            "field spacing",
        ),
        (
            lambda case, folder: save(folder / f"{case}_preRT_T2.nii.gz", np.full((10, 9, 8), 7, np.int16)),
            "7 everywhere",
        ),
    ],
)
def test_pairs_that_do_not_fit_are_refused(tmp_path, change, says):
    names = make_hnc(tmp_path / "src")
    change(names[0], tmp_path / "src" / "HNTSMRG24_train" / names[0] / "preRT")
    summary = prepare("hnc", tmp_path / "src", tmp_path / "dst")
    assert list(summary.refused) == [names[0]]
    assert says in summary.refused[names[0]]


def test_command_line(tmp_path, capsys):
    make_hnc(tmp_path / "src")
    run(["hnc", str(tmp_path / "src"), str(tmp_path / "dst")])
    text = capsys.readouterr().out
    assert "hnc (nifti)" in text
    for words, says in (
        (["heart"], "no dataset 'heart': use one of la, pancreas-a"),
        (["hnc", "--benchmark-crop"], "--benchmark-crop does not apply to hnc, only to la, pancreas-a, pancreas-b"),
        (["hnc", "--spacing", "1", "1", "1"], "only to abdomenct1k"),
        (["abdomenct1k", "--spacing", "0", "1", "1"], "above 0"),
        (["pancreas-a", "--flip-labels", "yy"], "at most once"),
        (["hnc", "--workers", "0"], "at least 1"),
    ):
        with pytest.raises(UsageError, match=says):
            run([words[0], str(tmp_path / "src"), str(tmp_path / "new"), *words[1:]])
    with pytest.raises(BadInput, match="exists and is not an empty folder"):
        run(["hnc", str(tmp_path / "src"), str(tmp_path / "dst")])
    with pytest.raises(BadInput, match="lies inside"):
        run(["hnc", str(tmp_path / "src"), str(tmp_path / "src" / "dst")])
    with pytest.raises(BadInput, match="is not a folder"):
        run(["hnc", str(tmp_path / "nowhere"), str(tmp_path / "new")])
    with pytest.raises(SystemExit):
        run(["--help"])
    assert "Example: fheat data prepare" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_no_part_of_a_case(tmp_path, monkeypatch):
    make_msd(tmp_path / "src")
    import fheat.data.layouts.nnunet as nnunet

    written = []

    def write(volume, path):
        if len(written) == 12:
            raise OSError(28, "No space left on device")
        written.append(path)
        write_nifti(volume, path)

    monkeypatch.setattr(nnunet, "write_nifti", write)
    with pytest.raises(OSError, match="No space left"):
        prepare("msd-task01", tmp_path / "src", tmp_path / "dst")
    kept = tree(tmp_path / "dst")
    assert len(kept) == 10
    assert not (tmp_path / "dst" / "dataset.json").exists()


def test_boxes_match_a_slow_loop():
    rng = np.random.default_rng(0)
    for _ in range(40):
        shape = rng.integers(3, 9, 3)
        mask = rng.random(shape) < 0.04
        box = bounding_box(mask)
        if not mask.any():
            assert box is None
            continue
        low, high = slow_box(mask)
        assert box == tuple((a, b + 1) for a, b in zip(low, high, strict=True))
        volume = Volume(mask.astype(np.uint8), AFFINE)
        part = crop(volume, box)
        assert part.data.sum() == mask.sum()
        marker = np.argwhere(mask)[0]
        assert np.allclose(world(part, marker - low), world(volume, marker))
        wide = stretch(box, shape, (5, 5, 5))
        for (a, b), (c, d), size in zip(box, wide, shape, strict=True):
            assert 0 <= c <= a
            assert b <= d <= size
            assert d - c == max(min(5, size), b - a)
        padded = pad(part, (9, 9, 9))
        assert padded.data.shape == (9, 9, 9)
        assert np.array_equal(padded.data[tuple(map(slice, part.data.shape))], part.data)
    assert enlarge(((2, 4), (0, 9), (5, 6)), (10, 9, 8), [(1, 2)] * 3) == ((1, 6), (0, 9), (4, 8))
    assert enlarge(((4, 5),) * 3, (9, 9, 9), [(0, 0)] * 3, at_least=(4, 5, 0)) == ((3, 6), (2, 7), (4, 5))
    assert stretch(((2, 4),) * 3, (9, 9, 9), (3, 4, 9)) == ((2, 5), (1, 5), (0, 9))


def test_intensities():
    data = noise((6, 5, 4), 3, -50, 50)
    assert np.array_equal(zscore(data, 0, 1), data.astype(np.float32))
    assert not zscore(np.full((3, 3, 3), 7)).any()
    assert np.array_equal(window(np.array([-200, -125, 75, 275, 900]), -125, 275), np.float32([0, 0, 0.5, 1, 1]))
    assert min_max(data).min() == 0
    assert min_max(data).max() == 1
    assert not min_max(np.ones(4)).any()
    assert np.array_equal(clip_above(data, 1), data.astype(np.float32))
    assert clip_above(np.arange(1000), 0.9).max() == 899
    assert moments(np.array([0, 0, 2, 4]), nonzero=True) == (3, 1)
    assert moments(np.zeros(3), nonzero=True) == (0, 1)
    for wrong in (lambda: window(data, 1, 1), lambda: clip_above(data, 0)):
        with pytest.raises(ValueError, match=r"window|share"):
            wrong()


def test_files_are_those_other_programs_read(tmp_path):
    make_hnc(tmp_path / "src")
    summary = prepare("hnc", tmp_path / "src", tmp_path / "dst")
    path = tmp_path / "dst" / "imagesTr" / f"{summary.train[0]}_0000.nii.gz"
    assert np.array_equal(nibabel.load(path).get_fdata(), output(tmp_path / "dst", summary.train[0])[0].data)
    assert gzip.decompress(path.read_bytes())[344:348] == b"n+1\0"

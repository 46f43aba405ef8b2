"""Masks belong to their inputs: what is kept, made again or refused when scan, model, setting or mask change."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fheat import BadInput, Card, Predictor, create_model
from fheat.data.phantom import phantom
from fheat.inference import folder, masks
from fheat.inference.ledger import Journal, Ledger, file_sha256, scan_sha256
from fheat.inference.windows import Windows
from fheat.io import Volume, read_nifti, write_nifti
from fheat.system.claims import this_process

SIZE = (16, 16, 16)
CARD = Card(classes=("background", "chamber"), preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}})


def predictor_of(seed=0, **options):
    torch.manual_seed(seed)
    network = create_model("miniature", patch_size=SIZE)
    options = {"card": CARD, "device": "cpu", "runtime": "torch", "windows": Windows(SIZE, SIZE), **options}
    return Predictor(network, **options)


@pytest.fixture(scope="module")
def predictor():
    return predictor_of()


@pytest.fixture
def scans(tmp_path):
    for seed in range(2):
        write_nifti(phantom(seed, (34, 34, 34)).image, tmp_path / "scans" / f"case{seed}.nii.gz")
    return tmp_path / "scans"


@pytest.fixture
def predict(predictor, scans, tmp_path):
    """Return a function that segments the scans with a predictor, and returns (kept, segmented, refused)."""

    def run(predictor=predictor, **options):
        record = predictor.segment_folder(scans, tmp_path / "out", preview=False, **options)
        return record.kept, [scan.id for scan in record.cases], list(record.refused)

    return run


def test_the_same_again_is_kept_whatever_the_names_of_the_folders(predict, predictor, scans, tmp_path):
    assert predict() == ([], ["case0", "case1"], [])
    assert predict() == (["case0", "case1"], [], [])
    (tmp_path / "out").rename(tmp_path / "moved")
    scans.rename(tmp_path / "elsewhere")
    record = predictor.segment_folder(tmp_path / "elsewhere", tmp_path / "moved", preview=True)
    assert record.kept == ["case0", "case1"]


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"weights": "gaussian"},
        {"flips": True},
        {"largest_component": True},
        {"windows": Windows(SIZE, (8, 16, 16))},
        {"precision": "float32"},
        {
            "card": CARD.model_copy(
                update={"preprocessing": CARD.preprocessing.model_copy(update={"orientation": "LPS"})}
            )
        },
    ],
    ids=["model", "weights", "flips", "component", "windows", "precision", "preprocessing"],
)
def test_another_model_or_setting_makes_all_masks_again(predict, tmp_path, other):
    predict()
    masks = {path: path.read_bytes() for path in (tmp_path / "out").glob("*.nii.gz")}
    assert predict(predictor_of(**other), changed="refuse") == ([], [], ["case0", "case1"])
    assert all(path.read_bytes() == before for path, before in masks.items())
    assert predict(predictor_of(**other)) == ([], ["case0", "case1"], [])
    assert predict(predictor_of(**other)) == (["case0", "case1"], [], [])


def test_a_changed_scan_is_segmented_again_and_the_other_one_kept(predict, predictor, scans, tmp_path):
    predict()
    first = read_nifti(scans / "case0.nii.gz")
    write_nifti(Volume(first.data[::-1].copy(), first.affine), scans / "case0.nii.gz")
    assert predict() == (["case1"], ["case0"], [])
    expected = predictor.segment(scans / "case0.nii.gz").data
    assert np.array_equal(read_nifti(tmp_path / "out" / "case0.nii.gz").data, expected)


def test_a_mask_that_was_edited_is_never_replaced_unasked(predict, tmp_path):
    predict()
    mask = read_nifti(tmp_path / "out" / "case0.nii.gz")
    mask.data[0, 0, 0] ^= 1
    write_nifti(mask, tmp_path / "out" / "case0.nii.gz")
    edited = (tmp_path / "out" / "case0.nii.gz").read_bytes()
    for options in ({}, {"predictor": predictor_of(1)}):
        kept, segmented, refused = predict(**options)
        assert refused == ["case0"]
        assert "case0" not in kept + segmented
        assert (tmp_path / "out" / "case0.nii.gz").read_bytes() == edited
    assert predict(overwrite=True) == ([], ["case0", "case1"], [])


def test_masks_without_their_record_are_those_of_others(predict, tmp_path):
    predict()
    for damage in (lambda path: path.write_text("[" * 50_000), Path.unlink):
        damage(tmp_path / "out" / "run.json")
        assert predict() == ([], [], ["case0", "case1"])
        (tmp_path / "out" / "run-2.json").unlink(missing_ok=True)


class Killed(BaseException):
    """Stands for the end of the process: nothing after it is done."""


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
@pytest.mark.parametrize("call", range(1, 9))
@pytest.mark.parametrize("room", ["write_file", "write_nifti", "journal"])
def test_a_killed_run_goes_on_and_its_record_is_that_of_one_that_was_not(
    predictor, scans, tmp_path, monkeypatch, room, call, overlap
):
    """Killed before and after each write of the run; as nothing of the process is left, no record is written."""
    out, calls = tmp_path / "out", [0]

    def dying(real):
        def write(*arguments):
            calls[0] += 1
            if calls[0] == call:
                raise Killed
            result = real(*arguments)
            calls[0] += 1
            if calls[0] == call:
                raise Killed
            return result

        return write

    with monkeypatch.context() as patch:
        patch.setattr("fheat.inference.ledger.this_process", lambda: replace(this_process(), released=True))
        if room == "journal":
            patch.setattr(folder.Journal, "_append", dying(folder.Journal._append))
        else:
            module = masks if room == "write_nifti" else folder
            patch.setattr(module, room, dying(getattr(module, room)))
        if room != "write_file":
            patch.setattr(folder, "write_file", lambda *arguments: (_ for _ in ()).throw(Killed))
            patch.setattr(folder.Journal, "remove", lambda self: None)
        with suppress(Killed):
            predictor.segment_folder(scans, out, preview=False, overlap=overlap)
    predictor.segment_folder(scans, out, preview=False)
    predictor.segment_folder(scans, tmp_path / "whole", preview=False)
    names = sorted(path.name for path in out.iterdir() if not path.name.startswith("run-"))
    assert names == sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert facts(out) == facts(tmp_path / "whole")


def facts(out):
    """Return what run.json says but for times, memory and the folder, and the content of the masks."""
    record = json.loads((out / "run.json").read_text())
    record["date"] = None
    for case in record["cases"]:
        case["mask"] = Path(case["mask"]).name
        case["seconds"] = case["memory_bound_bytes"] = case["memory_parts_bytes"] = None
    return record, [path.read_bytes() for path in sorted(out.glob("*.nii.gz"))]


def test_a_journal_stays_until_a_record_has_its_masks(predictor, scans, tmp_path, monkeypatch):
    """A run over other scans, into the same folder, does not make the masks of a killed one foreign."""
    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_file", lambda *arguments: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            predictor.segment_folder(scans, tmp_path / "out", preview=False)
    shutil.copy(scans / "case0.nii.gz", tmp_path / "other.nii.gz")
    predictor.segment_folder(tmp_path / "other.nii.gz", tmp_path / "out", preview=False)
    assert len(list((tmp_path / "out").glob(".run-*"))) == 1
    record = predictor.segment_folder(scans, tmp_path / "out", preview=False)
    assert [scan.id for scan in record.cases] == ["case0", "case1"]
    assert list((tmp_path / "out").glob(".run-*")) == []


def test_a_line_of_another_version_is_segmented_again(predictor, scans, tmp_path):
    record = predictor.segment_folder(scans, tmp_path / "out", preview=False)
    journal = record.journal(tmp_path / "out")
    (tmp_path / "out" / "run.json").unlink()
    for scan in record.cases:
        journal.begin([Path(scan.mask).name])
        journal.done({"mask": scan.mask, "mask_sha256": scan.mask_sha256, "images_sha256": scan.images_sha256})
    journal.path.write_bytes(journal.path.read_bytes() + b'{"done": {"ma')
    again = predictor.segment_folder(scans, tmp_path / "out", preview=False)
    assert again.kept == []
    assert [replace(scan, seconds=0) for scan in again.cases] == [replace(scan, seconds=0) for scan in record.cases]


def test_the_hash_of_a_series_covers_names_and_contents(tmp_path):
    (tmp_path / "series").mkdir()
    for name in ("a", "b"):
        (tmp_path / "series" / name).write_bytes(name.encode())
    before = scan_sha256([tmp_path / "series"])
    (tmp_path / "series" / ".hidden").write_bytes(b"x")
    assert scan_sha256([tmp_path / "series"]) == before
    (tmp_path / "series" / "b").rename(tmp_path / "series" / "c")
    assert scan_sha256([tmp_path / "series"]) != before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_named_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="is a named pipe"):
        file_sha256(tmp_path / "pipe")
    os.mkfifo(tmp_path / "run.json")
    assert Ledger(tmp_path).standing(tmp_path / "pipe", lambda: (), None) == ("foreign", None)


def test_a_scan_that_cannot_be_read_does_not_keep_the_others_from_their_masks(predict, scans):
    (scans / "a.nii.gz").symlink_to("nowhere")
    assert predict() == ([], ["case0", "case1"], ["a"])


def test_one_scan_made_again_leaves_the_masks_of_the_others_ours(predict, predictor, scans, tmp_path):
    predict()
    predictor.segment_folder(scans / "case0.nii.gz", tmp_path / "out", preview=False, overwrite=True)
    assert predict() == (["case0", "case1"], [], [])


def journal(folder, *lines):
    """Write the journal of a run that was killed."""
    head = {"model_sha256": "0", "settings": {}, "device": "cpu"}
    (folder / ".run-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))


def test_a_mask_that_was_edited_after_a_kill_is_not_ours_any_more(tmp_path):
    mask = tmp_path / "case0.nii.gz"
    mask.write_bytes(b"made")
    entry = {"mask": str(mask), "mask_sha256": file_sha256(mask), "images_sha256": []}
    journal(tmp_path, {"begun": mask.name})
    assert Ledger(tmp_path).standing(mask, lambda: (), None) == ("free", None)  # perhaps not written whole
    journal(tmp_path, {"begun": mask.name}, {"done": entry})
    assert Ledger(tmp_path).standing(mask, lambda: (), None)[0] == "changed"
    mask.write_bytes(b"edited")
    assert Ledger(tmp_path).standing(mask, lambda: (), None) == ("foreign", None)


def test_a_mask_that_we_may_not_read_is_that_of_another(tmp_path, monkeypatch):
    (tmp_path / "case0.nii.gz").write_bytes(b"somebody's")

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fheat.inference.ledger.file_sha256", forbidden)
    assert Ledger(tmp_path).standing(tmp_path / "case0.nii.gz", lambda: (), None) == ("foreign", None)


def test_the_journal_of_a_run_that_has_just_begun_is_left_alone(tmp_path):
    beside = Journal(tmp_path, {"model_sha256": "0", "settings": {}, "device": "cpu"})
    head = beside.path.read_text()
    Ledger(tmp_path).drop_journals({"case0.nii.gz"})
    assert beside.path.exists()
    beside.path.unlink()
    beside.begin(["case0.nii.gz"])
    assert beside.path.read_text() == head + '{"begun": "case0.nii.gz"}\n'


def test_a_file_larger_than_the_memory_is_refused_at_once(tmp_path: Path) -> None:
    huge = tmp_path / "huge.nii"
    huge.touch()
    os.truncate(huge, 2**43)  # a sparse file: no blocks on the disk
    with pytest.raises(BadInput, match="over the limit"):
        scan_sha256([huge])

"""DICOM trees: series at any depth, several in one folder or one in several, and what is no scan."""

import json
import os

import numpy as np
import pytest
import torch
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    ExplicitVRLittleEndian,
    MRImageStorage,
    RTStructureSetStorage,
    SecondaryCaptureImageStorage,
    generate_uid,
)

from fheat import BadInput, Card, create_model, save
from fheat.cli.main import main
from fheat.data.inputs import find_scans, scans_at
from fheat.data.read import read_image
from fheat.inference.ledger import scan_sha256
from fheat.io import list_series, read_nifti, read_series, trusting
from fheat.io.dicom import read_dicom
from fheat.io.dicom_seg import read_dicom_seg
from fheat.io.dicom_series import SeriesFacts, checked_series
from fheat.models.card import Window
from tests.io.dicom_series import scan, slices

AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])
SHAPE = (18, 16, 17)


def series(seed, shape=SHAPE, **fields):
    return slices(scan(shape, seed), AFFINE, **fields)


def write(images, folder, prefix=""):
    """Add files to a folder, whatever else is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, image in enumerate(images):
        image.save_as(folder / f"{prefix}{index:03d}", enforce_file_format=True)


def structures(number):
    """Return a structure set without structures."""
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID = RTStructureSetStorage
    file.file_meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID = generate_uid()
    file.SeriesInstanceUID, file.Modality, file.SeriesNumber = generate_uid(), "RTSTRUCT", number
    return file


@pytest.fixture
def tree(tmp_path):
    """Two patients: one with a folder per series, one with everything in one heap, in which one series is in two."""
    root = tmp_path / "patients"
    first = root / "anna" / "study1"
    write(series(0, SeriesNumber=1, SeriesDescription="LGE axial"), first / "lge")
    write(series(1, SeriesNumber=2, SeriesDescription="cine"), first / "deeper" / "still" / "cine")
    write(series(2, (18, 16, 1), SeriesNumber=3, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]), first / "scout")
    heap = root / "bert"
    split = series(3, SeriesNumber=7, SeriesDescription="LGE axial")
    write(split[::2], heap / "a", "odd")
    write(split[1::2], heap / "b", "even")
    write(series(4, SeriesNumber=8, storage=MRImageStorage, modality="MR"), heap / "a", "mr")
    write([structures(9)], heap / "a", "rt")
    write(series(5, (18, 16, 1), SeriesNumber=10, storage=SecondaryCaptureImageStorage), heap / "a", "shot")
    (heap / "a" / "notes.txt").write_text("no scan")
    return root


def test_series_are_found_at_any_depth_and_put_together_by_their_uid(tree):
    found = find_scans(tree)
    assert [case.id for case in found.cases] == ["anna_study1_deeper_still_cine", "anna_study1_lge", "bert", "bert_a"]
    assert found.skipped == {
        "anna_study1_scout_series3": "a localiser, not a scan",
        "bert_a_series10": "a secondary capture, not a scan",
        "bert_a_series9": "RT Structure Set Storage, not a scan",
    }
    for case, seed in zip(found.cases, (1, 0, 3, 4), strict=True):
        volume = read_image(case)
        assert np.array_equal(volume.data, scan(SHAPE, seed))
        assert np.abs(volume.affine - AFFINE).max() < 1e-9
        with trusting():
            assert np.array_equal(read_image(case).data, volume.data)
        headers = read_series(case.images[0], files=case.files).sources
        assert len(headers) == SHAPE[2]
        assert len({header.SeriesInstanceUID for header in headers}) == 1
    whole, _, split, mixed = found.cases
    assert (whole.images, whole.files) == ((tree / "anna/study1/deeper/still/cine",), ())
    assert (split.images[0], len(split.files)) == (tree / "bert", 17)
    assert {file.name[:2] for file in mixed.files} == {"mr"}


def test_the_hash_of_a_series_is_that_of_its_own_files(tree):
    before = {case.id: scan_sha256(case.images, case.files) for case in scans_at(tree)}
    write(series(6, SeriesNumber=20), tree / "bert" / "a", "new")
    after = {case.id: scan_sha256(case.images, case.files) for case in scans_at(tree)}
    assert after["bert"] == before["bert"]
    assert after.keys() - before.keys() == {"bert_a_series20", "bert_a_series8"}
    assert after["bert_a_series8"] == before["bert_a"]
    assert len(set(after.values())) == len(after)


def test_a_series_is_chosen_by_its_uid_or_its_description(tree):
    assert [case.id for case in find_scans(tree, "lge AXIAL").cases] == ["anna_study1_lge", "bert"]
    (uid,) = {one.uid for one in list_series(tree / "anna/study1/deeper/still/cine")}
    (only,) = find_scans(tree, uid).cases
    assert only.id == "anna_study1_deeper_still_cine"
    (scout,) = list_series(tree / "anna/study1/scout")
    assert [case.id for case in find_scans(tree, scout.uid).cases] == ["anna_study1_scout_series3"]  # it was asked for
    with pytest.raises(BadInput, match=r"patients: has no series 'T2'; it has cine, LGE axial"):
        find_scans(tree, "T2")
    with pytest.raises(BadInput, match="is one DICOM file, not a series; give the folder"):
        find_scans((tree / "bert" / "a" / "rt000").rename(tree / "one.dcm"))
    with pytest.raises(ValueError, match="leave out --series"):
        find_scans(tree / "bert" / "a" / "notes.txt", "T2")


def test_a_folder_with_a_file_that_cannot_be_read_is_refused_as_a_whole(tree):
    """The damaged file might be a slice of any series, so none is taken for complete, nor their parts elsewhere."""
    (tree / "bert" / "a" / "bad.dcm").write_bytes(bytes(300))
    found = find_scans(tree)
    assert [case.id for case in found.cases] == ["anna_study1_deeper_still_cine", "anna_study1_lge", "bert_a"]
    folder = tree / "bert" / "a"
    assert found.skipped["bert"] == f"files of it may be among those in {folder} that cannot be read"
    chosen = find_scans(tree, "LGE axial")
    assert ([case.id for case in chosen.cases], list(chosen.skipped)) == (["anna_study1_lge"], ["bert"])
    with pytest.raises(BadInput, match=r"bad\.dcm: is named \.dcm and lacks the DICM mark"):
        read_image(found.cases[2])


def test_links_that_lead_back_end(tree):
    (tree / "anna" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "carl").symlink_to(tree / "anna" / "study1" / "lge", target_is_directory=True)
    names = [case.id for case in scans_at(tree / "anna" / "study1")]
    assert names == ["deeper_still_cine", "lge"]
    assert find_scans(tree).cases


def test_a_tree_without_scans_says_what_it_has(tmp_path):
    write([structures(1)], tmp_path / "only" / "rt")
    with pytest.raises(BadInput, match=r"holds no series of images \(RT Structure Set Storage, not a scan\)"):
        find_scans(tmp_path / "only")
    (tmp_path / "only" / "brain.nii.gz").touch()
    found = find_scans(tmp_path / "only")  # a scan beside it is one
    assert ([case.id for case in found.cases], list(found.skipped)) == (["brain"], ["rt_series1"])


@pytest.mark.parametrize(
    "change",
    [{"files": ["../a"]}, {"files": []}, {"number": "3"}, {"kind": 7}, {"uid": "a\nb"}, {"description": "x" * 900}],
)
def test_what_the_reading_process_lists_is_checked(change):
    facts = {"uid": "1", "kind": "k", "modality": "m", "description": "d", "number": 1, "localiser": False}
    assert checked_series([{**facts, "files": ["a"]}]) == (SeriesFacts(**facts, files=("a",)),)
    with pytest.raises((ValueError, TypeError)):
        checked_series([{**facts, "files": ["a"], **change}])


@pytest.mark.slow
def test_the_verb_walks_a_tree_and_says_what_it_skips(tree, tmp_path, capsys):
    torch.manual_seed(0)
    card = Card(
        classes=("background", "chamber"),
        preprocessing={"intensity": {"kind": "zscore"}},
        window=Window(size=(16, 16, 16), stride=(16, 16, 16)),
    )
    model = str(save(create_model("miniature", patch_size=(16, 16, 16)), tmp_path / "model", card))
    out = tmp_path / "out"
    words = ["predict", model, str(tree), str(out), "--no-preview", "--device", "cpu", "--format", "seg"]
    assert main(words) == 0
    told = capsys.readouterr().err
    assert "skipped bert_a_series9: RT Structure Set Storage, not a scan\n" in told
    assert told.count("skipped ") == 3
    record = json.loads((out / "run.json").read_text())
    assert [case["id"] for case in record["cases"]] == [case.id for case in scans_at(tree)]
    assert len(record["skipped"]) == 3
    (case,) = [case for case in scans_at(tree) if case.id == "bert"]
    source = read_dicom(case.images[0], files=case.files)
    mask = read_dicom_seg(out / "bert.dcm", source)
    assert np.count_nonzero(mask.data) == round(
        record["cases"][2]["millilitres"]["chamber"] * 1000 / np.prod(mask.spacing)
    )
    one = ["predict", model, str(tree), str(tmp_path / "one"), "--no-preview", "--series", "cine"]
    assert main([*one, "--device", "cpu"]) == 0
    assert sorted(os.listdir(tmp_path / "one")) == ["anna_study1_deeper_still_cine.nii.gz", "run.json"]
    assert read_nifti(tmp_path / "one" / "anna_study1_deeper_still_cine.nii.gz").data.shape == SHAPE
    assert main([*one[:-1], "T9"]) == 3
    assert "has no series 'T9'" in capsys.readouterr().err


@pytest.mark.slow
def test_contours_of_every_series(tree, tmp_path):
    import pydicom

    torch.manual_seed(0)
    card = Card(classes=("background", "left atrium"), window=Window(size=(16, 16, 16), stride=(16, 16, 16)))
    model = str(save(create_model("miniature", patch_size=(16, 16, 16)), tmp_path / "model", card))
    words = ["predict", model, str(tree / "anna"), str(tmp_path / "out"), "--no-preview", "--device", "cpu"]
    assert main([*words, "--format", "rtstruct"]) == 0
    names = ["run.json", "study1_deeper_still_cine_rtstruct.dcm", "study1_lge_rtstruct.dcm"]
    assert sorted(os.listdir(tmp_path / "out")) == names
    stored = pydicom.dcmread(tmp_path / "out" / names[2])
    (one,) = stored.RTROIObservationsSequence
    assert one.RTROIIdentificationCodeSequence[0].CodeValue == "82471001"
    assert stored.ROIContourSequence[0].ContourSequence

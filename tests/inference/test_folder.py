"""Folders of scans from Python: the masks of `segment`, what is kept and refused, and what a watcher hears."""

import json
import subprocess
import sys
from contextlib import contextmanager
from math import prod

import numpy as np
import pytest
import torch

from fheat import BadInput, Card, Predictor, create_model, save
from fheat.data.appearance import Appearance, Looks, unusual_text
from fheat.data.phantom import phantom
from fheat.inference.folder import predict_folder
from fheat.inference.predictor import UnusualScan
from fheat.inference.runtimes import TorchRuntime
from fheat.inference.stages import FolderWatcher
from fheat.io import Volume, read_nifti, write_nifti

SIZE = (32, 32, 32)
CARD = Card(classes=("background", "chamber"), preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}})


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return Predictor(create_model("fheat_seg", patch_size=SIZE), card=CARD, device="cpu")


@pytest.fixture
def scans(tmp_path):
    for seed in range(2):
        write_nifti(phantom(seed, (40, 32, 24)).image, tmp_path / "scans" / f"case{seed}.nii.gz")
    (tmp_path / "scans" / "bad.nii.gz").write_bytes(b"no scan")
    return tmp_path / "scans"


class Listener(FolderWatcher):
    """Keeps what it hears."""

    def __init__(self):
        self.heard = []

    @contextmanager
    def segmenting(self, case, workload):
        self.heard.append(("segmenting", case, workload.windows, workload.bound.total))
        yield lambda done, total: self.heard.append(("progress", done, total))
        self.heard.append(("end", case))

    def segmented(self, scan):
        self.heard.append(("segmented", scan.id))

    def refused(self, case, reason):
        self.heard.append(("refused", case))


def test_masks_are_those_of_segment_and_the_record_says_what_was_done(predictor, scans, tmp_path):
    record = predictor.segment_folder(scans, tmp_path / "out", preview=False)
    assert [scan.id for scan in record.cases] == ["case0", "case1"]
    assert (record.complete, record.kept, list(record.refused), record.scans) == (True, [], ["bad"], 3)
    assert "is not a NIfTI file" in record.refused["bad"] or "damaged" in record.refused["bad"]
    assert (record.model, record.weights_sha256) == ("FHEATSeg", None)  # a network in memory has no weight file
    for scan in record.cases:
        mask, expected = read_nifti(scan.mask), predictor.segment(scans / f"{scan.id}.nii.gz")
        assert np.array_equal(mask.data, expected.data)
        assert np.abs(mask.affine - expected.affine).max() < 1e-6
        volume = np.count_nonzero(mask.data) * abs(np.linalg.det(mask.affine[:3, :3])) / 1000
        assert scan.millilitres == {"chamber": pytest.approx(volume, abs=1e-3)}
        assert scan.memory_bound_bytes == predictor.memory(read_nifti(scans / f"{scan.id}.nii.gz")).total
    written = json.loads((tmp_path / "out" / "run.json").read_text())
    assert written == json.loads(record.text())
    assert list(written) == [
        "format", "model", "weights_sha256", "model_sha256", "input", "settings", "versions", "device", "date",
        "command", "complete", "cases", "skipped", "kept", "refused",
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["case0.nii.gz", "case1.nii.gz", "run.json"]


def test_a_file_of_others_in_the_place_of_a_mask_is_replaced_only_to_overwrite(predictor, scans, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "case0.nii.gz").write_bytes(b"mine")
    record = predict_folder(predictor, scans, tmp_path / "out", preview=False)
    assert (record.kept, [scan.id for scan in record.cases]) == ([], ["case1"])
    assert list(record.refused) == ["bad", "case0"]
    assert (
        "case0.nii.gz: exists already, and is no mask of this program or was changed since" in record.refused["case0"]
    )
    assert record.refused["case0"].endswith("; move it, choose another folder, or add --overwrite")
    assert (tmp_path / "out" / "case0.nii.gz").read_bytes() == b"mine"
    again = predict_folder(predictor, scans, tmp_path / "out", preview=True, overwrite=True)
    assert (again.kept, [scan.id for scan in again.cases]) == ([], ["case0", "case1"])
    assert (tmp_path / "out" / "case0.nii.gz").read_bytes() != b"mine"
    assert (tmp_path / "out" / "case0.png").exists()


def test_a_watcher_hears_everything_in_order(predictor, scans, tmp_path):
    listener = Listener()
    record = predictor.segment_folder(scans, tmp_path / "out", preview=False, watcher=listener)
    first, second = record.cases
    windows = first.windows
    assert listener.heard[:2] == [("refused", "bad"), ("segmenting", "case0", windows, first.memory_bound_bytes)]
    steps = [entry for entry in listener.heard if entry[0] == "progress"]
    assert steps[-1] == ("progress", second.windows, second.windows)
    ends = [entry for entry in listener.heard if entry[0] in ("end", "segmented")]
    assert ends == [("end", "case0"), ("segmented", "case0"), ("end", "case1"), ("segmented", "case1")]


def test_scans_unlike_the_training_scans_are_told(predictor, scans, tmp_path):
    """The second scan is the first one with voxels three times as far apart; masks do not change."""
    (scans / "bad.nii.gz").unlink()
    first = read_nifti(scans / "case0.nii.gz")
    write_nifti(Volume(first.data, first.affine @ np.diag([3, 3, 3, 1])), scans / "case1.nii.gz")
    appearance = Appearance.of([Looks.of(predictor.scan(first))])
    knowing = Predictor(predictor.network, card=CARD.model_copy(update={"appearance": appearance}), device="cpu")
    record = knowing.segment_folder(scans, tmp_path / "out", preview=False)
    usual, unusual = record.cases
    assert usual.unusual == []
    assert {one.quantity for one in unusual.unusual} == set(list(appearance.ranges)[:6])
    written = json.loads((tmp_path / "out" / "run.json").read_text())["cases"][1]["unusual"]
    spacing = next(one for one in written if one["quantity"] == "spacing x (mm)")
    assert spacing["value"] == pytest.approx(3 * spacing["least"], rel=1e-3)
    assert spacing["least"] == spacing["greatest"] == appearance.ranges["spacing x (mm)"].least
    path = scans / "case1.nii.gz"
    with pytest.warns(UnusualScan) as told:
        mask = knowing.segment(path)
    assert [str(one.message) for one in told] == [unusual_text(str(path), unusual.unusual)]
    assert told[0].filename == __file__
    assert np.array_equal(mask.data, predictor.segment(path).data)  # without a warning: its card knows no training scan
    assert np.array_equal(read_nifti(unusual.mask).data, mask.data)


def test_an_array_without_affine_is_taken_to_have_the_spacing_of_the_network(predictor):
    scan = Volume(phantom(0, (40, 32, 24)).image.data, np.diag([0.5, 0.5, 2.0, 1.0]))
    grid = CARD.preprocessing.model_copy(update={"spacing": (0.5, 0.5, 2.0)})
    appearance = Appearance.of([Looks.of(grid.scan(scan))])
    card = CARD.model_copy(update={"preprocessing": grid, "appearance": appearance})
    knowing = Predictor(predictor.network, card=card, device="cpu")
    assert np.array_equal(knowing.segment(scan.data), knowing.segment(scan).data)  # neither of them warns
    with pytest.warns(UnusualScan, match="extent z"):
        knowing.segment(scan.data[..., :12])
    knowing.segment(scan.data[..., :12], check=False)


def test_the_model_folder_is_named_with_its_hash(scans, tmp_path):
    folder = save(create_model("fheat_seg", patch_size=SIZE), tmp_path / "model", CARD)
    record = Predictor(folder, device="cpu").segment_folder(scans / "case0.nii.gz", tmp_path / "out", preview=False)
    stated = json.loads((folder / "model.json").read_text())["sha256"]["model.safetensors"]
    assert (record.model, record.weights_sha256) == (str(folder), stated)


def test_what_would_go_wrong_later_is_refused_before_the_first_scan(predictor, scans, tmp_path):
    with pytest.raises(BadInput, match=r"case0\.nii\.gz: is a scan itself"):
        predictor.segment_folder(scans / "case0.nii.gz", scans)
    with pytest.raises(ValueError, match="DICOM SEG refers to a DICOM series"):
        predictor.segment_folder(scans, tmp_path / "out", mask_format="seg")
    with pytest.raises(BadInput, match="does not exist"):
        predictor.segment_folder(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_scan_that_ends_in_an_error_of_its_own_leaves_a_record(predictor, scans, tmp_path, monkeypatch):
    """An error that no scan is to blame for ends the run, and what was done before is on disk."""

    class Stops(FolderWatcher):
        def segmented(self, scan):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predictor.segment_folder(scans, tmp_path / "out", preview=False, watcher=Stops())
    written = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (written["complete"], [case["id"] for case in written["cases"]]) == (False, ["case0"])


def test_two_scans_of_one_name_are_refused(predictor, tmp_path):
    image = Volume(np.zeros((8, 8, 8), np.int16), np.eye(4))
    for name in ("a.nii", "a.nii.gz"):
        write_nifti(image, tmp_path / "scans" / name)
    with pytest.raises(BadInput, match="a"):
        predictor.segment_folder(tmp_path / "scans", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def expected(predictor, monkeypatch):
    """Numbers of windows that the runtime is told of: twice where a scan is measured, once where it is segmented."""
    told = []
    monkeypatch.setattr(predictor._run, "expect", lambda voxels, shape: told.append(voxels // prod(SIZE)))
    return told


def test_scans_to_come_are_those_without_a_mask(predictor, scans, tmp_path, expected):
    windows = predictor.sliding(None).count((40, 32, 24))
    write_nifti(phantom(2, (40, 32, 24)).image, scans / "case2.nii.gz")
    for overwrite, to_come in ((False, [2, 1, 0]), (False, []), (True, [2, 1, 0])):
        expected.clear()
        predict_folder(predictor, scans, tmp_path / "out", preview=False, overwrite=overwrite)
        assert expected == [windows * (1 + left) for left in to_come for _ in range(3)]
    (tmp_path / "out" / "case0.nii.gz").unlink()
    (tmp_path / "out" / "case2.nii.gz").unlink()
    expected.clear()
    predict_folder(predictor, scans, tmp_path / "out", preview=False)
    assert expected == 3 * [2 * windows] + 3 * [windows]  # those of case0, with case2 behind it


def test_two_folders_at_once_do_not_count_the_scans_of_each_other(predictor, scans, tmp_path, expected):
    """The second run goes on in whole while the first one segments its first scan, as from another thread."""
    (scans / "bad.nii.gz").unlink()
    write_nifti(phantom(3, (40, 32, 24)).image, tmp_path / "other" / "one.nii.gz")

    class Meanwhile(FolderWatcher):
        def segmenting(self, case, workload):
            if case == "case0":
                predict_folder(predictor, tmp_path / "other", tmp_path / "masks", preview=False)
                predictor.segment(tmp_path / "other" / "one.nii.gz")
            return super().segmenting(case, workload)

    predict_folder(predictor, scans, tmp_path / "out", preview=False, watcher=Meanwhile())
    windows = predictor.sliding(None).count((40, 32, 24))
    assert expected == [windows * count for count in (2, 2, 1, 1, 1, 1, 2, 1, 1, 1)]


def test_a_record_says_what_ran_whatever_another_thread_brings_next(predictor, scans, tmp_path, monkeypatch):
    """Right after the windows of a scan, many of another one are announced, which OpenVINO or bfloat16 would run."""
    (scans / "bad.nii.gz").unlink()
    run = predictor._run

    class Runtime(TorchRuntime):
        name, precision = "torch", "auto"  # as on a GPU, before a window with foreground has decided it

    class Meanwhile(FolderWatcher):
        @contextmanager
        def segmenting(self, case, workload):
            yield lambda done, total: None
            predictor._run.name, predictor._run.precision = "openvino", "bfloat16"

    monkeypatch.setattr(predictor, "_run", Runtime(run.network))
    record = predict_folder(predictor, scans, tmp_path / "out", preview=False, watcher=Meanwhile())
    assert [(scan.runtime, scan.precision) for scan in record.cases] == [("torch", "float32"), ("openvino", "bfloat16")]


@pytest.mark.parametrize(("error", "says"), [(RuntimeError(), "RuntimeError"), (ValueError("\n two\nlines"), "two")])
def test_an_error_that_says_little_refuses_its_scan_alone(predictor, scans, tmp_path, monkeypatch, error, says):
    unusual = predictor.unusual

    def fails_once(prepared):
        if "case0" not in seen:
            seen.append("case0")
            raise error
        return unusual(prepared)

    seen = []
    monkeypatch.setattr(predictor, "unusual", fails_once)
    record = predict_folder(predictor, scans, tmp_path / "out", preview=False)
    assert [scan.id for scan in record.cases] == ["case1"]
    assert record.refused["case0"].endswith(f"case0.nii.gz: {says}; give the kind of scan the model was trained on")


PICTURE = """
import sys, threading
import numpy as np
from torch import nn
from fheat import Predictor
from fheat.inference import stages
from fheat.inference.folder import predict_folder
from fheat.inference.windows import Windows
from fheat.io import Volume, write_nifti

write_nifti(Volume(np.zeros((16, 16, 16), np.int16), np.eye(4)), sys.argv[1] + "/scan.nii.gz")
predictor = Predictor(nn.Conv3d(1, 2, 1), windows=Windows((8, 8, 8), (8, 8, 8)), runtime="torch")
assert "matplotlib" not in sys.modules
run = predictor.run_windows

def run_windows(*rest, **named):
    for thread in threading.enumerate():
        if thread.name == "importing":
            thread.join()
    print("fheat.figures.preview" in sys.modules)
    return run(*rest, **named)

object.__setattr__(predictor, "run_windows", run_windows)
predict_folder(predictor, sys.argv[1], sys.argv[1] + "/masks", preview=sys.argv[2] == "yes")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("preview", "imported"), [("yes", "True"), ("no", "False")])
def test_what_draws_the_picture_is_imported_while_windows_run(preview, imported, tmp_path):
    done = subprocess.run([sys.executable, "-c", PICTURE, str(tmp_path), preview], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, imported), done.stderr

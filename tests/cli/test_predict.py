"""`fheat predict` as a user meets it: masks in place, what was refused, nothing lost."""

import itertools
import json
import os
import re
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

import fheat.inference.masks
import fheat.inference.stages
from fheat import BadInput, Card, Predictor, create_model, load, save
from fheat.cli.main import main
from fheat.data.appearance import Appearance, Looks
from fheat.data.inputs import scans_at
from fheat.data.phantom import phantom
from fheat.data.read import read_image
from fheat.inference import runtimes
from fheat.inference.compilers import COMPILERS, Compiler
from fheat.inference.windows import Windows
from fheat.io import Volume, read_nifti, write_nifti
from fheat.io.dicom import read_dicom
from fheat.io.dicom_seg import read_dicom_seg
from fheat.models.card import Window
from fheat.system import machine
from tests.io.dicom_series import save as save_series
from tests.io.dicom_series import slices

SIZE = (32, 32, 32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    card = Card(
        classes=("background", "chamber"),
        preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}},
        window=Window(size=SIZE, stride=(16, 16, 16)),
    )
    return str(save(create_model("miniature", patch_size=SIZE), tmp_path_factory.mktemp("model") / "m", card))


@pytest.fixture
def scans(tmp_path):
    folder = tmp_path / "scans"
    for seed in range(2):
        made = phantom(seed, (40, 32, 24))
        write_nifti(made.image, folder / f"case{seed}_0000.nii.gz")
    return folder


def test_a_file(model, scans, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["predict", model, str(scans / "case0_0000.nii.gz"), str(out)]) == 0
    printed = capsys.readouterr()
    assert "\ncase0  " in printed.out
    assert "memory at most" in printed.err
    assert sorted(path.name for path in out.iterdir()) == ["case0.nii.gz", "case0.png", "run.json"]
    scan, mask = read_nifti(scans / "case0_0000.nii.gz"), read_nifti(out / "case0.nii.gz")
    assert np.array_equal(mask.affine, scan.affine)
    assert mask.data.shape == scan.data.shape
    assert mask.data.dtype == np.uint8
    assert (out / "case0.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((out / "run.json").read_text())
    (case,) = record["cases"]
    assert case["shape"] == list(scan.data.shape)
    assert case["millilitres"]["chamber"] == pytest.approx(mask.data.sum() * np.prod(scan.spacing) / 1000, abs=1e-3)
    assert record["refused"] == {}
    assert record["settings"]["stride"] == [16, 16, 16]
    assert len(record["weights_sha256"]) == 64


def test_a_folder_with_a_damaged_scan(model, scans, tmp_path, capsys):
    (scans / "bad_0000.nii.gz").write_bytes((scans / "case0_0000.nii.gz").read_bytes()[:-40])
    out = tmp_path / "out"
    assert main(["predict", model, str(scans), str(out), "--json", "--no-preview"]) == 3
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert [case["id"] for case in record["cases"]] == ["case0", "case1"]
    assert list(record["refused"]) == ["bad"]
    assert "gzip stream is damaged" in record["refused"]["bad"]
    assert "1 of 3 scans refused" in printed.err.strip().split("\n")[-1]
    assert sorted(path.name for path in out.iterdir()) == ["case0.nii.gz", "case1.nii.gz", "run.json"]
    assert json.loads((out / "run.json").read_text()) == record


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["lines", "json"])
@pytest.mark.parametrize("there", [False, True], ids=["new folder", "folder of the user"])
def test_a_single_scan_that_is_refused_is_one_line_and_leaves_nothing(model, scans, tmp_path, capsys, more, there):
    bad, out = tmp_path / "bad.nii.gz", tmp_path / "some" / "out"
    bad.write_bytes((scans / "case0_0000.nii.gz").read_bytes()[:-40])
    if there:
        out.mkdir(parents=True)
    for _ in range(2):
        assert main(["predict", model, str(bad), str(out), "--no-preview", *more]) == 3
        printed = capsys.readouterr()
        assert printed.err.startswith(f"fheat: {bad}: gzip stream is damaged (")
        assert printed.err.endswith("; copy it again from its source\n")
        assert printed.err.count("\n") == 1
        if more:
            assert list(json.loads(printed.out)["refused"]) == ["bad"]
        assert out.exists() == there
        assert (tmp_path / "some").exists() == there
        assert not there or list(out.iterdir()) == []


def test_a_single_scan_whose_mask_is_foreign_is_one_line_too(model, scans, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "case0.nii.gz").write_bytes(b"precious")
    assert main(["predict", model, str(scans / "case0_0000.nii.gz"), str(out)]) == 3
    error = capsys.readouterr().err
    assert error.startswith(f"fheat: {out / 'case0.nii.gz'}: exists already, and is no mask of this program")
    assert error.count("\n") == 1
    assert [path.name for path in out.iterdir()] == ["case0.nii.gz"]


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["lines", "json"])
def test_a_scan_unlike_the_training_scans_is_one_line_and_still_segmented(model, scans, tmp_path, capsys, more):
    network = load(model)
    first = read_image(scans_at(scans)[0])
    appearance = Appearance.of([Looks.of(network.card.preprocessing.scan(first))])
    card = network.card.model_copy(update={"appearance": appearance})
    knowing = str(save(network, tmp_path / "model", card))
    write_nifti(Volume(first.data[:, :, :12], first.affine), scans / "case1_0000.nii.gz")
    assert main(["predict", knowing, str(scans), str(tmp_path / "out"), "--no-preview", *more]) == 0
    printed = capsys.readouterr()
    cases = json.loads((tmp_path / "out" / "run.json").read_text())["cases"]
    assert [bool(case["unusual"]) for case in cases] == [False, True]
    most = cases[1]["unusual"][0]
    assert most["quantity"].startswith("extent ")
    assert most["value"] == pytest.approx(most["least"] / 2, rel=1e-3)
    (line,) = [line for line in printed.err.splitlines() if "look like" in line]
    assert line.startswith(
        "note: case1 does not look like the training scans, so its mask may be wrong: "
        f"{most['quantity']} is {most['value']:g}, in training {most['least']:g}"
    )
    assert "look like" not in printed.out


def test_dicom_in_and_seg_out(model, tmp_path):
    affine = np.diag([-1.5, -1.5, 2.0, 1.0])
    data = phantom(3, (40, 32, 24), geometry="canonical").image.data
    save_series(slices(data, affine), tmp_path / "series")
    for form in ("seg", "nifti"):
        assert main(["predict", model, str(tmp_path / "series"), str(tmp_path / form), "--format", form]) == 0
    series = read_dicom(tmp_path / "series")
    found = read_dicom_seg(tmp_path / "seg" / "series.dcm", series)
    mask = read_nifti(tmp_path / "nifti" / "series.nii.gz")
    assert np.array_equal(found.data, mask.data)
    assert 0 < mask.data.sum() < mask.data.size
    assert np.abs(mask.affine - series.volume.affine).max() < 1e-6


def test_options_reach_the_window(model, scans, tmp_path, capsys):
    scan = str(scans / "case0_0000.nii.gz")
    options = ["--stride", "32", "32", "32", "--weights", "gaussian", "--batch", "2", "--largest-component", "--flips"]
    assert main(["predict", model, scan, str(tmp_path / "out"), "--json", *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["settings"] == {
        "window": [32, 32, 32],
        "stride": [32, 32, 32],
        "visited": "all",
        "weights": "gaussian",
        "flips": True,
        "largest_component": True,
        "probabilities": False,
        "uncertainty": None,
        "allow": [],
        "precision": "auto",
        "runtime": "auto",
    }


def test_fast_windows_are_some_of_those_of_the_model(model, tmp_path, capsys):
    scan = tmp_path / "noise.nii.gz"
    write_nifti(Volume(np.random.default_rng(0).normal(size=(60, 50, 36)).astype(np.float32), np.eye(4)), scan)
    fast = ["--preset", "fast", "--stride", "4", "4", "4", "--no-preview", "--runtime", "torch"]
    assert main(["predict", model, str(scan), str(tmp_path / "out"), *fast]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    windows = Windows(SIZE, (4, 4, 4)).fast()
    (case,) = record["cases"]
    assert record["settings"]["visited"] == "fast"
    assert case["windows"] == len(windows.corners((60, 50, 36))) == 20
    assert case["runtime"] == "torch"
    assert "noise: 20 windows, memory at most" in capsys.readouterr().err


def test_a_runtime_that_is_not_installed_is_one_line(model, scans, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runtimes, "find_spec", lambda name: None)
    words = ["predict", model, str(scans), str(tmp_path / "out"), "--runtime", "openvino"]
    assert main(words) == 3
    assert capsys.readouterr().err == 'fheat: openvino: needs the package openvino; pip install "fheat[export]"\n'


@pytest.mark.parametrize(
    ("words", "remedy"),
    [(["--precision", "bfloat16"], "use --precision float32"), (["--runtime", "openvino"], "use the runtime torch")],
)
def test_a_network_that_cannot_be_compiled_is_one_line_and_tried_once(
    model, scans, tmp_path, monkeypatch, capsys, words, remedy
):
    pytest.importorskip("openvino")
    monkeypatch.setattr(machine, "_cpu_field", lambda name: "avx512_bf16")
    tried, out = [], tmp_path / "out"

    def build(*given):
        tried.append(given)
        raise RuntimeError("no such operation\nat line 1")

    monkeypatch.setitem(COMPILERS, "openvino", Compiler(build, lambda *given: None))
    command = ["predict", model, str(scans), str(out), "--device", "cpu"]
    for scan in ([str(scans)], [str(scans / "case0_0000.nii.gz")]):
        tried.clear()
        assert main([*command[:2], *scan, *command[3:], *words]) == 3
        said = capsys.readouterr()
        assert said.err == f"fheat: openvino: cannot run this network (no such operation); {remedy}\n"
        assert (said.out, len(tried), out.exists()) == ("", 1, False)
    assert main([*command, "--runtime", "torch"]) == 0
    write_nifti(phantom(2, (40, 32, 24)).image, scans / "case2_0000.nii.gz")
    assert main([*command, *words, "--runtime", "openvino", "--changed", "refuse"]) == 3  # all but the last are refused
    record = json.loads((out / "run-2.json").read_text())
    assert (record["complete"], list(record["refused"]), record["cases"]) == (False, ["case0", "case1"], [])
    assert "cannot run this network" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--largest-component"], {"largest_component": True}),
        (["--flips"], {"flips": True}),
        (["--weights", "gaussian"], {"weights": "gaussian"}),
        (["--stride", "8", "32", "32"], {"windows": Windows(SIZE, (8, 32, 32))}),
    ],
    ids=["component", "flips", "weights", "stride"],
)
def test_each_option_changes_the_mask_as_it_does_in_python(tmp_path, words, option):
    network = create_model("fheat_seg", patch_size=SIZE)
    network.head.bias.data[0] = 1.2  # one voxel in eight is labelled, in many pieces
    model, scan = save(network, tmp_path / "model"), tmp_path / "noise.nii.gz"
    write_nifti(Volume(np.random.default_rng(0).normal(size=(56, 32, 24)), np.eye(4)), scan)
    assert main(["predict", str(model), str(scan), str(tmp_path / "out"), "--no-preview", *words]) == 0
    mask = read_nifti(tmp_path / "out" / "noise.nii.gz").data
    assert np.array_equal(mask, Predictor(model, **option).segment(scan).data)
    assert not np.array_equal(mask, Predictor(model).segment(scan).data)


@pytest.mark.parametrize(
    ("room", "name", "call"),
    [(fheat.inference.stages, "read_image", 2), (fheat.inference.masks, "write_nifti", 2), (os, "fsync", 5)],
    ids=["reading", "segmented", "writing"],
)
def test_an_interruption_leaves_whole_files_and_a_record_of_what_is_done(
    model, scans, tmp_path, monkeypatch, capsys, room, name, call
):
    """Interrupted in the second scan; its mask is flushed fifth, after journal and first mask, each with the folder."""
    real, out, calls = getattr(room, name), tmp_path / "out", itertools.count(1)

    def interrupted(*given):
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(room, name, interrupted)
        assert main(["predict", model, str(scans), str(out), "--no-preview"]) == 130
    assert capsys.readouterr().err.endswith("fheat: interrupted\n")
    assert sorted(path.name for path in out.iterdir()) == ["case0.nii.gz", "run.json"]
    record = json.loads((out / "run.json").read_text())
    assert record["complete"] is False
    assert [case["id"] for case in record["cases"]] == ["case0"]
    assert main(["predict", model, str(scans), str(out), "--no-preview"]) == 0
    again = json.loads((out / "run-2.json").read_text())
    assert again["complete"] is True
    assert (again["kept"], [case["id"] for case in again["cases"]]) == (["case0"], ["case1"])


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"model": "nowhere"}, 3, "no such model folder"),
        ({"input": "nowhere"}, 3, "does not exist"),
        ({"more": ["--format", "seg"]}, 2, "DICOM SEG refers to a DICOM series"),
        ({"more": ["--preset", "la"]}, 2, "differs from the network's patch (32, 32, 32)"),
        ({"more": ["--stride", "40", "8", "8"]}, 2, "leaves gaps"),
        ({"more": ["--batch", "0"]}, 2, "batch=0"),
        ({"more": ["--device", "abacus"]}, 2, "device 'abacus' is unknown: use cpu, cuda or cuda:1"),
        ({"more": ["--device", "meta"]}, 2, "device 'meta' cannot be used"),
        ({"more": ["--parallel", "2"]}, 2, "--parallel is for a Ray cluster: add --engine ray"),
        ({"more": ["--engine", "ray", "--parallel", "0"]}, 2, "parallel=0 is too few"),
    ],
)
def test_what_cannot_be_done_is_one_line(model, scans, tmp_path, capsys, change, code, says):
    words = [change.get("model", model), change.get("input", str(scans)), str(tmp_path / "out")]
    assert main(["predict", *words, *change.get("more", [])]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (
            "empty",
            "holds no scan: the folder is empty; give a folder of scans or a dataset, see docs/reference/data.md",
        ),
        (
            "text",
            "has no known layout (nnU-Net raw, MSD, h5 lists, MONAI datalist, plain folders); "
            "see docs/reference/data.md",
        ),
    ],
)
def test_a_folder_without_scans(model, tmp_path, monkeypatch, capsys, place, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / place).mkdir()
    if place == "text":
        (tmp_path / "text" / "a.txt").touch()
    for words in (["predict", model, place, "out"], ["train", place, "--out", "out"], ["data", "check", place]):
        assert main(words) == 3
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"fheat: {place}: {says}")
        assert printed.err.count("\n") == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["scan.nii.gz", "m"], ["scans", "m"], ["scans", "la-4"], ["scan.nii.gz", "none"]])
def test_scan_and_model_in_the_wrong_order(model, tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scan.nii.gz").touch()
    (tmp_path / "scans").mkdir()
    (tmp_path / "m").symlink_to(model)
    assert main(["predict", *words, "out"]) == 3
    says = "is no model folder; give the model first: fheat predict MODEL INPUT OUT"
    assert capsys.readouterr() == ("", f"fheat: {words[0]}: {says}\n")


def test_a_file_of_the_model_in_place_of_its_folder(model, capsys):
    assert main(["predict", f"{model}/model.json", "scan.nii.gz", "out"]) == 3
    assert f"give its folder, {model}" in capsys.readouterr().err


def test_the_folder_of_a_scan_is_not_said_to_be_a_model(tmp_path, capsys):
    (tmp_path / "scan.nii.gz").touch()
    assert main(["export", str(tmp_path / "scan.nii.gz"), "out.onnx", "--to", "onnx"]) == 3
    assert "is a file, not a model folder; give a folder written by fheat.save, or" in capsys.readouterr().err


def test_the_model_is_named_before_its_first_mask_and_not_before(model, scans, tmp_path, capsys):
    (scans / "bad.nii.gz").write_bytes(b"no scan")
    assert main(["predict", model, str(scans / "bad.nii.gz"), str(tmp_path / "out")]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"fheat: {scans / 'bad.nii.gz'}: ")
    assert main(["predict", model, str(scans), str(tmp_path / "out"), "--no-preview"]) == 3
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()] == ["model:", "case0", "case1"]


def test_masks_are_kept_unless_overwritten(model, scans, tmp_path, capsys):
    words = ["predict", model, str(scans / "case0_0000.nii.gz"), str(tmp_path / "out")]
    assert main(words) == 0
    before = (tmp_path / "out" / "case0.nii.gz").stat().st_mtime_ns
    assert main(words) == 0
    assert "1 mask of the same scan, model and settings kept; --overwrite replaces them" in capsys.readouterr().err
    assert (tmp_path / "out" / "case0.nii.gz").stat().st_mtime_ns == before
    records = [json.loads((tmp_path / "out" / name).read_text()) for name in ("run.json", "run-2.json")]
    assert [len(record["cases"]) for record in records] == [1, 0]
    assert [record["kept"] for record in records] == [[], ["case0"]]
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / "out" / "case0.nii.gz").stat().st_mtime_ns > before


def test_the_wrong_number_of_channels_is_refused(model, tmp_path, capsys):
    write_nifti(Volume(np.zeros((9, 9, 9, 2), np.float32), np.eye(4)), tmp_path / "two.nii.gz")
    assert main(["predict", model, str(tmp_path / "two.nii.gz"), str(tmp_path / "out")]) == 3
    assert "has 2 channels and the network takes 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_mask_replaces_a_scan(model, tmp_path, capsys):
    """The folder of the scans as the folder of the masks: refused before anything is written, even to overwrite."""
    scan = phantom(0, (40, 32, 24)).image
    write_nifti(scan, tmp_path / "scans" / "a.nii.gz")
    (tmp_path / "link").symlink_to(tmp_path / "scans")
    before = (tmp_path / "scans" / "a.nii.gz").read_bytes()
    for out in ("scans", "link"):
        assert main(["predict", model, str(tmp_path / "scans"), str(tmp_path / out), "--overwrite"]) == 3
        error = capsys.readouterr().err
        assert "a.nii.gz: is a scan itself; choose another folder for the masks" in error
        assert error.count("\n") == 1
    assert [path.name for path in (tmp_path / "scans").iterdir()] == ["a.nii.gz"]
    assert (tmp_path / "scans" / "a.nii.gz").read_bytes() == before


def test_a_network_that_gives_nan_is_refused(scans, tmp_path, capsys):
    network = create_model("fheat_seg", patch_size=SIZE)
    network.head.weight.data.fill_(3e38)  # finite, as a saved weight must be, and too large to add up
    folder = save(network, tmp_path / "model")
    assert main(["predict", str(folder), str(scans / "case0_0000.nii.gz"), str(tmp_path / "out")]) == 3
    assert "the network's output is NaN or infinite" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("batch", [0, 2**16 + 1, 10**20])
def test_a_batch_that_nobody_means_is_usage(model, scans, tmp_path, capsys, batch):
    words = ["predict", model, str(scans), str(tmp_path / "out"), "--batch", str(batch), "--no-preview"]
    assert main(words) == 2
    says = f"batch={batch} is not a number of windows: use 1 to 65,536; see 'fheat predict --help'"
    assert capsys.readouterr().err == f"fheat: {says}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")]
)
def test_too_little_memory_is_not_the_fault_of_the_scan(model, scans, tmp_path, monkeypatch, capsys, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(Predictor, "memory", fails)
    scan = scans / "case0_0000.nii.gz"
    assert main(["predict", model, str(scan), str(tmp_path / "out"), "--no-preview"]) == 3
    says = "there is not enough memory for it; use a smaller --batch or another --device"
    assert capsys.readouterr().err == f"fheat: {scan}: {says}\n"


def test_a_scan_larger_than_the_machine_is_refused_before_it_starts(model, scans, tmp_path, monkeypatch, capsys):
    write_nifti(Volume(np.zeros((40, 32, 2400), np.uint8), np.eye(4)), scans / "long.nii.gz")
    small, large = (Predictor(model).memory(read_nifti(file)).total for file in sorted(scans.iterdir())[1:])
    monkeypatch.setattr(fheat.inference.stages, "machine_bytes", lambda: (small + large) // 2)
    assert main(["predict", model, str(scans), str(tmp_path / "out"), "--no-preview"]) == 3
    assert "refused long: " in capsys.readouterr().err
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [case["id"] for case in record["cases"]] == ["case0", "case1"]
    assert "long.nii.gz: would take " in record["refused"]["long"]
    assert "check its spacing, or use a larger machine" in record["refused"]["long"]


def test_a_header_that_no_scanner_writes_is_refused_and_the_other_scans_still_run(scans, tmp_path, capsys):
    """32^3 voxels of 900 mm: 70 million windows of la-4, which took the machine down when they were listed."""
    card = Card(preprocessing={"orientation": "RAS", "spacing": (0.625, 0.625, 0.625)})
    model = str(save(create_model("miniature", patch_size=SIZE), tmp_path / "model", card))
    stored = np.random.default_rng(0).integers(0, 99, (32, 32, 32), dtype=np.int16)
    write_nifti(Volume(stored, np.diag([900, 900, 900, 1])), scans / "huge.nii.gz")
    write_nifti(Volume(stored[:1, :1, :1], np.diag([0.001, 0.001, 0.001, 1])), scans / "tiny.nii.gz")
    (scans / "case1_0000.nii.gz").unlink()
    command = ["predict", model, str(scans), str(tmp_path / "out"), "--no-preview", "--stride", "32", "32", "32"]
    assert main(command) == 3
    error = capsys.readouterr().err
    assert "huge.nii.gz: spacing x is 900 mm, outside 0.0001 to 50 mm" in error
    assert "note: tiny does not look like a usual scan, so its mask may be wrong: intensity of every voxel is" in error
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [case["id"] for case in record["cases"]] == ["case0", "tiny"]
    assert {one["quantity"] for one in record["cases"][1]["unusual"]} >= {"intensity of every voxel", "spacing x (mm)"}
    assert main([*command, "--overwrite", "--allow", "implausible-spacing"]) == 3
    assert "huge.nii.gz: would take " in capsys.readouterr().err
    record = json.loads((tmp_path / "out" / "run-2.json").read_text())
    assert record["settings"]["allow"] == ["implausible-spacing"]


def test_regions_are_measured_with_what_lies_inside_them(scans, tmp_path):
    card = Card(
        classes=("whole", "core", "$\\frac{inner$"), regions=(1, 2, 3), preprocessing={"intensity": {"kind": "zscore"}}
    )
    folder = save(create_model("fheat_seg", patch_size=SIZE, out_channels=3), tmp_path / "model", card)
    assert main(["predict", str(folder), str(scans / "case0_0000.nii.gz"), str(tmp_path / "out")]) == 0
    (case,) = json.loads((tmp_path / "out" / "run.json").read_text())["cases"]
    mask = read_nifti(tmp_path / "out" / "case0.nii.gz")
    millilitres = [np.count_nonzero(mask.data >= least) * np.prod(mask.spacing) / 1000 for least in (1, 2, 3)]
    assert list(case["millilitres"]) == list(card.classes)
    assert list(case["millilitres"].values()) == pytest.approx(millilitres, abs=1e-3)
    assert millilitres[0] > millilitres[1] > millilitres[2] > 0


def test_every_entry_of_a_folder_with_series_is_a_scan(tmp_path):
    image = np.zeros((6, 5, 4), np.int16)
    save_series(slices(image, np.eye(4)), tmp_path / "series")
    for file in save_series(slices(image, np.eye(4)), tmp_path / "damaged").iterdir():
        file.write_bytes(b"\0" * 200)
    save_series(slices(image, np.eye(4)), tmp_path / ".hidden")
    for name in ("brain.nii.gz", "liver_0000.nii.gz", "liver_0001.nii.gz", "._brain.nii.gz", "notes.txt"):
        (tmp_path / name).touch()
    cases = {case.id: [path.name for path in case.images] for case in scans_at(tmp_path)}
    assert cases == {
        "brain": ["brain.nii.gz"],
        "damaged": ["damaged"],
        "liver": ["liver_0000.nii.gz", "liver_0001.nii.gz"],
        "series": ["series"],
    }
    (only,) = scans_at(tmp_path / "series")
    assert (only.id, only.images) == ("series", (tmp_path / "series",))


def test_the_index_of_a_disc_is_no_series(tmp_path):
    """A DICOMDIR bears the mark of a DICOM file: the series are in the folders beside it."""
    save_series(slices(np.zeros((6, 5, 4), np.int16), np.eye(4)), tmp_path / "series")
    (tmp_path / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    (tmp_path / "._IM1").write_bytes(bytes(128) + b"DICM")
    assert [(case.id, case.images) for case in scans_at(tmp_path)] == [("series", (tmp_path / "series",))]


def test_scans_that_say_too_little_are_refused(tmp_path):
    (tmp_path / "a.h5").touch()
    with pytest.raises(BadInput, match=r"a\.h5: states no spacing; give the folder"):
        scans_at(tmp_path / "a.h5")
    for channel in (0, 2, 4):
        write_nifti(Volume(np.zeros((4, 4, 4), np.int16), np.eye(4)), tmp_path / "scans" / f"a_000{channel}.nii.gz")
    (case,) = scans_at(tmp_path / "scans")
    assert len(case.images) == 3
    with pytest.raises(BadInput, match="channel _0001 of a is missing; add the file"):
        read_image(case)


def test_evaluate_says_what_does_not_belong_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mask = np.zeros((6, 6, 6), np.uint8)
    mask[2:4, 2:4, 2:4], mask[4] = 1, 2
    for name in ("out/a", "ref/a", "ref/b"):
        write_nifti(Volume(mask, np.eye(4)), tmp_path / f"{name}.nii.gz")
    assert main(["evaluate", "out", "ref", "--only-predicted", "--json", "--labels", "la=1", "--out", "la.json"]) == 0
    printed = capsys.readouterr()
    assert [row["case"] for row in json.loads(printed.out)["rows"]] == ["a"]
    assert "note: 1 references without a prediction are left out\n" in printed.err
    assert main(["evaluate", "out", "ref", "--only-predicted", "--labels", "ra=2", "--out", "ra.json"]) == 0
    capsys.readouterr()
    for words, says in (
        (["out", "ref", "--only-predicted", "--labels", "la=7"], "ref: no mask holds la = 7; check the values"),
        (["la.json", "ra.json"], "no class is in both: the first has la, the second ra"),
    ):
        assert main(["evaluate", *words]) == 3
        printed = capsys.readouterr()
        assert printed.out == ""
        assert says in printed.err
        assert printed.err.count("\n") == 1


def test_evaluate_takes_what_predict_wrote(model, scans, tmp_path, capsys):
    assert main(["predict", model, str(scans), str(tmp_path / "out"), "--no-preview"]) == 0
    for seed in range(2):
        write_nifti(phantom(seed, (40, 32, 24)).label, tmp_path / "labels" / f"case{seed}.nii.gz")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "out"), str(tmp_path / "labels"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["case"] for row in rows] == ["case0", "case1"]
    assert all(0 <= row["dice"] < 1 for row in rows)


def test_several_models_are_averaged_and_recorded(tmp_path, capsys):
    """The mask of a network with itself is its own; the record names every model and the hash of its weights."""
    torch.manual_seed(0)
    card = Card(classes=("background", "inside"))
    for name in ("one", "other"):
        save(create_model("miniature", patch_size=(32, 32, 32)), tmp_path / name, card)
    voxels = np.random.default_rng(0).normal(size=(36, 34, 33)).astype(np.float32)
    scan = tmp_path / "s.nii.gz"
    write_nifti(Volume(voxels, np.eye(4)), scan)
    words = ["--no-preview", "--runtime", "torch", "--device", "cpu"]
    for out, models in (("alone", ["one"]), ("twice", ["one", "one"]), ("both", ["one", "other"])):
        paths = [*(tmp_path / name for name in models), scan, tmp_path / out]
        main(["predict", *map(str, paths), *words])
    masks = [read_nifti(tmp_path / out / "s.nii.gz").data for out in ("alone", "twice")]
    assert np.array_equal(*masks)
    record = json.loads((tmp_path / "both" / "run.json").read_text())
    assert record["model"] == f"{tmp_path / 'one'}, {tmp_path / 'other'}"
    assert len(record["weights_sha256"].split(", ")) == 2
    assert "and 1 more" in capsys.readouterr().out


def test_the_place_of_a_scan_the_time_left_and_the_command(model, scans, tmp_path, capsys):
    words = ["predict", model, str(scans), str(tmp_path / "out"), "--no-preview", "--device", "cpu"]
    assert main(words) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "windows" in line]
    assert told[0].startswith("scan 1 of 2: case0: ")
    assert re.match(r"scan 2 of 2, about \d+ s left: case1: ", told[1])
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["command"].endswith(" ".join(words))
    age = datetime.now(UTC) - datetime.fromisoformat(record["date"])
    assert timedelta(0) <= age + timedelta(seconds=1) < timedelta(hours=1)
    assert {"fheat", "python", "torch", "numpy", "nibabel"} <= record["versions"].keys()


def test_no_time_is_told_from_scans_that_were_not_segmented(model, scans, tmp_path, capsys):
    (scans / "a_0000.nii.gz").write_bytes(b"none")
    assert main(["predict", model, str(scans), str(tmp_path / "out"), "--no-preview", "--device", "cpu"]) == 3
    told = [line for line in capsys.readouterr().err.splitlines() if "windows" in line]
    assert told[0].startswith("scan 2 of 3: case0: ")
    assert re.match(r"scan 3 of 3, about \d+ s left: case1: ", told[1])


def test_a_reference_is_drawn_and_one_of_another_grid_costs_no_mask(model, scans, tmp_path, capsys):
    first, second = (read_nifti(scans / f"case{seed}_0000.nii.gz") for seed in range(2))
    truth = tmp_path / "truth"
    write_nifti(Volume((first.data > np.median(first.data)).astype(np.uint8), first.affine), truth / "case0.nii.gz")
    write_nifti(Volume(np.zeros((3, 3, 3), np.uint8), second.affine), truth / "case1.nii.gz")
    words = ["predict", model, str(scans), str(tmp_path / "out"), "--device", "cpu"]
    assert main([*words, "--reference", str(truth), "--preview-window", "5", "95"]) == 0
    assert "note: case1: the picture has no reference, " in capsys.readouterr().err
    assert main([*words[:3], str(tmp_path / "plain"), "--device", "cpu", "--preview-window", "5", "95"]) == 0
    pictures = [[(tmp_path / out / f"case{n}.png").read_bytes() for out in ("out", "plain")] for n in range(2)]
    assert [drawn != plain for drawn, plain in pictures] == [True, False]
    assert main([*words, "--overwrite", "--preview-window", "95", "5"]) == 2
    assert main([*words, "--overwrite", "--reference", str(tmp_path / "none")]) == 3
    assert "none: has no reference of any scan, such as case0; give the folder of the" in capsys.readouterr().err
    (truth / "case0.nii.gz").rename(truth / "case0_seg.nii.gz")
    words[3] = str(tmp_path / "named")
    assert main([*words, "--reference", str(truth / "{id}_seg.nii.gz"), "--preview-window", "5", "95"]) == 0
    assert (tmp_path / "named" / "case0.png").read_bytes() == pictures[0][0]


def test_a_folder_of_runs_is_their_mean_and_stderr_names_them(model, scans, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copytree(model, f"seeds/{name}")
    scan = str(scans / "case0_0000.nii.gz")
    words = [scan, "out", "--no-preview", "--device", "cpu", "--runtime", "torch"]
    assert main(["predict", "seeds", *words]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("seeds: the mean of 2 networks: one, two\ncase0: ")
    assert " and 1 more (data not stated)\n" in printed.out
    assert json.loads((tmp_path / "out" / "run.json").read_text())["model"] == "seeds/one, seeds/two"
    other = load(model)
    other.card = other.card.model_copy(update={"window": None})
    save(other, "seeds/other")
    assert main(["predict", "seeds", *words]) == 3
    listed, refusal = capsys.readouterr().err.splitlines()
    assert listed == "seeds: the mean of 3 networks: one, other, two"
    says = "has other windows than seeds/one: none, not 32 x 32 x 32; average networks that were trained with one"
    assert refusal == f"fheat: seeds/other: {says} --patch-size"
    (tmp_path / "seeds" / "notes").mkdir()
    assert main(["predict", "seeds", *words]) == 3
    says = "holds notes beside runs or models, and it is neither; give the runs or models one by one, such as seeds/one"
    assert capsys.readouterr().err == f"fheat: seeds: {says}\n"

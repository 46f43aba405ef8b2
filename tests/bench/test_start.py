"""Starts: fresh processes with the caches that they should find, medians, and a program that times what it does."""

import json
import os

import numpy as np
import pytest

from fheat import Predictor
from fheat.bench import first_mask, start
from fheat.bench.process import environment, environment_with_cache, run_fresh
from fheat.bench.start import Start, runtime_of, start_times, states_of
from fheat.bench.stored import model_folders, write_scan
from fheat.inference.windows import Windows
from fheat.io import read_nifti
from fheat.models.folder import read_manifest
from fheat.system.errors import BadInput

WINDOWS = Windows((32, 32, 32), (16, 16, 16))
SHAPE = (48, 40, 36)


def told(words):
    return json.loads(words[1])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    place = tmp_path_factory.mktemp("start")
    folder = model_folders(["fheat_seg/survivor"], WINDOWS, place).folders["fheat_seg/survivor"]
    return folder, write_scan(place / "scan.nii.gz", SHAPE, folder)


def test_states():
    assert states_of("openvino") == ("no cache", "empty cache", "filled cache")
    assert states_of("auto") == ("empty cache", "filled cache")
    assert states_of("torch") == ("no cache",)
    assert runtime_of("cuda:1") == "auto"


def test_without_openvino_torch_runs_and_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(start, "missing_packages", lambda name: [name])
    assert runtime_of("cpu") == "torch"
    monkeypatch.setattr(start, "missing_packages", lambda name: [])
    assert runtime_of("cpu") == "openvino"


def test_each_state_finds_the_cache_that_it_should_and_medians_are_taken(monkeypatch, tmp_path):
    """Commands take 1, 2, 3, ... s; the parts of the n-th split take n s each, and the scan itself half a second."""
    commands, splits, progress = [], [], []

    def seconds(words, surroundings):
        commands.append((words, surroundings))
        return float(len(commands))

    def split(words, surroundings):
        splits.append((words, surroundings))
        parts = {"import torch": float(len(splits)), "first scan": 0.7, "second scan": 0.5}
        return "a line\n" + json.dumps({"parts": parts, "windows": 8, "window": [32] * 3, "stride": [16] * 3})

    monkeypatch.setattr(start, "seconds_fresh", seconds)
    monkeypatch.setattr(start, "run_fresh", split)
    one = Start("la-4", tmp_path / "scan.nii.gz", "cpu", "openvino", stride=(8, 8, 8))
    found = start_times({"la-4": one}, 3, lambda done, total: progress.append((done, total)))["la-4"]
    assert found["command_s"] == {"no cache": 4.0, "empty cache": 5.0, "filled cache": 6.0}
    assert found["ratio"] == {"no cache": 8.0, "empty cache": 10.0, "filled cache": 12.0}
    assert found["scan_s"] == 0.5
    assert found["parts_s"]["filled cache"] == {"import torch": 6.0, "first scan": 0.7}
    assert found["windows"] == 8
    assert progress == [(done, 18) for done in range(1, 19)]
    for made in (commands, splits):
        caches = [surroundings["FHEAT_CACHE"] for _, surroundings in made]
        assert caches[0::3] == [""] * 3
        assert caches[1::3] == caches[2::3]  # a filled cache is what the empty one became
        assert len(set(caches[1::3])) == 3  # and each round begins with another one
        assert all(made[1][1]["TRITON_CACHE_DIR"].startswith(made[1][1]["FHEAT_CACHE"]) for _ in made)
    assert {env["FHEAT_CACHE"] for _, env in commands} & {env["FHEAT_CACHE"] for _, env in splits} == {""}
    assert commands[0][0][:3] == ["fheat", "predict", "la-4"]
    assert commands[0][0][-4:] == ["--stride", "8", "8", "8"]
    assert told(splits[0][0])["stride"] == [8, 8, 8]
    assert told(splits[0][0])["runtime"] == "openvino"
    outs = [words[4] for words, _ in commands]
    assert len(set(outs)) == len(outs)  # no command finds the mask of another


def test_networks_take_turns(monkeypatch, tmp_path):
    order = []
    said = {"parts": {"first scan": 1.0, "second scan": 1.0}, "windows": 1, "window": [1] * 3, "stride": [1] * 3}
    monkeypatch.setattr(start, "seconds_fresh", lambda words, _: order.append(words[2]) or 1.0)
    monkeypatch.setattr(start, "run_fresh", lambda words, _: json.dumps(said))
    start_times({name: Start(name, tmp_path, "cpu", "torch") for name in ("a", "b")}, 4)
    assert [sorted(order[at : at + 2]) for at in range(0, 8, 2)] == [["a", "b"]] * 4


def test_a_network_that_cannot_be_started_is_left_out_and_told(monkeypatch, tmp_path):
    said = {"parts": {"first scan": 1.0, "second scan": 1.0}, "windows": 1, "window": [1] * 3, "stride": [1] * 3}

    def seconds(words, _):
        if words[2] == "bad":
            raise BadInput("python -m fheat", "ended with code 3 (openvino cannot run this network)", "time another")
        return 2.0

    monkeypatch.setattr(start, "seconds_fresh", seconds)
    monkeypatch.setattr(start, "run_fresh", lambda words, _: json.dumps(said))
    starts = {name: Start(name, tmp_path, "cpu", "openvino") for name in ("bad", "good")}
    notes = []
    found = start_times(starts, 2, notes=notes)
    assert list(found) == ["good"]
    assert notes == ["start: bad was left out: ended with code 3 (openvino cannot run this network)"]
    with pytest.raises(BadInput, match="ended with code 3"):
        start_times(starts, 1)
    with pytest.raises(BadInput, match="ended with code 3"):
        start_times({"bad": starts["bad"]}, 1, notes=[])


def test_the_program_segments_as_a_predictor_does(stored, tmp_path):
    folder, scan = stored
    order = {"model": str(folder), "scan": str(scan), "mask": str(tmp_path / "mask.nii.gz"), "device": "cpu"}
    found = first_mask.main({**order, "precision": "float32", "runtime": "torch", "stride": None})
    assert list(found["parts"]) == ["begin ahead", "import torch", "import fheat", "model", "first scan", "second scan"]
    assert min(found["parts"].values()) >= 0
    assert found["windows"] == 2 * 2 * 2
    assert found["stride"] == [16, 16, 16]
    mask = Predictor(folder, device="cpu", runtime="torch").segment(scan)
    assert np.array_equal(read_nifti(tmp_path / "mask.nii.gz").data, mask.data)
    dense = first_mask.main({**order, "precision": "float32", "runtime": "torch", "stride": [8, 8, 4]})
    assert dense["windows"] == WINDOWS.__class__((32, 32, 32), (8, 8, 4)).count(SHAPE) == 3 * 2 * 2


def test_models_and_scans_on_the_spot(stored, tmp_path):
    folder, scan = stored
    assert read_manifest(folder).card.window.stride == (16, 16, 16)
    assert read_nifti(scan).data.shape == SHAPE
    zoo = model_folders(["la-4"], WINDOWS, tmp_path).folders["la-4"]
    assert not list(tmp_path.iterdir())
    spacing = read_manifest(zoo).card.preprocessing.spacing
    there = read_nifti(write_scan(tmp_path / "la.nii.gz", SHAPE, zoo))
    assert there.spacing == pytest.approx(spacing)
    assert Predictor(zoo, device="cpu").scan(there).shape == SHAPE  # nothing is resampled
    assert model_folders([str(folder)], WINDOWS, tmp_path).folders == {str(folder): folder}


def test_models_that_cannot_be_started_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="did you mean 'fheat_seg'"):
        model_folders(["fheat_sge"], WINDOWS, tmp_path)
    for name in ("segresnet/compiled", "fheat_seg/plain"):
        with pytest.raises(ValueError, match="leave out /plain and /compiled"):
            model_folders([name], WINDOWS, tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "monai.networks.nets", None)
    found = model_folders(["fheat_seg", "segresnet"], WINDOWS, tmp_path)
    assert list(found.folders) == ["fheat_seg"]
    assert "not installed" in found.missing["segresnet"]


def test_fresh_processes_keep_bytecode_and_have_our_threads(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in environment()
    assert environment()["OMP_NUM_THREADS"] == "1"  # those of the tests
    assert environment()["PATH"] == os.environ["PATH"]
    assert environment_with_cache(None)["FHEAT_CACHE"] == ""
    assert environment_with_cache(tmp_path)["FHEAT_CACHE"] == str(tmp_path)


def test_a_process_that_fails_is_one_line():
    with pytest.raises(BadInput) as caught:
        run_fresh(["fheat", "nonsense"], environment())
    assert "ended with code 2" in str(caught.value)
    assert "nonsense" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_real_start(stored):
    folder, scan = stored
    one = start_times({"small": Start(str(folder), scan, "cpu", "torch", "float32")}, 1)["small"]
    assert set(one["command_s"]) == {"no cache"}
    assert one["command_s"]["no cache"] > one["scan_s"] > 0
    assert one["parts_s"]["no cache"]["import torch"] > 0.1  # nothing had imported it
    assert one["windows"] == 8

"""`fheat bench` on the command line: what it prints, writes and refuses."""

import errno
import json
import shutil

import pytest

from fheat.cli.main import main
from fheat.models.zoo import zoo_folder

TINY = ["--patch", "32", "32", "32", "--rounds", "1", "--device", "cpu"]


@pytest.mark.slow
def test_prints_a_table_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "window", "--models", "fheat_seg/retired,light_unetr", *TINY]) == 0
    text = capsys.readouterr().out
    assert "window: 32x32x32, batch 1" in text
    assert "fheat_seg/retired" in text
    assert "1.00 x" in text
    assert not list(tmp_path.iterdir())


def test_writes_what_it_prints(capsys, tmp_path):
    out = tmp_path / "result"
    words = ["bench", "window", "--models", "fheat_seg", *TINY, "--batches", "1,2", "--out", str(out)]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "bench.json").read_text())
    assert (out / "bench.png").exists()
    shown = "fheat bench window --models fheat_seg --patch 32 32 32 --rounds 1 --device cpu --batches 1,2 --json"
    assert printed["command"] == shown  # not where it was written
    assert printed["seed"] == 0
    assert main(words) == 3
    assert "exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_files_are_written_before_anything_is_printed(tmp_path, monkeypatch):
    def full(*words, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builtins.print", full)
    assert main(["bench", "window", "--models", "fheat_seg", *TINY, "--out", str(tmp_path)]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.png"}


def test_threads(capsys):
    assert main(["bench", "window", "--models", "fheat_seg", *TINY, "--threads", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["threads"] == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["window", "--models", "fheat_sge"], "did you mean 'fheat_seg'"),
        (["window", "--sizes", "64,32"], "sizes='64,32' is not usable"),
        (["window", "--batches", "0"], "batches='0' is not usable"),
        (["scan", "--sizes", "32,64"], "belong to 'fheat bench window'"),
        (["window", "--device", "tpu9"], "device 'tpu9' is unknown"),
        (["step", "--patch", "16", "40", "40"], "at least 32"),
        (["window", "--threads", "0"], "threads=0"),
        (["window", "--threads", "9" * 20], "is not usable: give 1 to 1,024"),
        (["scan", "--batch", "9" * 20], "is not usable: give at most 65,536"),
        (["window", "--rounds", "0"], "rounds=0"),
        (["gpu"], "invalid choice 'gpu'"),
        (["start", "--cases", "3"], "cases belongs to 'fheat bench read'"),
        (["cohort", "--cases", "1"], "cases=1"),
        (["start", "--data", "scans"], "data belongs to 'fheat bench read'"),
        (["start", "--models", "fheat_seg/plain"], "cannot be started as a model folder"),
        (["start", "--models", "la-44"], "la-44"),
        (["start", "--scan", "8", "64", "64"], "at least 24 voxels"),
    ],
)
def test_refuses_in_one_line(words, says, capsys):
    assert main(["bench", *words, *([] if "--device" in words else ["--device", "cpu"])]) == 2
    found = capsys.readouterr()
    assert says in found.err
    assert found.err.count("\n") == 1
    assert "fheat bench --help" in found.err


@pytest.mark.parametrize("what", ["start", "cohort"])
def test_a_damaged_model_is_named_before_a_process_is_started_for_it(what, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("fheat.bench.process.subprocess.run", None)
    weights = shutil.copytree(zoo_folder("phantom"), tmp_path / "model") / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert main(["bench", what, "--models", str(weights.parent), "--device", "cpu"]) == 3
    assert capsys.readouterr().err.startswith(f"fheat: {weights}: sha256 differs from the one in model.json")


def test_no_cuda_is_one_line(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["bench", "window", "--device", "cuda"]) == 2
    assert "device 'cuda' cannot be used" in capsys.readouterr().err


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "Example: fheat bench window --sizes" in text
    assert "Example: fheat bench start --models la-4" in text
    assert "operator" in text


def test_reading_is_printed_and_a_folder_without_scans_is_bad_input(capsys, tmp_path):
    words = ["bench", "read", "--cases", "2", "--scan", "32", "32", "32", "--rounds", "1", "--device", "cpu"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "read: 2 scans of 32x32x32" in text
    assert "2 scans with labels into the store" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["nibabel", "trusted", "confined"]
    assert main([*words, "--data", str(tmp_path)]) == 3
    assert capsys.readouterr().err.count("\n") == 1

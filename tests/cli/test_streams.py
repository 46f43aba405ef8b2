"""Standard output whose reader leaves, as `head -1` does: the work goes on, and nobody is told of it."""

import errno
import json
import os
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from fheat import Card, create_model, save
from fheat.cli.main import main
from fheat.cli.streams import prepare_streams
from fheat.io import Volume, write_nifti
from fheat.models.card import Window


@pytest.fixture
def becomes(monkeypatch):
    """Return what makes a file, by its number, a standard stream until the end of a test."""
    with ExitStack() as closing:

        def become(name, number):
            stream = os.fdopen(number, "w", encoding="utf-8")
            closing.callback(stream.close)
            monkeypatch.setattr(sys, name, stream)

        yield become
        monkeypatch.undo()


@pytest.fixture
def left(becomes):
    """Return what makes a standard stream a pipe whose reader has left."""

    def leave(name):
        reading, writing = os.pipe()
        os.close(reading)
        becomes(name, writing)

    return leave


@pytest.fixture
def scans(tmp_path):
    """Return a folder with two scans."""
    noise = np.random.default_rng(0)
    for name in "ab":
        scan = noise.normal(size=(32, 32, 32)).astype(np.float32)
        write_nifti(Volume(scan, np.eye(4)), tmp_path / "scans" / f"{name}.nii.gz")
    return tmp_path / "scans"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_masks_are_written_whoever_reads_the_lines(left, scans, tmp_path, name):
    torch.manual_seed(0)
    network = create_model("miniature", patch_size=(32, 32, 32))
    card = Card(
        classes=("background", "chamber"),
        preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}},
        window=Window(size=(32, 32, 32), stride=(32, 32, 32)),
    )
    model, out = save(network, tmp_path / "model", card), tmp_path / "out"
    left(name)
    assert main(["predict", str(model), str(scans), str(out), "--no-preview", "--device", "cpu"]) == 0
    assert json.loads((out / "run.json").read_text())["complete"] is True
    assert sorted(path.name for path in out.iterdir()) == ["a.nii.gz", "b.nii.gz", "run.json"]


@pytest.fixture
def masks(tmp_path):
    mask = np.zeros((8, 8, 8), np.uint8)
    mask[2:5, 2:5, 2:5] = 1
    for name in "ab":
        write_nifti(Volume(mask, np.eye(4)), tmp_path / "masks" / f"{name}.nii.gz")
    return tmp_path / "masks"


def test_a_table_is_written_whoever_reads_it(left, masks, tmp_path):
    left("stdout")
    files = [tmp_path / name for name in ("o.json", "o.csv")]
    words = ["--out", str(files[0]), "--csv", str(files[1])]
    assert main(["evaluate", str(masks), str(masks), *words]) == 0
    assert all(file.stat().st_size for file in files)


def test_what_evaluate_found_is_written_before_it_is_printed(masks, tmp_path, monkeypatch):
    """Where printing fails for another reason, such as a full disk, the files are there."""

    def full(*words, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builtins.print", full)
    file = tmp_path / "o.json"
    assert main(["evaluate", str(masks), str(masks), "--out", str(file)]) == 4
    assert file.read_text().startswith("{")


def test_a_refusal_keeps_its_code(left, tmp_path):
    left("stdout")
    left("stderr")
    assert main(["evaluate", str(tmp_path / "no"), str(tmp_path / "no")]) == 3


def test_a_stream_with_a_reader_is_as_it_was(becomes):
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as reader:
        becomes("stdout", writing)
        print("before", end=" ")
        prepare_streams()
        ours = sys.stdout
        prepare_streams()
        assert sys.stdout is ours  # a second call leaves it
        print("after é \udce9", flush=True)
        assert reader.readline() == "before after é \\udce9\n"
        reader.close()
        print("nobody hears this", flush=True)
        assert os.path.samestat(os.fstat(writing), os.stat(os.devnull))


def test_what_is_wrong_with_a_file_is_still_said(becomes):
    """Only a reader that leaves is forgiven."""
    full = "/dev/full"
    if not os.path.exists(full):
        pytest.skip("no /dev/full")
    becomes("stdout", os.open(full, os.O_WRONLY))
    assert main(["models", "--methods"]) == 4


def test_a_reader_that_leaves_a_table_is_no_error(left, capsys):
    """The library that draws tables ends a program with 1 where it meets a broken pipe."""
    left("stdout")
    assert main(["models", "--methods"]) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        ("--help", []),
        ("--help", ["-u"]),
        ("data phantom scans --cases 1 --test 0 --shape 34 34 34 --json", []),
        ("data phantom --help", []),
    ],
)
def test_a_reader_that_leaves_is_no_error(words, unbuffered, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, *unbuffered, "-m", "fheat", *words.split()]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(writing)
    assert (done.stderr, done.returncode) == ("", 0)

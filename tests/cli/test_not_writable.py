"""A folder in which nothing may be written: it is named as the user gave it, with exit code 4 and before the work."""

import builtins
import io
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fheat.cli.main import main
from fheat.data.phantom import write_phantoms
from fheat.experiments.engine import run_all
from fheat.inference.ledger import Journal
from fheat.io import Volume, write_nifti
from fheat.system.claims import claimed
from fheat.system.errors import NotWritable, located
from fheat.system.files import check_folder, write_file, write_folder


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """Return a folder in which nothing can be written, nor in those that it holds; root is kept out by force."""
    folder = tmp_path / "closed"
    folder.mkdir()
    if hasattr(os, "geteuid") and os.geteuid() != 0:
        folder.chmod(0o500)
        yield folder
        folder.chmod(0o700)
        return

    def kept_out(function, writes=lambda *_: True):
        def attempt(path, *arguments, **options):
            if folder in Path(str(path)).parents and writes(*arguments):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **options)

        return attempt

    opened = kept_out(open, lambda mode="r", *_: set(mode) & set("wax"))
    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(os, "mkdir", kept_out(os.mkdir))
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (Path(path) == folder and mode & os.W_OK) and access(path, mode)
    )
    yield folder


def write_claim(folder):
    with claimed(folder / ".claims"):
        pass


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_file(folder / "mask.nii.gz", b"mask"),
        lambda folder: write_folder(folder / "model", {"weights": b""}),
        lambda folder: Journal(folder, {}),
        write_claim,
        check_folder,
        lambda folder: check_folder(folder / "new" / "newer"),
    ],
    ids=["file", "folder", "journal", "claim", "check", "check of a new one"],
)
def test_the_folder_is_named_and_no_file_that_nobody_asked_for(closed, write):
    with pytest.raises(PermissionError) as refused:
        write(closed)
    assert refused.value.filename == str(closed)


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_folder_that_cannot_be_made_is_named_as_it_was_given(closed, write):
    with pytest.raises(NotWritable) as refused:
        write(closed / "new" / "newer" / "result", {} if write is write_folder else b"")
    assert refused.value.filename == str(closed / "new" / "newer")


@pytest.mark.parametrize("given", [".masks", "../.masks", ".masks/.new", "here/.masks"])
def test_a_hidden_folder_is_named_as_it_was_given(given):
    error = PermissionError(13, "Permission denied", f"{given}/.a.nii.gz.0123456789abcdef")
    assert located(error, Path(given) / "a.nii.gz").filename == given


def test_a_claim_that_cannot_beat_names_the_folder_that_it_is_for(tmp_path, monkeypatch):
    def refuse(target, data):
        raise located(PermissionError(13, "Permission denied", "fresh"), target)

    with claimed(tmp_path / ".run" / ".claims", every=60) as claim:
        monkeypatch.setattr("fheat.system.claims.write_file", refuse)
        with pytest.raises(NotWritable) as refused:
            claim.beat()
    assert refused.value.filename == str(tmp_path / ".run")


def test_runs_are_not_begun_where_their_logs_cannot_be(closed):
    run = SimpleNamespace(name="run", outcome=lambda folder: None)
    with pytest.raises(NotWritable) as refused:
        run_all([run], closed, engine=None)
    assert refused.value.filename == str(closed)


def test_whoever_only_looks_may_look(closed):
    check_folder(closed, writable=False)


@pytest.fixture
def scans(tmp_path):
    write_phantoms(tmp_path / "scans", 3, test=1, shape=(34, 34, 34))
    return tmp_path / "scans"


@pytest.mark.parametrize(
    "words",
    [
        "predict phantom SCANS/imagesTs CLOSED --no-preview --device cpu",
        "predict phantom SCANS/imagesTs CLOSED/new/newer --no-preview --device cpu",
        "data phantom CLOSED/new --cases 1 --test 0 --shape 34 34 34",
        "train SCANS --out CLOSED --iterations 1 --patch-size 32 32 32 --labelled 1 --method supervised --device cpu",
        "evaluate SCANS/labelsTr SCANS/labelsTr --out CLOSED/result.json",
        "export phantom CLOSED/model.onnx --to onnx",
        "simulate --out CLOSED",
        "demo --out CLOSED",
    ],
    ids=lambda words: words.split()[0],
)
def test_one_line_names_the_folder_that_was_given(closed, scans, words, capsys):
    assert main(words.replace("SCANS", str(scans)).replace("CLOSED", str(closed)).split()) == 4
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == f"fheat: {closed}: Permission denied; free space or choose a writable folder"
    assert said.out == ""
    assert not list(closed.iterdir())


def test_it_is_said_before_the_work(closed, tmp_path, monkeypatch):
    mask = np.zeros((8, 8, 8), np.uint8)
    write_nifti(Volume(mask, np.eye(4)), tmp_path / "masks" / "a.nii.gz")
    monkeypatch.setattr("fheat.cli.evaluate.evaluate_files", lambda *_, **__: pytest.fail("it was evaluated"))
    masks = str(tmp_path / "masks")
    assert main(["evaluate", masks, masks, "--csv", str(closed / "result.csv")]) == 4

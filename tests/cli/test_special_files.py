"""Named pipes, sockets, devices, folders and links to them in the place of every file that a verb reads: one line."""

import os
import shutil
import signal
import socket
from contextlib import contextmanager

import numpy as np
import pytest

from fheat import BadInput
from fheat.cli.main import main
from fheat.data.phantom import phantom
from fheat.io import write_nifti
from fheat.system.files import open_regular, read_capped
from tests.io.dicom_series import save as save_series
from tests.io.dicom_series import slices

pytestmark = pytest.mark.skipif(os.name != "posix", reason="these kinds of files are those of POSIX")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        before = os.getcwd()
        os.chdir(path.parent)  # the name of a socket must be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(before)


def make_link_to_a_pipe(path):
    os.mkfifo(pipe_beside(path))
    path.symlink_to(pipe_beside(path).name)


def pipe_beside(path):
    return path.with_name(f".{path.name}.pipe")


KINDS = {
    "pipe": (os.mkfifo, "is a named pipe"),
    "link to a pipe": (make_link_to_a_pipe, "is a named pipe"),
    "socket": (make_socket, "is a socket"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "empty device": (lambda path: path.symlink_to("/dev/null"), "is a device"),
    "loop": (lambda path: path.symlink_to(path.name), "is a symbolic link that leads back to itself"),
    "folder": (os.mkdir, "is a folder"),
    "broken link": (lambda path: path.symlink_to("nowhere"), None),
}
SCAN, MASK = "case_0000.nii.gz", "case.nii.gz"
PLACES = {
    "predict scan": ("predict run/final s/case_0000.nii.gz out", f"s/{SCAN}"),
    "predict folder": ("predict run/final s out", f"s/{SCAN}"),
    "predict slice": ("predict run/final x out", "x/9.dcm"),
    "predict card": (f"predict run/final s/{SCAN} out", "run/final/model.json"),
    "predict weights": (f"predict run/final s/{SCAN} out", "run/final/model.safetensors"),
    "evaluate file": (f"evaluate m/{MASK} r/{MASK}", f"m/{MASK}"),
    "evaluate folder": ("evaluate m r", f"r/{MASK}"),
    "evaluate classes": ("evaluate m r", "r/dataset.json"),
    "evaluate results": ("evaluate a.json b.json", "a.json"),
    "check image": ("data check d", f"d/imagesTr/{SCAN}"),
    "check label": ("data check d", f"d/labelsTr/{MASK}"),
    "check description": ("data check d", "d/dataset.json"),
    "check splits": ("data check d", "d/splits.json"),
    "check list": ("data check h", "h/train.list"),
    "check second list": ("data check h", "h/val.list"),
    "check h5": ("data check h", "h/case.h5"),
    "check datalist": ("data check list.json", "list.json"),
    "contrast": ("data contrast --from contrast.json", "contrast.json"),
    "train settings": ("train d --config c.toml --out new", "c.toml"),
    "train label": ("train d --network miniature --labelled 1 --out new --device cpu", f"d/labelsTr/{MASK}"),
    "resume settings": ("train --resume --out run --iterations 7", "run/config.toml"),
    "sweep": ("sweep sweep.toml --out new", "sweep.toml"),
    "report log": ("report run --scans 0", "run/log.jsonl"),
    "allocation card": ("allocation run/final", "run/final/model.json"),
    "allocation analysis": ("allocation --from analysis.json", "analysis.json"),
    "probe card": ("probe run/final --data d", "run/final/model.json"),
}
ALLOWED_FOLDERS = {"evaluate results": 2}
"""Exit codes where a folder makes sense: it may hold masks."""


@contextmanager
def patience(seconds=120):
    """Raise an error in what waits for a pipe for ever."""

    def give_up(number, frame):
        raise TimeoutError("it waits, or reads without an end")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def build(folder, finished):
    """Make everything that the commands read, in a folder that becomes the working directory."""
    shutil.copytree(finished, folder / "run")
    made = phantom(0, (26, 24, 25))
    write_nifti(made.image, folder / "s" / SCAN)
    write_nifti(made.image, folder / "d" / "imagesTr" / SCAN)
    for place in ("m", "r", "d/labelsTr"):
        write_nifti(made.label, folder / place / MASK)
    (folder / "d" / "dataset.json").write_text(
        '{"channel_names": {"0": "MR"}, "labels": {"background": 0, "chamber": 1}, "numTraining": 1, '
        '"file_ending": ".nii.gz"}'
    )
    save_series(slices(made.image.data.astype(np.int16), np.diag([1, 1, 2, 1])), folder / "x")
    (folder / "h").mkdir()
    (folder / "h" / "train.list").write_text("case\n")
    (folder / "h" / "case.h5").write_bytes(b"")
    for name in ("a.json", "b.json"):
        (folder / name).write_text("{}")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    make, says = KINDS[kind]
    make(tmp_path / "it")
    with patience():
        for read in (open_regular, lambda path: read_capped(path, 100)):
            with pytest.raises(BadInput if says else FileNotFoundError, match=says):
                read(tmp_path / "it")


def test_a_file_that_becomes_a_pipe_after_the_first_look(tmp_path, monkeypatch):
    path = tmp_path / "it"
    path.write_bytes(b"x")
    look = os.stat

    def swap(where, *arguments, **options):
        found = look(where, *arguments, **options)
        if where == path:
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "stat", swap)
    with patience(), pytest.raises(BadInput, match="is a named pipe"):
        open_regular(path)


def test_reads_are_capped(tmp_path):
    path = tmp_path / "it"
    path.write_bytes(bytes(100))
    assert read_capped(path, 100) == bytes(100)
    with pytest.raises(BadInput, match="has 100 bytes, over the limit of 99"):
        read_capped(path, 99)
    os.truncate(path, 2**40)
    with pytest.raises(BadInput, match="over the limit"):
        read_capped(path, 2**30)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_every_verb_refuses_every_kind(tmp_path, monkeypatch, capsys, finished, place):
    words, where = PLACES[place]
    build(tmp_path, finished)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / where
    path.unlink(missing_ok=True)
    for kind, (make, _) in KINDS.items():
        make(path)
        with patience():
            code = main(words.split())
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fheat: ")]
        expected = ALLOWED_FOLDERS.get(place, 3) if kind == "folder" else 3
        assert (code, len(lines)) == (expected, min(expected, 1)), (kind, code, lines)
        shutil.rmtree("out", ignore_errors=True)
        shutil.rmtree(path) if kind == "folder" else path.unlink()
        pipe_beside(path).unlink(missing_ok=True)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_whatever_it_is(tmp_path, monkeypatch, capsys, finished):
    build(tmp_path, finished)
    monkeypatch.chdir(tmp_path)
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    for kind, (make, _) in KINDS.items():
        for checkpoint in checkpoints:
            for name in os.listdir(checkpoint):
                path = checkpoint / name
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                if not name.startswith("."):
                    make(path)
        with patience():
            assert main(["train", "--resume", "--out", "run", "--iterations", "8", "--device", "cpu"]) == 3, kind
        assert "has no checkpoint that is whole" in capsys.readouterr().err

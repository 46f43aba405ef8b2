"""What nobody foresaw: one line, an exit code of the list, and never a traceback."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fheat.cli.main import main
from fheat.io import Volume, write_nifti
from fheat.system.errors import NotWritable

posix = pytest.mark.skipif(os.name != "posix", reason="file names and streams of POSIX")
BAD_NAME = os.fsdecode(b"caf\xe9\x1b[31m\n")
"""A file name that is no UTF-8, with an escape sequence and a line end."""


def fails_with(error):
    def run(arguments):
        raise error

    return run


def endless(arguments):
    return endless(arguments)


@pytest.mark.parametrize(
    "run",
    [fails_with(KeyError("patient\nname")), fails_with(AssertionError()), fails_with(BrokenPipeError()), endless],
    ids=["key", "assertion", "pipe", "recursion"],
)
def test_an_unforeseen_error_is_one_line_and_a_file(run, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("fheat.cli.models.run", run)
    assert main(["models", "--json", BAD_NAME]) == 70
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    (file,) = tmp_path.iterdir()
    assert re.match(
        rf"fheat: internal error \(\w+: .*\); {re.escape(str(file))} has the details; please report it", error
    )
    text = file.read_text()
    assert text.startswith(r"command: fheat models --json 'caf\udce9\x1b[31m\n'")
    assert "Traceback" in text
    assert "Python 3." in text
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_a_place_for_the_file_it_is_still_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr("fheat.cli.models.run", fails_with(KeyError("x")))
    assert main(["models"]) == 70
    assert "no file could be written about it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (MemoryError(), 4, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 4, "not enough memory"),
        (
            OSError(errno.ENOSPC, "No space left on device", "masks/a"),
            4,
            "masks/a: No space left on device; free space",
        ),
        (OSError(errno.EFBIG, "File too large", "masks/a"), 4, "masks/a: File too large; free space"),
        (OSError(errno.EROFS, "Read-only file system", "masks/a"), 4, "Read-only file system; free space"),
        (NotWritable(errno.EACCES, "Permission denied", "masks"), 4, "masks: Permission denied; free space"),
        (OSError(errno.EACCES, "Permission denied", "tests"), 4, "tests: Permission denied; free space"),
        (
            OSError(errno.EACCES, "Permission denied", "nowhere/a.nii"),
            4,
            "nowhere/a.nii: cannot be read (Permission denied); give yourself permission to read it",
        ),
        (OSError("a library's own words"), 3, "output: a library's own words; choose another path"),
    ],
)
def test_what_the_system_says(error, code, says, monkeypatch, capsys):
    monkeypatch.setattr("fheat.cli.models.run", fails_with(error))
    assert main(["models"]) == code
    captured = capsys.readouterr().err
    assert says in captured
    assert captured.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_one_line_and_its_code(number, monkeypatch, capsys):
    monkeypatch.setattr("fheat.cli.models.run", lambda arguments: signal.raise_signal(number))
    assert main(["models"]) == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert capsys.readouterr().err == "fheat: interrupted\n"


EARLY = """
import signal, sys
module, number, *words = sys.argv[1:]
class Finder:
    def find_spec(self, name, *rest):
        if name == module:
            signal.raise_signal(int(number))
sys.meta_path.insert(0, Finder())
from fheat.cli.main import script
sys.argv[1:] = words
script()
"""
"""The program, to which a signal comes while it imports a module."""


@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("module", ["fheat.cli.models", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_signal_during_imports(number, code, module):
    command = [sys.executable, "-c", EARLY, module, str(int(number)), "models"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "fheat: interrupted\n")


LEAVING = """
import atexit, gc, sys, threading, time
from fheat.cli import main as program
def work():
    time.sleep(0.2)
    print("a thread", end=", ")
def main():
    print(gc.isenabled(), end=", ")
    atexit.register(print, "what was to be done at the end", end="")
    threading.Thread(target=work).start()
    class Slow:
        def __init__(self):
            print("made", end=", ")
        def __del__(self):
            print("taken apart", end=", ")
    program.until_the_end(Slow)
    program.until_the_end(Slow)
    return CODE
program.main = main
program.script()
"""
"""The program, which leaves work behind: a thread, a call at the end, and two things of which it holds the second."""


@pytest.mark.parametrize("code", [0, 3, 70])
def test_a_program_leaves_with_its_code_and_nothing_is_lost(code):
    done = subprocess.run([sys.executable, "-c", LEAVING.replace("CODE", str(code))], capture_output=True, text=True)
    said = "False, made, taken apart, made, a thread, what was to be done at the end"
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


def test_a_program_that_fails_before_its_end_leaves_as_python_does():
    code = LEAVING.replace("return CODE", "raise KeyError('unforeseen')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "KeyError: 'unforeseen'" in done.stderr
    assert done.stdout.startswith("False, made, taken apart, made, a thread, what was to be done at the end")


@posix
@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1"])
def test_streams_that_are_closed_or_full(streams, tmp_path):
    """With standard output closed, its number must not become that of a file that is written."""
    if "full" in streams and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    words = "data phantom scans --cases 1 --test 0 --shape 34 34 34"
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m fheat {words} {streams}"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == (4 if ">/dev/full" in streams.split() else 0)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert (tmp_path / "scans" / "dataset.json").read_text().startswith("{")


CALLS = (
    ["evaluate", "pred", "ref"],
    ["evaluate", "pred", "ref", "--json", "--out", "o.json", "--csv", "o.csv"],
    ["data", "check", "ref"],
    ["data", "check", "ref", "--json"],
    ["predict", BAD_NAME, BAD_NAME, BAD_NAME],
    ["report", BAD_NAME],
    [BAD_NAME],
)


@pytest.fixture
def masks_of_bad_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mask = np.zeros((34, 34, 34), np.uint8)
    mask[3:9, 3:9, 3:9] = 1
    for folder in ("pred", "ref"):
        write_nifti(Volume(mask, np.eye(4)), tmp_path / folder / f"{BAD_NAME}.nii.gz")
        (tmp_path / folder / f"{BAD_NAME}bad.nii.gz").write_bytes(b"none")


@posix
@pytest.mark.parametrize(
    "words", CALLS, ids=["evaluate", "evaluate-json", "check", "check-json", "predict", "report", "verb"]
)
def test_names_that_are_no_text(words, masks_of_bad_names, capfdbinary):
    """One mask of such a name is sound and one is not: lines, JSON and CSV have both, and no byte is obeyed."""
    assert main(words) in (2, 3)
    printed = b"".join(capfdbinary.readouterr())
    assert b"\x1b" not in printed
    assert b"Traceback" not in printed
    assert rb"caf\udce9\x1b[31m\n" in printed or b"--json" in map(os.fsencode, words)


@posix
@pytest.mark.slow
@pytest.mark.parametrize("words", CALLS[:3], ids=["evaluate", "evaluate-json", "check"])
def test_names_that_are_no_text_where_only_ascii_is_printed(words, masks_of_bad_names):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "fheat", *words]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **ascii_only})
    assert done.returncode == 3, done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr

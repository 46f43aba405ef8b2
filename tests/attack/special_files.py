"""The matrix of special files: `python -m tests.attack.special_files [--store FILE]`.

A file that is no plain file (a FIFO, a device, a socket, a loop of links, ...) stands in every place where a verb of
the program opens a file. Every call must end in time with a documented exit code and one line, and without a traceback.
A special file as input is never fine; as output it may be replaced by a plain file.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.attack.run import crowding
from tests.attack.worker import HEADROOM

SECONDS = 10.0
"""Longest time of a call on a machine that is not crowded; a verb may import a runtime first."""
PRELOADED = ("fheat.cli.main", *(f"fheat.cli.{verb}" for verb in ("predict", "evaluate", "train", "sweep", "data")),
             "fheat.cli.report", "fheat.cli.allocation", "fheat.cli.probe", "fheat.cli.simulate",
             "fheat.cli.data_check", "fheat.cli.data_prepare", "fheat.cli.data_contrast", "fheat.report.write",
             "pydicom", "nrrd", "h5py", "fheat.training.trainer", "fheat.inference.folder")  # fmt: skip


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has at most 107 bytes
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "link to /dev/full": lambda path: path.symlink_to("/dev/full"),
    "link to /dev/null": lambda path: path.symlink_to("/dev/null"),
    "link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "socket": _socket,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "folder": lambda path: path.mkdir(),
    "unreadable": lambda path: path.touch(0o000),
    "empty": lambda path: path.touch(),
    "sparse, 1 TiB": _huge,
}


@dataclass(frozen=True)
class Place:
    """A place where a verb opens a file: its path below the case's folder, and the words of the command line."""

    path: str
    words: str
    output: bool = False

    @property
    def verb(self) -> str:
        """The verb, with its subject for `fheat data`."""
        return " ".join(self.words.split()[: 2 if self.words.startswith("data") else 1])


DATA = "dataset.json", "splits.json", "imagesTr/phantom_0000_0000.nii.gz", "labelsTr/phantom_0000.nii.gz"
PLACES = (
    *(Place(f"model/{name}", "predict model scan.nii.gz out") for name in ("model.json", "model.safetensors")),
    Place("other", "predict other scan.nii.gz out"),
    *(Place(f"a{ending}", f"predict model a{ending} out") for ending in (".nii", ".nii.gz", ".nrrd", ".h5")),
    Place("series/001.dcm", "predict model series out"),
    Place("scans/imagesTr/phantom_0000_0000.nii.gz", "predict model scans/imagesTr out"),
    *(Place(f"scans/{name}", "predict model scans out") for name in DATA[:2]),
    Place("out", "predict model scan.nii.gz out", output=True),
    Place("a.nii.gz", "evaluate a.nii.gz scan.nii.gz"),
    Place("a.nii.gz", "evaluate mask.nii.gz a.nii.gz"),
    Place("a.json", "evaluate a.json scores.json"),
    Place("a.csv", "evaluate scores.json a.csv"),
    Place("masks/phantom_0000.nii.gz", "evaluate masks scans/labelsTr"),
    Place("a.csv", "evaluate mask.nii.gz mask.nii.gz --csv a.csv", output=True),
    Place("a.json", "evaluate mask.nii.gz mask.nii.gz --out a.json", output=True),
    Place("a.toml", "train --config a.toml --out new --device cpu"),
    *(Place(f"scans/{name}", "train scans --out new --iterations 1 --device cpu TINY") for name in DATA),
    Place("start/model.json", "train scans --out new --iterations 1 --device cpu --network.start start"),
    Place("new", "train scans --out new --iterations 1 --device cpu TINY", output=True),
    *(Place(f"run/{name}", "train --resume --out run --device cpu") for name in ("config.toml",)),
    Place("a.toml", "sweep a.toml --out runs"),
    Place("runs", "sweep sweep.toml --out runs", output=True),
    Place("other", "data check other"),
    *(Place(f"scans/{name}", "data check scans") for name in DATA),
    Place("lists/train.list", "data check lists"),
    Place("lists/a.h5", "data check lists"),
    Place("other", "data prepare la other prepared"),
    Place("a.json", "data contrast --from a.json"),
    Place("scans/dataset.json", "data contrast scans"),
    Place("other", "report other"),
    *(Place(f"run/{name}", "report run") for name in ("config.toml", "log.jsonl", "final/model.json")),
    Place("a.html", "report run --out a.html", output=True),
    *(Place(f"model/{name}", "allocation model") for name in ("model.json", "model.safetensors")),
    Place("run/log.jsonl", "allocation run"),
    Place("a.json", "allocation --from a.json"),
    Place("model/model.json", "probe model --data scans"),
    Place("scans/dataset.json", "probe model --data scans"),
    Place("scans/labelsTr/phantom_0000.nii.gz", "probe model --data scans --device cpu"),
    Place("a.json", "simulate --from a.json --out a.png"),
    *(Place(f"model/{name}", "export model new.onnx --to onnx") for name in ("model.json", "model.safetensors")),
    Place("other", "models --card other"),
    Place("model/model.json", "models --card model"),
    Place("a.onnx", "prompt a.onnx scan.nii.gz new.nii.gz --reference mask.nii.gz"),
    Place("a.json", "prompt a.onnx scan.nii.gz new.nii.gz --boxes a.json"),
    Place("other", "data import other"),
    Place("other", "demo --data other --out new"),
    Place("scans/dataset.json", "demo --data scans --out new --labelled 1 --iterations 1"),
)
TINY = ["--network", "miniature", "--patch-size", "16", "16", "16", "--labelled", "1", "--method", "supervised"]


def prepare(root: Path) -> None:
    """Write what the calls need: scans, a model, a mask, scores and a run, all tiny and healthy."""
    import numpy as np

    import fheat
    from fheat.data.phantom import write_phantoms
    from fheat.io import Volume
    from tests.attack.mutators import dicom, models, results, runs

    write_phantoms(root / "scans", 4, test=0, shape=(26, 24, 25))
    shutil.copy(root / "scans/imagesTr/phantom_0000_0000.nii.gz", root / "scan.nii.gz")
    shutil.copytree(root / "scans/labelsTr", root / "masks")
    models.base()
    card = fheat.Card(classes=("background", "organ"))
    for name in ("model", "start"):
        fheat.save(fheat.create_model("miniature", patch_size=(16, 16, 16)), root / name, card)
    Volume(np.ones((4, 5, 6), np.uint8), np.eye(4)).save(root / "mask.nii.gz")
    (root / "scores.json").write_text(results.base().to_json())
    (root / "series").mkdir()
    for name, content in dicom.healthy_series().items():
        (root / "series" / name).write_bytes(content)
    (root / "run").mkdir()
    for name, content in zip(("config.toml", "log.jsonl"), runs.log(), strict=True):
        (root / "run" / name).write_bytes(content)
    shutil.copytree(root / "model", root / "run" / "final")
    (root / "lists").mkdir()
    (root / "lists" / "train.list").write_text("a\n")
    (root / "lists" / "a.h5").write_bytes(b"")
    (root / "sweep.toml").write_text('[settings]\ndata = "scans"\nmethod = "supervised"\n[grid]\nseed = [0]\n')


def call(place: Place, special: str, base: Path, folder: Path, limit: float) -> tuple[int | str, str]:
    """Run one verb with a special file in a place; return the exit code, or why there is none, and what it said."""
    shutil.copytree(base, folder, symlinks=True)
    target = folder / place.path
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    SPECIAL[special](target)
    words = [part for word in place.words.split() for part in (TINY if word == "TINY" else [word])]
    printed = folder.with_suffix(".printed")
    pid = os.fork()
    if pid == 0:
        _enter(words, folder, printed)
    status = _wait(pid, limit)
    said = printed.read_text(errors="replace") if printed.exists() else ""
    printed.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return status, said


def _enter(words: list[str], folder: Path, printed: Path) -> None:
    """Become the program, with its memory bounded and no terminal, and never return."""
    code = 99
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive the matrix
        os.chdir(folder)
        descriptor = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, descriptor), (2, descriptor)):
            os.dup2(source, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (held + 3 * HEADROOM, held + 3 * HEADROOM))
        from fheat.cli.main import main

        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 99
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(pid: int, limit: float) -> int | str:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else f"signal {-code}"
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hang"


def fault(place: Place, code: int | str, said: str) -> str:
    """Return what is wrong with the end of a call, or an empty text."""
    allowed = (0, 2, 3, 4) if place.output else (2, 3, 4)
    if code not in allowed:
        return f"ended with {code}"
    if "Traceback" in said:
        return "printed a traceback"
    return "said nothing" if code != 0 and not said.strip() else ""


def matrix(places: Sequence[Place], specials: Sequence[str], seconds: float) -> list[dict]:
    """Run every call and return one row for each: verb, place, special file, exit code and fault, which is printed."""
    from importlib import import_module

    for name in PRELOADED:
        import_module(name)
    rows = []
    with tempfile.TemporaryDirectory(prefix="special-") as scratch:
        base = Path(scratch) / "base"
        base.mkdir()
        prepare(base)
        limit = seconds * crowding()
        for number, (place, special) in enumerate((place, special) for place in places for special in specials):
            if special == "unreadable" and os.geteuid() == 0:
                continue
            code, said = call(place, special, base, Path(scratch) / f"{number}", limit)
            wrong = fault(place, code, said)
            row = {"verb": place.verb, "place": place.path, "words": place.words, "special": special}
            rows.append({**row, "code": code, "fault": wrong})
            if wrong:
                print(f"{special} as {place.path}: fheat {place.words}: {wrong}: {' '.join(said.split())[-300:]}")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix, print the counts by verb and exit code, and return 1 if a call went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbs", nargs="+", help="only these verbs")
    parser.add_argument("--specials", nargs="+", choices=list(SPECIAL), help="only these special files")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="longest time of a call, more if it is crowded")
    parser.add_argument("--store", type=Path, help="write the counts as a stored result")
    options = parser.parse_args(arguments)
    places = [place for place in PLACES if not options.verbs or place.verb in options.verbs]
    rows = matrix(places, options.specials or list(SPECIAL), options.seconds)
    for verb in dict.fromkeys(place.verb for place in places):
        codes = Counter(str(row["code"]) for row in rows if row["verb"] == verb)
        print(f"{verb:<14} {json.dumps(dict(sorted(codes.items())))}")
    faults = sum(bool(row["fault"]) for row in rows)
    print(f"{len(rows)} calls, {faults} faults")
    if options.store:
        from tests.attack.store import store_matrix

        store_matrix(rows, options.specials, options.store)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

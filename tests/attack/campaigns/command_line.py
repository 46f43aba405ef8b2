"""The program with odd words, names, streams and signals: `python -m tests.attack.campaigns.command_line --count 5000`.

Every call runs in a fork of this process, which has imported everything. It must end with an exit code of the list, say
nothing that looks like a traceback, obey no byte of a name, and end. Exit code 70, an internal error, is a fault too.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from fheat.cli.main import VERBS
from tests.attack.campaigns.common import options, report
from tests.attack.campaigns.predicting import make_model, make_scans, open_text, start, to_files

CODES = {0, 2, 3, 4, 130, 143, -signal.SIGINT, -signal.SIGTERM}
"""Of the list; a signal that comes after all is done ends the program without a word: a shell calls it 130 or 143."""
ODD = [
    os.fsdecode(name) for name in (b"\xff\xfe", b"a\nb", b"\x1b[31mred\x1b]0;x\x07", "\u202egpj".encode(), b" ", b"-")
]
ODD += ["x" * 300, "..", "/", "/dev/null", "a:b*?", "None", "--", "-1", "--json", "--out", "é左", "[bold]", "%s{0}"]
STREAMS = ("file", "file", "file", "ascii", "closed", "full", "unread", "readable")
LONGEST = 120
"""Seconds after which a call hangs."""


def calls(base: Path, chance: random.Random) -> list[str]:
    """Draw the words of a call; files that exist, and files that do not."""
    model, scans, masks = str(base / "model"), str(base / "scans"), str(base / "masks")
    odd, new = chance.choice(ODD), str(base / "work" / f"{chance.choice(ODD[:6])}{chance.randrange(10**9)}")
    words = chance.choice(
        [
            [],
            ["--help"],
            ["--version"],
            [odd],
            ["models", "--methods"],
            ["models", "--methods", "--json"],
            ["allocation", model],
            ["allocation", model, "--json"],
            ["predict", model, scans, new, "--runtime", "torch"],
            ["predict", model, scans, new, "--runtime", "torch", "--json", "--no-preview"],
            ["predict", model, odd, new],
            ["evaluate", masks, masks],
            ["evaluate", masks, masks, "--json", "--out", f"{new}.json", "--csv", f"{new}.csv"],
            ["evaluate", masks, odd],
            ["data", "check", scans],
            ["data", "check", scans, "--json"],
            ["data", "phantom", new, "--cases", "1", "--test", "0", "--shape", "34", "34", "34"],
            ["data", "prepare", "la", scans, new],
            ["data", odd],
            ["simulate", "--seeds", "1", "--iterations", "2", "--no-controls", "--out", new],
            ["reproduce", "--list"],
            ["sweep", odd, "--list"],
            ["train", odd, "--out", new],
            ["report", odd],
            ["probe", model, "--data", odd],
            [chance.choice(list(VERBS)), "--help"],
            [chance.choice(list(VERBS)), odd, odd, odd],
        ]
    )
    if words and chance.random() < 0.15:
        words = [*words, chance.choice([odd, f"--{odd}", "--batch", "--stride", "--json", "--labels=a"])]
    return [word.replace("\0", "") for word in words]


def set_streams(kinds: tuple[str, str, str], out: Path, error: Path) -> None:
    """Bring the standard streams of this process into the state that a call is to have."""
    encoding = "ascii" if "ascii" in kinds else "utf-8"
    to_files(out, error, encoding)
    for number, (name, kind) in enumerate(zip(("stdin", "stdout", "stderr"), kinds, strict=True)):
        if kind == "closed":
            os.close(number)
            setattr(sys, name, None)
        elif kind in ("full", "unread", "readable"):
            reading, writing = os.pipe()
            opened = {"full": "/dev/full", "readable": os.devnull}.get(kind)
            flags = os.O_WRONLY if kind == "full" else os.O_RDONLY
            os.dup2(writing if opened is None else os.open(opened, flags), number)
            os.close(reading)
            os.close(writing)
            if number:
                setattr(sys, name, open_text(number, encoding))


def send_signals(words: list[str], chance: random.Random) -> Callable[[int], None]:
    """Draw when and how often a call is asked to stop, a demo always; the function sends it."""
    number = chance.choice([signal.SIGINT, signal.SIGTERM])
    waits = [chance.expovariate(4) for _ in range(chance.choice([0, 0, 1, 1, 2]) or ("demo" in words))]

    def send(pid: int) -> None:
        for wait in waits:
            time.sleep(wait)
            os.kill(pid, number)

    return send


def fault(code: int | None, printed: bytes) -> str | None:
    """Return what is wrong with the end of a call, if anything."""
    if code is None:
        return "hangs"
    if code not in CODES:
        return f"exit code {code}"
    marks = (b"Traceback", b"Exception ignored", b"internal error (", b"\x1b[31mred", "\u202e".encode())
    return next((f"printed {mark!r}" for mark in marks if mark in printed), None)


def ended(pid: int) -> int | None:
    """Wait for the end of a call and return its exit code; end one that hangs and return None."""
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main() -> int:
    """Make the calls, count the exit codes, and keep what is wrong."""
    said = options(__doc__, "command-line-cpu", count=5000)
    chance = random.Random(said.seed)
    for verb in (*VERBS, "data_check", "data_phantom", "data_prepare", "data_contrast"):
        import_module(f"fheat.cli.{verb}")
    codes: Counter[str] = Counter()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        model = make_model(base / "model")
        names = ["case0", *(odd for odd in ODD[:4] if odd.strip())]
        scans = make_scans(base / "scans", names, distinct=len(names))
        prepared = ["predict", str(model), str(scans), str(base / "masks"), "--runtime", "torch"]
        start(prepared, partial(to_files, base / "out", base / "err")).code()
        for number in range(said.count):
            (base / "work").mkdir(exist_ok=True)
            words = calls(base, chance)
            send = send_signals(words, chance)
            kinds = chance.choice(STREAMS), chance.choice(STREAMS), chance.choice(STREAMS)
            os.chdir(base / "work")
            child = start(words, partial(set_streams, kinds, base / "out", base / "err"))
            child.wait_until_it_begins()
            send(child.pid)
            code = ended(child.pid)
            wrong = fault(code, (base / "out").read_bytes() + (base / "err").read_bytes())
            codes[str(code)] += 1
            if wrong:
                tail = (base / "err").read_text(errors="replace")[-200:]
                faults.append(f"call {number}: {wrong}: {words!r} {kinds} {tail!r}")
            os.chdir(base)
            shutil.rmtree(base / "work", ignore_errors=True)
    results = {"calls": said.count, "codes": dict(sorted(codes.items()))}
    return report(
        said,
        "command_line",
        "Command lines with odd words, names, streams and signals: exit codes",
        {},
        {**results, "faults": faults},
    )


if __name__ == "__main__":
    sys.exit(main())

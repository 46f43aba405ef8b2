"""Progress on a terminal: what is counted, what has no steps, and silence where nobody watches."""

import os
import pty
import re
import subprocess
import sys

from fheat.system.progress import counted_steps, progress_bar, silent, unwatched

SHOWN = """
import time
from fheat.system.progress import progress_bar
with progress_bar("reading [scan]") as show:
    time.sleep(0.25)
    for done in range(1, 4):
        show(done, 3)
        time.sleep(0.15)
"""


def on_a_terminal(program):
    """Return what a program prints on a terminal, without the codes that move the cursor."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-c", program]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    assert child.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def test_a_bar_shows_the_time_so_far_until_the_number_of_steps_is_known():
    shown = on_a_terminal(SHOWN)
    assert "reading [scan]" in shown  # names of files are words, not styles
    assert shown.index("0 s so far") < shown.index("of 3")
    assert "3 of 3" in shown
    assert re.search(r"2 of 3, about \d+ s left", shown)


def test_without_a_terminal_nothing_is_shown(capfd):
    with progress_bar("reading") as show:
        show(1, 2)
    assert capfd.readouterr() == ("", "")


QUIET = """
import sys
from fheat.system.progress import progress_bar
with progress_bar("reading", quiet={quiet}) as show:
    show(1, 2)
print("rich" in sys.modules)
"""


def test_what_draws_a_bar_is_imported_only_where_one_is_shown(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    assert on_a_terminal(QUIET.format(quiet=True)).split() == ["False"]
    for variable, imported in ((None, "False"), ("FORCE_COLOR", "True"), ("TTY_COMPATIBLE", "True")):
        environment = {**os.environ, **({} if variable is None else {variable: "1"})}
        command = [sys.executable, "-c", QUIET.format(quiet=False)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.split() == [imported]
        assert ("reading" in done.stderr) == (imported == "True")


def test_steps_are_counted_after_each_item():
    heard, met = [], []
    for item in counted_steps("abc", lambda *step: heard.append(step)):
        met.append((item, heard[-1]))
    assert met == [("a", (0, 3)), ("b", (1, 3)), ("c", (2, 3))]
    assert heard[-1] == (3, 3)


def test_nobody_watching_hears_nothing(capfd):
    with unwatched("reading") as show:
        assert show is silent
        show(1, 2)
    assert capfd.readouterr() == ("", "")

"""What is shown of many runs: lines without a terminal, a screen on one."""

import io

import pytest
from rich.console import Console

from fheat.cli import run_screen
from fheat.experiments.engine import Failure
from fheat.experiments.planned import Outcome
from fheat.training.observers import Look

LOOK = Look(1200, 4000, 12.5, {"total": 0.25}, {}, 0.9)
DONE = Outcome(
    key="k", name="a", settings={}, scoring={}, best=0.91, best_at=4000, last=0.9, gates={}, skipped=0,
    per_second=12.5, seconds=320.4, machine={},
)  # fmt: skip
FAILED = Failure("b", "no memory; see runs/b.log")


def tell(watcher):
    watcher.begins("a")
    watcher.begins("b")
    watcher.stands("a", LOOK)
    watcher.ends("b", FAILED)
    watcher.ends("a", DONE)


def test_without_a_terminal_there_are_lines_and_one_a_minute_on_the_way(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(run_screen.time, "monotonic", lambda: clock[0])
    with run_screen.run_screen(2) as watcher:
        tell(watcher)
        watcher.begins("c")
        for clock[0] in (130.0, 160.0, 161.0, 219.0, 220.0):
            watcher.stands("c", LOOK)
    standing = "1,200 of 4,000  12.5 it/s  total 0.250  best Dice 0.9000"
    assert capsys.readouterr().err.splitlines() == [
        "a: begins",
        "b: begins",
        "b: failed: no memory; see runs/b.log",
        "a: done in 320 s, best validation Dice 0.9100",
        "c: begins",
        f"c: {standing}",
        f"c: {standing}",
    ]


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        (3, ["0 of 2 runs done", "a  1,200 of 4,000  12.5 it/s  total 0.250  best Dice 0.9000", "b  reading scans"]),
        (4, ["0 of 2 runs done, 1 failed", "a  1,200 of 4,000  12.5 it/s  total 0.250  best Dice 0.9000"]),
        (5, ["1 of 2 runs done, 1 failed"]),
    ],
)
def test_on_a_terminal_the_runs_that_have_begun_are_shown_with_counts(monkeypatch, calls, shown):
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(run_screen, "Console", lambda stderr: console)
    with run_screen.run_screen(2) as watcher:
        steps = [
            lambda: watcher.begins("a"),
            lambda: watcher.begins("b"),
            lambda: watcher.stands("a", LOOK),
            lambda: watcher.ends("b", FAILED),
            lambda: watcher.ends("a", DONE),
        ]
        for step in steps[:calls]:
            step()
        assert watcher._live.get_renderable().plain.splitlines() == shown
    assert ("b: failed: no memory; see runs/b.log" in console.file.getvalue()) == (calls >= 4)

"""What other programs do on the processors of this one: read off /proc as it is, and off one that is made."""

import os
import subprocess
import sys
import time

import pytest

from fheat.system import neighbours
from fheat.system.neighbours import Neighbours

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts so")
OURS = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
BUSY = "import time; begin = time.time()\nwhile time.time() - begin < {seconds}: pass"


class Machine:
    """A /proc of two processors, of which this process has the first one, with clocks that stand still."""

    def __init__(self, root, monkeypatch):
        self.root, self.seconds = root, 0.0
        self.times = {0: [0] * 10, 1: [0] * 10}
        self.own = 0.0
        monkeypatch.setattr(neighbours.os, "sched_getaffinity", lambda process: {0})
        monkeypatch.setattr(neighbours.time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(neighbours.time, "process_time", lambda: self.own)
        self.write()

    def write(self):
        lines = [f"cpu{number} {' '.join(map(str, times))}" for number, times in self.times.items()]
        (self.root / "stat").write_text("\n".join(["cpu 9 9 9 9", *lines, "intr 1 2", "ctxt 3", ""]))

    def pass_seconds(self, seconds, own=0.0, **columns):
        """Let time pass, in which the processors did this, in seconds: `user_0` for the user time of the first one."""
        self.seconds += seconds
        self.own += own
        names = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"]
        for name, value in columns.items():
            column, number = name.rsplit("_", 1)
            self.times[int(number)][names.index(column)] += round(value * os.sysconf("SC_CLK_TCK"))
        self.write()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, 0.0),
        ({"user_0": 1.5}, 0.75),
        ({"user_0": 0.5, "system_0": 0.5, "irq_0": 0.25, "softirq_0": 0.25, "steal_0": 0.5}, 1.0),
        ({"idle_0": 2.0, "iowait_0": 1.0}, 0.0),
        ({"nice_0": 2.0}, 0.0),
        ({"user_1": 2.0}, 0.0),
    ],
    ids=["nothing", "user", "all that is work", "idle", "nice", "a processor of others"],
)
def test_time_of_the_own_processors_counts(machine, columns, expected):
    found = Neighbours(machine.root)
    machine.pass_seconds(2.0, **columns)
    assert found.busy() == pytest.approx(expected)


def test_own_time_does_not_count_and_each_call_begins_anew(machine):
    found = Neighbours(machine.root)
    machine.pass_seconds(1.0, own=0.6, user_0=1.0)
    assert found.busy() == pytest.approx(0.4)
    machine.pass_seconds(1.0, own=1.0, user_0=0.9)
    assert found.busy() == 0.0
    assert found.busy() == 0.0  # no time has passed


def test_processes_that_this_one_started_do_not_count(machine):
    me = os.getpid()
    for parent, child in ((me, 71), (71, 72)):
        task = machine.root / str(parent) / "task" / str(parent)
        task.mkdir(parents=True)
        (task / "children").write_text(f"{child} ")
    (machine.root / "72").mkdir()

    def used(process, user, waited_for):
        fields = ["S", *["0"] * 10, str(user), "0", str(waited_for), "0", *["0"] * 5]
        (machine.root / str(process) / "stat").write_text(f"{process} (a name) with ) in it) {' '.join(fields)}")

    used(71, 0, 0)
    used(72, 0, 0)
    found = Neighbours(machine.root)
    ticks = os.sysconf("SC_CLK_TCK")
    machine.pass_seconds(1.0, user_0=1.0)
    used(71, ticks // 4, 0)
    used(72, ticks // 4, ticks // 4)
    assert found.busy() == pytest.approx(0.25)


@pytest.mark.parametrize("content", [None, "", "cpu0", "cpu0 a b c d e f g h"])
def test_where_the_system_does_not_tell_nobody_is_there(tmp_path, content):
    if content is not None:
        (tmp_path / "stat").write_text(content)
    found = Neighbours(tmp_path)
    assert found.busy() == 0.0


def test_of_this_machine():
    """A child of this process does not count, whatever else runs here; nobody has more than all processors."""
    found = Neighbours()
    before = found._count()
    with subprocess.Popen([sys.executable, "-c", BUSY.format(seconds=0.6)]) as child:
        time.sleep(0.4)
        while_it_runs = found._count()
        child.wait()
    after = found._count()
    assert before.own < while_it_runs.own <= after.own
    assert after.own - before.own > 0.2
    assert 0.0 <= found.busy() <= len(os.sched_getaffinity(0)) + 0.5


def test_soon_after_a_call_the_answer_is_that_of_before(machine):
    found = Neighbours(machine.root)
    machine.pass_seconds(1.0, user_0=0.5)
    assert found.busy() == pytest.approx(0.5)
    machine.pass_seconds(0.1, user_0=0.1)
    assert found.busy() == pytest.approx(0.5)
    machine.pass_seconds(0.9, user_0=0.1)
    assert found.busy() == pytest.approx(0.2)


def test_what_was_counted_of_something_else_says_nothing(machine, monkeypatch):
    """A minute ago, by the process that this one was forked from, on other processors, of children that are gone."""
    found = Neighbours(machine.root)

    def others():
        return found.busy() > 0

    machine.pass_seconds(61.0, user_0=61.0)
    assert not others()
    machine.pass_seconds(1.0, user_0=1.0)
    assert others()
    machine.pass_seconds(1.0, own=-0.5, user_0=1.0)
    assert not others()
    monkeypatch.setattr(neighbours.os, "sched_getaffinity", lambda process: {0, 1})
    machine.pass_seconds(1.0, user_0=1.0, user_1=900.0)
    assert not others()
    monkeypatch.setattr(neighbours.os, "getpid", lambda: 1)
    machine.pass_seconds(1.0, user_0=1.0)
    assert not others()
    machine.pass_seconds(1.0, user_0=1.0)
    assert others()


def test_processes_may_end_while_they_are_counted():
    """The shell starts processes that live for a moment; nothing is raised."""
    found = Neighbours()
    with subprocess.Popen(["sh", "-c", "while :; do /bin/true; done"]) as child:
        begin = time.monotonic()
        while time.monotonic() - begin < 1.0:
            assert found._count() is not None
        child.kill()

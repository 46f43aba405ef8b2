"""The number of threads beside other programs, on a machine whose neighbours and whose times are made."""

import threading

import pytest
import torch

from fheat.system import pace as module
from fheat.system.pace import LOOK, TRIED, WARM_UP, Pace

PROCESSORS = 4


class Machine:
    """A machine with a clock, on which other programs take processors and a unit takes time by its threads.

    A unit of one second of work is divided among the threads. Where threads and others are more than processors, all
    threads wait for those that share, so that it takes `shared` times as long; one thread only gets half a processor.
    """

    def __init__(self, shared=9.0):
        self.now, self.others, self.shared, self.processors = 0.0, 0.0, shared, PROCESSORS
        self.looks = 0
        self.used = []

    def busy(self):
        self.looks += 1
        return self.others

    def clock(self):
        return self.now

    def seconds(self, threads):
        crowded = threads + self.others > self.processors + 0.5
        longer = min(self.shared, 2.0) if threads == 1 else self.shared
        return (longer if crowded else 1.0) / threads

    def run(self, pace, units, amount=1.0):
        """Return the numbers of threads that so many units used."""
        used = []
        for _ in range(units):
            with pace.unit(amount):
                used.append(torch.get_num_threads())
                self.now += self.seconds(used[-1]) * amount
        self.used += used
        return used


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(module, "processors", lambda: PROCESSORS)
    before = torch.get_num_threads()
    torch.set_num_threads(PROCESSORS)
    yield Machine()
    assert torch.get_num_threads() == PROCESSORS  # whatever a unit used
    torch.set_num_threads(before)


def made(machine):
    return Pace(machine, machine.clock)


@pytest.mark.parametrize("others", [0.0, 0.1, 0.5])
def test_on_a_machine_of_its_own_the_number_never_changes(machine, others):
    """Nothing is tried either, so that results repeat bit by bit."""
    machine.others = others
    assert set(machine.run(made(machine), 200)) == {PROCESSORS}
    assert machine.looks > 1


@pytest.mark.parametrize(("others", "expected"), [(1.0, 3), (1.9, 2), (3.0, 1), (4.0, 1), (9.0, 1)])
def test_beside_others_it_takes_what_they_leave(machine, others, expected):
    machine.others = others
    pace = made(machine)
    assert set(machine.run(pace, 40)[-20:]) == {expected} == {pace.threads}


def test_where_few_are_left_time_decides(machine):
    """Here threads that wait lose less than threads that are missing; with half of them left it is not tried."""
    machine.shared, machine.others = 1.2, 2.0
    pace = made(machine)
    assert set(machine.run(pace, 40)) == {2}
    machine.others = 3.0
    used = machine.run(pace, 60)
    assert used.count(1) == WARM_UP + TRIED
    assert pace.threads == PROCESSORS


def test_it_follows_the_others(machine):
    pace = made(machine)
    assert set(machine.run(pace, 30)) == {4}
    for others, left in ((2.0, 2), (3.0, 1), (1.0, 3), (0.0, 4)):
        machine.others = others
        assert machine.run(pace, 60)[-1] == left


def test_a_decision_stays_while_about_as_many_others_are_there(machine, monkeypatch):
    monkeypatch.setattr(module, "processors", lambda: 16)
    torch.set_num_threads(16)
    try:
        machine.others, machine.shared = 10.0, 9.0
        machine.processors = 16
        pace = made(machine)
        assert machine.run(pace, 300)[-1] == 6
        assert machine.used.count(16) == 1
        machine.others = 12.0
        assert machine.run(pace, 300)[-1] == 4
        assert machine.used.count(16) == 1
        machine.others = 14.0
        assert machine.run(pace, 300)[-1] == 2
        assert machine.used.count(16) == 1 + WARM_UP + TRIED  # they are close, beside two threads
    finally:
        torch.set_num_threads(PROCESSORS)


def test_it_looks_seldom(machine):
    pace = made(machine)
    machine.run(pace, 400)  # of a quarter of a second
    assert machine.looks <= 2 + 100 / LOOK


def test_beside_others_it_begins_with_few_threads(machine):
    """All threads are tried once and no more, as that unit takes longer than HOPELESS times the others."""
    machine.others, machine.shared = 3.0, 100.0
    used = machine.run(made(machine), 30)
    assert used == [1] * (WARM_UP + TRIED) + [4] + [1] * (30 - WARM_UP - TRIED - 1)


def test_units_of_any_amount_are_compared(machine):
    """A last batch with fewer windows is no faster: here the second half of the trial has such batches alone."""
    machine.others, machine.shared = 3.0, 12.0  # 3 seconds with all threads, 2 with one
    pace = made(machine)
    machine.run(pace, WARM_UP + TRIED, amount=4.0)
    machine.run(pace, WARM_UP + TRIED, amount=1.0)
    assert pace.threads == 1


def test_a_process_with_one_thread_is_left_alone(machine):
    torch.set_num_threads(1)
    machine.others = 3.0
    assert set(machine.run(made(machine), 50)) == {1}
    assert machine.looks == 0
    torch.set_num_threads(PROCESSORS)


@pytest.mark.parametrize(("threads", "processors"), [(8, 4), (4, 1)])
def test_more_threads_than_processors_are_kept_alone(machine, monkeypatch, threads, processors):
    monkeypatch.setattr(module, "processors", lambda: processors)
    torch.set_num_threads(threads)
    machine.processors = threads
    assert set(machine.run(made(machine), 50)) == {threads}
    torch.set_num_threads(PROCESSORS)


def test_a_number_that_somebody_sets_later_is_the_usual_one(machine):
    machine.others = 1.0
    pace = made(machine)
    assert set(machine.run(pace, 20)) == {3}
    torch.set_num_threads(1)
    assert set(machine.run(pace, 20)) == {1}
    torch.set_num_threads(2)
    assert set(machine.run(pace, 20)) == {2}
    torch.set_num_threads(PROCESSORS)
    assert set(machine.run(pace, 20)) == {3}


def test_a_thread_that_met_torch_in_a_unit_elsewhere_takes_the_number_of_the_pace(machine):
    machine.others = 3.0
    pace = made(machine)
    found, met, left = [], threading.Event(), threading.Event()

    def elsewhere():
        found.append(torch.get_num_threads())
        met.set()
        left.wait()
        machine.others = 0.0
        found.append(machine.run(pace, 60)[-1])

    thread = threading.Thread(target=elsewhere)
    with pace.unit():
        thread.start()
        met.wait()
    left.set()
    thread.join()
    assert found == [1, PROCESSORS]


def test_fewer_threads_than_processors_are_kept_as_long_as_there_is_room(machine):
    torch.set_num_threads(2)
    machine.others = 2.0
    assert set(machine.run(made(machine), 50)) == {2}
    machine.others = 3.0
    assert machine.run(made(machine), 50)[-1] == 1
    torch.set_num_threads(PROCESSORS)


def test_a_unit_that_fails_leaves_the_number_as_it_was(machine):
    machine.others = 3.0
    pace = made(machine)
    machine.run(pace, 20)
    with pytest.raises(ZeroDivisionError), pace.unit():
        1 // (torch.get_num_threads() - 1)
    assert machine.run(pace, 1) == [1]

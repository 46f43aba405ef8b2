"""Turns are fair, medians are medians, ratios are ratios of them, and growth is fitted right."""

import time
from collections import Counter
from itertools import pairwise

import pytest

from fheat.bench.forward import doublings, exponent
from fheat.bench.timing import MOST_REPEATS, interleaved, ratios, turns
from fheat.system.machine import machine


def test_every_turn_has_every_candidate_once_and_places_are_shared_out():
    names = ["a", "b", "c", "d"]
    orders = list(turns(names, 400))
    assert all(sorted(order) == names for order in orders)
    for place in range(4):
        counted = Counter(order[place] for order in orders)
        assert all(70 <= counted[name] <= 130 for name in names)
    followers = Counter(pair for order in orders for pair in pairwise(order))
    assert len(followers) == 12  # everybody has run after everybody else
    assert list(turns(names, 5)) == orders[:5]


def test_runs_are_interleaved_and_warm_ups_do_not_count(monkeypatch):
    """On a clock of our own: a takes 30 ms, b 10 ms and 1000 ms in its warm-up; the median drops one slow turn."""
    now, seen = [0.0], []
    monkeypatch.setattr("fheat.bench.timing.time.perf_counter", lambda: now[0])
    b = iter([1.0, 0.01, 0.5, 0.01])

    def run(name, seconds):
        seen.append(name)
        now[0] += seconds

    told = []
    found = interleaved(
        {"a": lambda: run("a", 0.03), "b": lambda: run("b", next(b))},
        3,
        warm_up=1,
        progress=lambda done, total: told.append((done, total)),
    )
    assert found == pytest.approx({"a": 30.0, "b": 10.0})
    assert [sorted(seen[at : at + 2]) for at in range(0, 8, 2)] == [["a", "b"]] * 4
    assert told == [(done, 8) for done in range(1, 9)]
    assert ratios(found) == pytest.approx({"a": 1.0, "b": 1 / 3})


def test_short_runs_are_repeated_within_a_turn(monkeypatch):
    now, count = [0.0], [0]
    monkeypatch.setattr("fheat.bench.timing.time.perf_counter", lambda: now[0])

    def run():
        count[0] += 1
        now[0] += 1e-4

    assert interleaved({"a": run}, 5, warm_up=2) == pytest.approx({"a": 0.1})
    assert count[0] == 1 + 6 * MOST_REPEATS


def test_a_real_clock():
    found = interleaved({"one": lambda: time.sleep(0.01), "ten": lambda: time.sleep(0.1)}, 5)
    assert found["one"] >= 10
    assert found["ten"] >= 100
    assert ratios(found)["ten"] > 2  # also beside others


@pytest.mark.parametrize("power", [0.0, 1.0, 4 / 3])
def test_exponent_of_synthetic_times(power):
    sizes = [10, 20, 50, 400]
    assert exponent(sizes, [7 * size**power for size in sizes]) == pytest.approx(power, abs=1e-9)


def test_exponent_averages_noise_and_wants_two_sizes():
    assert exponent([1, 2, 4, 8], [1.1, 1.9, 4.2, 7.8]) == pytest.approx(0.96, abs=0.02)
    with pytest.raises(ValueError, match="two or more different sizes"):
        exponent([5, 5], [1.0, 1.0])


def test_doublings():
    assert doublings([1, 2, 3, 4], [10.0, 15.0, 17.0, 24.0]) == {"1 to 2": 1.5, "2 to 4": 1.6}


def test_machine_names_versions_and_threads():
    found = machine()
    assert {"device", "name", "threads", "python", "torch", "numpy"} <= set(found)
    assert found["device"] == "cpu"
    assert found["threads"] == 1

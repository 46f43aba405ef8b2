"""One thread of torch for a while: the number comes back, also where several threads ask at once."""

import threading

import pytest
import torch

from fheat.system.threads import limited_threads, one_thread, usual_threads


@pytest.fixture(autouse=True)
def _three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_a_thread(function):
    """Return what a function returns in a thread that is new to torch."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_the_number_comes_back_whoever_leaves_last():
    inside, leave = threading.Event(), threading.Event()
    found = {}

    def elsewhere():
        with one_thread():  # torch is new to this thread, which takes over the one thread of the body outside
            inside.set()
            leave.wait()
        found["after"] = torch.get_num_threads()

    with one_thread():
        assert torch.get_num_threads() == 1
        assert usual_threads() == 3
        thread = threading.Thread(target=elsewhere)
        thread.start()
        inside.wait()
    assert torch.get_num_threads() == usual_threads() == 3
    leave.set()
    thread.join()
    assert found == {"after": 3}
    assert torch.get_num_threads() == usual_threads() == in_a_thread(torch.get_num_threads) == 3


def test_a_thread_that_met_torch_in_a_body_elsewhere_does_not_hand_its_number_on():
    """It has one thread, and must not tell the process so when it enters a body of its own between two others."""
    met, left, entered, again, done = (threading.Event() for _ in range(5))
    found = {}

    def late():
        found["first use"] = torch.get_num_threads()
        met.set()
        left.wait()
        found["usual outside"] = usual_threads()
        with one_thread():
            found["usual"] = usual_threads()
            entered.set()
            again.wait()
        found["after"] = torch.get_num_threads()
        done.set()

    thread = threading.Thread(target=late)
    with one_thread():
        thread.start()
        met.wait()
    left.set()
    entered.wait()
    with one_thread():
        again.set()
        done.wait()
    thread.join()
    assert found == {"first use": 1, "usual outside": 3, "usual": 3, "after": 3}
    assert torch.get_num_threads() == usual_threads() == in_a_thread(torch.get_num_threads) == 3
    assert in_a_thread(usual_threads) == 3


def test_a_thread_keeps_a_number_of_its_own():
    in_a_thread(lambda: torch.set_num_threads(2))  # which is that of the process from now on, not that of this thread
    with one_thread():
        assert torch.get_num_threads() == 1
        assert in_a_thread(usual_threads) == 2
    assert torch.get_num_threads() == usual_threads() == 3
    assert in_a_thread(torch.get_num_threads) == 2


def test_a_body_in_a_body_and_one_that_fails():
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == usual_threads() == in_a_thread(torch.get_num_threads) == 3


def test_a_thread_that_took_over_two_threads_has_the_number_of_the_process_after_a_body_of_its_own():
    met, left, found = threading.Event(), threading.Event(), []

    def late():
        found.append(torch.get_num_threads())
        met.set()
        left.wait()
        found.append(usual_threads())
        with limited_threads(1):
            found.append(usual_threads())
        found.append(torch.get_num_threads())

    thread = threading.Thread(target=late)
    with limited_threads(2):
        thread.start()
        met.wait()
    left.set()
    thread.join()
    assert found == [2, 3, 3, 3]
    assert torch.get_num_threads() == usual_threads() == in_a_thread(torch.get_num_threads) == 3


def test_a_body_in_a_body_never_has_more_threads():
    with limited_threads(2):
        with limited_threads(3):
            assert torch.get_num_threads() == 2
        with one_thread():
            assert torch.get_num_threads() == 1
            assert usual_threads() == 3
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 3

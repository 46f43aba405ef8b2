"""Signals that ask to stop: at once, after the file in work, or passed on; none depends on time."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fheat.system.signals import EXIT, finishing, interruptible

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def stopped(body):
    """Return the arguments of the `KeyboardInterrupt` in which the body ends, which is interruptible."""
    with pytest.raises(KeyboardInterrupt) as stop, interruptible():
        body()
    return stop.value.args


@pytest.mark.parametrize("number", EXIT)
def test_a_signal_stops_at_once_with_its_exit_code(number):
    before = signal.getsignal(number)
    assert stopped(lambda: signal.raise_signal(number)) == (EXIT[number],)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", EXIT)
def test_the_file_in_work_is_finished_and_the_next_one_not_begun(number):
    done = []

    def work():
        for file in range(3):
            with finishing(grace=3600):
                if file == 1:
                    signal.raise_signal(number)
                done.append(file)

    assert stopped(work) == (EXIT[number],)
    assert done == [0, 1]
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_second_signal_does_not_wait():
    reached = []

    def work():
        with finishing(grace=3600):
            signal.raise_signal(signal.SIGTERM)
            reached.append("first")
            signal.raise_signal(signal.SIGINT)
            reached.append("second")

    assert stopped(work) == (143,)  # of the first one, which is why it ends
    assert reached == ["first"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_file_that_takes_too_long_is_not_finished():
    """The timer's own signal ends the wait, not a time that the test states."""

    def work():
        with finishing(grace=0.01):
            signal.raise_signal(signal.SIGTERM)
            while True:
                time.sleep(0.01)

    assert stopped(work) == (143,)


def test_without_a_signal_nothing_happens():
    before = [signal.getsignal(number) for number in (*EXIT, signal.SIGALRM)]
    with finishing():
        pass
    assert [signal.getsignal(number) for number in (*EXIT, signal.SIGALRM)] == before


def test_an_error_of_the_body_is_its_own():
    def work():
        with finishing():
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), interruptible():
        work()


def test_other_threads_leave_signals_alone():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work():
        with interruptible(), finishing():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_signal_during_a_deletion_is_not_lost():
    """Python prints what is raised there and goes on."""

    class Slow:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def work():
        Slow()
        gc.collect()
        for _ in range(6000):  # ended by the signal
            time.sleep(0.01)

    assert stopped(work) == (143,)


OPENVINO = """
import signal, threading
import numpy as np
from fheat.system.imports import import_openvino, openvino_core
import_openvino()
from openvino import Model, opset8
x = opset8.parameter([1, 3], np.float32)
compiled = [openvino_core().compile_model(Model([opset8.relu(x)], [x]), "CPU")]
compiled[0](np.zeros((1, 3), np.float32))
deleting = threading.Thread(target=compiled.clear)
deleting.start()
deleting.join()
assert openvino_core() is openvino_core()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_after_another_thread_dropped_what_openvino_compiled_is_no_segmentation_fault():
    """With a Core of its own for each network, this process ended with signal 11."""
    pytest.importorskip("openvino")
    done = subprocess.run([sys.executable, "-c", OPENVINO], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr

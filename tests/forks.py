"""Processes of tests that start in milliseconds: forks of one process that has imported what they need.

Importing PyTorch takes seconds, which a test that starts ten processes need not pay ten times. A program is a function
of a module, called in the new process; its exit code, standard output and standard error are as of a program.
"""

import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).parents[1]
IMPORTED = ["pytest", "torch._dynamo", "fheat.cli.train", "fheat.methods.cse", "tests.training.programs"]
"""Modules that forks find imported; PyTorch's optimisers import the second one. Nothing has run in them yet, so there
is no thread that a fork would lose."""
_forking = multiprocessing.get_context("forkserver") if sys.platform != "win32" else None


class Fork:
    """A function that runs as a process of its own."""

    def __init__(self, program, *arguments, environment=None):
        _begin_server()
        self._printed = Path(mkdtemp())
        self._process = _forking.Process(target=_enter, args=(program, arguments, environment or {}, self._printed))
        self._process.start()

    @property
    def code(self):
        """Exit code, negative for a signal, or None while the process runs."""
        return self._process.exitcode

    def send(self, number):
        os.kill(self._process.pid, number)

    def outcome(self, timeout):
        """Wait for the end; return exit code, standard output and standard error."""
        self._process.join(timeout)
        if self.code is None:
            self.send(signal.SIGKILL)
            self._process.join()
        files = [self._printed / name for name in ("stdout", "stderr")]
        printed, warned = (file.read_text() if file.exists() else "" for file in files)  # killed before it opened them
        shutil.rmtree(self._printed)
        return self.code, printed, warned


def _begin_server():
    """Start the process that is forked; it finds modules as this one does."""
    if _forking is None:
        raise RuntimeError("forks need a system that has them")
    _forking.set_forkserver_preload(IMPORTED)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _enter(program, arguments, environment, printed):
    from tests.miniature import register

    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(printed / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.environ.update(environment)
    register()
    sys.exit(program(*arguments))

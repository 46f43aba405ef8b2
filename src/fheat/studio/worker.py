"""The process that starts one process per task, so that a task can be killed and cannot affect the next one.

`fheat.studio.launcher` starts it. Each line of standard input is `{"task", "kind", "folder", "arguments"}` or
`{"kill": task}`. Standard output has the lines `{"task", "progress": [done, of]}` and, at last, `{"task", "ended":
code}`. What a task found is in `answer.json` in its folder: `{"result": ...}` or `{"refused": [reason, remedy]}`.

Libraries are imported once, here, and every task is a fork, which takes milliseconds. Where a system cannot fork
safely, there is one such process for each task, which does it itself and ends. The first argument is `fork` or `once`,
the others are the folders of the parent's packages.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from typing import Any

FORKS = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether a process with large libraries can be forked safely here."""
ANSWER = "answer.json"
NICE = 5
"""Amount by which tasks stand back behind the process that answers requests."""


def main() -> None:
    """Do tasks until the input ends."""
    how, *sys.path[:] = sys.argv[1:]
    sys.dont_write_bytecode = True
    os.umask(0o077)
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the parent hears them too, and ends this process when it is time
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(NICE)
    lines = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):  # what a library prints is no message, and no log may have what a scan says of a patient
        os.dup2(nowhere, stream)
    from fheat.studio import tasks  # and with it torch: before a fork, and once

    if how == "fork":
        tasks.preload()
        Starter(lines).run()
        os._exit(0)  # without the seconds that libraries take to leave
    else:
        request = json.loads(sys.stdin.buffer.readline())
        tell(lines, {"task": request["task"], "ended": tasks.perform(request, lines)})


def tell(lines: int, message: dict[str, Any]) -> None:
    """Write one line at once; lines this short do not mix with those of other processes."""
    with contextlib.suppress(BrokenPipeError):
        os.write(lines, json.dumps(message).encode() + b"\n")


class Starter:
    """Starts a fork for each task, waits for all of them at the same time, and kills those that it is asked to."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._running: dict[int, tuple[int, int]] = {}
        """Task and process id by the descriptor that tells the end of the process."""
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._read = b""

    def run(self) -> None:
        """Serve until the input ends, which is the end of the parent; then kill what still runs."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != 0:
                    self._end(descriptor)
                elif not self._listen():
                    for _, pid in self._running.values():
                        os.kill(pid, signal.SIGKILL)
                    return

    def _listen(self) -> bool:
        """Read what has come, and return whether there can be more."""
        part = os.read(0, 2**16)
        *whole, self._read = (self._read + part).split(b"\n")
        for line in whole:
            request = json.loads(line)
            if "kill" in request:
                for task, pid in self._running.values():
                    if task == request["kill"]:
                        os.kill(pid, signal.SIGKILL)  # it has not been waited for, so the number is still its own
            else:
                self._start(request)
        return bool(part)

    def _start(self, request: dict[str, Any]) -> None:
        starter = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that forked it
                if os.getppid() != starter:
                    os._exit(1)
                os.dup2(1, 0)  # requests are not for it
                from fheat.studio import tasks

                code = tasks.perform(request, self._lines)
            finally:
                os._exit(code)
        descriptor = os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
        self._running[descriptor] = request["task"], pid
        self._poll.register(descriptor, select.POLLIN)

    def _end(self, descriptor: int) -> None:
        task, pid = self._running.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        tell(self._lines, {"task": task, "ended": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})


if __name__ == "__main__":
    main()

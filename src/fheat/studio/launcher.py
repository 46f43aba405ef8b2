"""Starting tasks in processes of their own (`fheat.studio.worker`), hearing how far they are, and killing them."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from fheat.studio import worker
from fheat.system.files import TABLE_LIMIT, read_capped

Heard = Callable[[int, int], None]
"""A function called in another thread with the number of steps done and their total."""
LOST: Final = -1
"""Code of a task whose starting process ended."""


class Task:
    """One task: `future` has the exit code of its process, negative for the signal that ended it."""

    def __init__(self, number: int, folder: Path, heard: Heard, host: "_Host") -> None:
        self.number, self.folder = number, folder
        self.future: Future[int] = Future()
        self._heard, self._host = heard, host

    def kill(self) -> None:
        """End its process at once; `future` then gets its code."""
        self._host.kill(self.number)

    def answer(self) -> dict[str, Any] | None:
        """Return what the task found, or None where its process ended before it knew."""
        try:
            found = json.loads(read_capped(self.folder / worker.ANSWER, TABLE_LIMIT))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def hear(self, message: dict[str, Any]) -> None:
        """Take a message of the process."""
        if "progress" in message:
            done, of = message["progress"]
            self._heard(int(done), int(of))
        elif "ended" in message:
            self.end(int(message["ended"]))

    def end(self, code: int) -> None:
        """Take note of the end."""
        if not self.future.done():
            self.future.set_result(code)


class Launcher:
    """Starts tasks, each in a process of its own. Threads may share it. `close` ends all that runs.

    The process that starts them begins with the first task, or with `warm_up`, and again after it has died. It takes
    seconds to import its libraries, a task then takes milliseconds to start.
    """

    def __init__(self, *, forks: bool = worker.FORKS) -> None:
        self._forks = forks
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._hosts: list[_Host] = []

    def warm_up(self) -> None:
        """Start the process that starts tasks, so that it is ready when it is needed."""
        with self._lock:
            if self._forks and not any(host.alive for host in self._hosts):
                self._hosts = [_Host(self._forks)]

    def begin(self, kind: str, arguments: dict[str, Any], folder: Path, heard: Heard = lambda done, of: None) -> Task:
        """Start a task of a kind in `fheat.studio.tasks.KINDS`; its files are in `folder`."""
        with self._lock:
            self._hosts = [host for host in self._hosts if host.alive]
            host = self._hosts[0] if self._hosts and self._forks else _Host(self._forks)
            if host not in self._hosts:
                self._hosts.append(host)
            task = Task(next(self._numbers), folder, heard, host)
            host.begin(task, {"task": task.number, "kind": kind, "folder": str(folder), "arguments": arguments})
        return task

    def close(self) -> None:
        """End all tasks and the process that starts them."""
        with self._lock:
            hosts, self._hosts = self._hosts, []
        for host in hosts:
            host.close()


class _Host:
    """One process of `fheat.studio.worker` and the thread that hears it."""

    def __init__(self, forks: bool) -> None:
        self._forks = forks
        self._tasks: dict[int, Task] = {}
        self._lock = threading.Lock()
        self._over = False
        folders, here = [folder for folder in sys.path if folder], str(Path(worker.__file__).parents[2])
        if here not in folders:  # imported from the current folder, which has no name there
            folders.insert(0, here)
        words = ["fork"] if forks else ["once"]
        self._process = subprocess.Popen(
            [sys.executable, "-I", worker.__file__, *words, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # keeps the process that is forked single-threaded
            start_new_session=True,  # Ctrl-C in the terminal is for us
        )
        threading.Thread(target=self._listen, name="fheat-studio-tasks", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, task: Task, request: dict[str, Any]) -> None:
        with self._lock:
            self._tasks[task.number] = task
            over = self._over
        if over:  # it died a moment ago
            task.end(LOST)
        self._say(request)

    def kill(self, number: int) -> None:
        if self._forks:
            self._say({"kill": number})
        else:
            self._process.kill()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # it then kills what runs, and ends
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError, ValueError):  # it has died, which the listening thread will hear
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        """Pass messages on until the process has ended; tasks that have not ended by then are lost."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                task = self._tasks.get(message["task"])
                if task is not None:
                    task.hear(message)
                    if task.future.done():
                        with self._lock:
                            self._tasks.pop(task.number, None)
        self._process.wait()
        assert self._process.stdin is not None
        with self._lock:
            with contextlib.suppress(OSError):  # a request that it did not read is still in the buffer
                self._process.stdin.close()
            lost, self._tasks, self._over = list(self._tasks.values()), {}, True
        for task in lost:
            task.end(LOST)

"""An engine for tests that do not need other processes."""

from contextlib import redirect_stdout

from fheat.experiments.worker import Job, StopRequest, work
from fheat.system.errors import BadInput
from fheat.training.trainer import Stopped


class Here:
    """Does one run after the other in this process; `requests` are handed to the workers in their order."""

    def __init__(self, requests=()):
        self.began, self.waiting, self.stopped = [], [], False
        self._requests = iter(requests)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.waiting = []

    def submit(self, run, folder):
        self.waiting.append(Job.of(run, folder, device="cpu", threads=None))

    def wait(self, seconds):
        job = self.waiting.pop(0)
        if self.stopped:
            return {job.name: "was not begun"}
        self.began.append(job.name)
        try:
            with open(f"{job.folder}/{job.name}.log", "a") as log, redirect_stdout(log):
                work(job, next(self._requests, StopRequest()))
        except (BadInput, Stopped) as error:
            return {job.name: str(error)}
        return {job.name: None}

    def stop(self):
        self.stopped = True

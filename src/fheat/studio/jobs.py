"""Jobs: one at a time on each device, in the order they came, each in a process of its own with limited time."""

import asyncio
import contextlib
import itertools
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fheat.studio.answers import Refused
from fheat.studio.events import Events
from fheat.studio.launcher import Launcher, Task
from fheat.studio.settings import Limits

State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: Final = ("done", "failed", "cancelled")
BETWEEN_EVENTS: Final = 0.2
"""Seconds between two events that say how far a job is."""
MOST_ENDED: Final = 1000
"""Jobs that have ended and are remembered; the oldest ones are forgotten first."""


@dataclass
class Job:
    """One job. `result` is what its process answered, with the names of its files."""

    number: int
    kind: str
    scan: str
    arguments: dict[str, Any]
    folder: Path
    name: str = ""
    """Name of the scan as its sender knows it."""
    state: State = "queued"
    done: int = 0
    of: int = 0
    error: dict[str, str] | None = None
    result: dict[str, Any] | None = None
    began: float | None = None
    ended: float | None = None
    used: float = 0.0
    """When somebody last asked for it."""
    task: Task | None = None
    told: float = 0.0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the steps that were done so far; None before the first."""
        if self.state != "running" or self.began is None or not 0 < self.done <= self.of:
            return None
        return round((time.monotonic() - self.began) * (self.of - self.done) / self.done, 1)


class Jobs:
    """The jobs by number. All methods are called in the thread of the service."""

    def __init__(self, folder: Path, launcher: Launcher, events: Events, limits: Limits) -> None:
        self._folder, self._launcher, self._events, self._limits = folder, launcher, events, limits
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._waiting: asyncio.Queue[Job] = asyncio.Queue()

    def __len__(self) -> int:
        return sum(job.state not in ENDED for job in self._jobs.values())

    def get(self, number: int) -> Job:
        """Return a job, or raise `Refused`."""
        if number not in self._jobs:
            raise Refused(404, "there is no such job", "results are deleted after a while: start it again")
        self._jobs[number].used = time.monotonic()
        return self._jobs[number]

    def done(self, number: int) -> Job:
        """Return a segmentation that has its result, or raise `Refused`."""
        job = self.get(number)
        if job.state != "done" or job.kind != "segment":
            raise Refused(409, f"job {number} has no mask: it is {job.state}", "wait until it is done")
        return job

    def add(self, kind: str, scan: str, arguments: dict[str, Any], name: str = "") -> Job:
        """Put a job at the end of the queue, or raise `Refused` if that is full."""
        if sum(job.state == "queued" for job in self._jobs.values()) >= self._limits.queue:
            raise Refused.busy(f"{self._limits.queue} jobs wait already")
        number = next(self._numbers)
        job = Job(number, kind, scan, arguments, self._folder / str(number), name)
        self._jobs[number] = job
        self._waiting.put_nowait(job)
        self._tell(job)
        return job

    async def cancel(self, number: int) -> Job:
        """End a job that waits or runs; delete one that has ended, with its files."""
        job = self.get(number)
        if job.state in ENDED:
            await self._forget(job)
        else:
            self._end(job, "cancelled")
            if job.task is not None:
                job.task.kill()
        return job

    async def cancel_all(self, scan: str) -> None:
        """End all jobs of a scan that have not ended."""
        for job in list(self._jobs.values()):
            if job.scan == scan and job.state not in ENDED:
                await self.cancel(job.number)

    def position(self, job: Job) -> int | None:
        """Return the place of a job in the queue, 1 for the next one; None if it does not wait."""
        waiting = [one.number for one in self._jobs.values() if one.state == "queued"]
        return 1 + waiting.index(job.number) if job.state == "queued" else None

    def to_json(self, job: Job) -> dict[str, Any]:
        """Return what clients get to know while a job goes on; its result has the addresses of its files."""
        result = None if job.result is None else _with_addresses(job)
        return {**self.summary(job), "result": result}

    def summary(self, job: Job) -> dict[str, Any]:
        """Return the state of a job without its result."""
        return {
            "job": job.number,
            "kind": job.kind,
            "scan": job.scan,
            "state": job.state,
            "position": self.position(job),
            "done": job.done,
            "of": job.of,
            "seconds_left": job.seconds_left,
            "error": job.error,
        }

    def summaries(self) -> list[dict[str, Any]]:
        """Return the state of all jobs."""
        return [self.summary(job) for job in self._jobs.values()]

    def scans_in_use(self) -> set[str]:
        """Return the scans of jobs that have not ended."""
        return {job.scan for job in self._jobs.values() if job.state not in ENDED}

    def scans_with_jobs(self) -> set[str]:
        """Return the scans of all jobs, done ones included."""
        return {job.scan for job in self._jobs.values()}

    async def expire(self, now: float) -> None:
        """Delete the jobs that ended, and that nobody has asked for, more than `Limits.keep` seconds ago."""
        ended = [job for job in self._jobs.values() if job.ended is not None]
        surplus = {job.number for job in ended[: max(0, len(ended) - MOST_ENDED)]}
        for job in ended:
            if job.number in surplus or now - max(job.ended or 0.0, job.used) > self._limits.keep:
                await self._forget(job)

    async def work(self, device: str | None) -> None:
        """Do jobs on a device, one after the other, for ever."""
        while True:
            job = await self._waiting.get()
            if job.state == "queued":
                await self._perform(job, device)

    async def _perform(self, job: Job, device: str | None) -> None:
        loop = asyncio.get_running_loop()

        def heard(done: int, of: int) -> None:
            with contextlib.suppress(RuntimeError):  # the service has ended meanwhile
                loop.call_soon_threadsafe(self._advance, job, done, of)

        await asyncio.to_thread(job.folder.mkdir, 0o700)
        if job.state != "queued":  # it was cancelled meanwhile
            await asyncio.to_thread(shutil.rmtree, job.folder, ignore_errors=True)
            return
        job.state, job.began = "running", time.monotonic()
        job.task = self._launcher.begin(job.kind, {**job.arguments, "device": device}, job.folder, heard)
        self._tell(job)
        ended = asyncio.wrap_future(job.task.future)
        try:
            await asyncio.wait({ended}, timeout=self._limits.seconds)
            if not ended.done():
                reason = f"it took longer than {self._limits.seconds:g} s"
                self._fail(job, reason, "use fewer windows, or start with more --time-limit")
        finally:
            if not ended.done():  # its time is over, or that of the service
                job.task.kill()
        code = await ended  # the device is free only now
        found = await asyncio.to_thread(job.task.answer) if code == 0 else None
        if job.state == "running":
            self._take(job, code, found)

    def _take(self, job: Job, code: int, found: dict[str, Any] | None) -> None:
        """Take over what the process of a job left."""
        if found is None:
            how = f"signal {-code}" if code < 0 else f"code {code}"
            self._fail(job, f"its process ended with {how}", "try again; it may have been too large for the memory")
        elif "refused" in found:
            self._fail(job, *map(str, found["refused"]))
        else:
            job.result = found["result"]
            job.done = job.of
            self._end(job, "done")

    def _advance(self, job: Job, done: int, of: int) -> None:
        job.done, job.of = done, of
        if job.state == "running" and (time.monotonic() - job.told > BETWEEN_EVENTS or done == of):
            self._tell(job)

    def _fail(self, job: Job, reason: str, remedy: str) -> None:
        job.error = {"error": reason, "remedy": remedy}
        self._end(job, "failed")

    def _end(self, job: Job, state: State) -> None:
        job.state, job.ended = state, time.monotonic()
        job.over.set()
        self._tell(job)
        print(f"fheat studio: job {job.number} {state}", file=sys.stderr, flush=True)

    def _tell(self, job: Job) -> None:
        job.told = time.monotonic()
        self._events.publish(self.summary(job))

    async def _forget(self, job: Job) -> None:
        self._jobs.pop(job.number, None)
        await asyncio.to_thread(shutil.rmtree, job.folder, ignore_errors=True)


def _with_addresses(job: Job) -> dict[str, Any]:
    if job.kind != "segment" or job.result is None:
        return job.result or {}
    here = f"/api/jobs/{job.number}"
    return {
        **job.result,
        "mask": f"{here}/mask.nii.gz",
        "seg": f"{here}/mask.dcm" if job.result["seg"] else None,
        "uncertainty": f"{here}/uncertainty.nii.gz" if job.result["uncertainty"] else None,
    }

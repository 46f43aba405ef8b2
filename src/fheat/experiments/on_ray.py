"""The engine for many machines: a Ray task per run, on any machine of a cluster that shares the folder of the runs."""

import os
import platform
import secrets
import signal
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, Self

from fheat.experiments.engine import Engine, log_of
from fheat.experiments.planned import PlannedRun
from fheat.experiments.worker import Job, StopRequest, work
from fheat.system.cluster import cluster, machines_of, share_of
from fheat.system.errors import BadInput
from fheat.system.files import write_file
from fheat.training.trainer import Stopped

RETRIES: Final = 4
"""How often a run is given to another worker because its worker died."""


class OnRay(Engine):
    """Runs each run as a task of a Ray cluster, whose output goes to FOLDER/NAME.log.

    A task whose worker or machine dies is started again elsewhere and goes on from the last checkpoint.

    Args:
        parallel: number of runs at once on each GPU, or on the processors of each machine; by default one.
        device: `cpu` or `cuda`; by default GPUs if the cluster has any.
        address: of the cluster; see `system.cluster.cluster`.
    """

    def __init__(self, *, parallel: int | None = None, device: str | None = None, address: str | None = None) -> None:
        self._parallel, self._device, self._address = parallel or 1, device, address
        self._open = ExitStack()
        self._tasks: dict[Any, str] = {}
        self._stop_file: Path | None = None

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._ray = opened.enter_context(cluster(self._address))
            self._share = share_of(machines_of(self._ray), self._parallel, self._device)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        if self._stop_file is not None:
            self._stop_file.unlink(missing_ok=True)
        self._open.close()

    def submit(self, run: PlannedRun, folder: Path) -> None:
        """Hand a run to the cluster, which starts it as soon as it can."""
        self._stop_file = self._stop_file or folder.absolute() / ".claims" / f"stop-{secrets.token_hex(8)}"
        job = Job.of(run, folder.absolute(), device=self._share.device, threads=self._share.threads)
        task = self._ray.remote(_do).options(name=run.name, max_retries=RETRIES, **self._share.resources())
        self._tasks[task.remote(job.model_dump_json(), str(self._stop_file))] = run.name

    def wait(self, seconds: float) -> Mapping[str, str | None]:
        """Return the runs whose tasks ended."""
        self._ray.wait(list(self._tasks), timeout=seconds)  # until one has ended
        ended, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        return {self._tasks.pop(task): self._end(task) for task in ended}

    def stop(self) -> None:
        """Ask the workers to save and end, by a file that each looks for now and then."""
        if self._stop_file is not None:
            write_file(self._stop_file, b"")

    def _end(self, task: Any) -> str | None:
        try:
            reason: str | None = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            return f"{type(error.cause).__name__}: {error.cause}"
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"its worker died {RETRIES + 1} times ({lines[0] if lines else type(error).__name__})"
        return reason


def _do(job_text: str, stop_file: str) -> str | None:
    """Do a job on a worker of the cluster, and return what went wrong in one line, None if nothing did."""
    job, request = Job.model_validate_json(job_text), StopRequest()
    if not Path(job.folder).is_dir():
        return f"{job.folder}: is not there on {platform.node()}; give a folder that all machines share"

    def look_for_stop() -> None:
        if os.path.exists(stop_file):
            request.received.append(signal.SIGTERM)

    with open(log_of(job.name, Path(job.folder)), "a") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            look_for_stop()
            request.check()
            work(job, request, look_for_stop)
        except (BadInput, Stopped) as error:
            print(f"{job.name}: {error}")
            return str(error)
        except Exception as error:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"
    return None

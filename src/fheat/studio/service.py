"""The state of a running service, from its start to its end."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fheat.studio.answers import Refused
from fheat.studio.asking import Asking
from fheat.studio.catalogue import Catalogue, Model
from fheat.studio.events import Events
from fheat.studio.jobs import Job, Jobs
from fheat.studio.launcher import Launcher
from fheat.studio.reading import Files
from fheat.studio.scans import Scan, Scans
from fheat.studio.settings import StudioSettings
from fheat.studio.shown_dataset import ShownDataset
from fheat.studio.workplace import workplace
from fheat.system.files import WEIGHTS_LIMIT, read_capped, write_file

THREADS: Final = 32
"""Threads that wait for the disk, for everybody at once."""
EXPIRE_EVERY: Final = 15.0
"""Seconds between two looks at what has become old."""


class Service:
    """Everything that routes use. It begins with `running` and holds nothing before."""

    folder: Path
    files: Files
    scans: Scans
    events: Events
    jobs: Jobs
    asking: Asking
    catalogue: Catalogue
    dataset: ShownDataset

    def __init__(self, settings: StudioSettings, launcher: Launcher | None = None) -> None:
        self.settings = settings
        self._launcher = launcher
        self.slicer_images: dict[str, str] = {}
        """Scan by the name that 3D Slicer gave it."""
        self.slicer_labels: set[str] = set()
        """Names of those images that have a label."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Begin, and end with all processes and files of this start gone."""
        limits, launcher = self.settings.limits, self._launcher or Launcher()
        threads = ThreadPoolExecutor(THREADS, "fheat-studio-disk")
        asyncio.get_running_loop().set_default_executor(threads)
        with workplace() as self.folder:
            self.files = Files(limits)
            self.scans = Scans(self.folder / "scans", self.files, limits)
            self.events = Events()
            self.jobs = Jobs(self.folder / "jobs", launcher, self.events, limits)
            self.asking = Asking(launcher, self.folder / "tasks")
            self.catalogue = Catalogue(self.settings, self.asking)
            self.dataset = ShownDataset(self.settings, self.folder / "dataset", self.files, self.asking)
            launcher.warm_up()
            work = [asyncio.create_task(self.jobs.work(device)) for device in self.settings.devices]
            work.append(asyncio.create_task(self._expire()))
            try:
                yield
            finally:
                self.events.close()
                for task in (*work, *self.dataset.tasks):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                if self._launcher is None:
                    await asyncio.to_thread(launcher.close)
                self.files.close()

    async def start_job(self, kind: str, scan: Scan, model: Model, **arguments: Any) -> Job:
        """Queue a job of a model on a scan, or raise `Refused`."""
        if scan.channels != model.channels:
            reason = f"the scan has {scan.channels} channels and the model takes {model.channels}"
            raise Refused(422, reason, "send the kind of scan that the model was trained on, or choose another model")
        given = {"scan": str(scan.file), "model": model.folder, **arguments}
        return self.jobs.add(kind, scan.id, given, scan.name)

    async def segmentation(
        self,
        scan: Scan,
        model: Model,
        *,
        preset: str | None = None,
        uncertainty: bool = False,
        largest_component: bool = False,
        nrrd: bool = False,
    ) -> Job:
        """Queue the segmentation of a scan, or raise `Refused`."""
        return await self.start_job(
            "segment",
            scan,
            model,
            series=None if scan.series is None else str(scan.series),
            runtime=self.settings.runtime,
            preset=preset,
            uncertainty=uncertainty,
            largest_component=largest_component,
            nrrd=nrrd,
        )

    async def save_label(self, label: Path, name: str) -> str | None:
        """Copy a label to the folder of labels, beside all that exist, and return its name there, if there is one."""
        if self.settings.labels is None:
            return None
        return await asyncio.to_thread(_copy_label, label, self.settings.labels, name)

    async def expire(self, now: float) -> None:
        """Delete what is older than `Limits.keep` at a time of the monotonic clock."""
        await self.jobs.expire(now)
        await self.scans.expire(now, self.jobs.scans_with_jobs())
        await self.dataset.expire(self.settings.limits.keep)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY)
            await self.expire(time.monotonic())


def _copy_label(label: Path, folder: Path, name: str) -> str:
    target = new_label(folder, name)
    write_file(target, read_capped(label, WEIGHTS_LIMIT))
    return target.name


def new_label(folder: Path, name: str) -> Path:
    """Create an empty file for the label of a scan, beside all that exist: NAME.nii.gz, NAME-2.nii.gz, ..."""
    stem = re.sub(r"\.(nii|nii\.gz|nrrd|zip)$", "", name, flags=re.IGNORECASE)
    plain = re.sub(r"[^\w.-]+", "_", stem, flags=re.ASCII).strip("._-")[:100] or "scan"
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        target = folder / (f"{plain}.nii.gz" if number == 1 else f"{plain}-{number}.nii.gz")
        try:
            with open(target, "xb"):
                return target
        except FileExistsError:
            number += 1

"""The plan of a run: grid, patch, intensities, batch, length, memory and time, printed before the first iteration."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from fheat.data.fingerprint import Fingerprint
from fheat.data.preprocessing import NOT_RESAMPLED
from fheat.data.store import VolumeStore
from fheat.gates.hook import placed_by
from fheat.networks.padded import PaddedNetwork
from fheat.system.text import aligned, counted, grid_name, printable, some_of
from fheat.training.compiling import Compiling
from fheat.training.estimate import activation_bytes, device_kind, shown, speeds, step_bytes, stored_speed
from fheat.training.prepare import Prepared
from fheat.training.settings import TrainSettings


@dataclass(frozen=True)
class RunPlan:
    """Plan of a run, in the terms that users of nnU-Net know."""

    settings: TrainSettings
    dataset: str
    layout: str
    counts: dict[str, int]
    """Number of scans by what they serve for: labelled, unlabelled, validation."""
    channels: int
    classes: tuple[str, ...]
    fingerprint: Fingerprint
    resampled: int
    """Number of training scans whose voxels are resampled."""
    crops: dict[str, int]
    """Number of crops of an iteration: labelled, unlabelled."""
    parameters: int
    gates: tuple[str, ...]
    """Sites of the gates that are put into the network, beside those that it is built with."""
    stride: tuple[int, ...]
    compilable: bool
    """Whether the network has a body, which is the part that `torch.compile` can build kernels for."""
    compiling: Compiling
    device: str
    scan_bytes: int
    """Bytes that the training scans take on the device."""
    work_bytes: int | None
    """Bytes that an iteration takes beside the scans, about; None where that is not known."""
    minutes: float | None
    """Time of all iterations, about; None where nobody has timed the network."""
    timed_on: str
    """The machine of which `minutes` is an estimate."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        settings, grid = self.settings, self.fingerprint.grid
        wanted = settings.preprocessing
        return {
            "dataset": self.dataset,
            "layout": self.layout,
            "scans": self.counts,
            "channels": self.channels,
            "classes": list(self.classes),
            "spacing": list(grid.spacing or ()),
            "orientation": grid.orientation,
            "resampled": self.resampled,
            "median_image_size_in_voxels": list(self.fingerprint.median_size),
            "patch_size": list(settings.data.patch_size),
            "normalization": wanted.intensity,
            "window": None if wanted.window is None else list(wanted.window),
            "batch_size": settings.data.batch,
            "crops": self.crops,
            "network": settings.network.name,
            "parameters": self.parameters,
            "instrumented": list(self.gates),
            "method": settings.method.name,
            "iterations": settings.schedule.iterations,
            "learning_rate": settings.optimiser.learning_rate,
            "validation": {"every": settings.validation.every, "stride": list(self.stride)},
            "compiled": asdict(self.compiling),
            "device": self.device,
            "memory_bytes": {"scans": self.scan_bytes, "iteration": self.work_bytes},
            "minutes": None if self.minutes is None else float(f"{self.minutes:.3g}"),
            "minutes_on": self.timed_on,
            "notes": self.notes(),
            "fingerprint": self.fingerprint.to_json(),
        }

    def notes(self) -> list[str]:
        """Return what somebody should know before the run begins."""
        window, kind = self.fingerprint.window, self.settings.preprocessing.intensity
        if window is None or kind == "window":
            return []
        low, high = (f"{bound:g}" for bound in window)
        return [
            f"the scans look like CT, and {kind} is chosen: --intensity window --window {low} {high} would take "
            "the 0.5 and 99.5 percentiles inside the labels"
        ]

    def text(self) -> str:
        """Return the plan as a few lines."""
        settings, grid = self.settings, self.fingerprint.grid
        spacing = " x ".join(f"{step:.4g}" for step in grid.spacing or ())
        scans = ", ".join(f"{count} {role}" for role, count in self.counts.items() if count)
        total = self.counts["labelled"] + self.counts["unlabelled"]
        rows = [
            ("scans", f"{scans}; {counted(self.channels, 'channel')}; {', '.join(self.classes)}"),
            ("spacing", f"{spacing} mm, {grid.orientation}; {self.resampled} of {total} training scans resampled"),
            (
                "size",
                f"{grid_name(self.fingerprint.median_size)} in the median, patch {grid_name(settings.data.patch_size)}",
            ),
            ("intensities", self._intensities()),
            ("network", f"{settings.network.name}, {counted(self.parameters, 'parameter')}; {settings.method.name}"),
            *([("gates", f"{len(self.gates)} put in: {', '.join(some_of(self.gates))}")] if self.gates else []),
            ("batch", " and ".join(f"{count} {kind}" for kind, count in self.crops.items() if count) + " crops"),
            ("length", f"{settings.schedule.iterations:,} iterations, rate {settings.optimiser.learning_rate:g}"),
            ("validation", self._validation()),
            *([("torch.compile", self.compiling.shown())] if self.compilable else []),
            ("memory", self._memory()),
            ("time", self._time()),
        ]
        notes = [f"note: {note}" for note in self.notes()]
        head = f"plan for {self.dataset} ({self.layout}):"
        body = "\n".join(f"  {line}" for line in aligned(rows).splitlines())
        return "\n".join([printable(head), body, *notes])

    def _intensities(self) -> str:
        wanted = self.settings.preprocessing
        chosen = wanted.intensity if wanted.window is None else f"window {wanted.window[0]:g} to {wanted.window[1]:g}"
        inside = [
            f"mean {one.mean:.4g}, SD {one.std:.4g}, 0.5 % {one.percentile_00_5:.4g}, 99.5 % {one.percentile_99_5:.4g}"
            for one in self.fingerprint.foreground
        ]
        return f"{chosen}; inside the labels {' | '.join(inside)}" if inside else chosen

    def _validation(self) -> str:
        if not self.counts["validation"]:
            return "none, for want of validation scans"
        return f"every {self.settings.validation.every:,} iterations, window steps of {grid_name(self.stride)}"

    def _memory(self) -> str:
        work = "an unknown amount" if self.work_bytes is None else f"about {_size(self.work_bytes)}"
        return f"{_size(self.scan_bytes)} for scans and {work} for an iteration, on {self.device}"

    def _time(self) -> str:
        if self.minutes is None:
            return f"not known: nobody has timed {self.settings.network.name}"
        beside = "reading, validation and the gates that are put in" if self.gates else "reading and validation"
        time = shown(self.minutes)
        return f"{'' if time.startswith('under') else 'about '}{time} on {self.timed_on}, without {beside}"


def plan_run(prepared: Prepared) -> RunPlan:
    """Return the plan of a run that is ready to begin. Nothing is read again, and no random number is used up."""
    settings, scans, step = prepared.settings, prepared.scans, prepared.step
    device = step.iteration.device
    data, grid = settings.data, scans.preprocessing
    kind = device_kind(device)
    per_second = stored_speed(settings.network.name, settings.method.name, data.patch_size, data.batch, kind)
    activations = activation_bytes(step.model, scans.channels, data.patch_size)
    half = step.precision != torch.float32
    work = None if activations is None else step_bytes(step.model, step.method, activations, data.batch, half=half)
    store = step.batches.store
    return RunPlan(
        settings=settings,
        dataset=prepared.dataset.name,
        layout=prepared.dataset.layout,
        counts={"labelled": scans.labelled, "unlabelled": scans.unlabelled, "validation": len(scans.validation)},
        channels=scans.channels,
        classes=prepared.classes.names,
        fingerprint=scans.fingerprint,
        resampled=sum(grid.steps(spacing) != NOT_RESAMPLED for spacing in scans.fingerprint.spacings),
        crops={"labelled": step.method.labelled, "unlabelled": step.method.unlabelled},
        parameters=sum(parameter.numel() for parameter in step.model.parameters()),
        gates=tuple(site for site, gate in step.gates.items() if placed_by(gate) is not None),
        stride=prepared.windows.stride,
        compilable=isinstance(step.model, PaddedNetwork),
        compiling=prepared.compiling,
        device=str(device),
        scan_bytes=store.voxels.nbytes + store.labels.nbytes if isinstance(store, VolumeStore) else 0,
        work_bytes=work,
        minutes=None if per_second is None else settings.schedule.iterations / per_second / 60,
        timed_on=speeds()[kind].machine,
    )


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{max(count / 2**20, 1):,.0f} MiB"

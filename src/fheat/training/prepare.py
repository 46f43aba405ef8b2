"""Preparing a run: from settings to scans, network, method and batches on a device. Nothing is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fheat.data.case import Dataset
from fheat.data.classes import Classes, classes_of, has_regions
from fheat.data.preprocessing import Preprocessing
from fheat.data.stream import place
from fheat.gates.instrument import instrument
from fheat.inference.windows import Windows
from fheat.methods.base import Method
from fheat.methods.registry import method_class
from fheat.models.start import Start, start_folder, start_from
from fheat.networks.base import SegmentationNetwork
from fheat.networks.padded import PaddedNetwork
from fheat.networks.registry import create_model, list_models, provides
from fheat.system import processes
from fheat.system.errors import BadInput
from fheat.system.machine import memory_for
from fheat.system.progress import Progress, silent
from fheat.training.batches import Batches, draw, draw_run
from fheat.training.compiling import Compiling, choose_for
from fheat.training.estimate import device_kind
from fheat.training.optimiser import NO_SPIKE, AdamW, Schedule, Spike
from fheat.training.scans import Scans, load_scans, open_run_dataset, outlines_left_out
from fheat.training.settings import INITIAL_STRENGTH, NetworkSettings, TrainSettings
from fheat.training.size import check_size
from fheat.training.step import Step


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to begin: its data, its classes, and the step that advances it."""

    settings: TrainSettings
    dataset: Dataset
    scans: Scans
    classes: Classes
    step: Step
    first: int
    """Number of iterations that the run was begun with; the settings have the number that it has now."""
    start: Start | None = None
    """The model that the run was started from; None for fresh weights."""
    compiling: Compiling = field(default_factory=Compiling)
    """Whether `torch.compile` runs the network, as chosen at first, and as found once `compile_check` has compared."""
    remarks: tuple[str, ...] = ()
    """Remarks of one line about what preparing the run has met, which the user should read."""

    @property
    def windows(self) -> Windows:
        """Sliding window of the validation: the patch, and the stride of the settings or half of it."""
        x, y, z = self.settings.data.patch_size
        return Windows((x, y, z), self.settings.validation.stride or (x // 2, y // 2, z // 2))

    def notes(self, *, goes_on: bool = False) -> list[str]:
        """Return lines that the user should read: about the model that the run starts from, unless the run goes on, and
        the remarks that were made while it was prepared."""
        if self.start is None or goes_on:
            return [*self.remarks]
        start = [self.start.note(), self.start.spacing_note(self.scans.preprocessing.spacing)]
        return [*filter(None, start), *self.remarks]

    def identity(self) -> dict[str, Any]:
        """Return what tells the scans of this run from others, wherever they lie."""
        scans = self.scans
        return {
            "labelled scans": scans.names[: scans.labelled],
            "unlabelled scans": scans.names[scans.labelled :],
            "validation scans": [scan.name for scan in scans.validation],
            "channels": scans.channels,
            "classes": list(self.classes.names),
        }

    def grid(self) -> dict[str, Any]:
        """Return orientation and spacing of the run, which a checkpoint keeps: it goes on with them."""
        return self.scans.preprocessing.model_dump(mode="json", include={"orientation", "spacing"})

    def other_batches(self, count: int, seed: int) -> Batches:
        """Return batches of the run's kind that no iteration sees, or not in this order."""
        method, store = self.step.method, self.step.batches.store
        crops = method.labelled, method.unlabelled
        data = self.settings.data
        return Batches(store, draw(_counts(self.scans), crops, count, seed), data.patch_size, augment=data.augment)


def prepare(
    settings: TrainSettings,
    *,
    device: str | None = None,
    progress: Progress = silent,
    first: int | None = None,
    started: Start | None = None,
    start: str | None = None,
    grid: Mapping[str, Any] | None = None,
    compiling: Compiling | None = None,
) -> Prepared:
    """Read the scans and build everything that a run needs, or raise `BadInput`.

    All processes that train together call this and see the same data.

    Args:
        settings: those of the run.
        device: `cpu` or `cuda`; a GPU where there is one.
        progress: called after each scan.
        first: number of iterations that the run was begun with, if it was another one.
        started: the model that the run was started from, if a checkpoint holds what became of its weights; else the
            model of the settings is read.
        start: where that model lies, if not where the settings say.
        grid: orientation and spacing that the run was begun with, as its checkpoint tells; empty if that is of an
            earlier version, in which a run took those of its own scans. None for a run that begins.
        compiling: whether the run was compiled so far; chosen here if None. Nothing is compiled yet.
    """
    group = processes.current()
    group.together(lambda: check_size(settings))
    where = group.together(lambda: processes.own_device(device))
    start = (start or settings.network.start) if started is None else None
    if start is not None:
        group.together(lambda: start_folder(start))  # before the scans are read
    dataset = group.together(lambda: open_run_dataset(settings.data))
    classes = group.together(lambda: run_classes(dataset, settings))
    scans = group.together(lambda: _load(dataset, classes, settings, grid, progress))
    first = settings.schedule.iterations if first is None else first
    torch.manual_seed(settings.schedule.seed)
    model = build_network(settings, scans.channels, len(classes.names))
    if start is not None:
        started = group.together(lambda: start_from(model, start))
    step = _build(settings, scans, classes, model, where, first)
    compiling = compiling or choose_for(settings, model, device_kind(where))
    return Prepared(settings, dataset, scans, classes, step, first, started, compiling)


def run_classes(dataset: Dataset, settings: TrainSettings) -> Classes:
    """Return the classes of a run: nested regions where the dataset declares them and the method takes them."""
    method, asked = method_class(settings.method.name), settings.data.regions
    if asked == "yes" and not method.takes_regions:
        reason = f"is yes, and method {settings.method.name} trains exclusive classes"
        raise BadInput("data.regions", reason, "use a method that takes regions, or data.regions no")
    return classes_of(
        dataset, regions=asked == "yes" or (asked == "auto" and method.takes_regions and has_regions(dataset))
    )


def wanted_preprocessing(settings: TrainSettings) -> Preprocessing:
    """Return the preprocessing that the settings ask for, before the grid of the scans is known."""
    wanted = settings.preprocessing
    return Preprocessing(
        orientation=wanted.orientation,
        spacing=wanted.spacing,
        tolerance=wanted.tolerance,
        intensity=wanted.intensities(),
    )


def build_network(settings: TrainSettings, channels: int, classes: int) -> SegmentationNetwork:
    """Build the network with fresh weights and the gates that are put into it.

    Raises `BadInput` where it cannot be built, cannot serve the method, or has no place for such a gate.
    """
    name, needs = settings.network.name, method_class(settings.method.name).needs
    try:
        model = create_model(name, channels, classes, settings.data.patch_size, **settings.network.options)
    except (ValueError, TypeError) as error:
        raise BadInput("network", str(error), "see fheat models") from None
    if missing := needs.of_the_network - provides(model):
        able = [other for other in list_models() if needs.of_the_network <= provides(other)]
        reason = f"{name} has no {' and no '.join(sorted(missing))}, which method {settings.method.name} needs"
        raise BadInput("network", reason, f"use one of {', '.join(able)}, or another method")
    if settings.optimiser.compile == "yes" and not isinstance(model, PaddedNetwork):
        reason = f"{name} is not made of a body and a head, of which torch.compile is given the body"
        raise BadInput("optimiser.compile", reason, "leave it out, or use a network such as segresnet or dynunet")
    return _with_gates(model, settings.network)  # type: ignore[return-value]


def _with_gates(model: nn.Module, wanted: NetworkSettings) -> nn.Module:
    """Return the network with gates behind the modules that the settings name. No random number is used up for it."""
    if not wanted.instrument:
        return model
    strength = INITIAL_STRENGTH if wanted.initial_strength is None else wanted.initial_strength
    try:
        return instrument(model, wanted.instrument, initial_strength=strength)
    except ValueError as error:
        other = "a larger patch" if "one cell" in str(error) else f"paths or patterns of modules of {wanted.name}"
        raise BadInput("network.instrument", str(error), f"give {other}, see docs/how-to/add-a-gate.md") from None


def _load(
    dataset: Dataset,
    classes: Classes,
    settings: TrainSettings,
    grid: Mapping[str, Any] | None,
    progress: Progress,
) -> Scans:
    data, wanted = settings.data, wanted_preprocessing(settings)
    unlabelled = method_class(settings.method.name).needs.unlabelled
    known = grid is not None or (wanted.orientation is not None and wanted.spacing is not None)
    divided = data.fold is not None and not unlabelled and not known
    beside = outlines_left_out(dataset, data.labelled, data.allow, progress) if divided else []
    return load_scans(
        dataset,
        classes,
        Preprocessing(**{**dict(wanted), **(grid or {})}),
        data.patch_size,
        labelled=data.labelled,
        unlabelled=unlabelled,
        allow=data.allow,
        beside=beside,
        progress=lambda done, total: progress(done + len(beside), total + len(beside)),
    )


def _build(
    settings: TrainSettings,
    scans: Scans,
    classes: Classes,
    model: SegmentationNetwork,
    device: torch.device,
    first: int,
) -> Step:
    seed, research, iterations = settings.schedule.seed, settings.research, settings.schedule.iterations
    if settings.optimiser.deterministic:
        torch.use_deterministic_algorithms(True)

    def build() -> SegmentationNetwork:
        return build_network(settings, scans.channels, len(classes.names)).to(device).train()

    model = model.to(device).train()
    method = build_method(settings, classes).to(device)
    folder = settings.data.folder
    with memory_for(f"a set of {len(scans.volumes)} scans", folder, device, "set data.resident to no"):
        store = place(scans.volumes, device, settings.data.resident)
    scans.volumes.clear()  # the store has them
    draws = draw_run(_counts(scans), (method.labelled, method.unlabelled), iterations, seed, first)
    method.prepare(model, build)
    spike = NO_SPIKE if research.spike_at is None else Spike(research.spike_at, research.spike_for, research.spike)
    half = settings.optimiser.precision == "bf16" and device.type == "cuda"
    return Step(
        model,
        method,
        Batches(store, draws, settings.data.patch_size, augment=settings.data.augment),
        method.own_optimiser(model) or AdamW(model, settings.optimiser, method.trained(), method),
        Schedule(iterations, settings.schedule.warm_up, spike),
        precision=torch.bfloat16 if half else torch.float32,
        average=settings.optimiser.average,
    )


def build_method(settings: TrainSettings, classes: Classes) -> Method:
    """Build the training method of a run with these classes."""
    task = settings.task(len(classes.names), classes.regions)
    return method_class(settings.method.name)(settings.method, task)


def _counts(scans: Scans) -> tuple[int, int]:
    return scans.labelled, scans.unlabelled

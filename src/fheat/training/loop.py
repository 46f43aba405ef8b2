"""The training loop: advance, log, validate, save; stop at any moment and go on bit by bit the same."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fheat.data.case import class_names
from fheat.data.layouts import open_dataset
from fheat.data.stream import place
from fheat.inference.windows import Windows
from fheat.methods.base import Method
from fheat.methods.cse import CSE
from fheat.methods.supervised import Supervised
from fheat.models.card import Card, Window
from fheat.models.folder import save
from fheat.networks.base import SegmentationNetwork
from fheat.networks.registry import create_model
from fheat.system.errors import BadInput
from fheat.system.machine import memory_for
from fheat.system.processes import ALONE, Group
from fheat.system.progress import Progress, silent
from fheat.training.batches import Batches, draw_order, draw_places
from fheat.training.checkpoints import Checkpoint, check_same_run, newest_checkpoint, restore, save_checkpoint, state_of
from fheat.training.optimiser import NO_SPIKE, Optimiser, Rates, Spike
from fheat.training.parallel import device_for
from fheat.training.probing import Probing
from fheat.training.run_folder import RunFolder
from fheat.training.scans import load_scans
from fheat.training.settings import TrainConfig
from fheat.training.step import Step
from fheat.training.tensorboard import TensorBoard
from fheat.training.validation import validate

FLUSH = 50
"""Iterations between looks at the device."""
EVERY_ONE = 500
"""Iterations logged one by one, where the gates decide: from the start and after a perturbation. Else every tenth."""

HOPELESS = 500
"""Iterations of which nine in ten were skipped, their gradients not finite, before a run is given up."""


@dataclass(frozen=True)
class Look:
    """What a run is like right now, for whoever watches."""

    iteration: int
    iterations: int
    per_second: float
    losses: Mapping[str, float]
    gates: Mapping[str, float]
    best: float | None


class Stopped(Exception):  # noqa: N818 - it is not an error
    """A run that was asked to stop, for a reason that is a number, has saved its state at this iteration."""

    def __init__(self, iteration: int, reason: int) -> None:
        super().__init__(f"stopped at iteration {iteration}")
        self.iteration, self.reason = iteration, reason


class Run:
    """One training run in its folder.

    The processes of a group build the same run, call the same methods, and see the same data and folder. The first one
    writes, validates and watches; the others wait for it. What goes wrong there is raised by all.

    Args:
        config: see `TrainConfig`.
        folder: new or empty; with `resume` the folder of a run that was interrupted.
        device: `cuda` where there is one, else `cpu`.
        watch: called every `FLUSH` iterations.
        group: the processes that train together; each has `config.batch` scans of every batch.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        *,
        resume: bool = False,
        device: str | None = None,
        watch: Callable[[Look], None] = lambda look: None,
        reading: Progress = silent,
        group: Group = ALONE,
    ) -> None:
        self.config, self.watch, self.group = config, watch, group
        self.folder = RunFolder(folder, TensorBoard(folder) if config.tensorboard and group.rank == 0 else None)
        if not resume:
            group.lead(self.folder.check_free)
        self.device = group.together(lambda: device_for(group, device))
        self.dataset = group.together(lambda: open_dataset(config.data))
        self.scans = group.together(lambda: load_scans(self.dataset, config, reading))
        self.classes = class_names(self.dataset.labels)
        self.step = self._build()
        if config.probe_at and group.size > 1:
            raise BadInput("probe_at", "is for runs of one process", "leave it out, or probe the model folders later")
        if config.probe_at and not self.step.gates:
            raise BadInput("probe_at", f"is for networks with gates, not {config.network}", "leave it out")
        self.probing = Probing(self._probe_batches, config.seed)
        self.best: float | None = None
        self.latest: float | None = None
        self.done = self._logged = 0
        self._stopping = 0
        self._skips: deque[int] = deque(maxlen=HOPELESS // FLUSH + 1)
        if resume:
            self._go_on()
        else:
            group.lead(lambda: self.folder.begin(config))

    def train(self) -> Path:
        """Run to the end and return the folder of the final model."""
        what = f"a step with batch {self.config.batch} and patch_size {self.config.patch_size}"
        with memory_for(what, self.folder.path, self.device, "start another run with a lower batch or patch_size"):
            try:
                return self._to_the_end()
            except (FloatingPointError, ValueError) as error:
                if isinstance(error, ValueError) and not self._diverged():
                    raise self._refused(error) from error
                remedy = "start again with a lower rate or precision fp32; checkpoints before it are kept"
                raise BadInput(self.folder.path, f"training diverged by iteration {self.done}", remedy) from None

    def _refused(self, error: ValueError) -> Exception:
        """Say in one line what the user can mend: batch norm needs two values of every channel."""
        if "more than 1 value per channel" not in str(error):
            return error
        settings = f"batch {self.config.batch} and patch_size {self.config.patch_size}"
        reason = f"{self.config.network} has batch norms that cannot be trained with {settings}"
        return BadInput(self.folder.path, reason, "use a larger batch or patch_size")

    def _to_the_end(self) -> Path:
        config = self.config
        if self.done == 0 and 0 in config.probe_at:
            self._probe()
        first, began = self.done, time.perf_counter()
        while self.done < config.iterations:
            if self.done == config.noise_at:  # also by a run that goes on here: the draws are the same
                self.step.reopen_gates(config.noise, config.seed)
            self.step()
            self.done += 1
            at_end = self.done == config.iterations
            reason = self.group.largest(self._stopping)
            validating = bool(self.scans.validation) and (self.done % config.validate_every == 0 or at_end)
            saving = self.done % config.checkpoint_every == 0 or at_end or reason
            probing = self.done in config.probe_at
            if not (validating or saving or probing or self.done % FLUSH == 0):
                continue
            self.group.lead(partial(self._look, first, began))
            if probing:
                self._probe()
            if validating:
                self.group.lead(self._validate)
            if saving:
                self.checkpoint()
            if reason and not at_end:
                raise Stopped(self.done, reason)
            first, began = self.done, time.perf_counter()
        self.group.lead(lambda: self._save("final"))
        return self.folder.path / "final"

    def _diverged(self) -> bool:
        """Whether a parameter of the network, or the loss that is minimised, has been NaN or infinite."""
        seen = (self.step.history[: self.done, 0], *self.step.model.parameters())
        return not all(bool(torch.isfinite(values).all()) for values in seen)

    def stop(self, reason: int = 1) -> None:
        """Ask the run to save its state after the iteration it is in, and to raise `Stopped`.

        Asked on one process, all stop after the same iteration. The largest of different reasons counts.
        """
        self._stopping = reason

    def checkpoint(self) -> None:
        """Write the complete state now, the log before it."""
        facts: dict[str, Any] = {"best": self.best, "settings": self.config.model_dump(mode="json")}
        facts |= {"set": self._set()} | self._processes()
        state = Checkpoint(self.done, state_of(self.step), facts)

        def write() -> None:
            self._log()
            save_checkpoint(self.folder.checkpoints, state)

        self.group.lead(write)

    def _go_on(self) -> None:
        """Restore the newest checkpoint, if there is one, and drop what was logged after it."""
        found = self.group.together(lambda: newest_checkpoint(self.folder.checkpoints))
        if len(set(self.group.tell(found.iteration if found else 0))) > 1:
            raise BadInput(self.folder.path, "is not the same for all processes", "use a folder that they share")
        check_same_run(self.folder, self.config, self._set(), found)
        if found is not None:
            processes = found.facts.get("processes", 1)
            if processes != self.group.size:
                remedy = f"go on with {processes}, see docs/training.md"
                raise BadInput(self.folder.path, f"is the run of {processes} processes, not {self.group.size}", remedy)
            restore(self.step, found.tensors)
            self.done = self._logged = found.iteration
            self.best = found.facts["best"]
        self.group.lead(lambda: self.folder.rewind_log(self.done if found else -1))  # what is logged at 0 comes again

    def _set(self) -> dict[str, Any]:
        """Return what tells the scans of this run from others, wherever they lie."""
        scans = self.scans
        return {
            "labelled scans": scans.names[: scans.labelled],
            "unlabelled scans": scans.names[scans.labelled :],
            "validation scans": [name for name, *_ in scans.validation],
            "channels": scans.channels,
            "classes": list(self.classes),
        }

    def _processes(self) -> dict[str, int]:
        return {} if self.group.size == 1 else {"processes": self.group.size}

    def _log(self) -> None:
        """Log the iterations since the last time."""
        rows = self.step.history[self._logged : self.done].tolist()
        lines = (
            {"iteration": iteration, **dict(zip(self.step.columns, row, strict=True))}
            for iteration, row in enumerate(rows, start=self._logged + 1)
        )
        self.folder.log(
            line for line in lines if line["iteration"] % 10 == 0 or decides(line["iteration"], self.config)
        )
        self._logged = self.done

    def _look(self, first: int, began: float) -> None:
        """Log, and tell the watcher how the run stands; iterations from `first` on have taken since `began`."""
        self._log()  # waits for the device
        per_second = (self.done - first) / (time.perf_counter() - began)
        skipped = int(self.step.optimiser.skipped)
        if self.done % FLUSH == 0:
            self._skips.append(skipped)
            if self._skips[-1] - self._skips[0] > 0.9 * HOPELESS:
                raise FloatingPointError(f"nine in ten of {HOPELESS} updates were not finite")
        self.folder.log([{"iteration": self.done, "per_second": round(per_second, 3), "skipped": skipped}])
        last = dict(zip(self.step.columns, self.step.history[self.done - 1].tolist(), strict=True))
        gates = {name.removeprefix("D."): value for name, value in last.items() if name.startswith("D.")}
        losses = {name: last[name] for name in self.step.method.names}
        self.watch(Look(self.done, self.config.iterations, per_second, losses, gates, self.best))

    def _validate(self) -> None:
        found = validate(self.step.model, self.scans.validation, self._windows(), len(self.classes))
        self.latest = mean = sum(found.values()) / len(found)
        self.folder.log([{"iteration": self.done, "validation": mean, "cases": found}])
        if self.best is None or mean > self.best:
            self.best = mean
            self._save("best")

    def _probe(self) -> None:
        """Log what the gates want; nothing of them where that is not finite, which must not end the run."""
        with memory_for("a probe in float32", self.folder.path, self.device, "leave out probe_at"):
            try:
                found = self.probing(self.step)
            except ValueError:
                found = {}
        self.folder.log([{"iteration": self.done, "probe": found}])

    def _save(self, name: str) -> None:
        config = self.config
        windows, dice = self._windows(), self.best if name == "best" else self.latest
        card = Card(
            title=f"{config.network}, {config.method}",
            classes=self.classes,
            preprocessing=self.scans.preprocessing,
            window=Window(size=windows.size, stride=windows.stride),
            data=f"{self.dataset.name}: {self.scans.labelled} of {len(self.scans.names)} scans labelled",
            training={"iteration": self.done, **config.model_dump(mode="json"), **self._processes()},
            metrics={} if dice is None else {"validation_dice": dice},
        )
        save(self.step.model, self.folder.path / name, card, overwrite=True)

    def _windows(self) -> Windows:
        size = self.config.patch_size
        half = size[0] // 2, size[1] // 2, size[2] // 2
        return Windows(size, self.config.stride or half)

    def _build(self) -> Step:
        config, scans = self.config, self.scans
        torch.manual_seed(config.seed)
        if config.deterministic:
            torch.use_deterministic_algorithms(True)
        model = _network(config, scans.channels, len(self.classes))
        method = _method(config, self.group)
        with memory_for(f"a set of {len(scans.volumes)} scans", config.data, self.device, "set resident to no"):
            store = place(scans.volumes, self.device, config.resident)
        scans.volumes.clear()  # the store has them
        orders, places = self._drawn(method, config.iterations, config.seed)
        model.to(self.device).train()
        rates = Rates(config.rate, config.theta_rate, config.delta_rate, config.rational_rate)
        return Step(
            model,
            method.to(self.device),
            store,
            orders,
            Optimiser(model, rates, weight_decay=config.weight_decay, clip=config.clip),
            places=places,
            patch=config.patch_size,
            warm_up=config.warm_up,
            spike=NO_SPIKE if config.spike_at is None else Spike(config.spike_at, config.spike_for, config.spike),
            precision=torch.bfloat16 if config.precision == "bf16" and self.device.type == "cuda" else torch.float32,
            group=self.group,
        )

    def _drawn(self, method: Method, iterations: int, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return which scans come and where crops of them lie, labelled and unlabelled, for the whole group."""
        generator = torch.Generator().manual_seed(seed)
        labelled, unlabelled = self.group.size * method.labelled, self.group.size * method.unlabelled
        count, rest = self.scans.labelled, len(self.scans.names) - self.scans.labelled
        orders = (
            draw_order(count, labelled, iterations, generator),
            count + draw_order(rest, unlabelled, iterations, generator),
        )
        places = draw_places(labelled, iterations, generator), draw_places(unlabelled, iterations, generator)
        return orders, places

    def _probe_batches(self) -> Batches:
        """Batches of the run's kind that no iteration sees, or not in this order."""
        drawn = self._drawn(self.step.method, self.config.probe_batches, self.config.seed + 1)
        return Batches(self.step.store, *drawn, self.config.patch_size)


def decides(iteration: int, config: TrainConfig) -> bool:
    """Whether an iteration is one of those in which gates decide: from the start, and after a perturbation."""
    begun = [0, *(at for at in (config.noise_at, config.spike_at) if at is not None)]
    return any(0 < iteration - at <= EVERY_ONE for at in begun)


def _network(config: TrainConfig, channels: int, classes: int) -> SegmentationNetwork:
    options: dict[str, Any] = dict(config.network_options)
    try:
        return create_model(config.network, channels, classes, config.patch_size, **options)  # type: ignore[return-value]
    except (ValueError, TypeError) as error:
        raise BadInput("network", str(error), "see fheat models") from None


def _method(config: TrainConfig, group: Group) -> Method:
    if config.method == "supervised":
        return Supervised(labelled=config.batch, group=group)
    return CSE(patch_size=config.patch_size, scans=config.batch, box=config.box, ramp=config.ramp, group=group)

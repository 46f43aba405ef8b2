"""Validation: how good the network is on scans it does not learn from, and the models that are kept."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

from fheat.data.classes import Classes
from fheat.inference.sliding import Activation, SlidingWindow
from fheat.inference.windows import Windows
from fheat.metrics.masks import dice
from fheat.models.card import Card, Window
from fheat.models.folder import save
from fheat.networks.padded import as_written
from fheat.system import processes
from fheat.system.pace import Pace
from fheat.system.progress import Progress, silent
from fheat.training.run_folder import RunFolder
from fheat.training.scans import ValidationScan
from fheat.training.trainer import Observer, Trainer


class Validation(Observer):
    """Emits the Dice of every validation scan, and keeps the best network in `best/` and the last one in `final/`."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._pace: Pace | None = None

    def begin(self, trainer: Trainer) -> None:
        """Let the windows choose a number of threads of their own."""
        self._pace = trainer.new_pace()

    def due(self, trainer: Trainer) -> bool:
        """Return whether it is time, in a run that has validation scans."""
        time = trainer.done % trainer.settings.validation.every == 0 or trainer.at_end
        return time and bool(trainer.prepared.scans.validation)

    def look(self, trainer: Trainer) -> None:
        """Validate, and save the network if it is the best so far. Where the run only stops, nothing is done."""
        if not self.due(trainer):
            return
        prepared = trainer.prepared

        def show(done: int, total: int) -> None:
            trainer.validating = (done, total) if done < total else None

        scans = prepared.scans.validation
        show(0, len(scans))
        network = trainer.step.result
        with as_written(network):  # windows have other shapes than crops, for which kernels would be built anew
            scores = validate(network, scans, prepared.windows, prepared.classes, progress=show, pace=self._pace)
        trainer.latest = mean = sum(scores.values()) / len(scores)
        trainer.emit([{"iteration": trainer.done, "validation": mean, "cases": scores}])
        if trainer.best is None or mean > trainer.best:
            trainer.best = mean
            save_model(trainer, self._folder, "best", mean)

    def end(self, trainer: Trainer) -> None:
        """Save the network after the last iteration."""
        save_model(trainer, self._folder, "final", trainer.latest)


def validate(
    model: nn.Module,
    scans: Sequence[ValidationScan],
    windows: Windows,
    classes: Classes,
    *,
    progress: Progress = silent,
    pace: Pace | None = None,
) -> dict[str, float]:
    """Return the Dice of every scan, mean over foreground classes or regions, by the real sliding window.

    No component is removed and an empty prediction counts 0. The network is put back into the mode it was in. Raises
    `FloatingPointError` where its output is NaN or infinite.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    activation: Activation = "sigmoid" if classes.regions else "softmax"
    batch = 16 if device.type == "cuda" else 2
    sliding = SlidingWindow(model, windows, activation=activation, batch=batch, pace=pace)
    scores = {}
    for done, (name, image, label) in enumerate(scans, start=1):
        x = torch.from_numpy(image[None] if image.ndim == 3 else np.moveaxis(image, -1, 0).copy()).to(device)
        output = sliding(x)
        if not torch.isfinite(output).all():
            raise FloatingPointError(f"the output for {name} is NaN or infinite")
        if classes.regions:
            predicted = list((output > 0.5).cpu().numpy())
        else:
            predicted = classes.masks(output.argmax(dim=0).cpu().numpy())
        pairs = zip(predicted, classes.masks(label), strict=True)
        scores[name] = float(np.mean([dice(mask, reference) for mask, reference in pairs]))
        progress(done, len(scans))
    model.train(training)
    return scores


def save_model(trainer: Trainer, run_folder: RunFolder, part: str, score: float | None) -> None:
    """Write the network with its card: classes, preprocessing, what the scans looked like, windows, and settings."""
    prepared, settings, group = trainer.prepared, trainer.settings, processes.current()
    windows, scans = prepared.windows, prepared.scans
    together = {} if group.size == 1 else {"processes": group.size}
    start = {} if prepared.start is None else {"start": prepared.start.facts()}
    compiled = {"compiled": asdict(prepared.compiling)} if prepared.compiling.compiled else {}
    card = Card(
        title=f"{settings.network.name}, {settings.method.name}",
        classes=prepared.classes.names,
        regions=prepared.classes.painted,
        preprocessing=scans.preprocessing,
        appearance=scans.appearance,
        window=Window(size=windows.size, stride=windows.stride),
        data=f"{prepared.dataset.name}: {scans.labelled} of {len(scans.names)} scans labelled",
        training={"iteration": trainer.done, **settings.model_dump(mode="json"), **together, **start, **compiled},
        metrics={} if score is None else {"validation_dice": score},
    )
    run_folder.check_ours()
    save(trainer.step.result, run_folder.path / part, card, overwrite=True)

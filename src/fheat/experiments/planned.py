"""One run of an experiment: planned as a value, trained, scored on held-out scans, and never done twice.

    outcome = perform(PlannedRun("la-4-seed-0", settings), Path("runs"))

A planned run has a key, the hash of everything that decides its outcome: settings, scoring, the content of the scans
and the classes that their dataset declares. `perform` works in `runs/NAME-KEY`, which is a run folder of `fheat train`
with the scores beside it. It goes on where an interrupted run stopped, and reads the outcome of one that is done. A run
of which any of this was changed has another key, so an old outcome is never taken for its own.
"""

import gzip
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fheat import __version__
from fheat.data.case import Dataset
from fheat.experiments.scoring import Scoring, cases_to_score, score
from fheat.metrics.table import Table
from fheat.models.folder import read_manifest
from fheat.models.start import start_folder
from fheat.system.claims import Claim
from fheat.system.errors import BadInput
from fheat.system.files import TABLE_LIMIT, open_regular, read_capped, write_file
from fheat.system.machine import machine
from fheat.system.progress import Progress, silent
from fheat.system.sealed import sealed, sha256, unsealed
from fheat.training.checkpoints import MAY_CHANGE, flattened
from fheat.training.observers import Look
from fheat.training.run_folder import CONFIG, RunFolder
from fheat.training.runs import read_history
from fheat.training.scans import open_run_dataset
from fheat.training.settings import TrainSettings
from fheat.training.settings_sources import make_settings
from fheat.training.train import FinishedRun, begin, finish
from fheat.training.trainer import Observer

OUTCOME, SCORES = "outcome.json", "scores.json"
_COUNTS_HERE = frozenset({"validation.every", "validation.stride", "research.probe_at"})
"""Settings that a run which goes on may change, but which decide which of its networks is the best or what it logs."""
_OFF: tuple[Any, ...] = (None, False, [], "none")
_NOT_GIVEN = object()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class GateOutcome(BaseModel):
    """A gate after the last iteration; `closed_at` is the logged iteration from which it is closed, None if open."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    D: float
    alpha: float
    closed_at: int | None


class Outcome(BaseModel):
    """Outcome of a run: the content of `outcome.json`, written last."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    key: str
    name: str
    settings: dict[str, Any]
    """All settings of the training by section."""
    scoring: dict[str, Any]
    best: float | None
    """Best mean Dice on the validation scans, by the window of the validation."""
    best_at: int | None
    last: float | None
    """Mean Dice on the validation scans after the last iteration."""
    gates: dict[str, GateOutcome]
    skipped: int
    per_second: float | None
    """Iterations per second, median of those that were logged."""
    seconds: float
    """Time that training and scoring took in the process that ended them."""
    machine: dict[str, Any]
    scores: str | None = None
    """sha256 of `scores.json`; None in outcomes of earlier versions."""

    @property
    def survivors(self) -> dict[str, GateOutcome]:
        """Gates that are open at the end."""
        return {site: gate for site, gate in self.gates.items() if gate.closed_at is None}


@dataclass(frozen=True)
class PlannedRun:
    """A training run with a name, its settings, and how its network is scored."""

    name: str
    settings: TrainSettings
    scoring: Scoring = field(default_factory=Scoring)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r}: use letters, digits, dots, dashes and underscores")
        patch, stride = self.settings.data.patch_size, self.scoring.stride or (1, 1, 1)
        if any(step > size for step, size in zip(stride, patch, strict=True)):
            raise ValueError(f"scoring.stride {stride} leaves gaps: use at most the patch_size {patch}")

    @cached_property
    def key(self) -> str:
        """Hash of everything that decides the outcome, 64 hexadecimal digits.

        Settings that are off by default and off here are left out, so that a later version with one more option of that
        kind still knows the run. Options of the network stay: where one is not given, the network has its own default.
        """
        names = {"method": self.settings.method.name, "network": self.settings.network.name}
        default = _told(make_settings({"data": self.settings.data.folder, **names}))
        settings = {
            name: value
            for name, value in _told(self.settings).items()
            if not (value in _OFF and value == default.get(name, _NOT_GIVEN))
            and (name not in MAY_CHANGE or name in _COUNTS_HERE)
        }
        dataset = open_run_dataset(self.settings.data)
        facts: dict[str, Any] = {
            "settings": settings,
            "scoring": self.scoring.model_dump(mode="json"),
            "scans": self._scans(dataset),
            "classes": list(dataset.labels.items()),
        }
        if self.settings.network.start is not None:
            facts["start"] = read_manifest(start_folder(self.settings.network.start)).sha256
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def folder(self, runs: Path) -> Path:
        """Return the folder of this run within that of many runs."""
        return runs / f"{self.name}-{self.key[:12]}"

    def outcome(self, runs: Path) -> Outcome | None:
        """Return the outcome of this run if it is done, or raise `BadInput` where its file is damaged."""
        path = self.folder(runs) / OUTCOME
        if not path.is_file():
            return None
        outcome = read_outcome(path)
        if outcome.key != self.key:
            raise BadInput(path, f"is of another run ({outcome.name})", "delete its folder, and run it again")
        return outcome

    def scores(self, runs: Path) -> Table:
        """Return the scores of a run that is done, case by case, or raise `BadInput` where their file is damaged."""
        path = self.folder(runs) / SCORES
        remedy = f"delete it and {OUTCOME} beside it, and run it again"
        try:
            table = Table.read(path)
        except BadInput as error:
            raise BadInput(path, error.reason, remedy) from None
        outcome = self.outcome(runs)
        if outcome is not None and outcome.scores not in (None, sha256(read_capped(path, TABLE_LIMIT))):
            raise BadInput(path, f"was changed since it was written: {OUTCOME} has another sha256", remedy)
        return table

    def state(self, runs: Path) -> Literal["done", "interrupted", "not run yet"]:
        """Return whether the run is done, was begun, or neither."""
        if self.outcome(runs) is not None:
            return "done"
        return "interrupted" if (self.folder(runs) / CONFIG).is_file() else "not run yet"

    def _scans(self, dataset: Dataset) -> list[list[Any]]:
        """Return the name, split, declared spacing and content of every scan that the run sees."""
        seen = ("train", "validation", self.scoring.split)
        cases = [case for case in dataset.cases if case.split in seen]
        return [[case.id, case.split, case.spacing, *map(_content, (*case.images, case.label))] for case in cases]


def _told(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings by dotted name. Whether a network is compiled counts where somebody insists on it, as when
    that could be on or off only: left to choose, a run is the one that it was before there was a choice."""
    return {**flattened(settings), "optimiser.compile": settings.optimiser.compile == "yes"}


def perform(
    run: PlannedRun,
    runs: Path,
    claim: Claim | None = None,
    *,
    device: str | None = None,
    watch: Callable[[Look], None] = lambda look: None,
    reading: Progress = silent,
    observers: Iterable[Observer] = (),
) -> Outcome:
    """Do a run, or what is missing of it, and return its outcome.

    Args:
        run: the run.
        runs: folder of all runs.
        claim: that of this process on the folder of the run; without one the folder is claimed, or refused.
        device, watch, reading, observers: those of `fheat.train`.
    """
    done = run.outcome(runs)
    if done is not None:
        return done
    cases_to_score(run.settings.data, run.scoring.split)  # refuses before training what cannot be scored
    began = time.perf_counter()
    with RunFolder(run.folder(runs), claim) as folder:
        resume = (folder.path / CONFIG).is_file()
        trainer = begin(
            run.settings, folder, resume=resume, device=device, watch=watch, reading=reading, observers=observers
        )
        finished = finish(trainer, folder)
        where = trainer.step.iteration.device.type
        del trainer  # and with it the memory of the device
        part = "final" if finished.best is None else run.scoring.network
        scores = score(folder.path / part, run.settings, run.scoring, device=where).to_json().encode()
        folder.check_ours()
        write_file(folder.path / SCORES, scores)
        outcome = _outcome(run, finished, sha256(scores), where, time.perf_counter() - began)
        write_file(folder.path / OUTCOME, sealed(outcome.model_dump(mode="json")))
    return outcome


def read_outcome(path: Path) -> Outcome:
    """Read an `outcome.json`, or raise `BadInput`."""
    try:
        return Outcome.model_validate(unsealed(read_capped(path, TABLE_LIMIT)))
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", "check the path") from None
    except ValueError as error:
        reason = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise BadInput(path, f"is not the outcome of a run ({reason})", "delete it, and run it again") from None


def _outcome(run: PlannedRun, finished: FinishedRun, scores: str, device: str, seconds: float) -> Outcome:
    history = read_history(finished.folder)
    best = max(history.validations, key=lambda validation: validation.mean, default=None)
    last, speeds = history.steps[-1], sorted(history.speeds.values())
    return Outcome(
        key=run.key,
        name=run.name,
        settings=run.settings.model_dump(mode="json"),
        scoring=run.scoring.model_dump(mode="json"),
        best=None if best is None else best.mean,
        best_at=None if best is None else best.iteration,
        last=history.validations[-1].mean if history.validations else None,
        gates={
            site: GateOutcome(D=last[f"D.{site}"], alpha=last[f"alpha.{site}"], closed_at=history.closed_at(site))
            for site in history.sites
        },
        skipped=finished.skipped,
        per_second=speeds[len(speeds) // 2] if speeds else None,
        seconds=seconds,
        machine={**machine(device), "fheat": __version__},
        scores=scores,
    )


def _content(path: Path | None) -> str | None:
    """Return the hash of a file, or of all files of a DICOM folder. What gzip packed is hashed unpacked."""
    if path is None:
        return None
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return hashlib.sha256("".join(_hashed(file, file.stat().st_mtime_ns) for file in files).encode()).hexdigest()


@cache
def _hashed(file: Path, changed: int) -> str:
    """Return the hash of a file, which is read again if the time at which it was `changed` is another one."""
    with open_regular(file) as stored:
        content = gzip.GzipFile(fileobj=stored) if file.suffix == ".gz" else stored
        return hashlib.file_digest(content, "sha256").hexdigest()

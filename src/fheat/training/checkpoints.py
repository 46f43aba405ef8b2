"""Checkpoints: the complete state of a run, on disk whole or not at all.

    checkpoints/step-00012000/state.safetensors    every tensor
    checkpoints/step-00012000/manifest.json        iteration, sha256 of the tensors, settings; sealed

A folder is written under another name, flushed and renamed; the newest that verifies is the one to resume from, and the
one before is kept too. The manifest is sealed, so that a changed byte is found in either file; manifests of earlier
versions have no seal and are read all the same.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fheat.system.errors import BadInput
from fheat.system.files import TEXT_LIMIT, open_regular, read_capped, write_folder
from fheat.system.sealed import sealed, sha256, unsealed
from fheat.training.run_folder import LENGTH, RunFolder
from fheat.training.settings import TrainSettings
from fheat.training.settings_sources import stored_settings

KEPT = 2
STATE, MANIFEST = "state.safetensors", "manifest.json"
_FIELDS = {"format", "iteration", "sha256", "facts"}


@dataclass(frozen=True)
class Checkpoint:
    """The complete state of a run, from which it goes on as if nothing had happened."""

    iteration: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    """Plain values, such as the best validation so far."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and remove all but the newest `KEPT`."""
    tensors = to_bytes({name: value.detach().cpu().contiguous() for name, value in checkpoint.tensors.items()})
    manifest = {
        "format": 1,
        "iteration": checkpoint.iteration,
        "sha256": sha256(tensors),
        "facts": checkpoint.facts,
    }
    for abandoned in folder.glob(".step-*"):  # by a run that was killed while it wrote
        shutil.rmtree(abandoned, ignore_errors=True)
    target = folder / f"step-{checkpoint.iteration:08d}"
    write_folder(target, {STATE: tensors, MANIFEST: sealed(manifest)})
    for stale in _by_age(folder)[KEPT:]:
        doomed = stale.rename(folder / f".{stale.name}.old")  # at once: half a checkpoint is never seen under its name
        shutil.rmtree(doomed, ignore_errors=True)
    return target


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint, None where there is none; damaged ones are passed over.

    Where all are damaged, `BadInput` is raised: a run that began anew would write over what is left of the old one.
    """
    there = _by_age(folder)
    found = next((found for found in map(_read, there) if found is not None), None)
    if there and found is None:
        raise BadInput(folder, "has no checkpoint that is whole", "restore one, or begin a run in another folder")
    return found


def _by_age(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True) if folder.is_dir() else []


def _read(folder: Path) -> Checkpoint | None:
    try:
        manifest = unsealed(read_capped(folder / MANIFEST, TEXT_LIMIT))
        with open_regular(folder / STATE) as file:  # as large as the network and its teacher make it
            content = file.read()
        if manifest.keys() != _FIELDS or manifest["format"] != 1 or sha256(content) != manifest["sha256"]:
            return None
        return Checkpoint(int(manifest["iteration"]), from_bytes(content), dict(manifest["facts"]))
    except (BadInput, OSError, ValueError, TypeError, SafetensorError):
        return None


MAY_CHANGE = frozenset(
    {
        "data.folder",
        "data.resident",
        "output.checkpoint_every",
        "output.tensorboard",
        "research.probe_at",
        "research.probe_batches",
        "validation.every",
        "validation.stride",
    }
)
"""Settings that do not decide how the weights go on: where the scans lie, and when to look."""


def first_length(folder: RunFolder, settings: TrainSettings, checkpoint: Checkpoint | None) -> int | None:
    """Return the number of iterations that a run was begun with; None where no checkpoint says so.

    Raises `BadInput` where the run has done more iterations than it now shall have.
    """
    if checkpoint is None:
        return None
    if settings.schedule.iterations < checkpoint.iteration:
        reason = f"has done {checkpoint.iteration} iterations, more than {settings.schedule.iterations}"
        raise BadInput(folder.path, reason, "give a larger number of iterations")
    if "settings" not in checkpoint.facts:
        return None
    told = stored_settings(checkpoint.facts["settings"], folder.checkpoints).schedule.iterations
    return int(checkpoint.facts.get("first", told))


def check_same_run(
    folder: RunFolder, settings: TrainSettings, scans: dict[str, Any], checkpoint: Checkpoint | None
) -> None:
    """Raise `BadInput` where settings or scans are not those the run began with, as its folder and checkpoint tell.

    The number of iterations may be another one.
    `scans` is the set as the checkpoint's fact `set` has it: lists of names, or numbers, by what they are. Checkpoints
    of older versions have no such fact and go on.
    """
    known = [folder.settings()]
    if checkpoint is not None and "settings" in checkpoint.facts:
        known.append(stored_settings(checkpoint.facts["settings"], folder.checkpoints))
    for before in known:
        told, asked = flattened(before), flattened(settings)
        if (told["optimiser.compile"], asked["optimiser.compile"]) == ("no", "auto"):
            asked["optimiser.compile"] = "no"  # as versions without that choice wrote it; the run goes on so
        if changed := _changed(told, asked):
            remedy = "resume with the same settings, or begin a new run"
            raise BadInput(folder.path, f"was begun with {changed}", remedy)
    earlier = checkpoint.facts.get("set", scans) if checkpoint is not None else scans
    for what, now in scans.items():
        if earlier.get(what, now) != now:
            remedy = f"restore the dataset {settings.data.folder}, or begin a new run"
            raise BadInput(folder.path, f"was begun with other {what} ({_difference(earlier[what], now)})", remedy)


def flattened(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings by dotted name."""
    return {
        f"{section}.{name}": value
        for section, values in settings.model_dump(mode="json").items()
        for name, value in values.items()
    }


def _difference(before: Any, now: Any) -> str:
    if not isinstance(before, list) or not isinstance(now, list):
        return f"{before}, not {now}"
    missing = [name for name in before if name not in now]
    added = [name for name in now if name not in before]
    if missing:
        return f"now without {missing[0]}"
    return f"now with {added[0]}" if added else "now in another order"


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return ", ".join(
        f"another {name} ({before.get(name)}, not {now.get(name)})"
        for name in names
        if name not in MAY_CHANGE and name != LENGTH
    )

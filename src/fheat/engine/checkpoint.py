"""Checkpoints: the complete state of a run, on disk whole or not at all.

    checkpoints/step-00012000/state.safetensors    every tensor
    checkpoints/step-00012000/manifest.json        iteration, sha256 of the tensors, what else is a number

A folder is written under another name, flushed and renamed; the newest that verifies is the one to resume from, and the
one before is kept too.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fheat.errors import BadInput
from fheat.files import write_folder

KEPT = 2
STATE, MANIFEST = "state.safetensors", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on as if nothing had happened."""

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
        "sha256": hashlib.sha256(tensors).hexdigest(),
        "facts": checkpoint.facts,
    }
    for abandoned in folder.glob(".step-*"):  # by a run that was killed while it wrote
        shutil.rmtree(abandoned, ignore_errors=True)
    target = folder / f"step-{checkpoint.iteration:08d}"
    write_folder(target, {STATE: tensors, MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()})
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
        manifest = json.loads((folder / MANIFEST).read_bytes())
        content = (folder / STATE).read_bytes()
        if manifest["format"] != 1 or hashlib.sha256(content).hexdigest() != manifest["sha256"]:
            return None
        return Checkpoint(int(manifest["iteration"]), from_bytes(content), dict(manifest["facts"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        return None

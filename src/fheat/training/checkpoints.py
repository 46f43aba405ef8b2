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

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fheat.system.errors import BadInput
from fheat.system.files import write_folder
from fheat.training.run_folder import RunFolder
from fheat.training.settings import TrainConfig
from fheat.training.step import Step

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


def state_of(step: Step) -> dict[str, Tensor]:
    """Return copies of everything the next iteration depends on, and of what was logged so far.

    Weights and buffers of network and method, moments of the optimiser, iteration, skipped updates, history, and the
    states of the random generators of host and device. All processes of a group call this and get the same: what each
    remembers of its own scans is gathered, everything else is alike in all.
    """
    state = {f"model.{name}": value for name, value in step.model.state_dict().items()}
    for name, value in step.method.state_dict().items():
        state[f"method.{name}"] = step.group.gather(value) if name in step.method.per_slot else value
    for index, parameter in enumerate(step.optimiser.parameters):
        moments = step.optimiser.adamw.state[parameter]
        state |= {f"optimiser.{index}.{name}": value for name, value in moments.items()}
    state["iteration"] = step.iteration
    state["skipped"] = step.optimiser.skipped
    state["history"] = step.history[: int(step.iteration)]
    state["generator.cpu"] = torch.get_rng_state()
    if step.iteration.is_cuda:
        state["generator.cuda"] = torch.cuda.get_rng_state(step.iteration.device)
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def restore(step: Step, state: dict[str, Tensor]) -> None:
    """Put a step into a state, in place, before its first iteration."""
    step.model.load_state_dict(_part(state, "model."))
    remembered = _part(state, "method.")
    own = {name: step.group.rows(value) for name, value in remembered.items() if name in step.method.per_slot}
    step.method.load_state_dict(remembered | own)
    device = step.iteration.device
    for index, parameter in enumerate(step.optimiser.parameters):
        moments = _part(state, f"optimiser.{index}.")
        if moments:
            # The step count of a fused update lies on the device of the parameter.
            step.optimiser.adamw.state[parameter] = {name: value.to(device) for name, value in moments.items()}
    step.iteration.copy_(state["iteration"])
    step.optimiser.skipped.copy_(state["skipped"])
    step.history[: len(state["history"])] = state["history"].to(device)
    torch.set_rng_state(state["generator.cpu"])
    if step.iteration.is_cuda and "generator.cuda" in state:
        torch.cuda.set_rng_state(state["generator.cuda"], device)


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


MAY_CHANGE = frozenset(
    {"data", "resident", "validate_every", "checkpoint_every", "stride", "probe_at", "probe_batches"}
)
"""What does not decide how the weights go on: where the scans lie, and when to look."""


def check_same_run(folder: RunFolder, config: TrainConfig, scans: dict[str, Any], found: Checkpoint | None) -> None:
    """Raise `BadInput` where settings or scans are not those the run began with, as its folder and checkpoint tell.

    `scans` is the set as the checkpoint's fact `set` has it: lists of names, or numbers, by what they are. Checkpoints
    of older versions have no such fact and go on.
    """
    known = [folder.config().model_dump(mode="json")]
    if found is not None and "settings" in found.facts:
        known.append(found.facts["settings"])
    default = TrainConfig(data="").model_dump(mode="json")  # a setting that was not there yet had no effect
    for settings in known:
        if changed := _changed(default | settings, config.model_dump(mode="json")):
            raise BadInput(
                folder.path, f"was begun with {changed}", "resume with the same settings, or begin a new run"
            )
    before = found.facts.get("set", scans) if found is not None else scans
    for what, now in scans.items():
        if before.get(what, now) != now:
            remedy = f"restore the dataset {config.data}, or begin a new run"
            raise BadInput(folder.path, f"was begun with other {what} ({_difference(before[what], now)})", remedy)


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
        f"another {name} ({before.get(name)}, not {now.get(name)})" for name in names if name not in MAY_CHANGE
    )

"""Whether a run may go on with some settings and scans: only with those that decided it so far."""

from typing import Any

from fheat.engine.checkpoint import Checkpoint
from fheat.engine.config import TrainConfig
from fheat.engine.run_folder import RunFolder
from fheat.errors import BadInput

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

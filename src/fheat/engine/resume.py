"""Whether a run may go on with some settings: only with those that decided it so far."""

from typing import Any

from fheat.engine.checkpoint import Checkpoint
from fheat.engine.config import TrainConfig
from fheat.engine.run_folder import RunFolder
from fheat.errors import BadInput

MAY_CHANGE = frozenset({"data", "resident", "validate_every", "checkpoint_every", "stride"})
"""What does not decide how the weights go on: where the scans lie, and when to look."""


def check_same_run(folder: RunFolder, config: TrainConfig, found: Checkpoint | None) -> None:
    """Raise `BadInput` where the settings are not those the run began with, as its folder and checkpoint tell."""
    known = [folder.config().model_dump(mode="json")]
    if found is not None and "settings" in found.facts:
        known.append(found.facts["settings"])
    for settings in known:
        if changed := _changed(settings, config.model_dump(mode="json")):
            raise BadInput(
                folder.path, f"was begun with {changed}", "resume with the same settings, or begin a new run"
            )


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return ", ".join(
        f"another {name} ({before.get(name)}, not {now.get(name)})" for name in names if name not in MAY_CHANGE
    )

"""The run folder: `config.toml`, `log.jsonl`, `checkpoints/`, `best/`, `final/` and maybe `tensorboard/`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fheat.system.errors import BadInput
from fheat.system.files import LOG_LIMIT, read_capped, write_file
from fheat.training.settings import TrainSettings
from fheat.training.settings_sources import read_settings, to_toml

CONFIG, LOG = "config.toml", "log.jsonl"
LENGTH = "schedule.iterations"
"""The setting that may be another one when a run goes on: it becomes longer, or ends earlier."""


class RunFolder:
    """Where a run keeps its settings, its log, its checkpoints and its models."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    def begin(self, settings: TrainSettings) -> None:
        """Claim an empty or new folder for a run with these settings, or raise `BadInput`."""
        self.check_free()
        write_file(self.path / CONFIG, to_toml(settings).encode())

    def check_free(self) -> None:
        """Raise `BadInput` where a run would write over something."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise BadInput(self.path, "exists and is not empty", "choose another folder, or pass --resume")

    def settings(self, overrides: Mapping[str, Any] | None = None) -> TrainSettings:
        """Return the settings of the run that lies here, some of them replaced, or raise `BadInput` where none does."""
        if not (self.path / CONFIG).is_file():
            raise BadInput(self.path, f"is not a run folder: it has no {CONFIG}", "give the --out of fheat train")
        return read_settings(self.path / CONFIG, overrides)

    def set_length(self, iterations: int) -> None:
        """Give the run another number of iterations in its `config.toml`, where it has not this one already."""
        if self.settings().schedule.iterations != iterations:
            write_file(self.path / CONFIG, to_toml(self.settings({LENGTH: iterations})).encode())

    def log(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to `log.jsonl`."""
        with open(self.path / LOG, "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def rewind_log(self, iteration: int) -> list[dict[str, Any]]:
        """Drop lines that were logged after an iteration, which will be done again, and damaged ones; return the rest.

        Nothing after iteration -1 means an empty log.
        """
        path = self.path / LOG
        texts = read_capped(path, LOG_LIMIT).split(b"\n") if path.exists() else []
        kept = [text for text in texts if _is_logged_until(text, iteration)]
        write_file(path, b"".join(text + b"\n" for text in kept))
        return [json.loads(text) for text in kept]


def _is_logged_until(text: bytes, iteration: int) -> bool:
    try:
        return bool(json.loads(text.decode())["iteration"] <= iteration)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return False  # cut off by a crash, or damaged since

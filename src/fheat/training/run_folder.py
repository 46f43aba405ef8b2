"""The run folder: `config.toml`, `log.jsonl`, `checkpoints/`, `best/`, `final/` and maybe `tensorboard/`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fheat.system.errors import BadInput
from fheat.system.files import write_file
from fheat.training.settings import TrainConfig, read_config
from fheat.training.tensorboard import TensorBoard

CONFIG, LOG = "config.toml", "log.jsonl"


class RunFolder:
    """Where a run keeps what it is, what it did, and how to go on."""

    def __init__(self, path: Path, board: TensorBoard | None = None) -> None:
        self.path, self.board = path, board
        self.checkpoints = path / "checkpoints"

    def begin(self, config: TrainConfig) -> None:
        """Claim an empty or new folder for a run with these settings, or raise `BadInput`."""
        self.check_free()
        write_file(self.path / CONFIG, config.to_toml().encode())

    def check_free(self) -> None:
        """Raise `BadInput` where a run would write over something."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise BadInput(self.path, "exists and is not empty", "choose another folder, or pass --resume")

    def config(self) -> TrainConfig:
        """Return the settings of the run that lies here, or raise `BadInput` where none does."""
        if not (self.path / CONFIG).is_file():
            raise BadInput(self.path, f"is not a run folder: it has no {CONFIG}", "give the --out of fheat train")
        return read_config(self.path / CONFIG, {})

    def log(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to `log.jsonl`, and to the board if there is one."""
        lines = list(lines)
        with open(self.path / LOG, "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        if self.board is not None:
            self.board.add(lines)

    def rewind_log(self, iteration: int) -> None:
        """Drop what was logged after an iteration, which will be done again, and lines that are damaged."""
        path = self.path / LOG
        texts = path.read_bytes().split(b"\n") if path.exists() else []
        kept = [text for text in texts if _is_logged_until(text, iteration)]
        write_file(path, b"".join(text + b"\n" for text in kept))
        if self.board is not None:
            self.board.replace(json.loads(text) for text in kept)


def _is_logged_until(text: bytes, iteration: int) -> bool:
    try:
        return bool(json.loads(text.decode())["iteration"] <= iteration)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return False  # cut off by a crash, or damaged since

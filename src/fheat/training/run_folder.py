"""The run folder: `config.toml`, `log.jsonl`, `checkpoints/`, `best/`, `final/` and maybe `tensorboard/`.

It has one writer: whoever begins a run or goes on with one claims its folder, see `fheat.system.claims`. What is read
back has a checksum: the settings in the last line of `config.toml`, every line of the log in itself. A path that was
given relative to the working directory is kept so, and a line of `config.toml` says which directory that was.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from fheat.models.zoo import RUN_SETTINGS
from fheat.system.claims import Claim, Holder, claimed
from fheat.system.errors import BadInput
from fheat.system.files import LOG_LIMIT, TEXT_LIMIT, flush_names, read_capped, write_file
from fheat.system.sealed import sha256
from fheat.training.log import from_line, is_checked, to_line
from fheat.training.settings import TrainSettings
from fheat.training.settings_sources import nest, read_settings, to_toml

CONFIG, LOG, CLAIMS = RUN_SETTINGS, "log.jsonl", ".claims"
LENGTH = "schedule.iterations"
"""The setting that may be another one when a run goes on: it becomes longer, or ends earlier."""
PLACE = "data.folder"
"""The setting that may be another one because the dataset was moved."""
_SEAL = b"# sha256 of the lines above: "
_PATHS_FROM = b"# paths are from: "
"""Begins the line with the directory, as JSON, from which relative paths of the settings lead."""
_REPLACED = (CONFIG, LOG, "best", "final")
"""Files and folders that are written under a name of their own, `.NAME.` and more, before they get their place."""


class RunFolder:
    """Where a run keeps its settings, its log, its checkpoints and its models.

    Used as a block, it gives back at the end what `claim` took:

        with RunFolder(path) as folder:
            finish(begin(settings, folder), folder)
    """

    def __init__(self, path: Path, claim: Claim | None = None) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._claim = claim
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def claim(self) -> None:
        """Become the one process that writes here, or raise `BadInput` that names the one that does.

        An owner on another machine is watched for a sign of life, for up to a minute; only a dead one is replaced.
        """
        if self._claim is None:
            self._claim = self._held.enter_context(claimed(self.path / CLAIMS, waiting=_refuse_living(self.path)))

    def release(self) -> None:
        """Let others write here."""
        self._held.close()
        self._claim = None

    def check_ours(self) -> None:
        """Raise `Displaced`, a `BadInput`, where another process took the folder over because this one seemed dead."""
        if self._claim is not None:
            self._claim.check()

    def begin(self, settings: TrainSettings) -> None:
        """Claim an empty or new folder for a run with these settings, or raise `BadInput`."""
        self.check_free()
        self.claim()
        self.check_free()  # another run may have begun here, and ended, since
        self.remove_abandoned()
        write_file(self.path / CONFIG, _sealed(settings, Path.cwd()))
        self.make_names_last()

    def check_free(self) -> None:
        """Raise `BadInput` where a run would write over something; a beginning that was cut off is nothing."""
        if self.path.exists() and (not self.path.is_dir() or any(map(_counts, self.path.iterdir()))):
            raise BadInput(self.path, "exists and is not empty", "choose another folder, or pass --resume")

    def settings(self, overrides: Mapping[str, Any] | None = None) -> TrainSettings:
        """Return the settings of the run that lies here, some of them replaced, or raise `BadInput` where none does.

        The dataset lies where `located` says, unless its place is replaced.
        """
        settings = self._stored(overrides)
        if nest(overrides or {}).get("data", {}).get("folder") is not None:
            return settings
        data = settings.data.model_copy(update={"folder": self.located(settings.data.folder)})
        return settings.model_copy(update={"data": data})

    def located(self, path: str) -> str:
        """Return where a path of the settings leads, from any working directory.

        A relative one leads from the directory in which the run was begun. Where nothing is there any more, or an
        earlier version wrote the run folder, it leads from the working directory.
        """
        begun = self._paths_from()
        if begun is None or Path(path).is_absolute() or begun == Path.cwd():
            return path
        try:
            return str(begun / path) if (begun / path).exists() else path
        except OSError:  # a directory of somebody else, or a name that no disk takes
            return path

    def _paths_from(self) -> Path | None:
        """Return the directory from which relative paths of the settings lead; None where no line says it.

        The line counts in a sealed file only: a comment that somebody has edited must not decide which scans are read.
        """
        text, _, last = read_capped(self.path / CONFIG, TEXT_LIMIT).removesuffix(b"\n").rpartition(b"\n")
        if last != _seal(text + b"\n"):
            return None
        line = next((line for line in text.splitlines() if line.startswith(_PATHS_FROM)), None)
        try:
            return None if line is None else Path(json.loads(line.removeprefix(_PATHS_FROM)))
        except (ValueError, TypeError, RecursionError):
            return None

    def _stored(self, overrides: Mapping[str, Any] | None = None) -> TrainSettings:
        """Return the settings with their paths as they were given, some of them replaced."""
        path = self.path / CONFIG
        if not path.is_file():
            raise BadInput(self.path, f"is not a run folder: it has no {CONFIG}", "give the --out of fheat train")
        settings = read_settings(path, overrides)
        text, _, last = read_capped(path, TEXT_LIMIT).removesuffix(b"\n").rpartition(b"\n")
        if last.startswith(_SEAL) and last != _seal(text + b"\n"):
            reason = "was changed since it was written: its last line has the sha256 of another content"
            raise BadInput(path, reason, "restore it, or delete that line if the change is yours")
        return settings

    def go_on_with(self, settings: TrainSettings) -> None:
        """Put another number of iterations and another place of the dataset into `config.toml`, where they differ."""
        before, begun = self._stored(), self._paths_from()
        changed: dict[str, Any] = {}
        if before.schedule.iterations != settings.schedule.iterations:
            changed[LENGTH] = settings.schedule.iterations
        if os.path.abspath((begun or Path.cwd()) / before.data.folder) != os.path.abspath(settings.data.folder):
            changed[PLACE] = os.path.abspath(settings.data.folder)  # other paths lead from where the run was begun
        if changed:
            self.check_ours()
            write_file(self.path / CONFIG, _sealed(self._stored(changed), begun))

    def log(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to `log.jsonl`."""
        self.check_ours()
        with open(self.path / LOG, "ab") as file:
            file.writelines(map(to_line, lines))

    def flush_log(self) -> None:
        """Bring the log to the disk; a checkpoint must not be there without the lines before it."""
        with open(self.path / LOG, "ab") as file:
            os.fsync(file.fileno())
        flush_names(self.path)

    def rewind_log(self, iteration: int) -> list[dict[str, Any]]:
        """Drop lines that were logged after an iteration, which will be done again, and damaged ones; return the rest.

        Nothing after iteration -1 means an empty log.
        """
        path = self.path / LOG
        texts = read_capped(path, LOG_LIMIT).split(b"\n") if path.exists() else []
        checked = is_checked(texts)
        kept = [line for text in texts if (line := _logged_until(text, iteration, checked=checked)) is not None]
        write_file(path, b"".join(map(to_line, kept)))
        return kept

    def remove_abandoned(self) -> None:
        """Remove what a process left that died while it wrote."""
        for name in _REPLACED:
            for abandoned in self.path.glob(f".{name}.*"):
                shutil.rmtree(abandoned) if abandoned.is_dir() else abandoned.unlink()

    def make_names_last(self) -> None:
        """Make sure that no loss of power takes the folder or that of its checkpoints away again."""
        self.checkpoints.mkdir(exist_ok=True)
        flush_names(self.path)
        flush_names(self.path.parent)


def _refuse_living(path: Path) -> Callable[[Holder | None], None]:
    """Return what to do while another process owns a run folder: refuse, once it is seen to live."""
    seen: set[tuple[str, int]] = set()

    def waiting(owner: Holder | None) -> None:
        if owner is not None:
            seen.add((owner.token, owner.beat))
            if owner.is_here or len(seen) > 1:
                remedy = "wait until it ends, or stop it and go on with --resume"
                raise BadInput(path, f"is being written by {owner}", remedy)

    return waiting


def _counts(path: Path) -> bool:
    """Return whether something in a folder is more than a beginning that was cut off leaves."""
    return path.name != CLAIMS and not path.name.startswith(f".{CONFIG}.")


def _sealed(settings: TrainSettings, paths_from: Path | None) -> bytes:
    text = to_toml(settings).encode()
    given = [settings.data.folder, *([settings.network.start] if settings.network.start is not None else [])]
    if paths_from is not None and not all(Path(path).is_absolute() for path in given):
        text += _PATHS_FROM + json.dumps(str(paths_from)).encode() + b"\n"
    return text + _seal(text) + b"\n"


def _seal(text: bytes) -> bytes:
    return _SEAL + f"{sha256(text)}; delete this line after an edit".encode()


def _logged_until(text: bytes, iteration: int, *, checked: bool) -> dict[str, Any] | None:
    """Return a line of a log that says something up to an iteration; None for others and for damaged ones."""
    try:
        line = from_line(text, checked=checked)
        return line if line["iteration"] <= iteration else None
    except (ValueError, KeyError, TypeError):
        return None  # cut off by a crash, or damaged since

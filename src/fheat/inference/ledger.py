"""Which masks of a folder were made by this program, and from what: what may be kept, made again, or not be touched.

The records run.json, run-2.json, ... list every mask with its hash and with the hashes of what decides its voxels: the
files of the scan, the model, the settings. While a run goes on, the same entries are appended to a journal,
`.run-TOKEN.jsonl`, which the record replaces at the end. A run that is killed leaves its journal, from which the next
one goes on. A mask is announced there before it is written, so that one that was not entered any more is known to be
ours.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from fheat.inference.memory import machine_bytes
from fheat.models.card import Card
from fheat.system.claims import Holder, this_process
from fheat.system.errors import BadInput, located
from fheat.system.files import LOG_LIMIT, open_regular, read_capped, write_file

RECORDS: Final = "run*.json"
JOURNALS: Final = ".run-*.jsonl"

Standing = Literal["free", "same", "changed", "foreign"]
"""State of the place of a mask: `free`, nothing is there, or nothing that is finished; `same`, a mask of the same scan,
model and settings; `changed`, a mask of ours of another scan, model or settings; `foreign`, a file that we did not
make, or that was edited since."""


@dataclass(frozen=True)
class Making:
    """Facts that decide the voxels of all masks of a run: the hash of the model, the settings, the kind of device."""

    model: str
    settings: Mapping[str, Any]
    device: str

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Making":
        """Return that of a record, or of the first line of a journal, as JSON has it."""
        return cls(str(content.get("model_sha256")), _plain(content["settings"]), str(content["device"]).split(":")[0])


@dataclass(frozen=True)
class Made:
    """A file that was made: its hash, those of the files of its scan, and its entry where only a journal has it."""

    sha256: str
    images: tuple[str, ...]
    making: Making
    entry: dict[str, Any] | None = None


class Ledger:
    """The masks, and the maps beside them, that the records and journals of a folder list, by the names of their files.

    What cannot be read there is left out: its masks are then not known to be ours.
    """

    def __init__(self, folder: Path) -> None:
        self._made: dict[str, list[Made]] = {}
        self._begun: set[str] = set()
        self._journals: dict[Path, set[str]] = {}
        self._alive: set[Path] = set()
        for path in sorted(folder.glob(RECORDS)):
            self._take(_json(_text(path)))
        for path in sorted(folder.glob(JOURNALS)):
            self._take_journal(path)

    def standing(
        self, mask: Path, images: Callable[[], tuple[str, ...]], making: Making
    ) -> tuple[Standing, Made | None]:
        """Return how it stands with the place of a mask, and for `same` how that was made.

        `images` returns the hashes of the files of the scan, and is called where a mask of ours is there.
        """
        if not mask.exists():
            return "free", None
        try:
            found = file_sha256(mask)
        except (BadInput, OSError):
            return "foreign", None
        ours = [made for made in self._made.get(mask.name, ()) if made.sha256 == found]
        if not ours:
            return ("free" if mask.name in self._begun else "foreign"), None
        files = images()
        same = [made for made in ours if (made.images, made.making) == (files, making)]
        return ("same", same[0]) if same else ("changed", None)

    def drop_journals(self, masks: set[str]) -> None:
        """Remove the journals of earlier runs that name no mask but these, which a record has now."""
        for path, named in self._journals.items():
            if named <= masks and (named or path not in self._alive):
                path.unlink(missing_ok=True)

    def _take(self, record: Any) -> None:
        try:
            making = Making.of(record)
            for entry in record["cases"]:
                for name, sha256 in _files(entry).items():
                    made = Made(sha256, tuple(entry["images_sha256"]), making)
                    self._made.setdefault(name, []).append(made)
        except (TypeError, KeyError, ValueError, AttributeError):
            return  # of an earlier version, or not ours

    def _take_journal(self, path: Path) -> None:
        named = self._journals.setdefault(path, set())
        first, *lines = map(_json, _text(path).splitlines() or [""])
        try:
            making = Making.of(first)
            if "owner" in first and not Holder(**first["owner"]).gone():
                self._alive.add(path)
        except (TypeError, KeyError, AttributeError):
            return
        begun = set[str]()
        for line in lines:
            try:
                if "begun" in line:
                    begun.add(line["begun"])
                    named.add(line["begun"])
                    continue
                entry = line["done"]
                for name, sha256 in _files(entry).items():
                    begun.discard(name)  # whoever changed it since did so on purpose
                    made = Made(sha256, tuple(entry["images_sha256"]), making, entry)
                    if any(sha256 == other.sha256 and other.entry is None for other in self._made.get(name, ())):
                        named.discard(name)  # a record has it, too
                    else:
                        self._made.setdefault(name, []).append(made)
            except (TypeError, KeyError, ValueError, AttributeError):
                continue  # the last line of a run that was killed
        self._begun |= begun


class Journal:
    """The journal of a run that goes on; each line is on the disk before the next step. Threads may share it."""

    def __init__(self, folder: Path, head: Mapping[str, Any]) -> None:
        self.path = folder / f".run-{secrets.token_hex(8)}.jsonl"
        self._head = _line({**head, "owner": asdict(this_process())})
        self._lock = Lock()
        write_file(self.path, self._head)

    def begin(self, masks: Sequence[str]) -> None:
        """Announce masks that are about to be written."""
        self._append(b"".join(_line({"begun": mask}) for mask in masks))

    def done(self, entry: Mapping[str, Any]) -> None:
        """Enter a mask that is written."""
        self._append(_line({"done": entry}))

    def remove(self) -> None:
        """Remove the journal, whose entries the record has."""
        self.path.unlink(missing_ok=True)

    def _append(self, lines: bytes) -> None:
        with self._lock:
            try:
                if not self.path.exists():  # removed by a run beside this one, which has recorded the same masks
                    write_file(self.path, self._head)
                with open(self.path, "ab", buffering=0) as file:
                    file.write(lines)
                    getattr(os, "fdatasync", os.fsync)(file.fileno())
            except OSError as error:
                raise located(error, self.path, len(lines)) from None


def model_sha256(network: nn.Module, card: Card) -> str:
    """Return the hash of all that a model adds to a mask: weights, layers, preprocessing, classes and regions."""
    facts = card.model_dump(mode="json", include={"preprocessing", "classes", "regions"})
    return weights_digest(network, json.dumps(facts, sort_keys=True)).hexdigest()


def weights_digest(network: nn.Module, facts: str = "") -> "hashlib._Hash":
    """Return a hash of the layers and weights of a network, and of facts about it."""
    digest = hashlib.sha256(f"{network}\n{facts}\n".encode())
    for name, value in network.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest


def options_text(network: nn.Module) -> str:
    """Return the options of all layers, which a forward pass may read: plain values and functions by their names.

    Torch prints most of its own, but not those of other layers, such as whether an ensemble returns its members.
    """
    usual = vars(nn.Module())
    layers = ((name, vars(layer)) for name, layer in network.named_modules())
    return "\n".join(
        f"{name}.{option}={value!r}"
        for name, options in layers
        for option, value in sorted((key, _named(value)) for key, value in options.items() if key not in usual)
        if _is_plain(value)
    )


def _named(value: Any) -> Any:
    """Return the name of a function, and anything else as it is."""
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, FunctionType) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, chain(value, value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def scan_sha256(images: Sequence[Path], files: Sequence[Path] = ()) -> tuple[str, ...]:
    """Return the hash of each file of a scan; of a DICOM series that of its visible files with their names.

    `files` are the slices of a series, where not all files in its folder belong to it. A file larger than the memory of
    this machine raises `BadInput` at once: it could not be read as a scan, and to hash it can take hours.
    """
    most = machine_bytes()
    return tuple(_series_sha256(image, files, most) if image.is_dir() else file_sha256(image, most) for image in images)


def file_sha256(path: Path, limit: int | None = None) -> str:
    """Return the hash of a regular file of at most `limit` bytes; anything else raises `BadInput`, at once."""
    with open_regular(path, limit) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _series_sha256(folder: Path, files: Sequence[Path], limit: int | None) -> str:
    digest = hashlib.sha256()
    for file in sorted(files or folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            digest.update(f"{os.fsencode(file.name).hex()} {file_sha256(file, limit)}\n".encode())
    return digest.hexdigest()


def _files(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes of the mask and of the maps of an entry by the names of their files."""
    return {Path(entry["mask"]).name: entry["mask_sha256"], **entry.get("maps_sha256", {})}


def _text(path: Path) -> str:
    try:
        return read_capped(path, LOG_LIMIT).decode(errors="replace")
    except (OSError, BadInput):
        return ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are read back from JSON, which has lists only."""
    found: dict[str, Any] = json.loads(json.dumps(settings))
    return found


def _line(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content) + "\n").encode()

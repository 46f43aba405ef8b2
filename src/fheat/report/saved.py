"""The network that is meant by a name: a model folder, a zoo model, or a run folder."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fheat.engine.run_folder import CONFIG
from fheat.errors import BadInput
from fheat.models.card import Card
from fheat.models.folder import MANIFEST, load
from fheat.report.record import Record, read_record

_MISSING = {
    False: ("has saved no network yet", "wait for its first validation or its end"),
    True: ("is of a run that is over, without its networks", "give a folder that has final/ or best/"),
}
"""Reason and remedy, by whether the run is over."""


@dataclass(frozen=True)
class Saved:
    """A loaded network and where it comes from."""

    name: str
    """What the user gave, without a trailing slash."""
    model: nn.Module
    part: str | None
    """`final` or `best` of a run folder, None for a model folder or a zoo model."""
    record: Record | None
    """What the run folder logged."""

    @property
    def card(self) -> Card:
        """What the model folder says besides weights."""
        card = getattr(self.model, "card", None)
        return card if isinstance(card, Card) else Card()


def open_saved(name: str) -> Saved:
    """Load a network. A run folder means its `final/`, the allocation at the end; `best/` while it has no final."""
    folder = Path(name)
    if not is_run_folder(folder):
        return Saved(name.rstrip("/") or name, load(name), None, None)
    record = read_record(folder)
    saved = network_of(record, name.rstrip("/"))
    if saved is None:
        raise BadInput(folder, *_MISSING[record.done >= record.config.iterations])
    return saved


def network_of(record: Record, name: str) -> Saved | None:
    """Load the network that a run has left in its `final/`, or its `best/` so far; None while there is none."""
    for part in ("final", "best"):
        if (record.folder / part).is_dir():
            return Saved(name, load(record.folder / part), part, record)
    return None


def is_run_folder(folder: Path) -> bool:
    """Whether a folder was written by `fheat train` and is not itself a model folder."""
    try:
        return (folder / CONFIG).is_file() and not (folder / MANIFEST).exists()
    except OSError:  # a name no file can have
        return False

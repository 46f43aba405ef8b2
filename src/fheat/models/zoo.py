"""The zoo: trained models that come with the package and are loaded by name."""

import difflib
import re
from pathlib import Path

from fheat.data.preprocessing import Preprocessing
from fheat.models.card import Card
from fheat.system.errors import BadInput

MANIFEST = "model.json"
RUN_SETTINGS = "config.toml"
"""File that the folder of a training run has, finished or not."""
ZOO = Path(__file__).parents[1] / "zoo"
"""Folder of the zoo, with one model folder per model."""
_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_SEPARATORS = ("/", "\\")


def zoo_names() -> list[str]:
    """Return the names of the trained models that come with the package."""
    return sorted(path.parent.name for path in ZOO.glob(f"*/{MANIFEST}"))


def zoo_folder(name: str) -> Path:
    """Return the model folder of a zoo model, or raise `BadInput` that lists the zoo."""
    if name not in zoo_names():
        raise BadInput(name, "no such model folder or zoo model", _remedy(name))
    return ZOO / name


def find_folder(folder_or_zoo_name: str | Path) -> Path:
    """Return the folder of a path or of a zoo model, or raise `BadInput`. The content of the folder is not checked.

    A `Path`, and a string that contains a separator, is always a path. Any other string names a folder in the working
    directory if there is one, else a zoo model. The folder of a training run stands for its best network or, in a run
    that validated none, for its final one.
    """
    folder = Path(folder_or_zoo_name)
    if not str(folder_or_zoo_name):
        raise BadInput("''", "is not a folder name", _remedy(""))
    if folder.is_dir():
        _refuse_bundle(folder)
        parts = [part for part in ("best", "final") if (folder / part / MANIFEST).is_file()]
        return folder if (folder / MANIFEST).exists() or not parts else folder / parts[0]
    if folder.is_file():
        parent = folder.absolute().parent
        remedy = f"give its folder, {parent}" if (parent / MANIFEST).exists() else _remedy(str(folder))
        raise BadInput(folder, "is a file, not a model folder", remedy)
    if isinstance(folder_or_zoo_name, Path) or any(mark in folder_or_zoo_name for mark in _SEPARATORS):
        raise BadInput(folder, "no such model folder", "give a folder written by fheat.save")
    return zoo_folder(folder_or_zoo_name)


def networks_of(source: str | Path) -> list[str | Path]:
    """Return what a folder or name stands for where networks are averaged: itself, or all networks in the folder.

    A folder that is no model and no run, and that has sub-folders which are finished runs or model folders, such as
    the seeds of one run, stands for all of these, in the order of their names; hidden ones do not count. Raises
    `BadInput` where other folders or unfinished runs are among them.
    """
    folder = Path(source)
    if not str(source) or not folder.is_dir() or _is_run(folder) or _has_network(folder):
        return [source]
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    networks = [path for path in inside if _is_run(path) or _has_network(path)]
    if not networks:
        return [source]
    for path in inside:
        if path not in networks:
            reason = f"holds {path.name} beside runs or models, and it is neither"
            raise BadInput(folder, reason, f"give the runs or models one by one, such as {networks[0]}")
    for path in networks:
        if _is_run(path) and not (path / "final" / MANIFEST).is_file():
            reason = f"holds the run {path.name}, which is not finished"
            raise BadInput(folder, reason, "finish it, or give the finished ones one by one")
    return [str(path) for path in networks] if isinstance(source, str) else list(networks)


def _is_run(folder: Path) -> bool:
    return (folder / RUN_SETTINGS).is_file() and not (folder / MANIFEST).exists()


def _has_network(folder: Path) -> bool:
    return any((folder / part / MANIFEST).exists() for part in ("", "best", "final"))


def checked_name(name: str) -> str:
    """Return the name if a zoo model can have it, else raise `ValueError`."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r} is not usable: use lower-case letters and digits joined by - or .")
    return name


def missing_facts(card: Card) -> list[str]:
    """Return the fields that the card of a zoo model must have and this card does not."""
    stated = {
        "title": card.title,
        "intended_use": card.intended_use,
        "limits": card.limits,
        "classes": card.classes,
        "intensity": card.preprocessing != Preprocessing(),
        "spacing": card.preprocessing.spacing,
        "orientation": card.preprocessing.orientation,
        "appearance": card.appearance.ranges,
        "window": card.window,
        "data": card.data,
        "licence": card.licence,
        "training.iteration": "iteration" in card.training,
        "training.seed": card.seed is not None,
        "metrics.validation_dice": "validation_dice" in card.metrics,
    }
    return [fact for fact, value in stated.items() if not value]


def _refuse_bundle(folder: Path) -> None:
    """Raise `BadInput` for a MONAI bundle: its settings are programs and its weights a pickle, so none is ever read."""
    if (folder / "configs" / "metadata.json").is_file() and not (folder / MANIFEST).exists():
        reason = "is a MONAI bundle, and fheat runs nothing that a bundle says"
        raise BadInput(folder, reason, "give the model folder it was exported from, or use python -m monai.bundle run")


def _remedy(name: str) -> str:
    names = zoo_names()
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}give a folder written by fheat.save, or one of the zoo: {', '.join(names) or 'it is empty'}"

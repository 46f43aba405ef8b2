"""The classes of a run, and that labels keep to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fheat.data.case import Dataset
from fheat.errors import BadInput


def class_names(labels: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the names of the classes 0, 1, ...; two, background and foreground, where a dataset names none."""
    if not labels:
        return "background", "foreground"
    named = {values[0]: name for name, values in labels.items() if len(values) == 1}
    last = max(value for values in labels.values() for value in values)
    return tuple(named.get(value, f"label {value}") for value in range(last + 1))


def checked_classes(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of the classes, or raise `BadInput` where there is nothing to tell apart."""
    names = class_names(dataset.labels)
    if len(names) < 2:
        raise BadInput(dataset.root, "names no class beside the background", "name its classes, see docs/data.md")
    return names


def check_values(path: Path, label: NDArray[Any], classes: tuple[str, ...]) -> None:
    """Raise `BadInput` where a label has values that are no class: the loss would count them as another."""
    lowest, highest = int(label.min()), int(label.max())
    if lowest < 0 or highest >= len(classes):
        value = lowest if lowest < 0 else highest
        listed = ", ".join(f"{number} {name}" for number, name in enumerate(classes))
        raise BadInput(path, f"holds the label {value}; the classes are {listed}", "correct it or name the class")

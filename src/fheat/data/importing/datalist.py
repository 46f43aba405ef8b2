"""From pairs to a datalist: label values that occur, classes, scans held out by a seed, and the file with all of it."""

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from fheat.data.case import Case
from fheat.data.grid import outline
from fheat.data.importing.files import LeftOut
from fheat.data.importing.names import patient_of
from fheat.data.importing.pairs import Guess, Pair
from fheat.data.layouts import LAYOUTS
from fheat.data.layouts.common import load_json
from fheat.data.read import integers, read_stored_label
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.files import check_file, write_file
from fheat.system.progress import Progress, silent

MOST_READ: Final = 40
"""Largest number of labels that are read for their values; they are spread over all labels."""
_AS_THEY_ARE: Final = ("nnU-Net raw", "MSD")
"""Layouts that state their cases, from which a datalist is made without guessing."""


def stated(folder: Path) -> Guess | None:
    """Return the cases of a folder whose `dataset.json` states them, or None; a folder of h5 lists is refused."""
    if os.path.lexists(folder / "dataset.json"):
        load_json(folder / "dataset.json")  # a damaged one is not passed over: it says what is unlabelled
    layout = next((one for one in LAYOUTS if one.NAME in (*_AS_THEY_ARE, "h5 lists") and one.recognises(folder)), None)
    if layout is None:
        return None
    if layout.NAME not in _AS_THEY_ARE:
        raise BadInput(folder, f"has the layout {layout.NAME}, which needs no import", "give it to fheat train")
    dataset = layout.read(folder)
    seen = Counter(len(case.images) for case in dataset.cases)
    pairs = [
        Pair(case.id, case.images, case.label, None if case.split == "train" else case.split) for case in dataset.cases
    ]
    names = {values[0]: name for name, values in dataset.labels.items() if len(values) == 1}
    left_out = [LeftOut(one.path, one.reason) for one in dataset.problems if one.severity == "error"]
    channels = dataset.channels if len(seen) == 1 else ()
    regions = {name: values for name, values in dataset.labels.items() if len(values) > 1}
    return Guess(pairs, left_out, names, channels, regions)


@dataclass
class Values:
    """Content of the labels: in how many of those that were read each value occurs, and their grids."""

    counts: Counter[int] = field(default_factory=Counter)
    read: int = 0
    labels: int = 0
    outlines: list[Volume] = field(default_factory=list)


def label_values(pairs: Sequence[Pair], progress: Progress = silent) -> Values:
    """Read labels, at most `MOST_READ` of them, for the values that they hold; what cannot be used makes a pair unsure.

    Each is read as all files from outside are, in a confined process.
    """
    labelled = [pair for pair in pairs if pair.label is not None]
    chosen = labelled
    if len(labelled) > MOST_READ:
        chosen = [labelled[index * len(labelled) // MOST_READ] for index in range(MOST_READ)]
    values = Values(read=len(chosen), labels=len(labelled))
    for done, pair in enumerate(chosen, start=1):
        try:
            label = read_stored_label(Case(pair.case, pair.images, pair.label))
        except BadInput as error:
            pair.unsure = f"label cannot be used: {error.reason}"
        else:
            data = None if label is None else integers(label.data)
            if label is None or data is None:
                pair.unsure = "label holds values that are no whole numbers"
            else:
                values.counts.update(np.unique(data).tolist())
                values.outlines.append(outline(label))
        progress(done, len(chosen))
    return values


def named_classes(
    values: Values, names: Mapping[int, str], given: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the label values of each class: as given, else by the names of the values, with the background first.

    A value without a name is `label 3`, and the only one beside the background is `foreground`. Values that share a
    name get their number behind it.
    """
    if given is not None:
        background = {} if any(group == (0,) for group in given.values()) else {"background": (0,)}
        return background | dict(given)
    known = sorted({0} | values.counts.keys() | names.keys())
    plain = {0: "background"} | ({known[1]: "foreground"} if len(known) == 2 else {})
    called = {value: names.get(value) or plain.get(value, f"label {value}") for value in known}
    times = Counter(called.values())
    return {name if value == 0 or times[name] == 1 else f"{name} {value}": (value,) for value, name in called.items()}


def hold_out(pairs: Sequence[Pair], count: int, seed: int) -> set[str]:
    """Return the names of at least `count` labelled scans, chosen by a seed, all of a patient together.

    Patients are in the order of a hash of seed and name, so that all machines choose alike, and scans that are added
    later do not change the order of the others.
    """
    patients: defaultdict[str, list[str]] = defaultdict(list)
    for pair in pairs:
        patients[pair.patient or patient_of(pair.case)].append(pair.case)
    order = sorted(patients, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    chosen: set[str] = set()
    for name in order:
        if len(chosen) >= count:
            break
        chosen |= set(patients[name])
    return chosen


def with_splits(pairs: Sequence[Pair], validation: int, test: int, seed: int) -> list[Pair]:
    """Return the pairs, each with a split: that of its folder, else `test` or `validation` if it is held out for that,
    else `train`. A scan without a label cannot validate, so it trains."""
    free = [pair for pair in pairs if pair.split is None and pair.label is not None]
    tested = hold_out(free, test, seed)
    validated = hold_out([pair for pair in free if pair.case not in tested], validation, seed)

    def split(pair: Pair) -> str:
        if pair.case in tested:
            return "test"
        if pair.case in validated:
            return "validation"
        usable = pair.split == "test" or (pair.split == "validation" and pair.label is not None)
        return str(pair.split) if usable else "train"

    return [replace(pair, split=split(pair)) for pair in pairs]


def datalist(
    name: str, root: Path, pairs: Sequence[Pair], classes: Mapping[str, tuple[int, ...]], channels: Sequence[str]
) -> dict[str, Any]:
    """Return the content of a datalist for a file in the folder `root`: paths are relative to it where they can be.

    Label values that have gaps, such as 0, 1, 2 and 4, are numbered anew without them; `values` states how.
    """
    stored = sorted({value for group in classes.values() for value in group})
    numbers = {value: index for index, value in enumerate(stored)}
    content: dict[str, Any] = {"name": name}
    if any(len(group) > 1 for group in classes.values()):
        content["labels"] = {
            name: numbers[group[0]] if len(group) == 1 else [numbers[value] for value in group]
            for name, group in classes.items()
        }
    else:
        content["labels"] = {str(numbers[group[0]]): name for name, group in classes.items()}
    if stored != list(range(len(stored))):
        content["values"] = {str(value): number for value, number in numbers.items()}
    if channels:
        content["modality"] = {str(index): channel for index, channel in enumerate(channels)}
    lists: dict[str, list[dict[str, Any]]] = {"training": [], "unlabelled": [], "validation": [], "testing": []}
    for pair in pairs:
        train = "unlabelled" if pair.label is None else "training"
        lists[{"train": train, "test": "testing"}.get(str(pair.split), str(pair.split))].append(_entry(root, pair))
    return content | {key: entries for key, entries in lists.items() if entries}


def write_datalist(path: Path, content: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Write a datalist, or raise `BadInput` if there is a file and `overwrite` is not set."""
    check_writable(path, overwrite=overwrite)
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())


def check_writable(path: Path, *, overwrite: bool) -> None:
    """Raise `BadInput` where a datalist cannot be written."""
    if path.suffix != ".json":
        raise BadInput(path, "is no name of a datalist", "give a name that ends with .json")
    check_file(path)
    if path.exists() and not overwrite:
        raise BadInput(path, "exists already", "give another --out, or --overwrite")
    if path.name == "dataset.json":
        raise BadInput(path, "is the description of a dataset in other layouts", "give another name, such as list.json")


def _entry(root: Path, pair: Pair) -> dict[str, Any]:
    images = [_written(root, image) for image in pair.images]
    entry: dict[str, Any] = {"case": pair.case, "image": images[0] if len(images) == 1 else images}
    return entry if pair.label is None else entry | {"label": _written(root, pair.label)}


def _written(root: Path, path: Path) -> str:
    """Return a path from `root` on, or the whole path where it lies elsewhere."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path.absolute())

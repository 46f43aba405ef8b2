"""Cases, datasets, problems and classes: where the files are, what is declared about them, what is wrong with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Spacing = tuple[float, float, float]


@dataclass(frozen=True)
class Case:
    """One scan: its image files, its label or the declaration that it has none. No voxels are held here.

    `label` None with `unlabelled` False means that a label is missing though nobody said so, which
    `fheat.data.check` reports and training refuses. In the h5 layouts image and label are the same file.
    """

    id: str
    images: tuple[Path, ...]
    """One file per channel, or a single file or DICOM folder that holds all channels."""
    label: Path | None = None
    unlabelled: bool = False
    """Declared by the layout to have no label."""
    split: str = "train"
    spacing: Spacing | None = None
    """Millimetres, stated by the layout where the files carry no geometry (h5)."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a dataset. An error makes it unfit for training; a warning asks for a look."""

    case: str
    """Case id, or an empty string where the problem is the dataset's."""
    path: Path
    field: str
    """What is wrong: image, label, shape, spacing, origin, orientation, values, channels, id, split, content, ..."""
    reason: str
    remedy: str
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True)
class Dataset:
    """The cases of a folder in the order the layout gives them, with what it says about classes and channels."""

    name: str
    root: Path
    layout: str
    cases: tuple[Case, ...]
    labels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Name to label values; several values make a region, such as whole tumour. Empty where the layout says nothing."""
    channels: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    """What the layout itself noticed: labels without an image, counts that do not fit."""

    def split(self, name: str) -> tuple[Case, ...]:
        """Return the cases of one split, such as `train`, `validation` or `test`."""
        return tuple(case for case in self.cases if case.split == name)

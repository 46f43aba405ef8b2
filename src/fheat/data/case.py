"""Cases and datasets: where the files are, what is declared about them, and the problems that they have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Spacing = tuple[float, float, float]


@dataclass(frozen=True)
class Case:
    """One scan: its image files, and its label or the declaration that it has none. It holds no voxels.

    If `label` is None and `unlabelled` is False, the label is missing without a declaration; `fheat.data.check` reports
    such a case and training refuses it. In the h5 layouts image and label are the same file.
    """

    id: str
    images: tuple[Path, ...]
    """One file per channel, or a single file or DICOM folder with all channels."""
    label: Path | None = None
    unlabelled: bool = False
    """Whether the layout declares that the case has no label."""
    split: str = "train"
    spacing: Spacing | None = None
    """Distance of voxels in millimetres, given by the layout if the files have no geometry (h5)."""
    values: tuple[tuple[int, int], ...] = ()
    """Stored label values, each with the value that it is read as; empty if labels are read as they are."""
    files: tuple[Path, ...] = ()
    """Slices of a DICOM series, where its folder holds other files too, or where they lie in several folders."""


@dataclass(frozen=True)
class Problem:
    """One problem of a dataset. An error makes it unfit for training; a warning should be looked at."""

    case: str
    """Id of the case, or an empty string if the problem concerns the whole dataset."""
    path: Path
    field: str
    """The property that is wrong: image, label, shape, spacing, origin, orientation, values, channels, split, ..."""
    reason: str
    remedy: str
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True)
class Dataset:
    """The cases of a folder in the order of its layout, and the classes and channels that it declares."""

    name: str
    root: Path
    layout: str
    cases: tuple[Case, ...]
    labels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Label values of each name; several values form a region, such as whole tumour. Empty if none are declared."""
    channels: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    """Problems that the layout noticed itself: labels without an image, wrong numbers of cases."""

    def split(self, name: str) -> tuple[Case, ...]:
        """Return the cases of one split, such as `train`, `validation` or `test`."""
        return tuple(case for case in self.cases if case.split == name)

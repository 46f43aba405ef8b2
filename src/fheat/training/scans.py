"""The scans of a run: read once, brought to one grid, split into labelled, unlabelled and validation."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fheat.data.appearance import Appearance, Looks
from fheat.data.case import Case, Dataset
from fheat.data.classes import Classes
from fheat.data.fingerprint import Fingerprint, foreground
from fheat.data.folds import Fold, with_fold
from fheat.data.grid import SMALLEST_SHARE_OF_SCAN, common_grid, fitting_patch, outline, share_inside
from fheat.data.intensity import Moments
from fheat.data.layouts import open_dataset
from fheat.data.orientation import reorient
from fheat.data.plausible import Allowance, check_not_constant, check_plausible
from fheat.data.preprocessing import NOT_RESAMPLED, Preprocessing
from fheat.data.read import read_image, read_label
from fheat.data.store import Packed, Size, pack
from fheat.io.confined import reading_threads
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.processors import processors
from fheat.system.progress import Progress, silent
from fheat.training.settings import DataSettings

Role = Literal["labelled", "unlabelled", "validation"]
COMPARED_VOXELS = 2**14
"""Number of voxels of a scan, evenly spaced, by which copies are recognised."""
READERS = min(8, processors())
"""Number of scans that are read at the same time; unpacking and sorting of voxels need no interpreter."""


class ValidationScan(NamedTuple):
    """A scan that is held out: image (X, Y, Z[, C]) as the network sees it, and label (X, Y, Z)."""

    name: str
    image: NDArray[np.float32]
    label: NDArray[np.uint8]


@dataclass(frozen=True)
class Scans:
    """The scans of one run. Those to train on are packed one by one as they are read.

    The first `labelled` of `volumes` are trained with their labels, the rest without. `preprocessing` is what brought
    them here, and what a model trained on them expects. `appearance` is what those to train on look like as network
    input, `fingerprint` what they look like as stored.
    """

    volumes: list[Packed]
    labelled: int
    validation: list[ValidationScan]
    names: list[str]
    channels: int
    preprocessing: Preprocessing
    appearance: Appearance
    fingerprint: Fingerprint

    @property
    def unlabelled(self) -> int:
        """Number of scans that are trained without their labels."""
        return len(self.names) - self.labelled


def open_run_dataset(data: DataSettings) -> Dataset:
    """Return the dataset of a run, with the fold of its settings where they name one, or raise `BadInput`."""
    dataset = open_dataset(data.folder)
    return dataset if data.fold is None else with_fold(dataset, Fold.read(data.fold))


def check_still_there(data: DataSettings, remedy: str) -> None:
    """Raise `BadInput` with this remedy where the dataset that a run was trained on is not where it was."""
    try:
        gone = not Path(data.folder).exists()
    except OSError:  # no file can have such a name, which is said when the dataset is opened
        return
    if gone:
        raise BadInput(data.folder, "does not exist", remedy)


def load_scans(
    dataset: Dataset,
    classes: Classes,
    wanted: Preprocessing,
    patch: Size,
    *,
    labelled: int | None = None,
    unlabelled: bool = False,
    allow: Collection[Allowance] = (),
    beside: Sequence[Volume] = (),
    readers: int = READERS,
    progress: Progress = silent,
) -> Scans:
    """Read and prepare the training and validation scans of a dataset, or raise `BadInput`.

    Args:
        dataset: its splits train and validation.
        classes: what labels may hold.
        wanted: orientation and spacing where asked for; else they are those of `common_grid`.
        patch: size of the crops that will be taken.
        labelled: number of training scans whose labels are used, the first ones; all that have one if None.
        unlabelled: whether the other training scans are used without their labels.
        allow: names what is not refused, see `fheat.data.plausible`.
        beside: outlines of other scans, which count for orientation and spacing, see `outlines_left_out`.
        readers: number of scans that are read at the same time.
        progress: called after each scan.

    Most datasets have one grid, so each scan is prepared as stored when it is read; those that turn out to need another
    orientation or spacing are read again. Several threads read, and the outcome is that of one.
    """
    roles = _roles(dataset, labelled, unlabelled)
    ready = [_read(*roles[0], wanted.model_copy(update={"spacing": None}), classes, patch, allow)]
    orientation = wanted.orientation or ready[0].outline.orientation
    as_stored = wanted.model_copy(update={"orientation": orientation, "spacing": None})
    progress(1, len(roles))

    def brought_to_the_grid(index: int) -> _Ready:
        turned = reorient(ready[index].outline, str(common.orientation))
        if common.orientation == orientation and common.steps(turned.spacing) == NOT_RESAMPLED:
            return ready[index]
        return _read(*roles[index], common, classes, patch, allow, ready[index].moments)

    with reading_threads(readers) as threads:
        for scan in threads.map(lambda one: _read(one[0], one[1], as_stored, classes, patch, allow), roles[1:]):
            ready.append(scan)
            progress(len(ready), len(roles))
        common = common_grid([*(scan.outline for scan in ready), *beside], wanted)
        ready = list(threads.map(brought_to_the_grid, range(len(roles))))
    training = [scan for scan in ready if scan.volume is not None]
    _check_sizes(training, patch)
    return Scans(
        volumes=[scan.volume for scan in training if scan.volume is not None],
        labelled=sum(role == "labelled" for _, role in roles),
        validation=_held_out(ready),
        names=[scan.case.id for scan in training],
        channels=_common_channels(dataset, ready),
        preprocessing=common,
        appearance=Appearance.of(scan.looks for scan in training),
        fingerprint=_fingerprint(training, common),
    )


def outlines_left_out(
    dataset: Dataset, labelled: int | None, allow: Collection[Allowance] = (), progress: Progress = silent
) -> list[Volume]:
    """Return the grids of the labelled training scans that a run without unlabelled ones does not use, or raise
    `BadInput`.

    With them a run on a fold has the orientation and spacing of all scans that are divided, as every other fold has, so
    that the networks of all folds can be averaged. Labels are not opened.
    """
    others = [case for case in dataset.split("train") if case.label is not None][labelled or len(dataset.cases) :]

    def read(case: Case) -> Volume:
        image = read_image(case)
        if "implausible-spacing" not in allow:
            check_plausible(case.images[0], Preprocessing().scan(image))
        return outline(image)

    outlines = []
    with reading_threads(READERS) as readers:
        for one in readers.map(read, others):
            outlines.append(one)
            progress(len(outlines), len(others))
    return outlines


@dataclass(frozen=True)
class _Ready:
    """A scan that is prepared: packed if it is trained on, as arrays if it is held out."""

    case: Case
    outline: Volume
    """The grid it is stored on, without its voxels."""
    shape: tuple[int, ...]
    channels: int
    moments: tuple[Moments, ...]
    looks: Looks
    content: bytes
    """Hash of its shape and of evenly spaced voxels as stored; a copy in another type or orientation has the same."""
    foreground: NDArray[np.float32] | None
    """Intensities inside the label of a scan that is trained with it, (C, voxels)."""
    lowest: float
    volume: Packed | None
    held_out: ValidationScan | None


def _roles(dataset: Dataset, labelled: int | None, unlabelled: bool) -> list[tuple[Case, Role]]:
    """Return which scan serves for what, labelled ones first, or raise `BadInput` where there are too few."""
    training, validation = dataset.split("train"), dataset.split("validation")
    _check_declared(dataset, training, validation)
    with_label = [case for case in training if case.label is not None]
    if not with_label:
        raise BadInput(dataset.root, "has no labelled training scan", "label at least one")
    count = labelled or len(with_label)
    if count > len(with_label):
        raise BadInput(dataset.root, f"has {len(with_label)} labelled training scans, not {count}", "ask for fewer")
    chosen = with_label[:count]
    rest = [case for case in training if case not in chosen] if unlabelled else []
    if unlabelled and not rest:
        remedy = "set labelled to a smaller number, or use a method that needs labelled scans only"
        raise BadInput(dataset.root, "has no scan left to use without its label", remedy)
    return [
        *((case, "labelled") for case in chosen),
        *((case, "unlabelled") for case in rest),
        *((case, "validation") for case in validation),
    ]


def _check_declared(dataset: Dataset, training: Sequence[Case], validation: Sequence[Case]) -> None:
    for case in training:
        if case.label is None and not case.unlabelled:
            remedy = "add its label or declare it unlabelled, see docs/reference/data.md"
            raise BadInput(case.images[0], "has no label and is not declared unlabelled", remedy)
    for case in validation:
        if case.label is None:
            raise BadInput(case.images[0], "is held out for validation and has no label", "hold out another")
    if not training:
        raise BadInput(dataset.root, "has no training scans", "see fheat data check")
    listed: dict[str, Case] = {}
    for case in (*training, *validation):
        if (other := listed.setdefault(case.id, case)) is not case:
            where = f"in {other.split} and {case.split}" if other.split != case.split else f"twice in {case.split}"
            raise BadInput(case.images[0], f"is the case {case.id}, which is listed {where}", "keep one of them")


def _read(
    case: Case,
    role: Role,
    preprocessing: Preprocessing,
    classes: Classes,
    patch: Size,
    allow: Collection[Allowance],
    moments: tuple[Moments, ...] | None = None,
) -> _Ready:
    """Read one scan and prepare it; `moments` are those of its intensities where they are known already."""
    image = read_image(case)
    label = None if role == "unlabelled" else read_label(case, image)
    if label is not None and case.label is not None:
        classes.check(case.label, label.data)
    elif role != "unlabelled":
        raise BadInput(case.images[0], "has no label and is not declared unlabelled", "add its label, or remove it")
    scan = preprocessing.scan(image, moments)
    check_not_constant(case.images[0], scan)
    if "implausible-spacing" not in allow:
        check_plausible(case.images[0], scan)
    data, mask = scan.whole(), None if label is None else scan.label(label)
    held_out = ValidationScan(case.id, data, mask) if role == "validation" and mask is not None else None
    return _Ready(
        case=case,
        outline=outline(image),
        shape=data.shape[:3],
        channels=scan.channels,
        moments=scan.moments,
        looks=Looks.of(scan),
        content=_content(image),
        foreground=None if label is None or role != "labelled" else foreground(image, label.data),
        lowest=float(image.data.min()),
        volume=None if held_out is not None else pack(data, mask, patch),
        held_out=held_out,
    )


def _common_channels(dataset: Dataset, scans: Sequence[_Ready]) -> int:
    """Return the number of channels that all scans have, or raise `BadInput`."""
    channels = {scan.channels for scan in scans}
    if len(channels) > 1:
        raise BadInput(dataset.root, f"has scans with {sorted(channels)} channels", "see fheat data check")
    return channels.pop()


def _fingerprint(training: Sequence[_Ready], grid: Preprocessing) -> Fingerprint:
    inside = [scan.foreground for scan in training if scan.foreground is not None]
    return Fingerprint.of([scan.outline for scan in training], inside, min(scan.lowest for scan in training), grid=grid)


def _content(image: Volume) -> bytes:
    data = reorient(image, "RAS").data
    every = max(round((data.size / COMPARED_VOXELS) ** (1 / 3)), 1)
    digest = hashlib.sha256(str(data.shape).encode())
    digest.update(np.ascontiguousarray(data[::every, ::every, ::every], dtype=np.float32).data)
    return digest.digest()


def _held_out(scans: Sequence[_Ready]) -> list[ValidationScan]:
    """Return the validation scans, or raise `BadInput` where one is a copy of a scan to train on."""
    training = {scan.content: scan.case for scan in scans if scan.volume is not None}
    for scan in scans:
        if scan.held_out is not None and (same := training.get(scan.content)) is not None:
            reason = f"is held out for validation and has the voxels of {same.id}, which is trained on"
            raise BadInput(scan.case.images[0], reason, "remove one of them")
    return [scan.held_out for scan in scans if scan.held_out is not None]


def _check_sizes(scans: Sequence[_Ready], patch: Size) -> None:
    """Raise `BadInput` where crops of a scan would be padding for the most part."""
    for scan in scans:
        inside = share_inside(scan.shape, patch)
        if inside < SMALLEST_SHARE_OF_SCAN:
            shape, crop = (" x ".join(map(str, sizes)) for sizes in (scan.shape, patch))
            fitting = fitting_patch([other.shape for other in scans], patch)
            raise BadInput(
                scan.case.images[0],
                f"has {shape} voxels on the grid of the run, so {1 - inside:.0%} of a crop of {crop} would be padding",
                f"use a patch_size such as {' '.join(map(str, fitting))}",
            )

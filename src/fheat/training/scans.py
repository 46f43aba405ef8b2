"""The scans of a run in memory: normalised, on one grid convention, split into labelled, unlabelled and validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fheat.data.case import Case, Dataset, Spacing, check_values, checked_classes
from fheat.data.intensity import Moments
from fheat.data.orientation import reorient
from fheat.data.preprocessing import NOT_RESAMPLED, Intensity, Preprocessing
from fheat.data.read import read_image, read_label
from fheat.data.store import Packed, pack
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent
from fheat.training.settings import TrainConfig

Role = Literal["labelled", "unlabelled", "validation"]
Held = tuple[str, NDArray[np.float32], NDArray[np.uint8]]
_SCANNED = 0.5
"""Share of a crop that must come from the scan; the rest may be padding."""


@dataclass(frozen=True)
class Scans:
    """The scans of one run. Those to train on are packed one by one as they are read.

    The first `labelled` of `volumes` are trained with their labels, the rest without. `validation` has names, images
    (X, Y, Z[, C]) float32 and labels (X, Y, Z) uint8. All were read through `preprocessing`, which a model
    trained on them needs too.
    """

    volumes: list[Packed]
    labelled: int
    validation: list[Held]
    names: list[str]
    channels: int
    preprocessing: Preprocessing


def load_scans(
    dataset: Dataset,
    config: TrainConfig,
    progress: Progress = silent,
    *,
    orientation: str | None = None,
    intensity: Intensity | None = None,
) -> Scans:
    """Read and normalise the training and validation scans of a dataset, or raise `BadInput`.

    They are brought to an orientation such as `RAS`; by default to their own where they agree. `intensity` replaces the
    kind that the settings name.

    Most datasets have one grid convention, so each scan is made ready as stored when it is read; those that turn out
    to need another orientation or spacing are read again.
    """
    roles = _roles(dataset, config)
    classes = checked_classes(dataset)
    ready: list[_Ready] = []
    first = Preprocessing(intensity=intensity or Intensity(kind=config.intensity))
    for case, role in roles:
        ready.append(_read(case, role, first, classes, config))
        first = first.model_copy(update={"orientation": ready[0].outline.orientation})
        progress(len(ready), len(roles))
    preprocessing = _common([scan.outline for scan in ready], first, orientation, config.spacing)
    for index, (case, role) in enumerate(roles):
        outline = reorient(ready[index].outline, preprocessing.orientation or "RAS")
        if preprocessing.orientation != first.orientation or preprocessing.steps(outline.spacing) != NOT_RESAMPLED:
            ready[index] = _read(case, role, preprocessing, classes, config, ready[index].moments)
    channels = {scan.channels for scan in ready}
    if len(channels) > 1:
        raise BadInput(dataset.root, f"has scans with {sorted(channels)} channels", "see fheat data check")
    training = [scan for scan in ready if scan.volume is not None]
    _check_sizes(training, config)
    return Scans(
        volumes=[scan.volume for scan in training if scan.volume is not None],
        labelled=sum(role == "labelled" for _, role in roles),
        validation=[scan.held for scan in ready if scan.held is not None],
        names=[scan.case.id for scan in training],
        channels=channels.pop(),
        preprocessing=preprocessing,
    )


@dataclass(frozen=True)
class _Ready:
    """A scan made ready: packed if it is trained on, as arrays if it is held out."""

    case: Case
    outline: Volume
    """The grid it is stored on, without its voxels."""
    moments: tuple[Moments, ...]
    """Mean and deviation of each stored channel, which are the same on every grid."""
    shape: tuple[int, ...]
    channels: int
    volume: Packed | None
    held: Held | None


def _roles(dataset: Dataset, config: TrainConfig) -> list[tuple[Case, Role]]:
    """Return which scan serves for what, labelled ones first, or raise `BadInput` where there are too few."""
    training, validation = dataset.split("train"), dataset.split("validation")
    _check_declared(dataset, training, validation)
    with_label = [case for case in training if case.label is not None]
    if not with_label:
        raise BadInput(dataset.root, "has no labelled training scan", "label at least one")
    count = config.labelled or len(with_label)
    if count > len(with_label):
        raise BadInput(dataset.root, f"has {len(with_label)} labelled training scans, not {count}", "ask for fewer")
    chosen = with_label[:count]
    rest = [case for case in training if case not in chosen] if config.method != "supervised" else []
    if config.method != "supervised" and not rest:
        remedy = "set labelled to a smaller number, or method to supervised"
        raise BadInput(dataset.root, "has no scan left to use without its label", remedy)
    return [
        *((case, "labelled") for case in chosen),
        *((case, "unlabelled") for case in rest),
        *((case, "validation") for case in validation),
    ]


def _check_declared(dataset: Dataset, training: Sequence[Case], validation: Sequence[Case]) -> None:
    for case in training:
        if case.label is None and not case.unlabelled:
            remedy = "add its label or declare it unlabelled, see docs/data.md"
            raise BadInput(case.images[0], "has no label and is not declared unlabelled", remedy)
    for case in validation:
        if case.label is None:
            raise BadInput(case.images[0], "is held out for validation and has no label", "hold out another")
    if not training:
        raise BadInput(dataset.root, "has no training scans", "see fheat data check")


def _read(
    case: Case,
    role: Role,
    preprocessing: Preprocessing,
    classes: tuple[str, ...],
    config: TrainConfig,
    known: tuple[Moments, ...] | None = None,
) -> _Ready:
    """Read one scan as a network sees it; `known` are its moments where it was read before."""
    image = read_image(case)
    label = None if role == "unlabelled" else read_label(case, image)
    if label is not None and case.label is not None:
        check_values(case.label, label.data, classes)
    scan = preprocessing.scan(image, known)
    data, mask = scan.whole(), None if label is None else preprocessing.label(label)
    held = (case.id, data, mask) if role == "validation" and mask is not None else None
    return _Ready(
        case=case,
        outline=Volume(np.broadcast_to(np.uint8(0), image.data.shape), image.affine),
        moments=scan.moments,
        shape=scan.shape,
        channels=scan.channels,
        volume=None if held is not None else pack(data, mask, config.patch_size),
        held=held,
    )


def _check_sizes(scans: Sequence[_Ready], config: TrainConfig) -> None:
    """Raise `BadInput` where crops of a scan would be padding for the most part."""
    patch = config.patch_size
    for scan in scans:
        inside = prod(min(length, size) / size for length, size in zip(scan.shape, patch, strict=True))
        if inside < _SCANNED:
            shape, crop = (" x ".join(map(str, sizes)) for sizes in (scan.shape, patch))
            fitting = (min(size, max(length // 16 * 16, 16)) for length, size in zip(scan.shape, patch, strict=True))
            raise BadInput(
                scan.case.images[0],
                f"has {shape} voxels on the grid of the run, so {1 - inside:.0%} of a crop of {crop} would be padding",
                f"use a patch_size such as {' '.join(map(str, fitting))}",
            )


def _common(
    outlines: Sequence[Volume], first: Preprocessing, orientation: str | None, asked: Spacing | None
) -> Preprocessing:
    """Return orientation and spacing to bring all scans to: what is asked for, else their own where they agree."""
    orientations = {outline.orientation for outline in outlines}
    orientation = orientation or (orientations.pop() if len(orientations) == 1 else "RAS")
    spacings = np.array([reorient(outline, orientation).spacing for outline in outlines])
    x, y, z = (float(step) for step in np.median(spacings, axis=0))
    return first.model_copy(update={"orientation": orientation, "spacing": asked or (x, y, z)})

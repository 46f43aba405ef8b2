"""The scans of a run in memory: normalised, on one grid convention, split into labelled, unlabelled and validation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fheat.data.case import Case, Dataset, Spacing
from fheat.data.intensity import zscore
from fheat.data.orientation import reorient
from fheat.data.read import read_image, read_label
from fheat.data.resample import resample
from fheat.engine.config import TrainConfig
from fheat.errors import BadInput
from fheat.io.volume import Volume

Progress = Callable[[int, int], None]
_ALIKE = 0.05


@dataclass(frozen=True)
class Scans:
    """Images (X, Y, Z[, C]) float32 and labels (X, Y, Z) uint8 of one run.

    The first `labelled` of `images` are trained with their labels, the rest without. `spacing` and `orientation` are
    what a model trained on them expects; None where scans differ and are taken as they are.
    """

    images: list[NDArray[np.float32]]
    labels: list[NDArray[np.uint8] | None]
    labelled: int
    validation: list[tuple[str, NDArray[np.float32], NDArray[np.uint8]]]
    names: list[str]
    channels: int
    orientation: str
    spacing: Spacing | None


def load_scans(dataset: Dataset, config: TrainConfig, progress: Progress = lambda done, total: None) -> Scans:
    """Read and normalise the training and validation scans of a dataset, or raise `BadInput`."""
    training, validation = dataset.split("train"), dataset.split("validation")
    _check_labels(dataset, training, validation)
    with_label = [case for case in training if case.label is not None]
    count = config.labelled or len(with_label)
    if count > len(with_label):
        raise BadInput(dataset.root, f"has {len(with_label)} labelled training scans, not {count}", "ask for fewer")
    chosen = with_label[:count]
    rest = [case for case in training if case not in chosen] if config.method != "supervised" else []
    if config.method != "supervised" and not rest:
        raise BadInput(dataset.root, "has no scan left to use without its label", "use fewer labels, or supervised")
    cases = [*chosen, *rest, *validation]
    pairs = []
    for done, case in enumerate(cases, start=1):
        image = read_image(case)
        label = read_label(case, image) if case in chosen or case in validation else None
        pairs.append((image, label))
        progress(done, len(cases))
    orientation, spacing = _common_grid([image for image, _ in pairs], config.spacing)
    ready = [_prepared(image, label, orientation, spacing, config) for image, label in pairs]
    used = len(chosen) + len(rest)
    channels = {1 if image.ndim == 3 else image.shape[3] for image, _ in ready}
    if len(channels) > 1:
        raise BadInput(dataset.root, f"has scans with {sorted(channels)} channels", "see fheat data check")
    return Scans(
        images=[image for image, _ in ready[:used]],
        labels=[label for _, label in ready[:used]],
        labelled=len(chosen),
        validation=[
            (case.id, image, label)
            for case, (image, label) in zip(validation, ready[used:], strict=True)
            if label is not None
        ],
        names=[case.id for case in cases[:used]],
        channels=channels.pop(),
        orientation=orientation,
        spacing=spacing,
    )


def _check_labels(dataset: Dataset, training: Sequence[Case], validation: Sequence[Case]) -> None:
    for case in training:
        if case.label is None and not case.unlabelled:
            remedy = "add its label or declare it unlabelled, see docs/data.md"
            raise BadInput(case.images[0], "has no label and is not declared unlabelled", remedy)
    for case in validation:
        if case.label is None:
            raise BadInput(case.images[0], "is held out for validation and has no label", "hold out another")
    if not training:
        raise BadInput(dataset.root, "has no training scans", "see fheat data check")


def _common_grid(images: Sequence[Volume], asked: Spacing | None) -> tuple[str, Spacing | None]:
    """Return the orientation and spacing to bring all scans to: their own where they agree."""
    orientations = {image.orientation for image in images}
    orientation = orientations.pop() if len(orientations) == 1 else "RAS"
    spacings = np.array([reorient(image, orientation).spacing for image in images])
    x, y, z = (float(step) for step in np.median(spacings, axis=0))
    return orientation, asked or (x, y, z)


def _prepared(
    image: Volume, label: Volume | None, orientation: str, spacing: Spacing | None, config: TrainConfig
) -> tuple[NDArray[np.float32], NDArray[np.uint8] | None]:
    image = reorient(image, orientation)
    if config.intensity == "zscore":
        image = Volume(_each_channel(image.data), image.affine)
    alike = spacing is None or np.allclose(image.spacing, spacing, rtol=_ALIKE)
    image = image if alike or spacing is None else resample(image, spacing)
    data = np.ascontiguousarray(image.data, dtype=np.float32)
    if label is None:
        return data, None
    label = reorient(label, orientation)
    label = label if alike or spacing is None else resample(label, spacing, labels=True)
    return data, np.ascontiguousarray(label.data, dtype=np.uint8)


def _each_channel(data: NDArray[Any]) -> NDArray[np.float32]:
    if data.ndim == 3:
        return zscore(data)
    return np.stack([zscore(data[..., channel]) for channel in range(data.shape[3])], axis=-1)

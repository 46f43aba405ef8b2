"""Attention of a trained network: how much of it lies inside the target, and maps of it on planes of scans."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fheat.figures.picture import Picture, png_picture
from fheat.figures.plots import plt, png_bytes
from fheat.figures.preview import middle_plane
from fheat.studies.inside.record import Analysis, ModelAnalysis
from fheat.system.errors import BadInput


@dataclass(frozen=True)
class Concentration:
    """`share` of the attention inside the target, and `chance`, the share of the voxels: what even attention has."""

    share: float
    chance: float

    @property
    def over_chance(self) -> float | None:
        """Share divided by chance: 1 for even attention; None where there is no target."""
        return self.share / self.chance if self.chance else None


def concentration(attention: Tensor, target: Tensor) -> Concentration:
    """Return sum of a_v over the target / sum of a_v over all voxels, and the same for even attention.

        share = sum_{v in target} a_v / sum_v a_v,    chance = |target| / |all voxels|

    Shapes: both the same, any. Attention is not negative and not zero everywhere; the target is boolean. Even attention
    has share = chance, whatever its scale.
    """
    if attention.shape != target.shape:
        raise ValueError(f"attention {tuple(attention.shape)} and target {tuple(target.shape)} differ in shape")
    if target.dtype != torch.bool:
        raise TypeError(f"target has dtype {target.dtype}: give a mask, such as label > 0")
    values = attention.detach().double()
    if not torch.isfinite(values).all() or bool((values < 0).any()) or not bool((values > 0).any()):
        raise ValueError("attention must be finite, nowhere negative and somewhere positive")
    return Concentration(float(values[target].sum() / values.sum()), float(target.double().mean()))


NAME = "attention-maps.npz"
SCANS = 5
"""Scans shown, the first ones."""
_TARGET = "#35c9ff"
_DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_RUN_AGAIN = "remove it, or run the analysis again"


@dataclass(frozen=True)
class Plane:
    """The plane through the middle of the target across the last axis of the grid the network works on, (X, Y)."""

    image: NDArray[np.uint8]
    """From the 1st to the 99th percentile of the first channel."""
    attention: NDArray[np.float32]
    target: NDArray[np.bool_]


PlanesByModel = Mapping[int, Sequence[Plane]]
"""By the place of the network in the analysis, in the order of its scans."""


def plane_of(image: Tensor, attention: Tensor, target: Tensor) -> Plane:
    """Cut the plane out of volumes (X, Y, Z)."""
    mask = target.numpy()
    place = middle_plane(mask.astype(np.uint8), 2)
    voxels = image.numpy()
    low, high = np.percentile(voxels[::4, ::4, ::4], (1, 99))
    grey = np.clip((voxels[..., place] - low) / max(high - low, 1e-12), 0, 1)
    return Plane((255 * grey).astype(np.uint8), attention[..., place].numpy().astype(np.float32), mask[..., place])


def map_pictures(analysis: Analysis, planes: PlanesByModel) -> list[Picture]:
    """Draw one row of scans for every network that has planes."""
    return [_picture(place, analysis.models[place], found) for place, found in planes.items() if found]


def planes_bytes(planes: PlanesByModel) -> bytes:
    """Return the planes as the content of `attention-maps.npz`."""
    arrays: dict[str, Any] = {}
    for model, found in planes.items():
        for scan, plane in enumerate(found):
            for part in _PARTS:
                arrays[f"{model}-{scan}-{part}"] = getattr(plane, part)
    page = BytesIO()
    np.savez_compressed(page, **arrays)
    return page.getvalue()


def read_planes(path: Path, models: int) -> dict[int, list[Plane]]:
    """Read the `attention-maps.npz` of so many networks, or raise `BadInput`; where there is none, no planes."""
    if not path.exists():
        return {}
    planes: dict[int, list[Plane]] = {}
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", _RUN_AGAIN) from None
    try:
        with np.load(BytesIO(data)) as arrays:
            places = sorted({tuple(map(int, name.split("-")[:2])) for name in arrays.files})
            for model, scan in places:
                if model >= models:
                    raise ValueError("planes of a network that is not in the analysis")
                parts = {part: arrays[f"{model}-{scan}-{part}"].astype(kind) for part, kind in _PARTS.items()}
                if len({part.shape for part in parts.values()}) != 1 or parts["image"].ndim != 2:
                    raise ValueError("planes differ in shape")
                planes.setdefault(model, []).append(Plane(**parts))
    except _DAMAGED:  # the libraries' words are about their options, not about this file
        raise BadInput(path, "is not a stored set of attention maps (damaged)", _RUN_AGAIN) from None
    return planes


def _picture(place: int, model: ModelAnalysis, planes: Sequence[Plane]) -> Picture:
    cases = () if model.attention is None else model.attention.cases
    shares = [f"{case.share:.1%}" for case in cases[: len(planes)]]
    caption = (
        f"Attention of {model.name}, each scan coloured from its least to its most, on the plane through the middle of "
        f"the target, whose contour is blue. Inside the target of the whole scan, from left to right: "
        f"{', '.join(shares)}."
    )
    aspect = 1.0 if model.spacing is None else model.spacing[1] / model.spacing[0]
    canvas, axes = plt.subplots(1, len(planes), figsize=(2.4 * len(planes), 2.6), dpi=100, squeeze=False)
    for panel, plane in zip(axes[0], planes, strict=True):
        panel.imshow(plane.image.T, "gray", origin="lower", vmin=0, vmax=255, aspect=aspect)
        panel.imshow(plane.attention.T, "inferno", origin="lower", alpha=0.55, aspect=aspect)
        if plane.target.any() and not plane.target.all():
            panel.contour(plane.target.T, [0.5], colors=[_TARGET], linewidths=1.2)
        panel.set_axis_off()
    canvas.subplots_adjust(0.005, 0.005, 0.995, 0.995, wspace=0.03)
    return png_picture(f"attention-maps-{place + 1}", png_bytes(canvas), caption)


_PARTS: Mapping[str, Any] = {"image": np.uint8, "attention": np.float32, "target": np.bool_}

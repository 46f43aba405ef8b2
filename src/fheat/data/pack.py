"""One volume as it is kept for training: padded to the patch, in one byte per voxel where that loses nothing.

An image with at most 256 distinct values, as after scanning with eight bits, is kept as codes and a table of values:
exact, at a quarter of the size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int, int]
TABLE = 256
_SAMPLE = 97
"""Every so many voxels are looked at before all are sorted: most images with many values show it there."""


@dataclass(frozen=True)
class Packed:
    """Image (C, X, Y, Z), as codes into `table` (C, 256) or as values where that is None, and label (X, Y, Z).

    `low` and `high`, (C,), are the extremes of the image. A label of None stands for zeros.
    """

    voxels: NDArray[np.uint8] | NDArray[np.float32]
    table: NDArray[np.float32] | None
    label: NDArray[np.uint8] | None
    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @property
    def shape(self) -> Size:
        """Voxels along each axis, the padding included."""
        x, y, z = self.voxels.shape[1:]
        return x, y, z

    def values(self) -> NDArray[np.float32]:
        """Return the image, (C, X, Y, Z)."""
        if self.table is None:
            return self.voxels  # type: ignore[return-value]
        return np.stack([table[codes] for table, codes in zip(self.table, self.voxels, strict=True)])


def pack(image: NDArray[np.float32], label: NDArray[np.uint8] | None, patch: Size) -> Packed:
    """Pack an image, (X, Y, Z) or (X, Y, Z, C), and its label, (X, Y, Z) or None.

    Axes not longer than the patch are padded with zeros until a crop can be moved by at least one voxel.
    """
    stack = _padded(image[None] if image.ndim == 3 else np.moveaxis(image, -1, 0), patch)
    codes, table = _coded(stack)
    return Packed(
        voxels=np.ascontiguousarray(stack, dtype=np.float32) if table is None else codes,
        table=table,
        label=None if label is None else _padded(label[None], patch)[0],
        low=stack.min(axis=(1, 2, 3)),
        high=stack.max(axis=(1, 2, 3)),
    )


def pack_all(
    images: Sequence[NDArray[np.float32]], labels: Sequence[NDArray[np.uint8] | None], patch: Size
) -> list[Packed]:
    """Pack images and their labels, as many of the one as of the other."""
    if len(images) != len(labels) or not images:
        raise ValueError(f"{len(images)} images and {len(labels)} labels: give one label, or None, for each image")
    return [pack(image, label, patch) for image, label in zip(images, labels, strict=True)]


def all_coded(volumes: Iterable[Packed]) -> bool:
    """Say whether codes will do for all of them; one that has too many values makes all be kept as values."""
    return all(volume.table is not None for volume in volumes)


def bytes_together(volumes: Sequence[Packed]) -> int:
    """Return the bytes of all images and labels in one block each."""
    each = 1 if all_coded(volumes) else 4
    return sum(volume.voxels.size * each + volume.voxels[0].size for volume in volumes)


def _padded(stack: NDArray[Any], patch: Size) -> NDArray[Any]:
    """Pad every axis of (C, X, Y, Z) that is not longer than the patch by half of what lacks plus one on each side."""
    short = [
        max((size - length) // 2 + 1, 0) if length <= size else 0
        for length, size in zip(stack.shape[1:], patch, strict=True)
    ]
    return np.pad(stack, [(0, 0), *((amount, amount) for amount in short)]) if any(short) else stack


def _coded(stack: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """Return codes (C, X, Y, Z) and their values (C, 256); None instead of the values where there are too many."""
    table = np.zeros((len(stack), TABLE), dtype=np.float32)
    codes = np.empty(stack.shape, dtype=np.uint8)
    for channel, image in enumerate(stack):
        if len(np.unique(image.reshape(-1)[::_SAMPLE])) > TABLE:
            return codes, None
        values = np.unique(image)
        if len(values) > TABLE:
            return codes, None
        table[channel, : len(values)] = values
        codes[channel] = np.searchsorted(values, image)
    return codes, table

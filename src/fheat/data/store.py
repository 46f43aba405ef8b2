"""Volumes for training: packed without loss, all on one device, where crops are gathered in one operation.

An image with at most 256 distinct values, such as an 8-bit scan, is stored as codes and a table of values. This is
exact and takes a quarter of the memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Size = tuple[int, int, int]
TABLE = 256
"""Number of values in the table of an image."""
_SAMPLE = 97
"""Step between voxels that are sorted first: most images with too many values are recognised by these alone."""


@dataclass(frozen=True)
class Packed:
    """An image (C, X, Y, Z), as codes into `table` (C, 256) or as values if `table` is None, and its label (X, Y, Z).

    `low` and `high`, (C,), are the smallest and largest values of the image. A label of None stands for zeros.
    """

    voxels: NDArray[np.uint8] | NDArray[np.float32]
    table: NDArray[np.float32] | None
    label: NDArray[np.uint8] | None
    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @property
    def shape(self) -> Size:
        """Number of voxels along each axis, with padding."""
        x, y, z = self.voxels.shape[1:]
        return x, y, z

    def values(self) -> NDArray[np.float32]:
        """Return the image as values, (C, X, Y, Z)."""
        if self.table is None:
            return self.voxels  # type: ignore[return-value]
        return np.stack([table[codes] for table, codes in zip(self.table, self.voxels, strict=True)])


def pack(image: NDArray[np.float32], label: NDArray[np.uint8] | None, patch: Size) -> Packed:
    """Pack an image, (X, Y, Z) or (X, Y, Z, C), and its label, (X, Y, Z) or None.

    An axis that is not longer than the patch is padded with zeros, so that a crop can be moved by at least one voxel.
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
    """Pack images and their labels, one label or None per image."""
    if len(images) != len(labels) or not images:
        raise ValueError(f"{len(images)} images and {len(labels)} labels: give one label, or None, for each image")
    return [pack(image, label, patch) for image, label in zip(images, labels, strict=True)]


def all_coded(volumes: Iterable[Packed]) -> bool:
    """Return whether all volumes are stored as codes; if one has too many values, all are kept as values."""
    return all(volume.table is not None for volume in volumes)


def bytes_together(volumes: Sequence[Packed]) -> int:
    """Return the number of bytes that all images and labels take on a device."""
    voxel_bytes = 1 if all_coded(volumes) else 4
    return sum(volume.voxels.size * voxel_bytes + volume.voxels[0].size for volume in volumes)


def _padded(stack: NDArray[Any], patch: Size) -> NDArray[Any]:
    """Pad each axis of (C, X, Y, Z) that is not longer than the patch by half the difference plus one on each side."""
    planes = [
        max((size - length) // 2 + 1, 0) if length <= size else 0
        for length, size in zip(stack.shape[1:], patch, strict=True)
    ]
    return np.pad(stack, [(0, 0), *((count, count) for count in planes)]) if any(planes) else stack


def _coded(stack: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """Return codes (C, X, Y, Z) and their table (C, 256); the table is None if there are too many values."""
    table = np.zeros((len(stack), TABLE), dtype=np.float32)
    codes = np.empty(stack.shape, dtype=np.uint8)
    for channel, image in enumerate(stack):
        some = np.unique(image.reshape(-1)[::_SAMPLE])
        if len(some) > TABLE:
            return codes, None
        if _code_evenly(image, some, codes[channel], table[channel]):
            continue
        values = np.unique(image)
        if len(values) > TABLE:
            return codes, None
        table[channel] = 0
        table[channel, : len(values)] = values
        codes[channel] = np.searchsorted(values, image)
    return codes, table


def _code_evenly(
    image: NDArray[np.float32], some: NDArray[np.float32], codes: NDArray[np.uint8], table: NDArray[np.float32]
) -> bool:
    """Fill codes and table if the values are evenly spaced, as in an 8-bit scan with a slope; return whether they are.

    This needs no sorting. The spacing is guessed from `some` of the values, and the table is checked voxel by voxel, so
    that a wrong guess changes nothing.
    """
    if len(some) < 2:
        return False
    low, step = float(image.min()), float(np.diff(some.astype(np.float64)).min())
    if not (float(image.max()) - low) / step < TABLE - 0.5:
        return False
    np.rint((image - np.float32(low)) * np.float32(1 / step), out=codes, casting="unsafe")
    table[codes.reshape(-1)] = image.reshape(-1)
    return bool(np.array_equal(table[codes], image))


class StoreBase:
    """The part of a store that is always on the training device, wherever the voxels are.

    `low` and `high`, (N, C), are the smallest and largest values of each image; `tables` (N, C, 256) holds the values
    of its codes and is empty if voxels are stored as values.
    """

    def __init__(self, volumes: Sequence[Packed], device: torch.device | str) -> None:
        if not volumes:
            raise ValueError("there are no volumes to take crops from")
        self.low = torch.tensor(np.array([volume.low for volume in volumes]), device=device)
        self.high = torch.tensor(np.array([volume.high for volume in volumes]), device=device)
        tables = [volume.table for volume in volumes if volume.table is not None] if all_coded(volumes) else []
        self.tables = torch.from_numpy(np.array(tables, dtype=np.float32)).to(device)

    def __len__(self) -> int:
        return len(self.low)

    def decoded(self, cases: Tensor, codes: Tensor) -> Tensor:
        """Return crops as they are stored, (C, B, X, Y, Z), as images (B, C, X, Y, Z) float32."""
        if self.tables.numel():
            channel = torch.arange(len(codes), device=codes.device).view(-1, 1, 1, 1, 1)
            codes = self.tables[cases.view(1, -1, 1, 1, 1), channel, codes.long()]
        return codes.transpose(0, 1)


class VolumeStore(StoreBase):
    """Images and labels of one dataset split, resident on one device.

    Volumes of different shapes lie one after the other in flat tensors: `voxels` (C, total) and `labels` (total,).
    """

    def __init__(self, volumes: Sequence[Packed], device: torch.device | str = "cpu") -> None:
        super().__init__(volumes, device)
        sizes = [volume.voxels[0].size for volume in volumes]
        starts = np.cumsum([0, *sizes])
        self.starts = torch.tensor(starts[:-1], device=device)
        self.shapes = torch.tensor([volume.shape for volume in volumes], device=device)
        channels, coded = len(volumes[0].voxels), all_coded(volumes)
        kind = torch.uint8 if coded else torch.float32
        self.voxels = torch.empty(channels, int(starts[-1]), dtype=kind, device=device)
        self.labels = torch.zeros(int(starts[-1]), dtype=torch.uint8, device=device)
        for volume, start, size in zip(volumes, starts, sizes, strict=False):
            part = slice(int(start), int(start) + size)
            whole = volume.voxels if coded else volume.values()
            self.voxels[:, part] = torch.tensor(whole.reshape(channels, -1))
            if volume.label is not None:
                self.labels[part] = torch.tensor(volume.label.reshape(-1))

    def crops(self, cases: Tensor, places: Tensor, patch: Size) -> "ResidentCrops":
        """Return the crops of a training run; see `ResidentCrops`."""
        return ResidentCrops(self, cases, places, patch)

    def crop(self, cases: Tensor, corners: Tensor, patch: Size) -> tuple[Tensor, Tensor]:
        """Return crops: images (B, C, *patch) float32 and labels (B, *patch) int64."""
        _, rows, planes = self.shapes[cases].unbind(dim=1)
        index = self.starts[cases].view(-1, 1, 1, 1)
        for axis, stride in enumerate((rows * planes, planes, torch.ones_like(planes))):
            shape = [1, 1, 1, 1]
            shape[axis + 1] = -1
            position = corners[:, axis : axis + 1] + torch.arange(patch[axis], device=corners.device)
            shape[0] = len(cases)
            index = index + (position * stride[:, None]).view(shape)
        return self.decoded(cases, self.voxels[:, index]), self.labels[index].long()


class ResidentCrops:
    """The crops of a training run, one batch per iteration, gathered on the device.

    Args:
        cases: (iterations, B), the volume of each crop.
        places: (iterations, B, 3), the relative position of each crop, in [0, 1); see `corners_at`.
        patch: size of every crop.
    """

    def __init__(self, store: VolumeStore, cases: Tensor, places: Tensor, patch: Size) -> None:
        self.store, self.patch = store, patch
        self.cases, self.places = cases.to(store.low.device), places.to(store.low.device)

    def load(self, iteration: Tensor) -> None:
        """Do nothing: all voxels are on the device already."""

    def __call__(self, iteration: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (B, C, *patch) and labels (B, *patch) of an iteration, whose number is a tensor."""
        cases, places = (drawn.index_select(0, iteration[None])[0] for drawn in (self.cases, self.places))
        return self.store.crop(cases, corners_at(places, self.store.shapes[cases], self.patch), self.patch)


def corners_at(places: Tensor, shapes: Tensor, patch: Size) -> Tensor:
    """Return the first voxel of each crop, (B, 3): floor(place * (length - patch)), the same on any device.

    Places are in [0, 1), so the last possible position is never used; this is the convention of the benchmarks.
    `places` (B, 3) float32, `shapes` (B, 3).
    """
    room = torch.stack([shapes[:, axis] - length for axis, length in enumerate(patch)], dim=1)
    return (places * room).long()

"""Volumes for training: packed losslessly, many on one device, and crops of them as one gather.

An image with at most 256 distinct values, as after scanning with eight bits, is kept as codes and a table of values:
exact, at a quarter of the size.
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


class SmallFacts:
    """What is kept of each volume on the device of the step, wherever its voxels are.

    `low` and `high`, (N, C), are the extremes of each image, `tables` (N, C, 256) the values its codes stand for; it
    is empty where voxels are values.
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
        """Return images (B, C, X, Y, Z) float32 of crops (C, B, X, Y, Z) as they are kept."""
        if self.tables.numel():
            channel = torch.arange(len(codes), device=codes.device).view(-1, 1, 1, 1, 1)
            codes = self.tables[cases.view(1, -1, 1, 1, 1), channel, codes.long()]
        return codes.transpose(0, 1)


class VolumeStore(SmallFacts):
    """Images and labels of one dataset split, resident on one device.

    Volumes of different shapes lie end to end in one flat tensor: `voxels` (C, total) and `labels` (total,).
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
            place = slice(int(start), int(start) + size)
            whole = volume.voxels if coded else volume.values()
            self.voxels[:, place] = torch.tensor(whole.reshape(channels, -1))
            if volume.label is not None:
                self.labels[place] = torch.tensor(volume.label.reshape(-1))

    def crops(self, cases: Tensor, places: Tensor, patch: Size) -> "ResidentCrops":
        """Return the crops of a run; see `ResidentCrops`."""
        return ResidentCrops(self, cases, places, patch)

    def crop(self, cases: Tensor, corners: Tensor, patch: Size) -> tuple[Tensor, Tensor]:
        """Return crops: images (B, C, *patch) float32 and labels (B, *patch) int64."""
        _, rows, planes = self.shapes[cases].unbind(dim=1)
        index = self.starts[cases].view(-1, 1, 1, 1)
        for axis, stride in enumerate((rows * planes, planes, torch.ones_like(planes))):
            shape = [1, 1, 1, 1]
            shape[axis + 1] = -1
            place = corners[:, axis : axis + 1] + torch.arange(patch[axis], device=corners.device)
            shape[0] = len(cases)
            index = index + (place * stride[:, None]).view(shape)
        return self.decoded(cases, self.voxels[:, index]), self.labels[index].long()


class ResidentCrops:
    """The crops of a run, one batch per iteration, gathered on the device.

    Args:
        cases: (iterations, B), which volumes.
        places: (iterations, B, 3), numbers in [0, 1) that say where; see `corners_at`.
        patch: size of every crop.
    """

    def __init__(self, store: VolumeStore, cases: Tensor, places: Tensor, patch: Size) -> None:
        self.store, self.patch = store, patch
        self.cases, self.places = cases.to(store.low.device), places.to(store.low.device)

    def load(self, iteration: Tensor) -> None:
        """Nothing has to be fetched."""

    def __call__(self, iteration: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (B, C, *patch) and labels (B, *patch) of an iteration, which is a tensor."""
        cases, places = (drawn.index_select(0, iteration[None])[0] for drawn in (self.cases, self.places))
        return self.store.crop(cases, corners_at(places, self.store.shapes[cases], self.patch), self.patch)


def corners_at(places: Tensor, shapes: Tensor, patch: Size) -> Tensor:
    """Return where crops begin, (B, 3): [0, 1) spread evenly over [0, length - patch), so the last place never comes.

    That is the benchmarks' convention. `places` (B, 3) float32, `shapes` (B, 3). The same on any device.
    """
    room = torch.stack([shapes[:, axis] - length for axis, length in enumerate(patch)], dim=1)
    return (places * room).long()

"""Many volumes on one device, and crops of them as one gather.

Volumes of different shapes lie end to end in one flat tensor. If every image has at most 256 distinct values, as after
scanning with eight bits, one byte per voxel and a table of values per image are kept instead: exact, at a quarter of
the size.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Size = tuple[int, int, int]
_TABLE = 256


class VolumeStore(nn.Module):
    """Images and labels of one dataset split, resident on one device.

    Args:
        images: one array per case, (X, Y, Z) or (X, Y, Z, C), normalised as the network expects.
        labels: one per case, (X, Y, Z) whole numbers below 256, or None where the case has none.
        patch: no crop is larger; shorter axes are padded with zeros until a crop can be moved by at least one voxel.

    `low` and `high`, (N, C), are the extremes of each image, known without reading it again.
    """

    voxels: Tensor
    tables: Tensor
    labels: Tensor
    starts: Tensor
    shapes: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self, images: Sequence[NDArray[np.float32]], labels: Sequence[NDArray[np.uint8] | None], patch: Size
    ) -> None:
        super().__init__()
        if len(images) != len(labels) or not images:
            raise ValueError(f"{len(images)} images and {len(labels)} labels: give one label, or None, for each image")
        stacks = [_padded(_channels_first(image), patch) for image in images]
        masks = [
            np.zeros(stack.shape[1:], np.uint8) if label is None else _padded(label[None], patch)[0]
            for stack, label in zip(stacks, labels, strict=True)
        ]
        sizes = [mask.size for mask in masks]
        self.register_buffer("starts", torch.tensor(np.cumsum([0, *sizes[:-1]]), dtype=torch.int64))
        self.register_buffer("shapes", torch.tensor([mask.shape for mask in masks], dtype=torch.int64))
        self.register_buffer("low", torch.tensor(np.array([stack.min(axis=(1, 2, 3)) for stack in stacks])))
        self.register_buffer("high", torch.tensor(np.array([stack.max(axis=(1, 2, 3)) for stack in stacks])))
        voxels, tables = _compressed(stacks)
        self.register_buffer("voxels", voxels)
        self.register_buffer("tables", tables)
        self.register_buffer("labels", torch.from_numpy(np.concatenate([mask.ravel() for mask in masks])))

    def __len__(self) -> int:
        return len(self.starts)

    def corners(self, cases: Tensor, patch: Size) -> Tensor:
        """Draw where crops of these cases begin, (B, 3), uniform over [0, length - patch): the last place never comes.

        That is the benchmarks' convention. The draw is made on the store's device, from its default generator.
        """
        room = torch.stack([self.shapes[cases, axis] - length for axis, length in enumerate(patch)], dim=1)
        return (torch.rand(room.shape, device=room.device) * room).long()

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
        codes = self.voxels[:, index]
        if self.tables.numel():
            channel = torch.arange(len(codes), device=index.device).view(-1, 1, 1, 1, 1)
            values = self.tables[cases.view(1, -1, 1, 1, 1), channel, codes.long()]
        else:
            values = codes
        return values.transpose(0, 1), self.labels[index].long()


def _channels_first(image: NDArray[np.float32]) -> NDArray[np.float32]:
    return image[None] if image.ndim == 3 else np.moveaxis(image, -1, 0)


def _padded(stack: NDArray[np.generic], patch: Size) -> NDArray[np.generic]:
    """Pad every axis of (C, X, Y, Z) that is not longer than the patch by half of what lacks plus one on each side."""
    short = [
        max((size - length) // 2 + 1, 0) if length <= size else 0
        for length, size in zip(stack.shape[1:], patch, strict=True)
    ]
    return np.pad(stack, [(0, 0), *((amount, amount) for amount in short)])


def _compressed(stacks: Sequence[NDArray[np.generic]]) -> tuple[Tensor, Tensor]:
    """Return voxels (C, total) as codes and their values (N, C, 256), or as float32 and an empty table."""
    channels = len(stacks[0])
    tables = np.zeros((len(stacks), channels, _TABLE), dtype=np.float32)
    codes = []
    for case, stack in enumerate(stacks):
        code = np.empty(stack.shape, dtype=np.uint8)
        for channel, image in enumerate(stack):
            values = np.unique(image)
            if len(values) > _TABLE:
                flat = np.concatenate([stack.reshape(channels, -1) for stack in stacks], axis=1)
                return torch.from_numpy(flat.astype(np.float32, copy=False)), torch.empty(0)
            tables[case, channel, : len(values)] = values
            code[channel] = np.searchsorted(values, image)
        codes.append(code.reshape(channels, -1))
    return torch.from_numpy(np.concatenate(codes, axis=1)), torch.from_numpy(tables)

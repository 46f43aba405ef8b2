"""Many volumes on one device, and crops of them as one gather."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fheat.data.pack import Packed, Size, all_coded


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

"""Volumes that stay in host memory: crops are gathered one iteration ahead and copied while the device computes.

Nothing random happens here: cases and positions of all crops were drawn before, so reading ahead changes no result.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fheat.data.store import Packed, Size, StoreBase, VolumeStore, all_coded, bytes_together, corners_at

_SLOTS = 2
"""Number of buffers that are used in turn."""


class HostStore(StoreBase):
    """Images and labels of one dataset split in host memory; only the crops of an iteration are copied to `device`."""

    def __init__(self, volumes: Sequence[Packed], device: torch.device | str = "cpu") -> None:
        super().__init__(volumes, device)
        self.volumes = tuple(volumes)
        self.coded = all_coded(volumes)

    def crops(self, cases: Tensor, places: Tensor, patch: Size) -> "CropStream":
        """Return the crops of a training run; see `CropStream`."""
        return CropStream(self, cases, places, patch)

    def cut(self, case: int, corner: Sequence[int], voxels: Tensor, label: Tensor) -> None:
        """Copy one crop as it is stored to `voxels` (C, *patch) and `label` (*patch)."""
        volume = self.volumes[case]
        box = tuple(slice(start, start + length) for start, length in zip(corner, label.shape, strict=True))
        for channel, target in enumerate(voxels.numpy()):
            stored = volume.voxels[channel][box]
            if volume.table is not None and not self.coded:
                stored = volume.table[channel][stored]
            np.copyto(target, stored)
        np.copyto(label.numpy(), 0 if volume.label is None else volume.label[box])


class CropStream:
    """The crops of a training run, one batch per iteration, always in the same tensors, so that a graph can read them.

    The host calls `load` before each iteration. While that iteration computes, a thread gathers the next crops in
    page-locked memory; the thread only copies within host memory, so it may run while a graph is captured. A stream of
    its own copies the crops to one of two buffers on the device, and from there they go to the tensors that are read.

    Arguments and crops are those of `ResidentCrops`, bit for bit.
    """

    def __init__(self, store: HostStore, cases: Tensor, places: Tensor, patch: Size) -> None:
        self.store, self.patch = store, patch
        self._host_cases, self._places = cases.cpu(), places.cpu()
        self._shapes = torch.tensor([volume.shape for volume in store.volumes])
        device = store.low.device
        self.cases = cases.to(device)
        self._on_gpu = device.type == "cuda"
        self._here = [self._buffers("cpu") for _ in range(_SLOTS)]
        self._there = [self._buffers(device) for _ in range(_SLOTS)] if self._on_gpu else self._here
        self._now = self._buffers(device)
        self._next: int | None = None
        self._gathered: Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="crops")
        if self._on_gpu:
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._side.wait_stream(torch.cuda.current_stream(device))  # the buffers may be memory that is still in use
            self._sent = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]
            self._used = [torch.cuda.Event() for _ in range(_SLOTS)]  # type: ignore[no-untyped-call]

    def load(self, iteration: Tensor) -> None:
        """Load the crops of an iteration. After the first call, it must be the next iteration."""
        if self._next is None:
            self._next = int(iteration)
        ready = self._gathered or self._ask(self._next)
        ready.result()
        self._send(self._next % _SLOTS)
        self._next += 1
        self._gathered = self._ask(self._next) if self._next < len(self._host_cases) else None

    def __call__(self, iteration: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (B, C, *patch) and labels (B, *patch) of the iteration that was loaded last."""
        voxels, labels = self._now
        return self.store.decoded(self.cases.index_select(0, iteration[None])[0], voxels), labels.long()

    def _buffers(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        batch, channels = self.cases.shape[1], len(self.store.volumes[0].voxels)
        pinned = self._on_gpu and device == "cpu"
        kind = torch.uint8 if self.store.coded else torch.float32
        return (
            torch.empty(channels, batch, *self.patch, dtype=kind, device=device, pin_memory=pinned),
            torch.empty(batch, *self.patch, dtype=torch.uint8, device=device, pin_memory=pinned),
        )

    def _ask(self, iteration: int) -> Future[None]:
        """Start gathering the crops of an iteration, after its buffer was copied to the device."""
        if self._on_gpu:
            self._sent[iteration % _SLOTS].synchronize()
        return self._thread.submit(self._gather, iteration)

    def _gather(self, iteration: int) -> None:
        voxels, labels = self._here[iteration % _SLOTS]
        cases = self._host_cases[iteration]
        corners = corners_at(self._places[iteration], self._shapes[cases], self.patch)
        for index, (case, corner) in enumerate(zip(cases.tolist(), corners.tolist(), strict=True)):
            self.store.cut(case, corner, voxels[:, index], labels[index])

    def _send(self, slot: int) -> None:
        if self._on_gpu:
            step = torch.cuda.current_stream(self.cases.device)
            self._side.wait_event(self._used[slot])
            with torch.cuda.stream(self._side):
                for there, here in zip(self._there[slot], self._here[slot], strict=True):
                    there.copy_(here, non_blocking=True)
                self._sent[slot].record(self._side)
            step.wait_event(self._sent[slot])
        for now, there in zip(self._now, self._there[slot], strict=True):
            now.copy_(there)
        if self._on_gpu:
            self._used[slot].record(step)


SHARE = 0.5
"""Fraction of the free memory of a GPU that volumes may take; networks and their gradients need the rest."""


def place(
    volumes: Sequence[Packed], device: torch.device, resident: Literal["auto", "yes", "no"]
) -> VolumeStore | HostStore:
    """Return a store of the volumes: resident on the device with `yes`, or with `auto` if they fit, else on the host.

    On a CPU `auto` always means resident.
    """
    if resident == "auto":
        resident = "yes" if bytes_together(volumes) <= room(device) else "no"
    return VolumeStore(volumes, device) if resident == "yes" else HostStore(volumes, device)


def room(device: torch.device) -> float:
    """Return the number of bytes that volumes may take on a device."""
    return SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")

"""How much memory a prediction takes at most, known before it starts."""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fheat.data.planes import planes_at_once
from fheat.data.preprocessing import PreparedScan
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Triple

_FLOAT32_BYTES: Final = 4
_RESERVE_FACTOR: Final = 1.05
"""Factor for memory that an allocator keeps after it was given back."""
_PLANE_COPIES: Final = 5
"""Number of float32 copies of the planes being converted: their intensities mapped, a plane in float64, resampling."""
_COMPONENT_BYTES: Final = 14
"""Bytes per voxel for two masks, 32-bit component numbers, and what finding and counting them takes."""
_PICTURE_BYTES: Final = 48 * 2**20
"""Bytes for matplotlib, which is loaded for the first mask, and its canvas: measured 24 + 22 MiB."""


@dataclass(frozen=True)
class MemoryBound:
    """Bytes of each part. The peak is at most program, scan and the largest phase after reading, 5 % more, and picture;
    or it lies before them.

    Where scans overlap, `others` comes on top of the scan: what those before and after it hold in the meantime. What an
    allocator keeps after the windows is still there when the picture is drawn, which therefore adds to it.
    """

    program: int
    """Memory of interpreter, libraries and network before the scan is read."""
    scan: int
    """Memory of the voxels as stored."""
    reading: int
    """Memory of one channel more, while the scan is put together."""
    mask: int
    """One byte per voxel of the scan."""
    statistics: int
    """A copy of one channel, and a byte per voxel where zeros are left out, while mean and deviation are measured."""
    slab: int
    """(C + K + 1) float32 values per voxel of the planes held, and one more while they move; none with a GPU."""
    planes: int
    """Memory of the planes being read from the scan or brought back to it."""
    windows: int
    """Memory of the tensors alive during one forward pass of a batch; none with a GPU."""
    maps: int
    """Memory of probabilities and uncertainty on the scan's voxels, where they are wanted."""
    components: int
    """Memory for finding the largest components, when everything above but scan, mask and maps is released."""
    picture: int
    """Memory for the library that draws the picture of a mask, and for drawing it."""
    others: int = 0
    """Memory of the scans that are read ahead and of those that are written behind, where scans overlap."""
    begun: int = 0
    """Most memory of the process until now, where libraries, weights and what was compiled were loaded side by side."""

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        work = self.mask + self.maps + max(self.statistics, self.slab + self.planes + self.windows, self.components)
        held = self.program + self.scan + self.others + max(self.reading, work)
        return max(int(_RESERVE_FACTOR * held) + self.picture, self.begun)

    @property
    def ahead(self) -> int:
        """Bytes of this scan while it is read and measured and another one is segmented."""
        return self.scan + max(self.reading, self.statistics)

    def behind(self, drawing: int) -> int:
        """Bytes of this scan while its mask is finished and written and another one is segmented.

        Args:
            drawing: number of bytes per voxel that its picture takes for a moment, beside `picture`.
        """
        return self.scan + self.mask + self.maps + max(self.components, drawing * self.mask)

    def __str__(self) -> str:
        return f"memory at most {self.total / 2**20:,.0f} MiB"


def memory_bound(
    sliding: SlidingWindow,
    scan: PreparedScan,
    stored: int,
    *,
    program: int,
    classes: int,
    activations: int,
    maps: int,
    components: bool,
    device: torch.device,
) -> MemoryBound:
    """Add up what a prediction of `scan` holds.

    Args:
        sliding: windows, batch and slab.
        scan: the volume on the network's grid.
        stored: number of bytes of the volume as read.
        program: number of bytes resident before the volume was read.
        classes: number of output channels of a window, those of members included.
        activations: number of bytes that `activation_bytes` measured for one batch.
        maps: number of float32 values per voxel of the scan that are kept beside the mask.
        components: whether the largest components are found afterwards.
        device: where the network runs; the slab and the windows on a GPU take nothing from this machine.
    """
    here = device.type != "cuda"
    axis = sliding.axis(scan.shape)
    lengths = [max(length, size) for length, size in zip(scan.shape, sliding.windows.size, strict=True)]
    section = prod(lengths) // lengths[axis]
    larger = [max(lengths) for lengths in zip(scan.shape, scan.source_shape, strict=True)]
    plane = prod(larger) // larger[axis]
    stored_planes = max(scan.steps[axis], 1.0)  # for one of the network
    at_once = max(
        channels * (ceil(planes_at_once(scan.shape, axis, channels, scan.source_shape) * stored_planes) + 2)
        for channels in (scan.channels, classes)
    )
    return MemoryBound(
        program=program,
        scan=stored,
        reading=stored // scan.channels,
        mask=prod(scan.source_shape),
        statistics=_statistics_bytes(scan, stored),
        slab=here * (scan.channels + classes + 2) * sliding.depth(scan.shape) * section * _FLOAT32_BYTES,
        planes=_PLANE_COPIES * at_once * plane * _FLOAT32_BYTES,
        windows=here * activations,
        maps=maps * prod(scan.source_shape) * _FLOAT32_BYTES,
        components=_COMPONENT_BYTES * prod(scan.source_shape) if components else 0,
        picture=_PICTURE_BYTES,
    )


def _statistics_bytes(scan: PreparedScan, stored: int) -> int:
    if scan.intensity.kind != "zscore":
        return 0
    return stored // scan.channels + (prod(scan.source_shape) if scan.intensity.nonzero else 0)


def activation_bytes(
    network: Callable[[Tensor], Tensor], shape: tuple[int, int, *Triple], device: torch.device
) -> tuple[int, int]:
    """Return the number of output channels, and the most bytes of tensors alive at once for an input of `shape`.

    Convolutions may unfold or reorder their operands in a workspace of their own; the largest input and output of one
    operation are therefore counted a second time.
    """
    meter = _Meter()
    with torch.no_grad(), meter:
        classes = network(torch.zeros(shape, device=device)).shape[1]
    return classes, meter.peak + meter.largest


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operations create and subtracts them when they are released."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = self.largest = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Let torch leave its compiler alone, which it would import, for a second, to keep it away from this mode."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        touched = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        self.largest = max(self.largest, sum(tensor.numel() * tensor.element_size() for tensor in touched))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        self.peak = max(self.peak, self.alive)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        self.alive += storage.nbytes()
        weakref.finalize(storage, self._release, storage.nbytes())

    def _release(self, size: int) -> None:
        self.alive -= size


def machine_bytes() -> int | None:
    """Return the number of bytes of memory this machine has, or None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def resident_bytes() -> int:
    """Return the number of bytes this process holds now; else the most it has held so far; 0 where neither is known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return _peak_bytes()
    import resource

    return pages * resource.getpagesize()


def peak_bytes() -> int:
    """Return the most bytes that this process has held so far; 0 where that is not known.

    On Linux it is not `ru_maxrss`, which a new process inherits from the one that started it.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return _peak_bytes()


def _peak_bytes() -> int:
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak  # bytes on macOS, the one system with this module and without /proc

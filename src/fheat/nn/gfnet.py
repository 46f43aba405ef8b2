"""GFNet in 3D: a free complex filter for each channel in the place of a gate."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fheat.ops.dct import constant
from fheat.ops.spectral_mixer import SpectralMixer, from_half, half_spectrum

INITIAL_DEVIATION = 0.02
"""Standard deviation of the filter before training."""


class GFNet3D(SpectralMixer):
    """A learned complex filter on the spectrum of every channel.

        y = F^-1 [ W * F(v) ],    F over (X, Y, Z), orthonormal, half a spectrum

    This is Y. Rao et al., *Global Filter Networks for Image Classification*, NeurIPS 2021, with three axes. It has
    2 C X Y (Z // 2 + 1) parameters: they are bound to the grid. On another grid the filter is interpolated linearly in
    frequency, which is no longer what was trained.

    Shapes: (N, C, X, Y, Z) -> the same. Identity case: W = 1, up to rounding. It is one point among all filters, no
    gradient vanishes there, and training neither meets it nor stays.

    Args:
        channels: number of channels C.
        grid: the grid whose frequencies have parameters.
    """

    weight: nn.Parameter | None

    def __init__(self, channels: int, grid: Sequence[int]) -> None:
        super().__init__()
        self.grid = tuple(grid)
        shape = (channels, *self.grid[:2], self.grid[2] // 2 + 1, 2)
        self.weight = nn.Parameter(INITIAL_DEVIATION * torch.randn(shape))

    def mix(self, x: Tensor) -> Tensor:
        """Filter every channel."""
        assert self.weight is not None
        grid = x.shape[-3:]
        return from_half(torch.view_as_complex(self.filter(tuple(map(int, grid))).to(x.dtype)) * half_spectrum(x), grid)

    def filter(self, grid: tuple[int, ...]) -> Tensor:
        """Return the filter on a grid, (C, X, Y, Z // 2 + 1, 2): real and imaginary parts."""
        assert self.weight is not None
        w: Tensor = self.weight
        for axis, (new, old) in enumerate(zip(grid, self.grid, strict=True), start=1):
            if new != old:
                table = constant(_interpolation, (new, old, axis == 3), w.device, w.dtype)
                w = torch.tensordot(w, table, dims=([axis], [1])).movedim(-1, axis)
        return w.contiguous()

    def extra_repr(self) -> str:
        """Name the grid."""
        return f"grid={'x'.join(map(str, self.grid))}"


def _interpolation(new: int, old: int, half: bool) -> NDArray[np.float64]:
    """Return the matrix (new, old) that takes values at the frequencies k / old to those at k / new.

    With `half` both are half a spectrum, without negative frequencies; otherwise the frequencies are periodic.
    """
    rows, columns = (length // 2 + 1 if half else length for length in (new, old))
    table = np.zeros((rows, columns))
    for k in range(rows):
        place = k * old / new
        if half:
            place = min(place, columns - 1)
        low = int(place)
        share = place - low
        table[k, low % columns] += 1 - share
        table[k, (low + 1) % columns] += share
    return table

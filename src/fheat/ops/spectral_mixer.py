"""Spectral mixers, which may stand in the place of a gate but are none: they have no exact identity to lock."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fheat.ops.dct import compute_dtype, constant, without_autocast

AXES = (-3, -2, -1)
"""Axes of the grid."""


class SpectralMixer(nn.Module):
    """Base of mixers that pass (N, C, X, Y, Z) through a Fourier transform; a mixer defines `mix`.

    Half precision is computed in float32 and cast back, also under autocast, because Fourier transforms of GPUs take no
    bfloat16 and float16 only for lengths that are powers of two.

    Identity case: none is within reach of training. `bypass` puts one there by force: then the output is the input
    itself and there are no parameters.
    """

    dims = 3

    def __init__(self) -> None:
        super().__init__()
        self.retired = False

    def bypass(self, alpha: float = 0.0) -> None:
        """Remove the mixer from the graph; `alpha`, which gates remember, means nothing here."""
        self.retired = True
        for name in list(self._parameters):
            self.register_parameter(name, None)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the mixer to (N, C, X, Y, Z)."""
        if self.retired:
            return x
        if x.ndim != 5 or not x.is_floating_point():
            raise ValueError(
                f"x has shape {tuple(x.shape)} and dtype {x.dtype}: {type(self).__name__} takes a floating tensor "
                "(N, C, X, Y, Z)"
            )
        with without_autocast(x):
            return self.mix(x.to(compute_dtype(x))).to(x.dtype)

    def mix(self, x: Tensor) -> Tensor:
        """Map float32 or float64 values (N, C, X, Y, Z) to the same shape."""
        raise NotImplementedError


def half_spectrum(x: Tensor) -> Tensor:
    """Return the orthonormal Fourier transform over the grid, (..., X, Y, Z // 2 + 1), complex; see `from_half`."""
    spectrum: Tensor = torch.fft.rfftn(x, dim=AXES, norm="ortho")
    return spectrum


def from_half(spectrum: Tensor, grid: torch.Size) -> Tensor:
    """Return real values on `grid` from half a spectrum; the inverse of `half_spectrum`.

    After the transforms over X and Y, the constant mode of Z and, for an even Z, the highest one must be real. What a
    filter leaves there is dropped explicitly, because libraries differ in what they make of it.
    """
    length = int(grid[-1])
    lines = torch.fft.ifftn(spectrum, dim=AXES[:2], norm="ortho")
    free = constant(_free_imaginary, (length,), lines.device, lines.real.dtype)
    values: Tensor = torch.fft.irfft(torch.complex(lines.real, lines.imag * free), n=length, norm="ortho")
    return values


def _free_imaginary(length: int) -> NDArray[np.float64]:
    """Return 0 for the modes of a line of real values whose imaginary part is none, else 1."""
    mode = np.arange(length // 2 + 1)
    return np.where((mode == 0) | (2 * mode == length), 0.0, 1.0)

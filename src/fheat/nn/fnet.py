"""FNet in 3D: a fixed Fourier transform in the place of a gate."""

import torch
from torch import Tensor

from fheat.ops.spectral_mixer import AXES, SpectralMixer


class FNet3D(SpectralMixer):
    """The real part of the Fourier transform over the grid and the channels.

        y = Re F(v),    F over (C, X, Y, Z), orthonormal

    This is J. Lee-Thorp et al., *FNet: Mixing Tokens with Fourier Transforms*, NAACL 2022, with three axes of tokens
    instead of one, and orthonormal: the published transform is not scaled and grows with the square root of the number
    of values. It has no parameters.

    Shapes: (N, C, X, Y, Z) -> the same, any grid. Identity case: none. Applied twice it returns the even part of v,
    (v(n) + v(-n)) / 2, and the odd part is lost.
    """

    def mix(self, x: Tensor) -> Tensor:
        """Return the real part of the transform."""
        spectrum: Tensor = torch.fft.fftn(x, dim=(1, *AXES), norm="ortho")
        return spectrum.real

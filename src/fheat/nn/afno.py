"""AFNO in 3D: a small network on the spectrum in the place of a gate."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.ops.spectral_mixer import SpectralMixer, from_half, half_spectrum

THRESHOLD = 0.01
"""Amount by which real and imaginary parts are shrunk."""
INITIAL_DEVIATION = 0.02
"""Standard deviation of weights and biases before training."""


class AFNO3D(SpectralMixer):
    """A complex two-layer network on all channels of a frequency, the same one at every frequency.

        y = v + F^-1 S( W2 R( W1 F(v) + b1 ) + b2 ),    F over (X, Y, Z), orthonormal, half a spectrum

    W1 and W2 are block-diagonal over the channels, R is ReLU and S soft shrinkage, s(t) = sign(t) max(|t| - 0.01, 0),
    both on real and imaginary parts apart. This is J. Guibas et al., *Adaptive Fourier Neural Operators*, ICLR 2022,
    with three axes. It has 4 C^2 / blocks + 4 C parameters, for any grid.

    Shapes: (N, C, X, Y, Z) -> the same. Identity case: where S leaves nothing, y is v exactly, and such a frequency
    has no gradient. But whether it leaves anything depends on v: a site that is off for all scans that were looked at
    may be on for the next, so **it cannot be retired**.

    Args:
        channels: number of channels C.
        blocks: number of blocks; the largest divisor of C up to 8 if None.
    """

    def __init__(self, channels: int, blocks: int | None = None) -> None:
        super().__init__()
        self.blocks = blocks or max(count for count in range(1, 9) if channels % count == 0)
        if channels % self.blocks:
            raise ValueError(f"blocks={blocks} does not divide {channels} channels: use a divisor")
        width = channels // self.blocks
        for layer in (1, 2):
            for name, shape in (("weight", (self.blocks, width, width)), ("bias", (self.blocks, 1, width))):
                value = INITIAL_DEVIATION * torch.randn(2, *shape)  # real and imaginary parts
                self.register_parameter(f"{name}{layer}", nn.Parameter(value))

    def mix(self, x: Tensor) -> Tensor:
        """Add what the small network makes of the spectrum."""
        spectrum = half_spectrum(x)
        samples, channels = x.shape[:2]
        parts = torch.view_as_real(spectrum).reshape(samples, self.blocks, channels // self.blocks, -1, 2)
        parts = parts.permute(4, 1, 0, 3, 2).flatten(2, 3)  # (2, blocks, samples * frequencies, width)
        shrunk = F.softshrink(self._layer(F.relu(self._layer(parts, 1)), 2), THRESHOLD)
        shrunk = shrunk.reshape(2, self.blocks, samples, -1, channels // self.blocks).permute(2, 1, 4, 3, 0)
        added = torch.view_as_complex(shrunk.reshape(*spectrum.shape, 2).contiguous())
        return x + from_half(added, x.shape[-3:])

    def _layer(self, parts: Tensor, layer: int) -> Tensor:
        """Return W z + b for z given by its real and imaginary parts, (2, blocks, values, width)."""
        weight, bias = (getattr(self, f"{name}{layer}").to(parts.dtype) for name in ("weight", "bias"))
        (real, imaginary), (a, b) = parts, weight
        image: Tensor = torch.stack([real @ a - imaginary @ b, real @ b + imaginary @ a]) + bias
        return image

"""AFNO in three dimensions: voxels mixed by a small network that acts on every frequency alike.

Facts: Guibas et al., *Adaptive Fourier Neural Operators* (ICLR 2022), NVlabs/AFNO-transformer; written here from its
formulas, with the transform over three axes:

    y = x + F^-1 S( W2 R( W1 F(x) + b1 ) + b2 ),    F over (X, Y, Z), orthonormal, half a spectrum

W1 and W2 are complex and block-diagonal over the channels, the same at all frequencies, so the grid may be any. R is
ReLU and S soft shrinkage, s(t) = sign(t) max(|t| - threshold, 0), both on real and imaginary parts apart. There are
4 C^2 / blocks + 4 C parameters. Shapes: (N, C, X, Y, Z) -> the same.
"""

import torch
from torch import Tensor, nn

from fheat.ops.dct import compute_dtype, without_autocast
from fheat.ops.spectral_mixer import SpectralMixer, from_half, half_spectrum

THRESHOLD = 0.01
"""Amount by which real and imaginary parts are shrunk."""
INITIAL_DEVIATION = 0.02
"""Standard deviation of weights and biases before training."""


class AFNO(nn.Module):
    """AFNO as a layer of a network; in float32 under autocast too.

    Args:
        channels: number of channels, a multiple of `blocks`.
        blocks: number of blocks of channels that are mixed apart from each other.
        threshold: how much the shrinkage takes off.
    """

    def __init__(self, channels: int, *, blocks: int = 8, threshold: float = THRESHOLD) -> None:
        super().__init__()
        self.blocks, self.threshold = blocks, threshold
        _add_parameters(self, channels, blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Mix all voxels."""
        with without_autocast(x):
            return x + _added(self, x.to(compute_dtype(x)), self.blocks, self.threshold)


class AFNO3D(SpectralMixer):
    """AFNO in the place of a gate.

    Identity case: where S leaves nothing, y is x exactly, and such a frequency has no gradient. But whether it leaves
    anything depends on x: a site that is off for all scans that were looked at may be on for the next, so **it cannot
    be retired**.

    Args:
        channels: number of channels C.
        blocks: number of blocks; the largest divisor of C up to 8 if None.
    """

    def __init__(self, channels: int, blocks: int | None = None) -> None:
        super().__init__()
        self.blocks = blocks or max(count for count in range(1, 9) if channels % count == 0)
        _add_parameters(self, channels, self.blocks)

    def mix(self, x: Tensor) -> Tensor:
        """Add what the small network makes of the spectrum."""
        return x + _added(self, x, self.blocks, THRESHOLD)


def _add_parameters(module: nn.Module, channels: int, blocks: int) -> None:
    """Give a module `weight1`, `bias1`, `weight2` and `bias2`, each with real and imaginary part first."""
    if blocks < 1 or channels % blocks:
        raise ValueError(f"blocks={blocks} does not divide the {channels} channels: give a divisor")
    width = channels // blocks
    for layer in (1, 2):
        weight, bias = torch.randn(2, blocks, width, width), torch.randn(2, blocks, width)
        module.register_parameter(f"weight{layer}", nn.Parameter(INITIAL_DEVIATION * weight))
        module.register_parameter(f"bias{layer}", nn.Parameter(INITIAL_DEVIATION * bias))


def _added(module: nn.Module, x: Tensor, blocks: int, threshold: float) -> Tensor:
    """Return what the small network with the parameters of a module makes of the spectrum of x."""
    spectrum = half_spectrum(x)
    parts = torch.stack([spectrum.real, spectrum.imag], dim=1)  # (N, 2, C, X, Y, Z // 2 + 1)
    mixed = _layer(module, parts.reshape(len(x), 2, blocks, -1, parts[0, 0, 0].numel()), 1).relu()
    mixed = _layer(module, mixed, 2).reshape(parts.shape)
    mixed = mixed - mixed.clamp(-threshold, threshold)  # S; OpenVINO does not know torch's soft shrinkage
    return from_half(torch.complex(mixed[:, 0].contiguous(), mixed[:, 1].contiguous()), x.shape[-3:])


def _layer(module: nn.Module, parts: Tensor, number: int) -> Tensor:
    """Return W v + b for complex v, (N, 2, blocks, width, frequencies), as one real product per block.

    With real and imaginary parts below each other W is [[A, -B], [B, A]].
    """
    real, imaginary = getattr(module, f"weight{number}").to(parts.dtype)
    matrix = torch.cat([torch.cat([real, -imaginary], dim=2), torch.cat([imaginary, real], dim=2)], dim=1)
    samples, _, blocks, width, frequencies = parts.shape
    stacked = parts.transpose(1, 2).reshape(samples, blocks, 2 * width, frequencies)
    product = (matrix @ stacked).reshape(samples, blocks, 2, width, frequencies).transpose(1, 2)
    bias: Tensor = getattr(module, f"bias{number}").to(parts.dtype)
    return product + bias[:, :, :, None]

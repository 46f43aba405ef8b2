"""AFNO in three dimensions: voxels mixed by a small network that acts on every frequency alike.

Facts: Guibas et al., *Adaptive Fourier Neural Operators* (2022), NVlabs/AFNO-transformer; written here from its
formulas, with the transform over three axes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.ops.dct import compute_dtype, without_autocast


class AFNO(nn.Module):
    """x + iFFT( shrink( W2 relu(W1 FFT(x) + b1) + b2 ) ), relu and shrinkage on real and imaginary parts.

    W1 and W2 are complex and block-diagonal over channels, the same for all frequencies, so the grid may be any.
    shrink(v) = sign(v) max(|v| - threshold, 0). The transform is orthonormal, over the grid, in float32 under autocast
    too. Shapes: (N, C, X, Y, Z) -> the same; 4 C^2 / blocks + 4 C parameters.

    Args:
        channels: number of channels, a multiple of `blocks`.
        blocks: number of blocks of channels that are mixed apart from each other.
        threshold: how much the shrinkage takes off.
    """

    def __init__(self, channels: int, *, blocks: int = 8, threshold: float = 0.01) -> None:
        super().__init__()
        if blocks < 1 or channels % blocks:
            raise ValueError(f"blocks={blocks} does not divide the {channels} channels: give a divisor")
        self.blocks, self.threshold = blocks, threshold
        width = channels // blocks
        for layer in (1, 2):
            weight, bias = torch.randn(2, blocks, width, width), torch.randn(2, blocks, width)
            self.register_parameter(f"weight{layer}", nn.Parameter(0.02 * weight))
            self.register_parameter(f"bias{layer}", nn.Parameter(0.02 * bias))

    def forward(self, x: Tensor) -> Tensor:
        """Mix all voxels."""
        with without_autocast(x):
            value = x.to(compute_dtype(x))
            spectrum = torch.fft.rfftn(value, dim=(2, 3, 4), norm="ortho")
            parts = torch.stack([spectrum.real, spectrum.imag], dim=1)  # (N, 2, C, X, Y, Z // 2 + 1)
            mixed = self._layer(parts.reshape(len(x), 2, self.blocks, -1, parts[0, 0, 0].numel()), 1).relu()
            mixed = F.softshrink(self._layer(mixed, 2), self.threshold).reshape(parts.shape)
            spectrum = torch.complex(mixed[:, 0].contiguous(), mixed[:, 1].contiguous())
            back: Tensor = torch.fft.irfftn(spectrum, s=x.shape[2:], dim=(2, 3, 4), norm="ortho")
            return x + back

    def _layer(self, parts: Tensor, number: int) -> Tensor:
        """Return W v + b for complex v, (N, 2, blocks, width, frequencies), as one real product per block.

        With real and imaginary parts below each other W is [[A, -B], [B, A]].
        """
        real, imaginary = getattr(self, f"weight{number}").to(parts.dtype)
        matrix = torch.cat([torch.cat([real, -imaginary], dim=2), torch.cat([imaginary, real], dim=2)], dim=1)
        samples, _, blocks, width, frequencies = parts.shape
        stacked = parts.transpose(1, 2).reshape(samples, blocks, 2 * width, frequencies)
        product = (matrix @ stacked).reshape(samples, blocks, 2, width, frequencies).transpose(1, 2)
        bias: Tensor = getattr(self, f"bias{number}")
        return product + bias[:, :, :, None]

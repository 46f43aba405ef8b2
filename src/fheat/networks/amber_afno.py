"""AMBER-AFNO, a SegFormer whose attention is replaced by AFNO, 3,621,090 parameters.

Facts: Dosi et al., *AMBER-AFNO* (arXiv 2508.01941, 2025). Its widths and depths are not public: those of SegFormer3D
stand in for them, with AFNO of eight blocks and threshold 0.01.
"""

from collections.abc import Sequence

from torch import nn

from fheat.networks.segformer import DECODER_WIDTH, DEPTH, WIDTHS, SegFormer
from fheat.nn.afno import AFNO
from fheat.nn.segformer import Projection


class AMBERAFNO(SegFormer):
    """`SegFormer` with AFNO. Its attention map is mean_c |features_c| of the features before the head.

    Args:
        blocks: number of blocks of channels that AFNO mixes apart from each other, a divisor of 32.
        threshold: how much AFNO takes off the real and the imaginary part of each coefficient.
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        blocks: int = 8,
        threshold: float = 0.01,
    ) -> None:
        def mixers(level: int) -> list[nn.Module]:
            return [AFNO(WIDTHS[level], blocks=blocks, threshold=threshold) for _ in range(DEPTH)]

        def decoder(site: str, channels: int) -> nn.Module:
            return Projection(channels, DECODER_WIDTH)

        super().__init__(in_channels, out_channels, patch_size, mixers, decoder)

"""FHEAT-SegFormer3D: the paper's second backbone, SegFormer3D with gates in the place of attention, 4,952,306
parameters."""

from collections.abc import Sequence

from torch import Tensor, nn

from fheat.networks.base import Alpha, Gates, build_gates
from fheat.networks.segformer import DECODER_WIDTH, DEPTH, SITES, WIDTHS, SegFormer
from fheat.nn.fheat import FHEAT
from fheat.nn.segformer import GatedProjection


class FHEATSegFormer3D(SegFormer):
    """`SegFormer` whose encoder blocks mix by FHEAT, with one gate per stage, and whose decoder adds one FHEAT to each
    of its stages, on the grid of that stage: eight gates in all.

    dec1, the last one, gives the attention map mean_c |y_c| of its FHEAT. The paper states the number of parameters and
    where the gates stand, not the widths; FHEAT at the width of each stage gives its 4.95 M.

    Args:
        gates: which gates learn, see `fheat.networks.base.build_gates`.
        alpha: `bounded`, `softplus`, `fixed`, or a number, see `fheat.FractionalHeat`.
        initial_alpha: order of all gates before training; that of theta = -2 if None.

    Shapes: (N, in, X, Y, Z) -> (N, out, X, Y, Z), any grid of at least 32 voxels per axis.
    Identity case: with closed gates the network equals the one without transforms, bit for bit, see `fheat.retire`.
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: Sequence[int] = (112, 112, 80),
        gates: Gates = "learnable",
        alpha: Alpha = "bounded",
        initial_alpha: float | None = None,
    ) -> None:
        gate_of = build_gates(SITES, gates, alpha, initial_alpha)

        def mixers(level: int) -> list[nn.Module]:
            return [FHEAT(WIDTHS[level]) for _ in range(DEPTH)]

        def decoder(site: str, channels: int) -> nn.Module:
            return GatedProjection(channels, DECODER_WIDTH, gate_of[site])

        super().__init__(in_channels, out_channels, patch_size, mixers, decoder, gate_of)

    def _attend(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        features, attention = self.get_submodule("dec1").attend(x)  # type: ignore[operator]
        return features, attention

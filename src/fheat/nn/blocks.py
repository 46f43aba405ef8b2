"""The repeated blocks of the FHEAT networks: FHEAT block, light block, and a stage with its gate."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from fheat.nn.convolutions import DepthwiseConv3d
from fheat.nn.fheat import FHEAT, Mixer, mixer
from fheat.nn.fused import fusable, run_fused
from fheat.nn.layers import one_group
from fheat.ops import kernels
from fheat.ops.mixing_block import MixingBlock


class FHEATBlock(MixingBlock):
    """x + GN(FHEAT(x)), then x + GN(mixer(x)). Shapes: (N, C, X, Y, Z) -> the same, twice."""

    branches: ClassVar = {"mixer": ("mixer", "mixer_norm")}
    mixer: nn.Module | None
    mixer_norm: nn.Module | None

    def __init__(self, channels: int, *, kind: Mixer = "kan", ratio: int = 1) -> None:
        super().__init__()
        self.fheat = FHEAT(channels)
        self.fheat_norm = one_group(channels)
        self.mixer = mixer(kind, channels, ratio)
        self.mixer_norm = one_group(channels)

    def forward(self, x: Tensor, gate: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the output of the block, and y = FHEAT(x), from which the attention map is computed."""
        y = self.fheat(x, gate)
        x = x + self.fheat_norm(y)
        if self.mixer is not None and self.mixer_norm is not None:
            x = x + self.mixer_norm(self.mixer(x))
        return x, y


class LightBlock(nn.Module):
    """x + DWConv3(x) without bias, then two FHEAT blocks through one gate."""

    def __init__(self, channels: int, *, kind: Mixer = "kan", ratio: int = 1) -> None:
        super().__init__()
        self.depthwise = DepthwiseConv3d(channels, bias=False)
        self.first = FHEATBlock(channels, kind=kind, ratio=ratio)
        self.second = FHEATBlock(channels, kind=kind, ratio=ratio)

    def forward(self, x: Tensor, gate: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the output of the block, and the output y of its last FHEAT."""
        x = x + self.depthwise(x)
        x, _ = self.first(x, gate)
        x, y = self.second(x, gate)
        return x, y


class FHEATStage(nn.Module):
    """`depth` light blocks that share one gate, or what stands in its place, see `fheat.nn.operators`.

    `forward` returns the features; `attend` also returns the attention map mean_c |y_c| of the last FHEAT, detached,
    (N, 1, X, Y, Z).
    """

    def __init__(self, channels: int, depth: int, gate: nn.Module, *, kind: Mixer = "kan", ratio: int = 1) -> None:
        super().__init__()
        self.gate = gate
        self.blocks = nn.ModuleList(LightBlock(channels, kind=kind, ratio=ratio) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of the stage."""
        return self._run(x)[0]

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the attention map."""
        x, y = self._run(x)
        exact = torch.promote_types(y.dtype, torch.float32)  # not rounded by autocast
        return x, y.detach().abs().mean(dim=1, keepdim=True, dtype=exact)

    def _run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if kernels.usable(x) and fusable(x, self.blocks, self.gate):
            return run_fused(x, self.blocks, self.gate)
        y = x
        for block in self.blocks:
            x, y = block(x, self.gate)
        return x, y

"""A network for tests of everything around networks: 1,000 parameters, for crops from 16 voxels a side on.

It has one of everything that training, checkpoints and reports meet: gates on several grids, one of them a single voxel
for crops of 16, rational activations, norms, dropout, a parameter that depends on the patch, attention and features.
"""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat import register_model
from fheat.networks.base import Alpha, Features, Gates, build_gates
from fheat.networks.registry import GROUP
from fheat.nn.layers import crop_to, one_group
from fheat.ops.heat import FractionalHeat
from fheat.ops.rational import Rational

NAME = "miniature"
SITES = ("enc1", "enc2", "dec1")
WIDTH = 8
SIDE = 16
"""Number of voxels along an axis of which the lengths of a grid are made multiples."""


class Stage(nn.Module):
    """x + rational(GN(gate(W x)))."""

    def __init__(self, gate: FractionalHeat) -> None:
        super().__init__()
        self.project = nn.Conv3d(WIDTH, WIDTH, 1)
        self.gate = gate
        self.norm = one_group(WIDTH)
        self.activation = Rational(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.activation(self.norm(self.gate(self.project(x))))


class Miniature(nn.Module):
    """A stage on a quarter of the grid, one on a sixteenth, and one on the way back, each with a gate."""

    def __init__(
        self,
        *,
        in_channels: int = 1,
        out_channels: int = 2,
        patch_size: tuple[int, ...] = (16, 16, 16),
        gates: Gates = "learnable",
        alpha: Alpha = "bounded",
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        gate_of = build_gates(SITES, gates, alpha)
        self.stem = nn.Conv3d(in_channels, WIDTH, 4, stride=4)
        self.enc1 = Stage(gate_of["enc1"])
        self.position = nn.Parameter(torch.zeros(1, WIDTH, *(-(-length // SIDE) for length in patch_size)))
        self.dropout = nn.Dropout(dropout)
        self.enc2 = Stage(gate_of["enc2"])
        self.dec1 = Stage(gate_of["dec1"])
        self.head = nn.Conv3d(WIDTH, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x).logits

    def forward_features(self, x: Tensor) -> Features:
        size = x.shape[2:]
        planes = [-length % SIDE for length in reversed(size)]
        x = self.enc1(self.stem(F.pad(x, [count for behind in planes for count in (0, behind)])))
        deep = F.avg_pool3d(x, 4)
        position = self.position
        any_grid = any(isinstance(length, torch.SymInt) for length in deep.shape[2:])  # of a graph being exported
        if any_grid or position.shape[2:] != deep.shape[2:]:
            position = F.interpolate(position, size=deep.shape[2:], mode="trilinear")
        x = self.dec1(x + F.interpolate(self.enc2(self.dropout(deep + position)), scale_factor=4.0))
        logits = F.interpolate(self.head(x), scale_factor=4.0, mode="trilinear")
        return Features(crop_to(logits, size), x.detach().abs().mean(dim=1, keepdim=True), x)


def register() -> None:
    """Make the network known in this process."""
    register_model(NAME, Miniature)


def declare(site: Path) -> dict[str, str]:
    """Declare the network in a folder as an installed package does; return the environment of programs that see it."""
    information = site / "miniature-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: miniature\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = {__name__}:{Miniature.__name__}\n")
    path = os.pathsep.join([str(site), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}

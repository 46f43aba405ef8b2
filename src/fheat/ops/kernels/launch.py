"""How work is cut into programs, and how a kernel is started."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

WIDEST = 128
"""Channels of a stage: the products of more would not fit the fast memory that a program has."""
PROGRAMS = 512
"""About four for each multiprocessor of a large GPU."""


@dataclass(frozen=True)
class Tiling:
    """Programs (samples, splits), each walking `span` voxels of one sample in tiles of block x padded."""

    samples: int
    voxels: int
    channels: int
    padded: int
    block: int
    splits: int
    span: int

    @property
    def grid(self) -> tuple[int, int]:
        """Of programs."""
        return self.samples, self.splits

    @property
    def warps(self) -> int:
        """Per program."""
        return 8 if self.padded > 64 else 4

    @property
    def shape(self) -> dict[str, int]:
        """What every kernel is specialised for. One stage: pipelined, the 27 taps alone would fill shared memory."""
        return {"C": self.channels, "CP": self.padded, "BLOCK": self.block, "num_warps": self.warps, "num_stages": 1}


@lru_cache
def tiling(samples: int, voxels: int, channels: int) -> Tiling:
    """Cut (samples, voxels, channels) into programs; always the same way, so sums have one order."""
    padded = max(16, power_of_two(channels))
    block = max(16, 2048 // padded)
    tiles = -(-voxels // block)
    splits = min(power_of_two(tiles), max(1, power_of_two(PROGRAMS // samples + 1) // 2))
    return Tiling(samples, voxels, channels, padded, block, splits, -(-tiles // splits) * block)


@lru_cache
def tile_each(samples: int, voxels: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Cut the same into one tile per program, for kernels that keep no sums: the grid, and what they are built for."""
    padded = max(16, power_of_two(channels))
    block = max(8, 4096 // padded)
    while block > 8 and samples * -(-voxels // block) < PROGRAMS:
        block //= 2
    return (samples, -(-voxels // block)), {"C": channels, "CP": padded, "BLOCK": block, "num_warps": 4}


def pairs(plan: Tiling, like: Tensor) -> Tensor:
    """Return room for two numbers per program: moments or sums."""
    return torch.empty(plan.samples, plan.splits, 2, device=like.device)


def partials(plan: Tiling, width: int, like: Tensor) -> Tensor:
    """Return room for `width` numbers per program: its share of the gradients of parameters."""
    return torch.empty(plan.samples * plan.splits, width, device=like.device)


def operand_type(x: Tensor) -> str:
    """Return what products round their operands to: what autocast says, else nothing."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return "ieee"
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(torch.get_autocast_dtype(kind), "ieee")


def power_of_two(number: int) -> int:
    """Return the next power of two from `number` on."""
    return 1 << max(number - 1, 0).bit_length()

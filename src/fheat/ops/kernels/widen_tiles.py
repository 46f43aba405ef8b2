"""Tiles of the kernels of `fheat.ops.kernels.widen`, and which of them fit the shared memory of a GPU.

A program keeps its matrices there, in the type of their products, and for each voxel of a tile the operands of the
products; with two stages also what is read for the next tile. The sums are bounds on what the compiler takes, except
that products of two groups of four warps on sm_90, which has room, may take 4 KiB more.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fheat.ops.kernels.launch import TYPES, operand_type, padded, shared_memory

_REGISTERS_OF_THREE = 168
"""Most registers of a thread with which three programs of four warps share a multiprocessor."""
_FORWARD_VOXELS = 64
"""Number of voxels of a tile of `widen_forward`."""

Tile = dict[str, int]
"""Constants and options of a launch: BLOCK, num_stages, and what limits or widens a program."""


class Widths(NamedTuple):
    """Numbers of channels before the first product, between the two, and behind the second."""

    channels: int
    hidden: int
    out: int

    @property
    def shape(self) -> dict[str, int]:
        """Constants for which the kernels are compiled, beside the channels of a plan."""
        return {"H": self.hidden, "HP": padded(self.hidden), "N": self.out, "NP": padded(self.out)}

    @property
    def ones_in_padding(self) -> bool:
        """Whether a column of ones, which turns sums over voxels into products, has a place behind the channels."""
        return self.channels < padded(self.channels) and self.hidden < padded(self.hidden)


def fit_device(x: Tensor, widths: Widths) -> bool:
    """Return whether the kernels fit the device of `x`, of which gradients need the larger one."""
    dot = operand_type(x)
    backward = not torch.is_grad_enabled() or backward_tile(x, widths, dot) is not None
    return forward_bytes(widths, dot) <= shared_memory(x) and backward


def forward_bytes(widths: Widths, dot: str) -> int:
    """Return how much shared memory `widen_forward` takes."""
    c, h, n = map(padded, widths)
    return TYPES[dot].itemsize * h * (c + n) + 4 * _FORWARD_VOXELS * max(h, n)


def backward_bytes(widths: Widths, dot: str, tile: Tile) -> int:
    """Return how much shared memory `widen_backward` takes."""
    c, h, n = map(padded, widths)
    size, read_ahead = TYPES[dot].itemsize, 4 * (c + n) if tile["num_stages"] == 2 else 0
    return size * h * (2 * c + n) + tile["BLOCK"] * (size * (c + h + n) + read_ahead)


def forward_tile(widths: Widths) -> Tile:
    """Return options of `widen_forward`. Registers are limited to those with which three programs share a
    multiprocessor; more output channels would not fit them."""
    return {"maxnreg": _REGISTERS_OF_THREE} if widths.out <= 64 else {}


def backward_tile(x: Tensor, widths: Widths, dot: str) -> Tile | None:
    """Return the tile of `widen_backward` on the device of `x`, or None where none fits."""
    tile = first_that_fits(widths, dot, shared_memory(x))
    return tile and tile | {"ONES_IN_PADDING": widths.ones_in_padding}


def first_that_fits(widths: Widths, dot: str, shared: int) -> Tile | None:
    """Return the first tile of `widen_backward` that takes at most `shared` bytes, or None."""
    return next((tile for tile in _tiles(widths, dot) if backward_bytes(widths, dot, tile) <= shared), None)


def _tiles(widths: Widths, dot: str) -> Iterator[Tile]:
    """Go through the tiles of `widen_backward`, the quickest first; with two stages the next one is read early.

    A tile takes about as long with 32 voxels as with many: its steps wait for each other. The large one has as many
    voxels as products of one group of four warps, or of two, have rows; operands in float32 would not fit.
    """
    few = widths.out <= 32
    if padded(widths.channels) > 32:
        program, large = {"num_warps": 8}, {"BLOCK": 128, "num_stages": 2 if few else 1}
    else:
        program, large = {"maxnreg": _REGISTERS_OF_THREE} if few else {}, {"BLOCK": 64, "num_stages": 2}
    if dot != "ieee":
        yield program | large
    yield program | {"BLOCK": 32, "num_stages": 2}
    yield program | {"BLOCK": 32, "num_stages": 1}

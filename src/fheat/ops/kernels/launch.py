"""How the work of a kernel is divided among programs, and what the host allocates and adds up for them."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "ieee": torch.float32}
"""Types of the operands of products, by what `operand_type` says."""
WIDEST = 128
"""Largest number of channels whose products one program computes: those of more would not fit its shared memory."""
PROGRAMS = 512
"""Number of programs to aim at, about four for each multiprocessor of a large GPU."""
_MOST_IN_RUNS = 2**22
"""Largest number of elements that are convolved in runs: its tensors fit the cache, larger ones are swept through."""
_LENGTHS = 5, 4, 3, 2, 1
"""Numbers of voxels of a run, the longest first."""
_SWEPT = 8, 5, 4, 3, 2
"""Numbers of voxels of a run that a thread sweeps through, the longest first."""
_HIGH = 8
"""Number of lines of a program whose threads sweep: four warps with two channels for each thread."""
_CHUNK = 32
"""Number of channels that a program sweeps through: their weights just fit its registers."""
_ROWS, _COLUMNS = 64, 32
"""Number of rows and columns of a tile of `add_rows`."""


@dataclass(frozen=True)
class Tiling:
    """A grid of (samples, splits) programs; each works through `span` voxels of one sample, `block` at a time.

    A tile is `block` voxels by `padded` channels.
    """

    samples: int
    voxels: int
    channels: int
    padded: int
    block: int
    splits: int
    span: int

    @property
    def grid(self) -> tuple[int, int]:
        """Number of programs along each axis of the launch grid."""
        return self.samples, self.splits

    @property
    def warps(self) -> int:
        """Number of warps of each program."""
        return 8 if self.padded > 64 else 4

    @property
    def shape(self) -> dict[str, int]:
        """Constants for which every kernel is compiled.

        There is one pipeline stage: with more, the 27 taps alone would fill the shared memory.
        """
        return {"C": self.channels, "CP": self.padded, "BLOCK": self.block, "num_warps": self.warps, "num_stages": 1}

    @property
    def small_shape(self) -> dict[str, int]:
        """Constants with tiles of 2048 elements at most: all programs that find moments then run at the same time."""
        return self.shape | {"BLOCK": min(self.block, max(16, 2048 // self.padded))}

    def shape_of_gradients(self, block: int, warps: int) -> dict[str, int]:
        """Constants for kernels that keep gradients of matrices, and sums for each element of a tile, in registers.

        Tiles of up to 32 channels have `block` voxels and `warps` warps; wider ones have the block of `shape` and eight
        warps. Both were chosen by what the compiler for sm_90 says of registers and of barriers in the loop over tiles.
        """
        if self.padded > 32:
            block, warps = self.block, 8
        return self.shape | {"BLOCK": block, "TILES": self.span // block, "num_warps": warps}


@lru_cache
def tiling(samples: int, voxels: int, channels: int, most: int = PROGRAMS) -> Tiling:
    """Divide (samples, voxels, channels) among programs, always in the same way, so that sums have one order.

    A sample has `most` programs at most, a power of two.
    """
    wide = padded(channels)
    block = max(16, 2048 // wide)
    tiles = -(-voxels // block)
    splits = min(power_of_two(tiles), max(1, power_of_two(PROGRAMS // samples + 1) // 2), most)
    return Tiling(samples, voxels, channels, wide, block, splits, -(-tiles // splits) * block)


def plan_of(x: Tensor) -> Tiling:
    """Return the division of (N, X, Y, Z, C) among programs."""
    samples, *grid, channels = x.shape
    return tiling(samples, grid[0] * grid[1] * grid[2], channels)


@lru_cache
def channel_tiling(samples: int, voxels: int, channels: int) -> Tiling:
    """Divide (samples, voxels, channels) for kernels with moments per channel: tiles of 64 voxels, or 32 of the widest.

    Every program reads the moments of all others of its sample, so there are 256 of them at most, and fewer where these
    would fill its registers. It has an even number of tiles, because some kernels take two at a time.
    """
    block = 64 if padded(channels) <= 128 else 32
    twos = -(-voxels // (2 * block))
    most = min(256, 16384 // padded(channels))
    splits = min(power_of_two(twos), max(1, power_of_two(2 * PROGRAMS // samples + 1) // 2), most)
    return Tiling(samples, voxels, channels, padded(channels), block, splits, -(-twos // splits) * 2 * block)


@lru_cache
def tile_each(samples: int, voxels: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the launch grid and constants for kernels without sums, in which each program computes one tile.

    Tiles lie along the first axis of the grid: the others hold 65,535 programs at most.
    """
    wide = padded(channels)
    block = max(8, 4096 // wide)
    while block > 8 and samples * -(-voxels // block) < PROGRAMS:
        block //= 2
    return (-(-voxels // block), samples), {"C": channels, "CP": wide, "BLOCK": block, "num_warps": 4}


class Runs(NamedTuple):
    """Launch grid, number of items, and constants of `device.depthwise.convolve_runs`."""

    grid: tuple[int]
    items: int
    shape: dict[str, int]


@lru_cache
def runs(samples: int, sizes: tuple[int, int, int], channels: int) -> Runs | None:
    """Return how to convolve (samples, X, Y, Z, channels) in runs along Z, or None where it is not in fours or large.

    Runs are the longest, up to five voxels, that divide Z and leave enough programs; where even single voxels do not,
    programs have fewer warps.
    """
    x, y, z = sizes
    if channels % 4 or samples * x * y * z * channels > _MOST_IN_RUNS:
        return None
    lengths = [run for run in _LENGTHS if z % run == 0]
    quads, block = samples * x * y * channels // 4, 128
    run = next((run for run in lengths if quads * (z // run) >= PROGRAMS * block), 1)
    items = quads * (z // run)
    while block > 32 and items < PROGRAMS * block:
        block //= 2
    return Runs((-(-items // block),), items, {"C": channels, "RUN": run, "BLOCK": block, "num_warps": block // 32})


class SummedRuns(NamedTuple):
    """Launch grid (rows, chunks of channels, 3), number of runs in the batch and of a program, and constants of
    `device.depthwise.convolve_weights_runs`."""

    grid: tuple[int, int, int]
    columns: int
    span: int
    shape: dict[str, int]


@lru_cache
def runs_for_sums(samples: int, sizes: tuple[int, int, int], channels: int, rows: int) -> SummedRuns | None:
    """Return how to sum over (samples, X, Y, Z, channels) in runs along Z, as the longest that divide Z, or None where
    it is not in fours or large.

    There are `rows` programs at most for each tap and channel: more would store more than they read.
    """
    x, y, z = sizes
    if channels % 4 or samples * x * y * z * channels > _MOST_IN_RUNS:
        return None
    run = next(run for run in _LENGTHS if z % run == 0)
    columns, block, chunk = samples * x * y * (z // run), 64, 8
    chunks, tiles = -(-channels // chunk), -(-columns // block)
    walks = -(-tiles // min(rows, max(1, PROGRAMS // (3 * chunks))))
    grid = -(-tiles // walks), chunks, 3
    shape = {"C": channels, "RUN": run, "CHUNK": chunk, "BLOCK": block, "num_warps": 4, "num_stages": 1}
    return SummedRuns(grid, columns, walks * block, shape)


class Sweep(NamedTuple):
    """Launch grid (columns and channels, runs, samples), planes of a run, and constants of `device.sweep_runs`."""

    grid: tuple[int, int, int]
    run: int
    shape: dict[str, int]

    def rows(self, channels: int) -> int:
        """Return the number of programs that share in the sums of each channel."""
        return self.grid[0] // -(-channels // _CHUNK) * self.grid[1] * self.grid[2]


@lru_cache
def sweep_in_runs(samples: int, sizes: tuple[int, int, int], channels: int, *, sums: bool) -> Sweep | None:
    """Return how each thread sweeps through (samples, X, Y, Z, channels) by itself, or None where channels are odd, no
    length of a run divides Z, or too few programs would have work. `convolve` then reads each voxel 27 times.

    There are few pieces along X, because each reads two planes more than it has, but enough for three rounds of
    programs. Registers are limited to those with which three programs, or four, share a multiprocessor.
    """
    x, y, z = sizes
    run = next((run for run in _SWEPT if z % run == 0), None)
    if channels % 2 or run is None:
        return None
    parts = -(-y // _HIGH) * (z // run) * -(-channels // _CHUNK)
    planes = -(-x // max(1, min(-(-x // 4), -(-3 * PROGRAMS // (parts * samples)))))
    grid = parts, -(-x // planes), samples
    if 2 * math.prod(grid) < PROGRAMS:
        return None
    registers = 168 if run == 8 and not sums else 128
    shape = {"C": channels, "HIGH": _HIGH, "RUN": run, "BLOCK": _CHUNK, "num_warps": 4, "maxnreg": registers}
    return Sweep(grid, planes, shape)


def lines_at_once(elements: int) -> int:
    """Return how many of the nine lines of three taps a tile reads before it uses the first.

    With all 27 taps at once a large tile leaves no registers.
    """
    return 9 if elements <= 512 else 3 if elements <= 1024 else 1


def pairs(plan: Tiling, like: Tensor) -> Tensor:
    """Return an empty tensor for two numbers per program, (samples, splits, 2), which are moments or sums."""
    return torch.empty(plan.samples, plan.splits, 2, device=like.device)


def partials(plan: Tiling, width: int, like: Tensor) -> Tensor:
    """Return an empty tensor for `width` numbers per program, its share of the gradients of parameters."""
    return torch.empty(plan.samples * plan.splits, width, device=like.device)


def add_rows(partial: Tensor, at: int | None = None, few: int = 0) -> Tensor:
    """Return partial.sum(dim=0) of a contiguous (rows, width); torch is slow where rows are many and columns few.

    Of the columns from `at` on, only the first `few` rows are filled and added up.
    """
    from fheat.ops.kernels.device import tiles  # this module is imported where Triton may be missing

    rows, width = partial.shape
    out = torch.empty(width, device=partial.device)
    at = width if at is None else at
    tiles.add_rows[(-(-width // _COLUMNS),)](
        partial, out, rows, width, at, few, ROWS=_ROWS, BLOCK=_COLUMNS, num_warps=4
    )  # fmt: skip
    return out


def shared_memory(x: Tensor) -> int:
    """Return how many bytes of shared memory a program on the device of `x` can have; the interpreter has no limit."""
    if not x.is_cuda:
        return 2**31
    return int(torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def block_bytes(channels: int, dot: str) -> int:
    """Return a bound on the shared memory of the kernels of an FHEAT block whose products one program computes.

    Up to 64 channels gradients have four matrices there at once, two with their transposes; with more, a matrix is read
    where it is used. What else is there are tiles of 2048 elements in float32, two at a time.
    """
    wide = padded(channels)
    return TYPES[dot].itemsize * (4 if wide <= 64 else 2) * wide**2 + 2 * 4 * 2048


def operand_type(x: Tensor) -> str:
    """Return the type to which operands of products are rounded: that of autocast, or "ieee" for no rounding."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return "ieee"
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(torch.get_autocast_dtype(kind), "ieee")


def padded(channels: int) -> int:
    """Return the width of a tile for a number of channels: products take a power of two from 16 on."""
    return max(16, power_of_two(channels))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()

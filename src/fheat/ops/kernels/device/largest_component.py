"""Kernels that find connected components with a forest of trees: each voxel stores the root of its tree, and trees that
touch are joined until each component is one tree.

Masks, roots and parents are (samples, X Y Z). A voxel's number is 1 + its index in the sample; 0 stands for a voxel
outside the mask.
"""

import triton
import triton.language as tl


@triton.jit
def begin(mask, roots, parents, voxels, BLOCK: tl.constexpr):
    """Make every voxel of the mask a tree of its own."""
    sample = tl.program_id(0)
    voxel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = voxel < voxels
    inside = tl.load(mask + sample * voxels + voxel, mask=rows, other=0) != 0
    number = tl.where(inside, voxel + 1, 0)
    tl.store(roots + sample * voxels + voxel, number, mask=rows)
    tl.store(parents + sample * voxels + voxel, number, mask=rows)


@triton.jit
def hook(roots, parents, X, Y, Z, BLOCK: tl.constexpr):
    """Give the root of every voxel the largest root among its 26 neighbours as its parent, where that is larger."""
    sample = tl.program_id(0)
    voxels = X * Y * Z
    voxel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(roots + sample * voxels + voxel, mask=voxel < voxels, other=0)
    inside = own > 0
    i, j, k = voxel // (Y * Z), voxel // Z % Y, voxel % Z
    best = own
    for tap in tl.static_range(27):
        di = tap // 9 - 1
        dj = tap // 3 % 3 - 1
        dk = tap % 3 - 1
        near = inside & (i + di >= 0) & (i + di < X) & (j + dj >= 0) & (j + dj < Y) & (k + dk >= 0) & (k + dk < Z)
        best = tl.maximum(best, tl.load(roots + sample * voxels + voxel + (di * Y + dj) * Z + dk, mask=near, other=0))
    tl.atomic_max(parents + sample * voxels + own - 1, best, mask=best > own, sem="relaxed")


@triton.jit
def climb(roots, parents, voxels, HOPS: tl.constexpr, BLOCK: tl.constexpr):
    """Replace the root of every voxel by the ancestor that lies up to HOPS parents above it."""
    sample = tl.program_id(0)
    voxel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = roots + sample * voxels + voxel
    own = tl.load(place, mask=voxel < voxels, other=0)
    for _ in tl.static_range(HOPS):
        own = tl.load(parents + sample * voxels + own - 1, mask=own > 0, other=0)
    tl.store(place, own, mask=own > 0)


@triton.jit
def reset(parents, voxels, BLOCK: tl.constexpr):
    """Make every voxel its own parent again."""
    sample = tl.program_id(0)
    voxel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(parents + sample * voxels + voxel, voxel + 1, mask=voxel < voxels)


@triton.jit
def count(roots, sizes, voxels, BLOCK: tl.constexpr):
    """Add the number of voxels of every root to `sizes`.

    The largest root of a tile, nearly always its most frequent one, is added with a single atomic operation.
    """
    sample = tl.program_id(0)
    voxel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(roots + sample * voxels + voxel, mask=voxel < voxels, other=0)
    largest = tl.max(own)
    same = own == largest
    tl.atomic_add(sizes + sample * voxels + own - 1, 1, mask=(own > 0) & (own != largest), sem="relaxed")
    if largest > 0:
        tl.atomic_add(sizes + sample * voxels + largest - 1, tl.sum(same.to(tl.int32)), sem="relaxed")

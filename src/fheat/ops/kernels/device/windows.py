"""The kernel that adds one window to the sums of a sliding window."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first", "plane", "row", "voxels"])
def add_window(
    logits, weight, sums, weights, factor, first, plane, row, voxels,
    K: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, Z: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Add factor * weight * p to `sums` and factor * weight to `weights`.

    p is the activation of the logits (K, X, Y, Z), which KIND names: "softmax", "sigmoid" or "none". The window begins
    at offset `first` of a volume whose planes, rows and channels lie `plane`, `row` and `voxels` voxels apart.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = index < X * Y * Z
    place = first + index // (Y * Z) * plane + index // Z % Y * row + index % Z
    scale = factor * tl.load(weight + index, mask=keep, other=0.0)
    tl.store(weights + place, tl.load(weights + place, mask=keep, other=0.0) + scale, mask=keep)
    largest = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32) + 1.0
    if KIND == "softmax":
        largest += float("-inf")
        for k in tl.static_range(K):
            value = tl.load(logits + k * X * Y * Z + index, mask=keep, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, value)
        total -= 1.0
        for k in tl.static_range(K):
            value = tl.load(logits + k * X * Y * Z + index, mask=keep, other=0.0).to(tl.float32)
            total += tl.exp(value - largest)
    channel = voxels * tl.full((), 1, tl.int64)
    for k in tl.static_range(K):
        value = tl.load(logits + k * X * Y * Z + index, mask=keep, other=0.0).to(tl.float32)
        if KIND == "softmax":
            value = tl.exp(value - largest) / total
        elif KIND == "sigmoid":
            value = 1.0 / (1.0 + tl.exp(-value))
        at = sums + k * channel + place
        tl.store(at, tl.load(at, mask=keep, other=0.0) + scale * value, mask=keep)

"""The orthonormal cosine transform (DCT-II) over the last axes of a tensor, and its inverse.

Three algorithms compute the same numbers up to rounding: a product with the cosine matrix, two products of half the
size (`split`), and an FFT. The fastest depends on the length of the axis and on the device, see `CROSSOVERS`.
"""

import math
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BUILT: dict[Hashable, Tensor] = {}
"""Constant tensors (cosine matrices, frequency tables) that were built before, by function, device and dtype."""


def constant(
    build: Callable[..., NDArray[np.float64]],
    arguments: tuple[Any, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Return `build(*arguments)` as a tensor on `device`; later calls with the same arguments return the same tensor.

    The array is computed in float64 whatever `dtype` is: a cosine matrix built in float32 is wrong by ten times the
    rounding of its entries. If `torch.compile` comes before the first eager call, the table is computed in the graph.
    """
    key = (build, arguments, device, dtype)
    built = _BUILT.get(key)
    if built is None:
        # A tensor built under inference_mode could not be used in training later.
        with torch.inference_mode(False):
            built = torch.from_numpy(build(*arguments)).to(device=device, dtype=dtype)
        # A traced or fake tensor belongs to the trace that made it and must not outlive it.
        if type(built) is Tensor and not torch.compiler.is_compiling():
            _BUILT[key] = built
    return built


CROSSOVERS: Final[dict[str, tuple[int, int]]] = {"cpu": (128, 768), "cuda": (768, 2048)}
"""For each kind of device: the axis length from which `split` is fastest, and the length from which `fft` is."""

Transform = Literal["auto", "product", "split", "fft"]
ExactTransform = Literal["product", "split", "fft"]


def dct(x: Tensor, *, dims: int = 3, transform: Transform = "auto", channels_last: bool = False) -> Tensor:
    """Return the orthonormal DCT-II over the last `dims` axes, or with `channels_last` over those before the last.

    Shapes: (..., *grid) or (..., *grid, C) -> the same. Half precision is computed and returned in float32, also
    under autocast.

    >>> x = torch.ones(1, 1, 4, 4, 4)
    >>> float(dct(x)[0, 0, 0, 0, 0])
    8.0
    """
    return _every_axis(x, dims, transform, channels_last, inverse=False)


def idct(x: Tensor, *, dims: int = 3, transform: Transform = "auto", channels_last: bool = False) -> Tensor:
    """Return the inverse of `dct`: `idct(dct(x)) == x` up to rounding. Shapes and precision are those of `dct`."""
    return _every_axis(x, dims, transform, channels_last, inverse=True)


def transform_axis(x: Tensor, axis: int, transform: ExactTransform, *, inverse: bool = False) -> Tensor:
    """Transform a float32 or float64 tensor along one axis, `axis` counted from the end (-1 is the last)."""
    return _AXIS[transform, inverse](x, axis)


def transform_for(length: int, device_type: str, transform: Transform = "auto") -> ExactTransform:
    """Return the algorithm used for an axis of this length: the caller's choice, or for `auto` the fastest one."""
    if transform not in get_args(Transform):
        raise ValueError(f"transform={transform!r} is unknown: use one of {', '.join(get_args(Transform))}")
    if transform != "auto":
        return transform
    split_from, fft_from = CROSSOVERS.get(device_type, CROSSOVERS["cpu"])
    if length >= fft_from:
        return "fft"
    return "split" if length >= split_from else "product"


def axis_macs(length: int, transform: ExactTransform) -> float:
    """Return the number of multiply-adds per element of one transform along an axis of this length.

    The FFT is counted as (2.5 log2 N + 4) / 2 multiply-adds, one for every two of its real operations.
    """
    if transform == "split":
        return (math.ceil(length / 2) ** 2 + (length // 2) ** 2) / length
    if transform == "fft":
        return (2.5 * math.log2(length) + 4) / 2 if length > 1 else 0.0
    return float(length)


def dct_matrix(length: int) -> NDArray[np.float64]:
    """Return the orthonormal DCT-II matrix C, shape (length, length), whose rows are frequencies."""
    frequency = np.arange(length)[:, None]
    position = np.arange(length)[None, :]
    matrix = np.cos(np.pi * frequency * (2 * position + 1) / (2 * length)) * math.sqrt(2 / length)
    matrix[0] = math.sqrt(1 / length)
    return matrix


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return float64 for float64 input, else float32: the second digit of a cosine in bf16 is wrong already."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def autocasts(x: Tensor) -> bool:
    """Return whether operations on the device of `x` choose their own precision now."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which products of float32 tensors stay float32, even inside autocast."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def _every_axis(x: Tensor, dims: int, transform: Transform, channels_last: bool, *, inverse: bool) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}: the transform needs a floating tensor, call x.float()")
    last = x.ndim - channels_last
    if not 1 <= dims <= last:
        raise ValueError(f"dims={dims} does not fit x of shape {tuple(x.shape)}: use 1..{last}")
    grid = tuple(x.shape[last - dims : last])
    if 0 in grid:
        raise ValueError(f"x has an empty axis in its grid {grid}: every length must be at least 1")
    with without_autocast(x):
        x = x.to(compute_dtype(x))
        if x.numel() == 0:  # an empty batch; FFT libraries refuse it
            return x
        for axis in range(-1 - channels_last, -1 - channels_last - dims, -1):
            length = x.shape[axis]
            if length > 1:
                x = transform_axis(x, axis, transform_for(length, x.device.type, transform), inverse=inverse)
    return x


def apply_matrix(matrix: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return `matrix` (M, N) applied along `axis` of `x`, as one tall or one batched product, no axis permuted."""
    if axis == -1:
        return x @ matrix.t()
    before, length, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    flat = x.reshape(math.prod(before), length, math.prod(after))
    product = torch.bmm(matrix.expand(flat.shape[0], -1, -1), flat)
    return product.reshape(*before, product.shape[1], *after)


def cosine_matrix(x: Tensor, *lengths: int, transposed: bool = False) -> Tensor:
    """Return `dct_matrix`, or a contiguous copy of its transpose, on the device and in the dtype of `x`, built once.

    With several lengths it is the matrix of neighbouring axes that are transformed as one: the Kronecker product.
    """
    return _table(x, "transposed" if transposed else "matrix", *lengths)


def _table(x: Tensor, name: str, *lengths: int) -> Tensor:
    return constant(_tables, (name, *map(int, lengths)), x.device, x.dtype)


def _tables(name: str, *lengths: int) -> NDArray[np.float64]:
    matrix: NDArray[np.float64] = np.ones((1, 1))
    length = math.prod(lengths)
    for one in lengths:
        matrix = np.asarray(np.kron(matrix, dct_matrix(one)), np.float64)
    if name == "even":
        return matrix[0::2, : math.ceil(length / 2)].copy()
    if name == "odd":
        return matrix[1::2, : length // 2].copy()
    if name == "matrix":
        return matrix
    if name == "transposed":
        return matrix.T.copy()
    angle = np.pi * np.arange(length // 2 + 1) / (2 * length)
    return {"cos": np.cos(angle), "sin": np.sin(angle)}[name]


def _product(x: Tensor, axis: int) -> Tensor:
    return apply_matrix(_table(x, "matrix", x.shape[axis]), x, axis)


def _product_inverse(x: Tensor, axis: int) -> Tensor:
    length = x.shape[axis]
    # OpenVINO computes a wrong product where a graph has products with one constant and with its transpose.
    if not torch.compiler.is_compiling() and torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return apply_matrix(cosine_matrix(x, length, transposed=True), x, axis)
    return apply_matrix(_table(x, "matrix", length).t(), x, axis)


def _split(x: Tensor, axis: int) -> Tensor:
    """Transform by halves: even rows of C are symmetric and need x + reversed(x) only, odd rows the difference only."""
    length, half = x.shape[axis], x.shape[axis] // 2
    left, right = x.narrow(axis, 0, half), x.narrow(axis, length - half, half).flip(axis)
    total = left + right
    if length % 2:
        total = torch.cat([total, x.narrow(axis, half, 1)], axis)
    even = apply_matrix(_table(x, "even", length), total, axis)
    odd = apply_matrix(_table(x, "odd", length), left - right, axis)
    return _interleave(even, odd, axis)


def _split_inverse(x: Tensor, axis: int) -> Tensor:
    length, half = x.shape[axis], x.shape[axis] // 2
    even, odd = _every_other(x, axis, 0), _every_other(x, axis, 1)
    symmetric = apply_matrix(_table(x, "even", length).t(), even, axis)
    antisymmetric = apply_matrix(_table(x, "odd", length).t(), odd, axis)
    left = symmetric.narrow(axis, 0, half)
    middle = [symmetric.narrow(axis, half, 1)] if length % 2 else []
    return torch.cat([left + antisymmetric, *middle, (left - antisymmetric).flip(axis)], axis)


def _interleave(even: Tensor, odd: Tensor, axis: int) -> Tensor:
    half = odd.shape[axis]
    pairs = torch.stack([even.narrow(axis, 0, half), odd], axis if axis < -1 else even.ndim)
    mixed = pairs.flatten(pairs.ndim + axis - 1, pairs.ndim + axis)
    return mixed if even.shape[axis] == half else torch.cat([mixed, even.narrow(axis, half, 1)], axis)


def _every_other(x: Tensor, axis: int, start: int) -> Tensor:
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, None, 2)
    return x[tuple(index)]


def _fft(x: Tensor, axis: int) -> Tensor:
    """Transform by an FFT of v, the even samples of x followed by the odd ones reversed:

    2 e^{-i pi k / 2N} FFT(v)_k = X_k - i X_{N-k}
    """
    x = x.movedim(axis, -1)
    length = x.shape[-1]
    spectrum = torch.fft.rfft(torch.cat([x[..., 0::2], x[..., 1::2].flip(-1)], -1), norm="ortho")
    cos, sin = _table(x, "cos", length), _table(x, "sin", length)
    low = spectrum.real * cos + spectrum.imag * sin
    high = spectrum.real * sin - spectrum.imag * cos
    scaled = torch.cat([low[..., :1], math.sqrt(2) * low[..., 1:], math.sqrt(2) * _mirror(high, length)], -1)
    return scaled.movedim(-1, axis)


def _fft_inverse(x: Tensor, axis: int) -> Tensor:
    x = x.movedim(axis, -1)
    length = x.shape[-1]
    x = torch.cat([x[..., :1], x[..., 1:] / math.sqrt(2)], -1)
    low = x[..., : length // 2 + 1]
    high = torch.cat([torch.zeros_like(x[..., :1]), x.flip(-1)[..., : length // 2]], -1)
    cos, sin = _table(x, "cos", length), _table(x, "sin", length)
    spectrum = torch.complex(low * cos + high * sin, low * sin - high * cos)
    v = torch.fft.irfft(spectrum, n=length, norm="ortho")
    front, back = v[..., : math.ceil(length / 2)], v[..., math.ceil(length / 2) :].flip(-1)
    return _interleave(front, back, -1).movedim(-1, axis)


def _mirror(high: Tensor, length: int) -> Tensor:
    """Return coefficients N/2+1 .. N-1, which are the imaginary half in reverse order."""
    return high[..., 1 : math.ceil(length / 2)].flip(-1)


_AXIS = {
    ("product", False): _product,
    ("product", True): _product_inverse,
    ("split", False): _split,
    ("split", True): _split_inverse,
    ("fft", False): _fft,
    ("fft", True): _fft_inverse,
}

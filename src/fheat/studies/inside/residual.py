"""The spectrum of a residual: what a block adds to its input (output minus input), by frequency.

    r(k) = | (pi k_1 / N_1, ..., pi k_d / N_d) |,    rho = r / max r  in [0, 1]
    E_b  = mean over maps of  sum_{k: rho(k) in bin b} C(residual)_k^2

C is the orthonormal DCT-II, so the E_b add up to the mean energy of a map (Parseval). A bin includes its upper end:
rho = 0.6 lies in the bin that ends there, and `share above 0.6` means rho > 0.6. The constant mode, rho = 0, is
counted, and its energy is part of the result. White noise has in every bin the share of the modes that lie there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fheat.ops.dct import dct

BINS = 10
"""Number of bins of equal width over rho in [0, 1]."""
CUT = 0.6
"""Normalised radius above which energy counts as high-frequency."""


@dataclass(frozen=True)
class Spectrum:
    """Energy by normalised radius."""

    grid: tuple[int, ...]
    radius: tuple[float, ...]
    """Middle of every bin."""
    energy: tuple[float, ...]
    """Energy in every bin."""
    modes: tuple[int, ...]
    """Number of modes in every bin."""
    cut: float
    above: float
    """Energy at rho > cut."""
    constant: float
    """Energy of the constant mode, which is part of the first bin."""
    modes_above: float
    """Share of the modes with rho > cut, which is the share of the energy that white noise has there."""

    @property
    def total(self) -> float:
        """Energy of a map: the sum over the bins."""
        return fsum(self.energy)

    @property
    def share_above(self) -> float | None:
        """Share of the energy at rho > cut, the constant mode counted; None where the residual is zero."""
        return self.above / self.total if self.total else None

    @property
    def share_above_without_constant(self) -> float | None:
        """Share at rho > cut of the energy without the constant mode; None where there is no other energy."""
        rest = self.total - self.constant
        return self.above / rest if rest > 0 else None


def residual_spectrum(residual: Tensor, *, bins: int = BINS, cut: float = CUT, dims: int = 3) -> Spectrum:
    """Return the spectrum of a residual, averaged over its maps.

    Args:
        residual: tensor (..., *grid); every index before the last `dims` axes is a map.
        bins: number of bins of equal width over rho in [0, 1].
        cut: normalised radius above which energy counts as `above`.
        dims: number of axes of the grid.

    A residual of zeros has no share above the cut.
    """
    if bins < 1 or not 0 <= cut < 1:
        raise ValueError(f"bins={bins}, cut={cut}: use at least one bin and a cut from 0 to below 1")
    energy = dct(residual.detach(), dims=dims).double().square()
    maps = energy.reshape(-1, *energy.shape[energy.ndim - dims :])
    if not len(maps):
        raise ValueError(f"residual has shape {tuple(residual.shape)}: there is no map in it")
    if not torch.isfinite(maps).all():
        raise ValueError("the residual holds NaN or infinity: the network diverged")
    by_mode = maps.mean(dim=0).cpu().numpy()
    rho = normalised_radius(by_mode.shape)
    place = np.clip(np.ceil(np.round(rho * bins, 9)).astype(int) - 1, 0, bins - 1).ravel()
    return Spectrum(
        grid=by_mode.shape,
        radius=tuple(((np.arange(bins) + 0.5) / bins).tolist()),
        energy=tuple(np.bincount(place, by_mode.ravel(), bins).tolist()),
        modes=tuple(np.bincount(place, minlength=bins).tolist()),
        cut=cut,
        above=float(by_mode[rho > cut].sum()),
        constant=float(by_mode.flat[0]),
        modes_above=float((rho > cut).mean()),
    )


def normalised_radius(grid: Sequence[int]) -> NDArray[np.float64]:
    """Return r / max r of every mode of a grid: 0 for the constant mode, 1 for the highest on every axis.

    The per-axis frequency is pi k / N, as in the gate. A grid of one voxel has the constant mode alone.
    """
    axes = np.meshgrid(*((np.pi * np.arange(length) / length) ** 2 for length in grid), indexing="ij")
    radius = np.sqrt(sum(axes))
    # Rounding gives one radius to modes that differ in the order of their axes, and so in the order of summation.
    result: NDArray[np.float64] = np.round(radius / (radius.max() or 1.0), 12)
    return result


def mean_spectrum(spectra: Sequence[Spectrum]) -> Spectrum:
    """Return the mean of energies on one grid, in one set of bins; a block with larger residuals weighs more."""
    if not spectra:
        raise ValueError("there is no spectrum to average: no block was called")
    first = spectra[0]
    for other in spectra:
        if (other.grid, len(other.radius), other.cut) != (first.grid, len(first.radius), first.cut):
            raise ValueError(f"spectra on grids {first.grid} and {other.grid} do not average: use one grid and binning")
    return replace(
        first,
        energy=tuple(fsum(column) / len(spectra) for column in zip(*(each.energy for each in spectra), strict=True)),
        above=fsum(each.above for each in spectra) / len(spectra),
        constant=fsum(each.constant for each in spectra) / len(spectra),
    )


def bottleneck_blocks(model: nn.Module) -> list[str]:
    """Return the module paths of the blocks at the bottom of a network of this package.

    They are the blocks of the stage `bottom` or, in networks without it, of `enc4`, the first of the two stages on the
    lowest grid.
    """
    for site in ("bottom", "enc4"):
        blocks = getattr(getattr(model, site, None), "blocks", None)
        if isinstance(blocks, nn.ModuleList) and len(blocks):
            return [f"{site}.blocks.{index}" for index in range(len(blocks))]
    raise ValueError(f"{type(model).__name__} has no stage bottom or enc4 with blocks: name the blocks by module path")


@contextmanager
def recorded_residuals(
    model: nn.Module, blocks: Sequence[str], *, bins: int = BINS, cut: float = CUT
) -> Iterator[dict[str, list[Spectrum]]]:
    """Yield a list for each named block, which grows by one spectrum per sample whenever the block is called.

    A block is any module whose output, or the first of several outputs, has the shape of its first input,
    (N, C, *grid).
    """
    spectra: dict[str, list[Spectrum]] = {}
    handles = []
    try:
        for path in blocks:
            try:
                module = model.get_submodule(path)
            except AttributeError:
                raise ValueError(
                    f"{type(model).__name__} has no block {path!r}: {_names_nearby(model, path)}"
                ) from None
            spectra[path] = []
            handles.append(module.register_forward_hook(_recorder(path, spectra[path], bins, cut)))
        yield spectra
    finally:
        for handle in handles:
            handle.remove()


def _recorder(path: str, spectra: list[Spectrum], bins: int, cut: float) -> Callable[..., None]:
    """Return the forward hook that adds the spectra of one block to a list."""

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        before, after = inputs[0] if inputs else None, output[0] if isinstance(output, tuple) else output
        shapes = [tuple(one.shape) if isinstance(one, Tensor) else None for one in (before, after)]
        if shapes[0] is None or shapes[0] != shapes[1] or len(shapes[0]) < 3:
            raise ValueError(
                f"block {path!r} maps {shapes[0]} to {shapes[1]}: a residual needs one shape (N, C, *grid)"
            )
        for sample in after - before:
            spectra.append(residual_spectrum(sample, bins=bins, cut=cut, dims=sample.ndim - 1))

    return record


def _names_nearby(model: nn.Module, path: str) -> str:
    """Return words that list the modules beside the first part of a path that does not exist."""
    here, parts = model, path.split(".")
    for depth, part in enumerate(parts):
        children = dict(here.named_children())
        if part not in children:
            above = ".".join(parts[:depth])
            return f"{above or 'it'} has {', '.join(children) or 'nothing inside'}"
        here = children[part]
    return "check the path"

"""Surfaces of masks, rendered in numpy: an orthographic view in which colours show where a prediction is wrong.

With phi the signed distance to the surface of a mask in millimetres (negative inside), rays look for the surface of
prediction and reference together, and the error at a point of it is a difference of distances:

    min(phi_p, phi_r) = 0,    e = phi_r - phi_p

So e > 0 on the surface of the prediction, e millimetres outside of the reference; e < 0 on the surface of the
reference, that far outside of the prediction; and e = 0 where both agree. Swapping the two masks changes the sign.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import edt
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates

from fheat.figures.page import PALETTE
from fheat.metrics.masks import Mask

PIXELS = 220
"""Number of pixels along the longer side of a view."""
FULL_COLOUR = 5.0
"""Error in millimetres from which a colour is full."""
VIEW = (25.0, 20.0)
"""Direction of the viewer: degrees from the front to the right of the patient, and degrees above the horizontal."""
BEYOND, MISSED, AGREED = PALETTE[0][0], PALETTE[1][0], "#d8d4cc"
"""Colours where the prediction reaches beyond the reference, where it misses it, and where both agree."""
_MOST_STEPS = 400
_AMBIENT = 0.3
"""Brightness of a surface that is seen edge on."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """The visible surface at each pixel: arrays of rows x columns, the first row on top, NaN where no surface is."""

    error: Values
    """e in millimetres."""
    brightness: Values
    """From `_AMBIENT` where the surface is seen edge on to 1 where it faces the viewer."""


def render(predicted: Values, true: Values, spacing: Sequence[float], view: tuple[float, float] = VIEW) -> View:
    """Return what the viewer sees of a prediction and its reference; the picture shows the whole grid to scale.

    Args:
        predicted: signed distance to the prediction, (X, Y, Z), see `signed_distance`; positive at the border.
        true: signed distance to the reference, on the same grid.
        spacing: millimetres between voxel centres along each axis.
        view: direction of the viewer, see `VIEW`.
    """
    both = np.minimum(predicted, true)
    steps = np.asarray(spacing, dtype=np.float64)
    rays = _rays(both.shape, steps, view)
    hit, points = _march(both, steps, rays)
    error, brightness = (np.full(len(rays.lengths), np.nan) for _ in range(2))
    error[hit] = _sample(true - predicted, points / steps)
    facing = -(_normals(both, steps, points) @ rays.forward)
    brightness[hit] = _AMBIENT + (1 - _AMBIENT) * np.clip(facing, 0, 1)
    return View(error.reshape(rays.shape), brightness.reshape(rays.shape))


def coloured(view: View) -> Values:
    """Return the picture of a view, (rows, columns, 3), from 0 to 1: white where there is no surface."""
    weight = np.clip(np.abs(view.error) / FULL_COLOUR, 0, 1)[..., None]
    beyond, missed, agreed = (np.array(_rgb(colour)) for colour in (BEYOND, MISSED, AGREED))
    wrong = np.where((view.error > 0)[..., None], beyond, missed)
    colour = ((1 - weight) * agreed + weight * wrong) * view.brightness[..., None]
    return np.where(np.isnan(view.brightness)[..., None], 1.0, colour)


def signed_distance(mask: Mask, spacing: Sequence[float]) -> Values:
    """Return the distance of every voxel centre to the surface of a mask in millimetres, negative inside.

    The surface lies half-way between neighbours inside and outside. An empty mask is further away than the grid is
    long.
    """
    if not mask.any():
        return np.full(mask.shape, float(np.linalg.norm(np.multiply(mask.shape, spacing))))
    steps = tuple(map(float, spacing))
    outside, inside = (edt.edt(np.ascontiguousarray(each), anisotropy=steps) for each in (~mask, mask))
    half = min(steps) / 2
    distance: Values = np.where(mask, half - inside, outside - half).astype(np.float64)
    return distance


@dataclass(frozen=True)
class _Rays:
    """Parallel rays, in millimetres from the first voxel: where each enters the grid, and how far it stays inside."""

    shape: tuple[int, int]
    """Number of rows and columns of the picture."""
    starts: Values
    forward: Values
    lengths: Values


def _axes(view: tuple[float, float]) -> tuple[Values, Values, Values]:
    """Return the directions to the right, up and forward as the viewer sees them."""
    azimuth, elevation = np.radians(view)
    flat = np.cos(elevation)
    forward = -np.array([np.sin(azimuth) * flat, np.cos(azimuth) * flat, np.sin(elevation)])
    right = np.array([-np.cos(azimuth), np.sin(azimuth), 0.0])
    return right, np.cross(right, forward), forward


def _rays(shape: Sequence[int], steps: Values, view: tuple[float, float]) -> _Rays:
    """Return one ray for each pixel, row by row from the top; a ray that misses the grid has length 0."""
    right, up, forward = _axes(view)
    far = (np.asarray(shape) - 1) * steps
    extent = np.abs(np.stack([up, right])) @ far  # what the grid covers on the screen, in millimetres
    pixel = extent.max() / PIXELS
    rows, columns = (max(1, round(length / pixel)) for length in extent)
    offsets = [(np.arange(count) - (count - 1) / 2) * pixel for count in (columns, rows)]
    across, below = np.meshgrid(*offsets)
    through = far / 2 + across.ravel()[:, None] * right - below.ravel()[:, None] * up
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.stack([-through / forward, (far - through) / forward])  # where a ray crosses each pair of faces
    parallel = np.abs(forward) < 1e-12
    within = ((through >= 0) & (through <= far)) | ~parallel
    enter = np.where(parallel, -np.inf, bounds.min(axis=0)).max(axis=1)
    leave = np.where(parallel, np.inf, bounds.max(axis=0)).min(axis=1)
    inside = within.all(axis=1) & (leave > enter)
    starts = through + np.where(inside, enter, 0.0)[:, None] * forward
    return _Rays((rows, columns), starts, forward, np.where(inside, leave - enter, 0.0))


def _march(distance: Values, steps: Values, rays: _Rays) -> tuple[NDArray[np.int64], Values]:
    """Return which rays meet the surface, and where: each goes on by most of its distance until that is negative."""
    least = 0.1 * steps.min()
    going = np.flatnonzero(rays.lengths > 0)
    gone = np.zeros(len(rays.lengths))
    hits: list[NDArray[np.int64]] = []
    points: list[Values] = []
    for _ in range(_MOST_STEPS):
        here = rays.starts[going] + gone[going, None] * rays.forward
        left = _sample(distance, here / steps)
        hits.append(going[left <= 0])
        points.append(here[left <= 0])
        going, left = going[left > 0], left[left > 0]
        gone[going] += np.maximum(0.8 * left, least)
        going = going[gone[going] <= rays.lengths[going]]
        if not going.size:
            break
    return np.concatenate(hits), np.concatenate(points)


def _normals(distance: Values, steps: Values, points: Values) -> Values:
    """Return the outward unit normals at points of the surface: the gradient of the smoothed distance."""
    smooth = gaussian_filter(distance, 1.0, mode="nearest")
    gradient = np.stack(
        [(_sample(smooth, points / steps + axis) - _sample(smooth, points / steps - axis)) for axis in np.eye(3)],
        axis=1,
    )
    gradient = gradient / (2 * steps)
    norms = np.linalg.norm(gradient, axis=1, keepdims=True)
    normals: Values = gradient / np.where(norms > 0, norms, 1.0)
    return normals


def _sample(values: Values, places: Values) -> Values:
    """Return values between voxels, by trilinear interpolation; outside the grid those at its border."""
    sampled: Values = map_coordinates(values, places.T, order=1, mode="nearest")
    return sampled


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))

"""Bent ellipsoids, tapered tubes and smooth random fields, evaluated on any part of any voxel grid.

Shapes and fields are defined in space (millimetres) and not on a grid, so two grids at the same position give the same
values. Distances are signed, in millimetres, negative inside, and exact to first order at the surface, which is enough
for a soft edge.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

ScalarField = NDArray[np.float32]
"""One number per voxel, (X, Y, Z)."""
Points = NDArray[np.float64]
"""Coordinates, vectors and matrices in double precision."""
Slices = tuple[slice, slice, slice]
"""Ranges of voxel indices along the three axes."""

_SMALL: Final = np.float32(1e-6)
"""Lower limit of a squared gradient, to avoid a division by zero."""
_SERIAL: Final = 2**17
"""Number of multiplications up to which no BLAS starts threads, which would cost more than they save here."""


@dataclass(frozen=True)
class SamplingGrid:
    """The voxels at which shapes are evaluated: those in `box`, whose indices `affine` (4, 4) maps to millimetres."""

    affine: Points
    box: Slices

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of voxels along each axis of the box."""
        x, y, z = (part.stop - part.start for part in self.box)
        return x, y, z

    def crop(self, low: Points, high: Points) -> "SamplingGrid | None":
        """Return the part of the grid that covers the region from `low` to `high` (3,), or None if it is empty."""
        inverse = np.linalg.inv(self.affine[:3, :3])
        middle = inverse @ ((low + high) / 2 - self.affine[:3, 3])
        half = np.abs(inverse) @ ((high - low) / 2)
        parts = [
            slice(max(part.start, int(np.ceil(m - h))), min(part.stop, int(np.floor(m + h)) + 1))
            for part, m, h in zip(self.box, middle, half, strict=True)
        ]
        if any(part.start >= part.stop for part in parts):
            return None
        return SamplingGrid(self.affine, (parts[0], parts[1], parts[2]))

    def halved(self) -> "SamplingGrid":
        """Return every second voxel along each axis, from the first to the last or one beyond; starts must be even."""
        x, y, z = (slice(part.start // 2, part.stop // 2 + 1) for part in self.box)
        return SamplingGrid(self.affine @ np.diag([2.0, 2.0, 2.0, 1.0]), (x, y, z))

    def within(self, outer: "SamplingGrid") -> Slices:
        """Return the slices that select this grid in an array over `outer`."""
        x, y, z = (
            slice(part.start - whole.start, part.stop - whole.start)
            for part, whole in zip(self.box, outer.box, strict=True)
        )
        return x, y, z

    def phases(self, rows: Points, offsets: Points) -> tuple[Points, Points, Points]:
        """Return arrays (rows, X), (rows, Y), (rows, Z) whose sum is `rows @ position + offsets` at each voxel."""
        steps = rows @ self.affine[:3, :3]
        x, y, z = (
            step[:, None] * np.arange(part.start, part.stop) for step, part in zip(steps.T, self.box, strict=True)
        )
        return x + (rows @ self.affine[:3, 3] + offsets)[:, None], y, z

    def lines(self, rows: Points, origin: Points) -> tuple[Points, Points, Points]:
        """Return `rows @ (position - origin)` along the lines of the last axis, as `base + step * time`.

        Shapes: base (rows, X Y), step (rows,), time (Z,) from -1 to 1.
        """
        x, y, z = self.phases(rows, -rows @ origin)
        x += (z[:, :1] + z[:, -1:]) / 2
        base = (x[:, :, None] + y[:, None, :]).reshape(len(rows), -1)
        return base, (z[:, -1] - z[:, 0]) / 2, np.linspace(-1, 1, self.shape[2])


@dataclass(frozen=True)
class Ellipsoid:
    """An ellipsoid whose second axis is bent along its first; with `bend` = 0 it is a plain ellipsoid."""

    centre: Points
    radii: Points
    turn: Points
    """Rotation (3, 3) whose columns are the axes."""
    bend: float = 0.0

    def bounds(self, margin: float) -> tuple[Points, Points]:
        """Return two corners of a region that contains all points nearer than `margin`."""
        radii = self.radii * (1, 1 + abs(self.bend), 1)
        half = np.sqrt((self.turn * radii) ** 2 @ np.ones(3)) + margin
        return self.centre - half, self.centre + half

    def distance(self, grid: SamplingGrid) -> ScalarField:
        """Return the signed distance at every voxel of the grid."""
        base, step, time = grid.lines((self.turn / self.radii).T, self.centre)
        # Along a line each coordinate is a polynomial of time, and so is everything before the square root.
        u, v, w = (np.stack([start, np.full_like(start, pace)]) for start, pace in zip(base, step, strict=True))
        squares = [_squared(u), _squared(v), _squared(w)]
        if self.bend:
            bent = self.bend * squares[0]
            bent[:2] += v
            bent[0] -= self.bend / 2
            squares[1] = _squared(bent)
        level = _along(squares, np.ones(3), time, grid.shape)
        gradient = _along(squares, 1 / self.radii**2, time, grid.shape)
        np.maximum(gradient, _SMALL, out=gradient)
        np.sqrt(gradient, out=gradient)
        # With s = |p / r|, the gradient of s at p has length |p / r^2| / s: the distance is (s - 1) s / |p / r^2|.
        np.maximum(level, np.float32(0), out=level)
        level -= np.sqrt(level)
        level /= gradient
        return level


def _squared(polynomial: Points) -> Points:
    """Return the squares of polynomials, both as coefficients (degree + 1, lines)."""
    count = len(polynomial)
    square = np.zeros((2 * count - 1, polynomial.shape[1]))
    for power, coefficient in enumerate(polynomial):
        square[power : power + count] += coefficient * polynomial
    return square


def _along(polynomials: list[Points], weights: Points, time: Points, shape: tuple[int, int, int]) -> ScalarField:
    """Return a weighted sum of polynomials of different degrees at all times, (X, Y, Z)."""
    total = np.zeros((max(map(len, polynomials)), polynomials[0].shape[1]))
    for polynomial, weight in zip(polynomials, weights, strict=True):
        total[: len(polynomial)] += weight * polynomial
    return _product(total.T, time ** np.arange(len(total))[:, None], shape)


def _product(rows: NDArray[Any], columns: NDArray[Any], shape: tuple[int, int, int]) -> ScalarField:
    """Return the product of an (X Y, n) and an (n, Z) matrix, with small n, as an (X, Y, Z) field."""
    rows, columns = rows.astype(np.float32), columns.astype(np.float32)
    field = np.empty((len(rows), columns.shape[1]), dtype=np.float32)
    step = max(1, _SERIAL // columns.size)
    for start in range(0, len(rows), step):
        np.matmul(rows[start : start + step], columns, out=field[start : start + step])
    return field.reshape(shape)


@dataclass(frozen=True)
class Tube:
    """A tube along a parabola that starts at `start` along the first axis of `turn` and gets thinner to its far end."""

    start: Points
    turn: Points
    """Rotation (3, 3) whose columns are the first direction, the direction of the bow, and the third one."""
    length: float
    radius: float
    bow: float = 0.0
    """Distance of the far end from a straight line in millimetres."""
    taper: float = 0.0
    """Fraction of the radius that is lost at the far end."""

    def bounds(self, margin: float) -> tuple[Points, Points]:
        """Return two corners of a region that contains all points nearer than `margin`."""
        half_way = self.start + self.turn[:, 0] * self.length / 2
        end = self.start + self.turn @ np.array([self.length, self.bow, 0.0])
        hull = np.stack([self.start, half_way, end])  # control points of the parabola
        reach = self.radius + margin
        return hull.min(axis=0) - reach, hull.max(axis=0) + reach

    def distance(self, grid: SamplingGrid) -> ScalarField:
        """Return the signed distance at every voxel of the grid."""
        base, step, time = grid.lines(self.turn.T, self.start)
        along, off, beside = (
            _product(
                np.stack([start, np.ones_like(start)], axis=1), np.stack([np.ones_like(time), pace * time]), grid.shape
            )
            for start, pace in zip(base, step, strict=True)
        )
        position = np.clip(along, np.float32(0), np.float32(self.length))
        along -= position
        position *= np.float32(1 / self.length)
        if self.bow:
            off -= np.float32(self.bow) * np.square(position)
        for part in (along, off, beside):
            np.square(part, out=part)
        along += off
        along += beside
        np.sqrt(along, out=along)
        position *= np.float32(self.radius * self.taper)
        position -= np.float32(self.radius)
        along += position
        return along


@dataclass(frozen=True)
class Waves:
    """A smooth random field: a sum of plane waves, `sum_m amplitude_m cos(vector_m . position + phase_m)`."""

    vectors: Points
    """Wave vectors (waves, 3) in radians per millimetre."""
    phases: Points
    amplitudes: Points

    @classmethod
    def draw(cls, rng: np.random.Generator, deviation: float, shortest: float, longest: float, count: int) -> Self:
        """Return random waves in all directions that add up to a field of this standard deviation.

        Wavelengths are between `shortest` and `longest`, in millimetres.
        """
        directions = rng.standard_normal((count, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        lengths = rng.uniform(shortest, longest, count)
        amplitudes = np.full(count, deviation * np.sqrt(2 / count))
        return cls(directions * (2 * np.pi / lengths)[:, None], rng.uniform(0, 2 * np.pi, count), amplitudes)

    def __add__(self, other: "Waves") -> "Waves":
        return Waves(
            np.concatenate([self.vectors, other.vectors]),
            np.concatenate([self.phases, other.phases]),
            np.concatenate([self.amplitudes, other.amplitudes]),
        )

    def on(self, grid: SamplingGrid) -> ScalarField:
        """Return the field at every voxel of the grid.

        On a grid `exp(i v.p)` is a product of three vectors, so the whole sum is one product of an (X Y, 2 waves) and
        a (2 waves, Z) matrix, instead of one cosine per voxel and wave.
        """
        x, y, z = (np.exp(1j * phase).astype(np.complex64) for phase in grid.phases(self.vectors, self.phases))
        plane = (x[:, :, None] * y[:, None, :]).reshape(len(x), -1)
        line = z * self.amplitudes[:, None]
        rows, columns = np.concatenate([plane.real, plane.imag]), np.concatenate([line.real, -line.imag])
        return _product(rows.T, columns, grid.shape)


def doubled(field: ScalarField, shape: tuple[int, int, int]) -> ScalarField:
    """Return a field over `grid.halved()` interpolated linearly to the grid, which has `shape`."""
    for axis in (2, 1, 0):  # the last pass is the largest, and it works on whole planes
        known = np.moveaxis(field, axis, 0)
        field = np.empty((*field.shape[:axis], shape[axis], *field.shape[axis + 1 :]), dtype=np.float32)
        fresh = np.moveaxis(field, axis, 0)
        count = shape[axis] // 2
        fresh[0::2] = known[: shape[axis] - count]
        np.add(known[:count], known[1 : count + 1], out=fresh[1::2])
        fresh[1::2] *= np.float32(0.5)
    return field


def paint(image: ScalarField, distance: ScalarField, value: float | ScalarField, edge: float) -> None:
    """Set the image to `value` where the distance is negative, in place, with an edge of `edge` millimetres."""
    cover = distance * np.float32(-1 / edge)
    cover += np.float32(0.5)
    np.clip(cover, np.float32(0), np.float32(1), out=cover)
    cover *= np.asarray(value, dtype=np.float32) - image
    image += cover

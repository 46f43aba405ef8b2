"""The anatomy of a phantom: organs with their positions and brightness, and how they vary from case to case.

Positions and radii are in millimetres (RAS+), relative to the centre of the body. A body is described by shapes;
`fheat.data.phantom` samples it on a grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from fheat.data.phantom_shapes import Ellipsoid, Points, Tube, Waves

_UP, _RIGHT, _LEFT, _FRONT, _BACK, _DOWN = (0, 0, 1), (1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, -1)


@dataclass(frozen=True)
class Organ:
    """A structure that is not labelled."""

    shape: Ellipsoid | Tube
    value: float
    rim: float
    """Thickness of the tissue around it in millimetres."""
    rim_value: float


@dataclass(frozen=True)
class Atrium:
    """The labelled structure and the wall around it."""

    chamber: Ellipsoid
    appendage: Tube
    veins: tuple[Tube, ...]
    blood: float
    wall: float
    """Thickness of the wall in millimetres."""
    healthy: float
    scar: float
    patches: Waves
    """A random field; the wall is scar where it is above zero."""


@dataclass(frozen=True)
class Body:
    """The whole anatomy and the properties of the scan. Brightness is relative: that of blood is about one."""

    chest: tuple[Organ, ...]
    """Structures in the order in which they are painted; later ones cover earlier ones."""
    heart: tuple[Organ, ...]
    """Structures that are painted after the chest."""
    atrium: Atrium
    """The labelled structure, which is painted last."""
    air: float
    relief: Waves
    """A random field: distance in millimetres of surfaces from their ideal shapes."""
    gain: Waves
    """A random field for receiver bias and tissue texture; brightness is multiplied by one plus its value."""
    noise: float
    """Standard deviation of the noise in each of the two components of the signal."""
    scale: float
    """Stored value of a brightness of one."""


class _Pen:
    """Draws random shapes near given ones, all for a body of one random size."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.size = rng.uniform(0.92, 1.08)

    def ellipsoid(self, centre: Sequence[float], radii: Sequence[float], *, bend: float = 0.0) -> Ellipsoid:
        rng = self.rng
        turn = Rotation.from_rotvec(rng.normal(0, 0.1, 3)).as_matrix()
        middle = self.size * np.array(centre) + rng.normal(0, 1.2, 3)
        return Ellipsoid(middle, self.size * np.array(radii) * rng.uniform(0.9, 1.1, 3), turn, bend)

    def tube(
        self,
        start: Sequence[float] | Points,
        along: Sequence[float],
        towards: Sequence[float],
        *,
        length: float,
        radius: float,
        bow: float,
        taper: float = 0.0,
    ) -> Tube:
        """Return a random tube along `along` that bends `towards`; the directions need not have unit length."""
        rng = self.rng
        first = np.array(along) / np.linalg.norm(along) + rng.normal(0, 0.06, 3)
        first /= np.linalg.norm(first)
        second = np.array(towards) - first * (first @ towards)
        second /= np.linalg.norm(second)
        turn = np.stack([first, second, np.cross(first, second)], axis=1)
        origin = self.size * np.array(start) + rng.normal(0, 0.8, 3)
        width = self.size * radius * rng.uniform(0.88, 1.12)
        return Tube(origin, turn, self.size * length, width, bow * rng.uniform(0.6, 1.4), taper)


def draw_body(rng: np.random.Generator) -> Body:
    """Return the random anatomy of one patient and the properties of one scan."""
    pen, between = _Pen(rng), rng.uniform
    blood, muscle, fat = between(0.8, 1.1), between(0.4, 0.62), between(0.6, 1.15)
    nulled, lung = between(0.14, 0.32), between(0.06, 0.16)
    return Body(
        _chest(pen, muscle, fat, lung, nulled),
        _heart(pen, blood, nulled),
        _atrium(pen, blood, nulled),
        air=0.02,
        relief=Waves.draw(rng, deviation=0.7, shortest=16, longest=45, count=6),
        gain=Waves.draw(rng, deviation=0.2, shortest=150, longest=400, count=3)
        + Waves.draw(rng, deviation=0.05, shortest=8, longest=30, count=12),
        noise=between(0.03, 0.08),
        scale=between(300, 1200),
    )


def _chest(pen: _Pen, muscle: float, fat: float, lung: float, nulled: float) -> tuple[Organ, ...]:
    """Return the body with its fat, the lungs, the spine, the fat around the heart, and the oesophagus."""
    between = pen.rng.uniform
    return (
        Organ(pen.ellipsoid((0, 0, 0), (62, 50, 600)), muscle, between(4, 8), fat),
        Organ(pen.ellipsoid((48, -6, 0), (23, 38, 75)), lung, 1.5, muscle),
        Organ(pen.ellipsoid((-48, -8, 4), (21, 38, 75)), lung, 1.5, muscle),
        Organ(pen.ellipsoid((0, -42, 0), (13, 11, 600)), between(0.45, 0.75), 2.0, nulled),
        Organ(pen.ellipsoid((-2, 10, -8), (42, 32, 44), bend=0.3), 0.6 * fat + 0.3 * muscle, 1.2, muscle),
        Organ(pen.tube((-4, -27, -75), _UP, _RIGHT, length=150, radius=2.5, bow=4), muscle, 2.0, between(0.6, 1.0)),
    )


def _heart(pen: _Pen, blood: float, nulled: float) -> tuple[Organ, ...]:
    """Return the neighbours with the same blood: three chambers, both ends of the aorta, vena cava, lung arteries."""

    def filled(shape: Ellipsoid | Tube, wall: float) -> Organ:
        return Organ(shape, blood * pen.rng.normal(1, 0.05), wall, nulled)

    return (
        filled(pen.tube((-20, -32, -75), _UP, _LEFT, length=150, radius=8.5, bow=5), 1.5),
        filled(pen.ellipsoid((6, 33, -16), (24, 11, 20), bend=-0.4), 2.5),
        filled(pen.ellipsoid((-26, 20, -24), (14, 19, 15), bend=0.2), 7.0),
        filled(pen.tube((25, 8, 10), _UP, _LEFT, length=70, radius=6.5, bow=3), 1.2),
        filled(pen.ellipsoid((27, 8, -6), (13, 15, 21), bend=0.3), 2.0),
        filled(pen.tube((4, 14, -2), _UP, _RIGHT, length=75, radius=9.5, bow=5), 1.5),
        filled(pen.tube((-14, 26, 0), (0.1, -0.5, 1), _BACK, length=36, radius=8, bow=10), 1.2),
        filled(pen.tube((-10, 4, 30), _RIGHT, _BACK, length=48, radius=6, bow=8, taper=0.3), 1.2),
    )


def _atrium(pen: _Pen, blood: float, nulled: float) -> Atrium:
    """Return a bent chamber around the oesophagus, two to four veins to the lungs, an appendage to the front left."""
    rng = pen.rng
    chamber = pen.ellipsoid((-3, -8, 3), (26, 14, 20), bend=rng.uniform(0.35, 0.8))
    exits = ((0.8, -0.45, 0.5), (-0.8, -0.4, 0.5), (0.85, -0.5, -0.4), (-0.85, -0.5, -0.35))
    veins = tuple(
        pen.tube(
            (chamber.centre + 0.55 * chamber.radii * way) / pen.size,
            way,
            towards,
            length=rng.uniform(38, 50),
            radius=rng.uniform(3.4, 4.8),
            bow=rng.uniform(4, 14),
            taper=0.4,
        )
        for way, towards in zip(exits, (_UP, _UP, _DOWN, _BACK), strict=True)
    )
    appendage = pen.tube(
        (chamber.centre + 0.6 * chamber.radii * (-0.7, 0.6, 0.3)) / pen.size,
        (-0.6, 0.8, 0.25),
        _DOWN,
        length=rng.uniform(22, 30),
        radius=rng.uniform(4.2, 5.6),
        bow=rng.uniform(6, 12),
        taper=0.5,
    )
    return Atrium(
        chamber,
        appendage,
        veins[: rng.integers(2, 5)],
        blood,
        wall=rng.uniform(1.8, 2.8),
        healthy=1.3 * nulled,
        scar=blood * rng.uniform(1.1, 1.45),
        patches=Waves.draw(rng, deviation=1.0, shortest=12, longest=35, count=6),
    )

"""Synthetic chest scans with a labelled left atrium: no patient data, reproducible, and hard enough to learn from.

The label is the blood of one bent chamber, of its appendage and of the first part of its veins. Its neighbours contain
the same blood, touch it and are not labelled, so neither a threshold nor region growing finds it. The anatomy is drawn
in millimetres, in a body that is always upright; spacing, axis order, flips and tilt are drawn independently and only
change how that body is sampled.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from fheat.data.phantom_anatomy import Atrium, Body, Organ, draw_body
from fheat.data.phantom_shapes import Points, SamplingGrid, ScalarField, Tube, doubled, paint
from fheat.io import Volume, write_nifti
from fheat.system.errors import BadInput
from fheat.system.files import check_folder, write_file
from fheat.system.progress import Progress

Shape = tuple[int, int, int]
Geometry = Literal["varied", "canonical"]

VERSION: Final = 1
"""Version of the generator, which changes whenever the same seed gives other voxels."""
VEIN_REACH: Final = 14.0
"""Distance from the chamber, in millimetres, up to which a vein belongs to the label."""
FIELD_OF_VIEW: Final = 100.0
"""Extent of a scan in millimetres, about: how much of the body it shows."""
SMALLEST: Final = 24
"""Smallest number of voxels along an axis."""
_SLAB: Final = 2**20
"""Number of voxels that are painted together, so that they stay in the last-level cache."""
_PIECE: Final = 2**15
"""Number of voxels that receive noise together, so that they stay in the second-level cache."""
_VEIN_WALL: Final = 1.2
"""Thickness of the wall of a vein in millimetres."""
_BLUR: Final = 1.2
"""Width of an edge in voxels."""
_RELIEF_LIMIT: Final = 2.5
"""Upper limit of the relief in millimetres."""
_BYTES_DEVIATION: Final = float(np.sqrt(4 * (256**2 - 1) / 12))
"""Standard deviation of the sum of four random bytes."""
_EVEN_BYTES: Final = np.uint64(0x00FF00FF00FF00FF)
"""Mask of every second byte of a word."""


@dataclass(frozen=True)
class Phantom:
    """A scan (int16) and its label (uint8, 0 and 1), both (X, Y, Z) with the same affine."""

    image: Volume
    label: Volume


def phantom(
    seed: int | np.random.SeedSequence,
    shape: Shape = (112, 96, 72),
    *,
    geometry: Geometry = "varied",
    field_of_view: float = FIELD_OF_VIEW,
    contrast: float = 1.0,
) -> Phantom:
    """Return one scan and its label; the same seed gives the same voxels.

    The field of view is about 100 mm for every shape, so a small shape is a coarse scan of the whole anatomy; with 48
    voxels or fewer along an axis a thin vein may be interrupted. With the default shape the spacing is 0.73 to 1.05 mm
    within slices and 1.1 to 1.8 mm between them. A smaller `field_of_view`, in millimetres, samples the same anatomy
    more finely and leaves out its rim, like a scan that was cropped around the heart. `canonical` samples the anatomy
    upright and centred, with axes that point right, anterior and superior.

    `contrast`, at least 1, makes scans look as if they came from different scanners: the brightness of every tissue is
    raised to a power that is drawn for the scan, between 1 / contrast and contrast, evenly on a logarithmic scale. With
    1 the power is 1; the label never depends on it.
    """
    if contrast < 1:
        raise ValueError(f"contrast {contrast} is below 1, which leaves the brightness as it is")
    if min(shape) < SMALLEST:
        raise ValueError(f"shape {shape} is too coarse to hold the anatomy: at least {SMALLEST} voxels along each axis")
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    body = draw_body(_stream(sequence, 0))
    if geometry == "canonical":
        affine = _canonical(shape, field_of_view)
    else:
        affine = _draw_affine(_stream(sequence, 1), shape, field_of_view)
    power = contrast ** _stream(sequence, 3).uniform(-1, 1)
    image, label = _scan(body, affine, shape, power, _stream(sequence, 2))
    return Phantom(Volume(image, affine), Volume(label, affine))


def write_phantoms(
    folder: str | Path,
    cases: int = 40,
    *,
    seed: int = 0,
    shape: Shape = (112, 96, 72),
    test: int = 8,
    geometry: Geometry = "varied",
    field_of_view: float = FIELD_OF_VIEW,
    contrast: float = 1.0,
    progress: Progress | None = None,
) -> None:
    """Write a dataset in the nnU-Net raw layout, with the splits of semi-supervised training in `splits.json`.

    Every case has a label on disk; `splits.json` lists those that training may use. Case i of a seed is the same
    whatever the number of cases. Shape, geometry, field of view and contrast are those of `phantom`. `progress` is
    called with the number of scans written and their total.
    """
    root = Path(folder)
    check_folder(root)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise BadInput(root, "exists already", "give a new or empty folder")
    names = [f"phantom_{i:04d}" for i in range(cases)]
    held_out = [f"phantom_t{i:04d}" for i in range(test)]
    todo = [(name, "Tr", (0, i)) for i, name in enumerate(names)]
    todo += [(name, "Ts", (1, i)) for i, name in enumerate(held_out)]
    for done, (name, part, key) in enumerate(todo, start=1):
        sequence = np.random.SeedSequence(seed, spawn_key=key)
        scan = phantom(sequence, shape, geometry=geometry, field_of_view=field_of_view, contrast=contrast)
        write_nifti(scan.image, root / f"images{part}" / f"{name}_0000.nii.gz")
        write_nifti(scan.label, root / f"labels{part}" / f"{name}.nii.gz")
        if progress is not None:
            progress(done, len(todo))
    _write_json(root / "splits.json", _splits(names))
    # Written last: a folder without it, of an interrupted run, is not recognised as a dataset.
    _write_json(root / "dataset.json", _description(cases, seed))


def _write_json(path: Path, content: dict[str, object]) -> None:
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())


def _description(cases: int, seed: int) -> dict[str, object]:
    return {
        "name": "phantom",
        "description": f"Synthetic left atria, fheat phantom generator version {VERSION}, seed {seed}",
        "channel_names": {"0": "LGE-MRI"},
        "labels": {"background": 0, "left_atrium": 1},
        "numTraining": cases,
        "file_ending": ".nii.gz",
    }


def _splits(names: list[str]) -> dict[str, object]:
    """Return the splits: the first 4 or 8 are labelled, the last tenth validates, the others are unlabelled."""
    last = len(names) - max(1, round(0.1 * len(names)))
    splits: dict[str, object] = {"order": names}
    splits |= {f"labelled_{count}": names[: min(count, last)] for count in (4, 8)}
    splits["validation"] = names[last:]
    return splits | {f"unlabelled_{count}": names[count:last] for count in (4, 8)}


def _stream(sequence: np.random.SeedSequence, number: int) -> np.random.Generator:
    """Return one of the independent random generators of a case; unlike `spawn` this does not change the sequence."""
    child = np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, number))
    return np.random.Generator(np.random.PCG64(child))


def _canonical(shape: Shape, field_of_view: float) -> Points:
    return _affine(np.eye(3), field_of_view / np.array(shape), np.zeros(3), shape)


def _draw_affine(rng: np.random.Generator, shape: Shape, field_of_view: float) -> Points:
    """Return a random affine: any axis order and flips, a tilt of 5 to 20 degrees in two cases of five.

    The axis with the fewest voxels is the slice axis.
    """
    slices = 2 - int(np.argmin(shape[::-1]))
    plane = np.sqrt(np.prod(shape) / shape[slices])
    spacing = np.full(3, rng.uniform(76, 108) / plane)
    spacing[slices] = rng.uniform(80, 128) / shape[slices]
    axes = np.eye(3)[:, rng.permutation(3)] * rng.choice((-1.0, 1.0), 3)
    tilt, angle = rng.standard_normal(3), np.radians(rng.uniform(5, 20))
    if rng.random() < 0.4:
        axes = Rotation.from_rotvec(angle * tilt / np.linalg.norm(tilt)).as_matrix() @ axes
    return _affine(axes, spacing * (field_of_view / FIELD_OF_VIEW), rng.uniform(-4, 4, 3), shape)


def _affine(axes: Points, spacing: Points, middle: Points, shape: Shape) -> Points:
    """Return the affine of a grid with these axes (columns) and spacing whose centre is at `middle`."""
    affine = np.eye(4)
    affine[:3, :3] = axes * spacing
    affine[:3, 3] = middle - affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return affine


def _scan(
    body: Body, affine: Points, shape: Shape, power: float, rng: np.random.Generator
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Return image and label of the body on a grid, each of `shape`; brightness is raised to `power`."""
    image, label = np.empty(shape, dtype=np.int16), np.zeros(shape, dtype=np.uint8)
    edge = float(np.cbrt(abs(np.linalg.det(affine[:3, :3]))) * _BLUR)
    step = max(2, _SLAB // (shape[1] * shape[2]) // 2 * 2)
    for start in range(0, shape[0], step):
        rows = slice(start, min(start + step, shape[0]))
        grid = SamplingGrid(affine, (rows, slice(0, shape[1]), slice(0, shape[2])))
        signal = _chest(body, grid.halved(), 2 * edge, grid.shape)
        relief = body.relief.on(grid)
        for organ in body.heart:
            _add_organ(signal, organ, grid, relief, edge)
        _add_atrium(signal, label[rows], body.atrium, grid, relief, edge)
        if power != 1:
            np.power(signal, np.float32(power), out=signal)
        _receive(signal, body, body.gain.on(grid), rng, image[rows])
    return image, label


def _chest(body: Body, grid: SamplingGrid, edge: float, shape: Shape) -> ScalarField:
    """Return the signal around the heart, of `shape`, painted on every second voxel: breathing blurs it anyway."""
    signal = np.full(grid.shape, body.air, dtype=np.float32)
    relief = body.relief.on(grid)
    for organ in body.chest:
        _add_organ(signal, organ, grid, relief, edge)
    return doubled(signal, shape)


def _add_organ(signal: ScalarField, organ: Organ, grid: SamplingGrid, relief: ScalarField, edge: float) -> None:
    part = grid.crop(*organ.shape.bounds(organ.rim + edge + _RELIEF_LIMIT))
    if part is None:
        return
    box = part.within(grid)
    distance = organ.shape.distance(part)
    distance += relief[box]
    paint(signal[box], distance - np.float32(organ.rim), organ.rim_value, edge)
    paint(signal[box], distance, organ.value, edge)


def _add_atrium(
    signal: ScalarField, label: NDArray[np.uint8], atrium: Atrium, grid: SamplingGrid, relief: ScalarField, edge: float
) -> None:
    """Paint the wall and blood of the atrium, and label the blood, in veins up to `VEIN_REACH` from the chamber."""
    margin = atrium.wall + edge + _RELIEF_LIMIT
    veins = []
    for vein in atrium.veins:
        part = grid.crop(*vein.bounds(_VEIN_WALL + edge + _RELIEF_LIMIT))
        if part is None:
            continue
        box = part.within(grid)
        distance = vein.distance(part)
        distance += relief[box]
        paint(signal[box], distance - np.float32(_VEIN_WALL), atrium.healthy, edge)
        veins.append((box, distance))
        near = part.crop(*atrium.chamber.bounds(VEIN_REACH))
        if near is not None:
            inside = distance[near.within(part)] < 0
            label[near.within(grid)] |= inside & (atrium.chamber.distance(near) < VEIN_REACH)
    (low, high), (far_low, far_high) = atrium.chamber.bounds(margin), atrium.appendage.bounds(margin)
    part = grid.crop(np.minimum(low, far_low), np.maximum(high, far_high))
    if part is not None:
        box = part.within(grid)
        distance = atrium.chamber.distance(part)
        _join(distance, atrium.appendage, part, margin)
        distance += relief[box]
        label[box] |= distance < 0
        wall = np.clip(atrium.patches.on(part), np.float32(0), np.float32(1))
        wall *= np.float32(atrium.scar - atrium.healthy)
        wall += np.float32(atrium.healthy)
        paint(signal[box], distance - np.float32(atrium.wall), wall, edge)
        paint(signal[box], distance, atrium.blood, edge)
    for box, distance in veins:  # after the wall, through which the veins open
        paint(signal[box], distance, atrium.blood, edge)


def _join(distance: ScalarField, tube: Tube, grid: SamplingGrid, margin: float) -> None:
    """Change the distance, in place, to the distance to the union of its shape with the tube."""
    part = grid.crop(*tube.bounds(margin))
    if part is not None:
        nearest = distance[part.within(grid)]
        np.minimum(nearest, tube.distance(part), out=nearest)


def _receive(
    signal: ScalarField, body: Body, gain: ScalarField, rng: np.random.Generator, image: NDArray[np.int16]
) -> None:
    """Fill `image` with the magnitude of signal * (1 + gain), with noise in both components (Rician noise).

    All arrays are contiguous and have the same shape. The noise of a component is the sum of four random bytes, which
    is nearly Gaussian with tails up to 3.5 standard deviations and about four times faster than `standard_normal`.
    """
    signal, gain, image = signal.reshape(-1), gain.reshape(-1), image.reshape(-1)
    unit = body.noise / _BYTES_DEVIATION
    for start in range(0, signal.size, _PIECE):
        piece = slice(start, min(start + _PIECE, signal.size))
        real, factor = signal[piece], gain[piece]
        factor += np.float32(1)
        factor *= np.float32(1 / unit)
        real *= factor
        noise = _byte_sums(2 * real.size, rng)
        real += noise[0::2]
        imaginary = noise[1::2].astype(np.float32)
        np.square(real, out=real)
        np.square(imaginary, out=imaginary)
        real += imaginary
        np.sqrt(real, out=real)
        real *= np.float32(body.scale * unit)
        image[piece] = real


def _byte_sums(count: int, rng: np.random.Generator) -> NDArray[np.int16]:
    """Return sums of four random bytes minus their mean; 64 random bits give two sums, added within the word."""
    words = rng.integers(0, 2**64, count // 2, dtype=np.uint64)
    odd = words >> np.uint64(8)
    odd &= _EVEN_BYTES
    words &= _EVEN_BYTES
    words += odd
    pairs = words.view(np.int16)
    sums = pairs[0::2] + pairs[1::2]
    sums -= np.int16(4 * 255 // 2)
    return sums

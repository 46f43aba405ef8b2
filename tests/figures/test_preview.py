"""The preview: upright, to scale, contours where the mask is."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib import image

from fheat.data.classes import label_counts
from fheat.data.orientation import reorient
from fheat.data.planes import slowest_axis
from fheat.figures.preview import middle_planes as planes_half_way
from fheat.figures.preview import plane_at, preview_png
from fheat.io import Volume
from tests.grids import affines


def coloured(png):
    """Pixels that are neither grey nor white: the contours."""
    pixels = image.imread(BytesIO(png))[..., :3]
    return np.ptp(pixels, axis=-1) > 0.3


def scan_and_mask(affine=None):
    scan = np.random.default_rng(0).normal(100, 5, (30, 24, 18))
    mask = np.zeros((30, 24, 18), dtype=np.uint8)
    mask[4:12, 6:18, 5:13] = 1
    affine = np.diag([1.0, 1.5, 2.0, 1.0]) if affine is None else affine
    return Volume(scan, affine), Volume(mask, affine)


def test_contours_are_drawn_only_where_there_is_a_mask():
    scan, mask = scan_and_mask()
    png = preview_png(scan, mask, ("chamber",))
    assert png.startswith(b"\x89PNG")
    assert coloured(png).sum() > 300
    empty = preview_png(scan, Volume(np.zeros_like(mask.data), mask.affine))
    assert coloured(empty).sum() == 0
    assert preview_png(scan, mask, ("chamber",)) == png


def test_left_is_left_in_every_orientation():
    """The mask lies in the left third; its contour must lie left of the middle of the axial and coronal planes."""
    for affine, spacing in list(affines())[::36]:
        flat = np.zeros((4, 4))
        flat[3, 3] = 1
        flat[:3, :3] = np.round(affine[:3, :3] / np.array(spacing))
        if abs(np.linalg.det(flat[:3, :3])) != 1:
            continue
        shape = np.abs(flat[:3, :3]).T @ np.array([30, 24, 18])
        index = np.stack(np.meshgrid(*(np.arange(n) for n in shape.astype(int)), indexing="ij"), axis=-1)
        right = (index - (shape - 1) / 2) @ flat[:3, :3].T
        mask = ((right[..., 0] < -4) & (abs(right[..., 1]) < 5) & (abs(right[..., 2]) < 4)).astype(np.uint8)
        png = preview_png(Volume(np.zeros(mask.shape), flat), Volume(mask, flat))
        hits = coloured(png)
        third = hits.shape[1] // 3
        for panel in (1, 2):
            columns = np.flatnonzero(hits[: int(0.85 * hits.shape[0]), panel * third : (panel + 1) * third].any(axis=0))
            assert columns.mean() < 0.5 * third


def test_channels_and_several_labels():
    scan, mask = scan_and_mask()
    mask.data[14:20, 6:18, 5:13] = 3
    double = Volume(np.stack([scan.data, scan.data], axis=-1), scan.affine)
    assert coloured(preview_png(double, mask, ("a", "b", "c"))).sum() > 400


SHAPE, SPACING = (24, 24, 24), (0.8, 1.1, 1.7)
BLOCK = ((3, 15), (7, 19), (11, 23))
MIDDLE = (8, 12, 16)


def block(bounds=BLOCK):
    mask = np.zeros(SHAPE, dtype=np.uint8)
    mask[tuple(slice(*pair) for pair in bounds)] = 1
    return mask


def middle_planes(places=MIDDLE):
    """Where the three planes lie; a panel that shows another one sees two lines of this and nothing else."""
    planes = np.zeros(SHAPE, dtype=bool)
    for axis, place in enumerate(places):
        np.moveaxis(planes, axis, 0)[place] = True
    return planes


def pictures(png):
    """The pixels of the sagittal, coronal and axial picture, cut out where the black of the scan ends."""
    pixels = image.imread(BytesIO(png))[..., :3]
    for panel in np.array_split(pixels, 3, axis=1):
        dark = panel.max(axis=-1) < 0.1
        rows, columns = (np.flatnonzero(count > 0.5 * count.max()) for count in (dark.sum(axis=1), dark.sum(axis=0)))
        yield panel[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def extent(pixels):
    """First and past the last row and column that are set."""
    return np.array([edge for axis in (1, 0) for edge in np.flatnonzero(pixels.any(axis=axis))[[0, -1]] + (0, 1)])


@pytest.mark.parametrize("codes", ["RAS", "LPS", "SRA", "PIL"])
def test_every_panel_shows_its_plane_to_scale_and_upright_with_the_contour_on_it(codes):
    """A bright block in the planes through its middle: left is left, anterior right or up, superior up."""
    mask, affine = block(), np.diag([*SPACING, 1.0])
    scan, label = (reorient(Volume(data, affine), codes) for data in (100.0 * mask * middle_planes(), mask))
    for axis, picture in enumerate(pictures(preview_png(scan, label))):
        across, up = (other for other in range(3) if other != axis)
        height, width = picture.shape[:2]
        assert height / width == pytest.approx(SPACING[up] / SPACING[across], rel=0.02)
        (left, right), (low, high) = BLOCK[across], BLOCK[up]
        expected = np.array([1 - high / 24, 1 - low / 24, left / 24, right / 24]) * (height, height, width, width)
        hits = np.ptp(picture, axis=-1) > 0.3
        bright = (picture.min(axis=-1) > 0.9) | hits
        top, bottom, first, last = extent(bright)
        assert np.abs([top, bottom, first, last] - expected).max() < 4
        assert bright[top:bottom, first:last].mean() > 0.95
        assert np.abs(extent(hits) - expected).max() < 4
        assert not hits[top + 9 : bottom - 9, first + 9 : last - 9].any()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_middle_planes_halve_the_labelled_voxels(order, share):
    random = np.random.default_rng(0)
    for _ in range(20):
        labels = np.asarray(3 * (random.random(random.integers(1, 20, 3)) < share), np.uint8, order=order)[::-1]
        for axis, place in enumerate(planes_half_way(labels)):
            counts = (labels > 0).sum(axis=tuple({0, 1, 2} - {axis}))
            if counts.any():
                assert 2 * counts[:place].sum() < counts.sum() <= 2 * counts[: place + 1].sum()
            else:
                assert place == labels.shape[axis] // 2


@pytest.mark.parametrize("order", ["C", "F"])
def test_labels_are_counted_whatever_their_order_in_memory(order):
    labels = np.asarray(np.random.default_rng(0).integers(0, 256, (7, 5, 6)), np.uint8, order=order)[:, ::-1]
    assert np.array_equal(label_counts(labels), np.bincount(labels.ravel(), minlength=256))
    assert slowest_axis(labels) == {"C": 0, "F": 2}[order]


def test_a_plane_of_a_scan_as_nifti_has_it_is_no_copy():
    scan = np.asfortranarray(np.arange(60).reshape(3, 4, 5))
    for axis in range(3):
        plane = plane_at(scan, axis, 2)
        assert np.array_equal(plane, scan.take(2, axis))
        assert np.shares_memory(plane, scan)


def test_without_a_mask_the_middle_of_the_scan_is_shown():
    bright = block(((6, 18), (8, 20), (4, 16))) * middle_planes((12, 12, 12))
    affine = np.diag([*SPACING, 1.0])
    for picture in pictures(preview_png(Volume(bright, affine), Volume(np.zeros(SHAPE, np.uint8), affine))):
        assert (picture.min(axis=-1) > 0.9).mean() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("name", ["$", "$\\frac{$", "cost in $ and $", "a_b^c", "50 %"])
def test_a_name_is_shown_as_it_is_written(name):
    """A name that is no formula does not stop the picture, and one that looks like one is not set as one."""
    scan, mask = scan_and_mask()
    assert coloured(preview_png(scan, mask, (name,))).sum() > 300


def test_letters_stand_at_the_sides_of_every_panel(monkeypatch):
    """The letters are read from the axes before they are drawn: L and R, P and A, I and S, in their places."""
    from fheat.figures import preview

    seen = []

    def keep(figure):
        for axes in figure.axes:
            title = axes.get_title().split("\n")
            seen.append((title[0].split()[0], axes.get_ylabel(), axes.texts[0].get_text(), axes.get_xlabel(), title[1]))
        return b""

    monkeypatch.setattr(preview, "png_bytes", keep)
    preview_png(*scan_and_mask())
    assert seen == [
        ("sagittal", "P", "A", "I", "S"),
        ("coronal", "L", "R", "I", "S"),
        ("axial", "L", "R", "P", "A"),
    ]


def test_a_reference_has_a_contour_of_its_own_colour():
    scan, mask = scan_and_mask()
    moved = Volume(np.roll(mask.data, 8, axis=0), mask.affine)

    def blue(png):
        pixels = image.imread(BytesIO(png))[..., :3]
        return ((pixels[..., 2] - pixels[..., 0]) > 0.5).sum()

    assert blue(preview_png(scan, mask)) == 0
    assert blue(preview_png(scan, mask, reference=moved)) > 100


def test_the_window_is_that_of_the_percentiles():
    """Values from 0 to 99 along one axis: within the window of 20 to 60 % the rest is black or white."""
    ramp = np.broadcast_to(np.linspace(0, 99, 24)[:, None, None], SHAPE)
    scan = Volume(np.ascontiguousarray(ramp), np.eye(4))
    empty = Volume(np.zeros(SHAPE, np.uint8), np.eye(4))

    def shares(window):
        axial = np.array_split(image.imread(BytesIO(preview_png(scan, empty, window=window)))[..., :3], 3, axis=1)[2]
        middle = axial[axial.shape[0] // 2].mean(axis=-1)
        inside = middle[np.flatnonzero(middle < 0.02)[0] :]
        return (inside < 0.02).sum(), ((inside > 0.02) & (inside < 0.98)).sum()

    black, grey = shares((1, 99))
    darker, fewer = shares((20, 60))
    assert darker > 3 * black
    assert fewer < 0.6 * grey


@pytest.mark.parametrize("shape", [(72, 64, 56), (120, 60, 40), (40, 60, 160), (60, 60, 6), (183, 140, 88)])
def test_no_title_is_cut_off(shape):
    """Planes of different heights stand side by side, each with two lines above it."""
    voxels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    mask = np.zeros(shape, np.uint8)
    mask[tuple(slice(length // 4, 3 * length // 4) for length in shape)] = 1
    volumes = Volume(voxels, np.eye(4)), Volume(mask, np.eye(4))
    picture = image.imread(BytesIO(preview_png(*volumes, ("chamber",), reference=volumes[1])))
    edges = (picture[:2], picture[-2:], picture[:, :2], picture[:, -2:])
    assert all((edge[..., :3] == 1).all() for edge in edges)

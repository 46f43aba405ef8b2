"""The preview: upright, to scale, contours where the mask is."""

from io import BytesIO

import numpy as np
from matplotlib import image

from fheat.io import Volume
from fheat.report.preview import preview_png
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

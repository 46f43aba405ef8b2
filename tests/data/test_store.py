"""Crops gathered on the device equal crops cut with slices, compressed or not."""

import numpy as np
import pytest
import torch

from fheat.data.store import VolumeStore

PATCH = (8, 6, 5)


def volumes(levels, channels=None, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(12, 9, 8), (10, 15, 7), (8, 6, 5), (5, 20, 3)]
    tail = () if channels is None else (channels,)
    images = [(rng.integers(0, levels, (*shape, *tail)) / 7 - 3).astype(np.float32) for shape in shapes]
    labels = [rng.integers(0, 3, shape).astype(np.uint8) for shape in shapes]
    return images, labels


def padded(volume):
    """Axes not longer than the patch get half of what lacks plus one voxel of zeros on both sides."""
    pads = [max((p - n) // 2 + 1, 0) if n <= p else 0 for n, p in zip(volume.shape, PATCH, strict=False)]
    return np.pad(volume, [*((pad, pad) for pad in pads), *([(0, 0)] * (volume.ndim - 3))])


@pytest.mark.parametrize("levels", [2, 256, 5000])
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_crops_equal_slices(levels, channels):
    images, labels = volumes(levels, channels)
    store = VolumeStore(images, labels, PATCH)
    assert store.voxels.dtype == (torch.float32 if levels > 256 else torch.uint8)
    for _ in range(10):
        cases = torch.randint(4, (6,))
        corners = store.corners(cases, PATCH)
        found, masks = store.crop(cases, corners, PATCH)
        assert found.dtype == torch.float32
        for index, (case, corner) in enumerate(zip(cases.tolist(), corners.tolist(), strict=True)):
            box = tuple(slice(a, a + n) for a, n in zip(corner, PATCH, strict=True))
            expected = padded(images[case])[box]
            expected = expected[None] if channels is None else np.moveaxis(expected, -1, 0)
            assert np.array_equal(found[index].numpy(), expected)
            assert np.array_equal(masks[index].numpy(), padded(labels[case])[box])


def test_corners_are_uniform_and_never_the_last():
    images, labels = volumes(5)
    store = VolumeStore(images, labels, PATCH)
    corners = store.corners(torch.zeros(4000, dtype=torch.int64), PATCH)
    for axis, room in enumerate((4, 3, 3)):  # 12 - 8, 9 - 6, 8 - 5
        counts = torch.bincount(corners[:, axis], minlength=room)
        assert len(counts) == room
        assert (counts / 4000 - 1 / room).abs().max() < 0.04


def test_extremes_and_cases_without_a_label():
    images, labels = volumes(300, channels=2)
    store = VolumeStore(images, [labels[0], None, None, labels[3]], PATCH)
    for case, image in enumerate(images):
        whole = padded(image)
        assert store.low[case].tolist() == pytest.approx(whole.min(axis=(0, 1, 2)).tolist())
        assert store.high[case].tolist() == pytest.approx(whole.max(axis=(0, 1, 2)).tolist())
    _, masks = store.crop(torch.tensor([1]), store.corners(torch.tensor([1]), PATCH), PATCH)
    assert not masks.any()
    with pytest.raises(ValueError, match="4 images and 1 labels"):
        VolumeStore(images, [None], PATCH)

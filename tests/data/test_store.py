"""Crops gathered on the device equal crops cut with slices, compressed or not."""

import numpy as np
import pytest
import torch

from fheat.data.store import VolumeStore, all_coded, bytes_together, corners_at, pack, pack_all
from fheat.data.stream import HostStore

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
    store = VolumeStore(pack_all(images, labels, PATCH))
    assert store.voxels.dtype == (torch.float32 if levels > 256 else torch.uint8)
    for _ in range(10):
        cases = torch.randint(4, (6,))
        corners = corners_at(torch.rand(6, 3), store.shapes[cases], PATCH)
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
    store = VolumeStore(pack_all(images, labels, PATCH))
    corners = corners_at(torch.rand(4000, 3), store.shapes[torch.zeros(4000, dtype=torch.int64)], PATCH)
    for axis, room in enumerate((4, 3, 3)):  # 12 - 8, 9 - 6, 8 - 5
        counts = torch.bincount(corners[:, axis], minlength=room)
        assert len(counts) == room
        assert (counts / 4000 - 1 / room).abs().max() < 0.04


def test_extremes_and_cases_without_a_label():
    images, labels = volumes(300, channels=2)
    store = VolumeStore(pack_all(images, [labels[0], None, None, labels[3]], PATCH))
    for case, image in enumerate(images):
        whole = padded(image)
        assert store.low[case].tolist() == pytest.approx(whole.min(axis=(0, 1, 2)).tolist())
        assert store.high[case].tolist() == pytest.approx(whole.max(axis=(0, 1, 2)).tolist())
    _, masks = store.crop(torch.tensor([1]), torch.zeros(1, 3, dtype=torch.int64), PATCH)
    assert not masks.any()
    with pytest.raises(ValueError, match="4 images and 1 labels"):
        pack_all(images, [None], PATCH)
    with pytest.raises(ValueError, match="no volumes"):
        VolumeStore([])


@pytest.mark.parametrize("levels", [5, 5000])
@pytest.mark.parametrize("channels", [None, 2])
@pytest.mark.parametrize("first", [0, 3])
def test_streamed_crops_equal_resident_ones(levels, channels, first):
    images, labels = volumes(levels, channels)
    labels[1] = None
    packed = pack_all(images, labels, PATCH)
    assert all_coded(packed) == (levels == 5)
    cases, places = torch.randint(4, (12, 3)), torch.rand(12, 3, 3)
    resident, streamed = (kind(packed).crops(cases, places, PATCH) for kind in (VolumeStore, HostStore))
    before = torch.get_rng_state()
    for iteration in map(torch.tensor, range(first, 12)):
        for crops in (resident, streamed):
            crops.load(iteration)
        for one, other in zip(resident(iteration), streamed(iteration), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_one_image_with_many_values_makes_all_be_kept_as_values():
    few, many = volumes(5)[0], volumes(5000)[0]
    packed = pack_all([few[0], many[1]], [None, None], PATCH)
    assert [volume.voxels.dtype for volume in packed] == [np.uint8, np.float32]
    places, cases = torch.rand(4, 2, 3), torch.tensor([[0, 1]] * 4)
    resident, streamed = (kind(packed).crops(cases, places, PATCH) for kind in (VolumeStore, HostStore))
    for iteration in map(torch.tensor, range(4)):
        streamed.load(iteration)
        images, _ = streamed(iteration)
        assert torch.equal(images, resident(iteration)[0])
        assert torch.isin(images[0], torch.from_numpy(np.append(few[0], 0))).all()
    voxels = sum(volume.label is None and volume.voxels.size for volume in packed)
    assert bytes_together(packed) == 5 * voxels
    assert bytes_together(packed[:1]) == 2 * packed[0].voxels.size


def test_packing_loses_nothing_and_a_rare_value_is_not_missed():
    image = np.zeros((40, 40, 40), np.float32)
    image.flat[1:301] = np.arange(300)  # too many values, most of them not in the sample that is looked at first
    for wanted, kept in ((image, np.float32), (np.minimum(image, 200), np.uint8)):
        packed = pack(wanted, None, PATCH)
        assert packed.voxels.dtype == kept
        assert np.array_equal(packed.values()[0], wanted)
        assert (packed.low, packed.high) == (wanted.min(), wanted.max())


def test_a_mistake_while_gathering_reaches_the_caller():
    images, labels = volumes(5)
    crops = HostStore(pack_all(images, labels, PATCH)).crops(torch.full((2, 1), 9), torch.rand(2, 1, 3), PATCH)
    with pytest.raises(IndexError):
        crops.load(torch.tensor(0))


@pytest.mark.parametrize("kind", ["even", "gaps", "uneven", "two", "one", "many"])
def test_codes_give_every_value_back(kind):
    """Evenly spaced values are coded without sorting; all others, and wrong guesses of the spacing, by sorting."""
    rng = np.random.default_rng(3)
    whole = rng.integers(0, 256, (40, 36, 34))
    values = {
        "even": np.float32(0.0173) * whole.astype(np.float32) - np.float32(1.23),
        "gaps": np.where(whole % 7 == 0, 3 * whole, 0).astype(np.float32) / 3,
        "uneven": rng.normal(size=200).astype(np.float32)[whole % 200],
        "two": (whole > 99).astype(np.float32),
        "one": np.full(whole.shape, 2.5, np.float32),
        "many": rng.normal(size=whole.shape).astype(np.float32),
    }[kind]
    packed = pack(values, None, (32, 32, 32))
    assert np.array_equal(packed.values()[0], values)
    assert (packed.table is None) == (kind == "many")

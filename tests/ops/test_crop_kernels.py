"""Crops gathered by one kernel: bit for bit those of the plain twin, augmented or not, from codes and from values."""

import numpy as np
import pytest
import torch

from fheat.data.store import VolumeStore, pack_all
from fheat.ops import kernels
from fheat.training.batches import Batches, Draws, draw
from fheat.training.walks import walks_of

SHAPES = [(12, 9, 8), (10, 15, 7), (8, 6, 5), (5, 20, 3), (9, 8, 8)]


@pytest.fixture
def _interpreted(poisoned):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU; see tests/gpu")


def store_of(levels, channels, patch):
    rng = np.random.default_rng(0)
    tail = () if channels == 1 else (channels,)
    images = [(rng.integers(0, levels, (*shape, *tail)) / 7 - 3).astype(np.float32) for shape in SHAPES]
    labels = [rng.integers(0, 3, shape).astype(np.uint8) for shape in SHAPES]
    return VolumeStore(pack_all(images, [*labels[:3], None, labels[4]], patch))


def batches(store, draws, patch, augment):
    """Return all batches by the twin and by the kernel."""
    found = []
    for mode in ("never", "always"):
        with kernels.use(mode):
            found.append(Batches(store, draws, patch, augment=augment).all())
    return found


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("augment", ["none", "mirror", "rotate"])
@pytest.mark.parametrize(("levels", "channels"), [(200, 1), (5000, 1), (200, 3), (5000, 2)])
@pytest.mark.parametrize("patch", [(6, 6, 5), (8, 8, 4), (12, 12, 11)])
def test_crops_equal_those_of_the_twin(patch, levels, channels, augment):
    store = store_of(levels, channels, patch)
    assert store.voxels.dtype == (torch.uint8 if levels == 200 else torch.float32)
    plain, found = batches(store, draw((2, 3), (2, 3), 4, 0), patch, augment)
    for one, other in zip(found, plain, strict=True):
        for name, own, twin in zip(one._fields, one, other, strict=True):
            assert own.dtype == twin.dtype, name
            assert torch.equal(own, twin), name


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("augment", ["none", "mirror", "rotate"])
def test_crops_at_the_borders(augment):
    patch = (6, 6, 5)
    store = store_of(200, 1, patch)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0 - 2**-24])] * 3).view(2, 4, 3)
    chances = torch.cartesian_prod(*[torch.tensor([0.0, 0.25, 0.5, 0.99])] * 2)[:8].view(2, 4, 2)
    chances = torch.cat([chances, chances[..., :1]], dim=2)
    orders = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]]), torch.tensor([[2, 3, 4, 4], [4, 2, 3, 3]])
    draws = Draws(orders, (corners, corners.flip(0)), (chances, chances.flip(1)))
    plain, found = batches(store, draws, patch, augment)
    assert all(torch.equal(*pair) for one, two in zip(found, plain, strict=True) for pair in zip(one, two, strict=True))


@pytest.mark.usefixtures("_interpreted")
def test_crops_without_unlabelled_ones():
    store = store_of(200, 1, (6, 6, 5))
    plain, found = batches(store, draw((5, 0), (2, 0), 2, 0), (6, 6, 5), "mirror")
    assert all(torch.equal(*pair) for one, two in zip(found, plain, strict=True) for pair in zip(one, two, strict=True))


def test_without_augmentation_the_steps_are_the_strides():
    store = store_of(200, 1, (6, 6, 5))
    cases = torch.tensor([[1, 0]])
    found = walks_of(store, cases, torch.zeros(1, 2, 3), torch.rand(1, 2, 3), (6, 6, 5), "none")
    assert found.tolist() == [[[12 * 9 * 8, 105, 7, 1, 1], [0, 72, 8, 1, 0]]]


def test_turning_a_crop_that_is_not_square_is_left_to_the_twin_which_refuses_it():
    store = store_of(200, 1, (6, 5, 5))
    with kernels.use("always"), pytest.raises(RuntimeError, match="size"):
        Batches(store, draw((2, 3), (2, 2), 2, 0), (6, 5, 5), augment="rotate").all()

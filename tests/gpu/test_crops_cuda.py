"""Crops gathered by one kernel on a GPU, at the size of a training run: bit for bit those of the plain twin."""

import numpy as np
import pytest
import torch

from fheat.data.store import VolumeStore, pack_all
from fheat.ops import kernels
from fheat.training.batches import Batches, draw

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PATCH = (112, 112, 80)


@pytest.mark.parametrize("augment", ["none", "mirror", "rotate"])
@pytest.mark.parametrize(("levels", "channels"), [(200, 1), (5000, 1), (200, 3)])
def test_crops_equal_those_of_the_twin(levels, channels, augment):
    rng = np.random.default_rng(0)
    shapes = [(150, 130, 88), (113, 140, 90), (100, 150, 81)]
    images = [(rng.integers(0, levels, (*shape, channels)) / 7 - 3).astype(np.float32) for shape in shapes]
    labels = [rng.integers(0, 3, shape).astype(np.uint8) for shape in shapes]
    store = VolumeStore(pack_all(images, [*labels[:2], None], PATCH), "cuda")
    draws = draw((1, 2), (2, 2), 3, 0)
    with kernels.use("never"):
        plain = Batches(store, draws, PATCH, augment=augment).all()
    found = Batches(store, draws, PATCH, augment=augment).all()
    for one, other in zip(found, plain, strict=True):
        for name, own, twin in zip(one._fields, one, other, strict=True):
            assert own.dtype == twin.dtype, name
            assert torch.equal(own, twin), name

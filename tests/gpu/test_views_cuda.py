"""The views from which CSE learns on a GPU, at the size of a training run: those of the plain twin."""

import pytest
import torch

from fheat.methods.base import Batch
from fheat.methods.cse import draw_place, learned_views
from fheat.methods.views import draw_kept, draw_noise, draw_power
from fheat.ops import kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PATCH = (112, 112, 80)


@pytest.mark.parametrize("labelled", [False, True], ids=["labelled outside", "labelled inside"])
@pytest.mark.parametrize("channels", [1, 2])
def test_views_equal_those_of_the_twin(channels, labelled):
    images, weak = (torch.randn(2, channels, *PATCH, device="cuda") for _ in range(2))
    low, high = weak.flatten(2).amin(dim=2) + 1, weak.flatten(2).amax(dim=2)
    batch = Batch(images, torch.zeros(2, *PATCH, dtype=torch.int64, device="cuda"), weak, low, high)
    numbers, kept = (draw_power(weak), *draw_noise(weak)), draw_kept(weak)
    for choice in (0, 13, 26):
        place = torch.tensor(choice, device="cuda")
        with kernels.use("never"):
            expected, mask = learned_views(batch, numbers, kept, place, labelled)
        found, own = learned_views(batch, numbers, kept, place, labelled)
        assert torch.equal(own, mask)
        assert torch.equal(found[:2], images)
        assert torch.equal(found[4:], expected[4:])
        assert (found - expected).abs().max() < 2e-6
        assert (found - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("value", [None, 7.5], ids=["drawn", "constant"])
def test_boxes_are_those_of_the_twin(value):
    attention = torch.rand(2, 1, 28, 28, 20, device="cuda") ** 3
    if value is not None:
        attention = torch.full((2, 1, 1, 1, 1), value, device="cuda")
    places = []
    for mode in ("never", "auto"):
        torch.manual_seed(3)
        with kernels.use(mode):
            places.append(torch.stack([draw_place(attention, torch.Size(PATCH)) for _ in range(100)]))
    assert (places[0] != places[1]).sum() <= 1  # sums are rounded differently
    assert len(places[0].unique()) > 10

"""The views from which CSE learns, made by one kernel: those of the plain twin."""

import pytest
import torch

from fheat.methods.base import Batch
from fheat.methods.cse import draw_place, learned_views
from fheat.methods.views import draw_kept, draw_noise, draw_power
from fheat.ops import kernels


@pytest.fixture
def _interpreted(poisoned):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU; see tests/gpu")


def drawn(channels, grid):
    images, weak = torch.randn(2, channels, *grid), torch.randn(2, channels, *grid)
    low, high = weak.flatten(2).quantile(0.02, dim=2), weak.flatten(2).amax(dim=2)  # some voxels lie below
    batch = Batch(images, torch.zeros(2, *grid, dtype=torch.int64), weak, low, high)
    strength, chance, white = draw_noise(weak)
    chance[0], chance[1] = 0.2, 0.7  # the first crop gets noise, the second none
    return batch, (draw_power(weak), strength, chance, white), draw_kept(weak)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("labelled", [False, True], ids=["labelled outside", "labelled inside"])
@pytest.mark.parametrize(("channels", "grid"), [(1, (16, 16, 32)), (3, (16, 16, 16)), (1, (24, 17, 20))])
def test_views_equal_those_of_the_twin(channels, grid, labelled):
    torch.manual_seed(0)
    batch, numbers, kept = drawn(channels, grid)
    for choice in (0, 13, 26):
        expected, mask = learned_views(batch, numbers, kept, torch.tensor(choice), labelled)
        with kernels.use("always"):
            found, own = learned_views(batch, numbers, kept, torch.tensor(choice), labelled)
        assert own.dtype == torch.bool
        assert torch.equal(own, mask)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < 1e-6
        assert (found - expected).norm() < 2e-7 * expected.norm()
        assert torch.equal(found[:2], batch.images)
        assert torch.equal(found[4:], expected[4:])
        assert len(found[2:4].unique()) > 1000


@pytest.mark.usefixtures("_interpreted")
def test_views_of_crops_that_lie_channel_by_channel():
    batch, numbers, kept = drawn(2, (16, 16, 16))
    turned = [crops.transpose(0, 1).contiguous().transpose(0, 1) for crops in (batch.images, batch.unlabelled)]
    other = batch._replace(images=turned[0], unlabelled=turned[1])
    place = draw_place(torch.rand(2, 1, 4, 4, 4), batch.unlabelled.shape[2:])
    with kernels.use("always"):
        one, two = (learned_views(some, numbers, kept, place, labelled=True)[0] for some in (batch, other))
    assert torch.equal(one, two)


@pytest.mark.usefixtures("_interpreted")
def test_a_voxel_that_is_not_finite_is_seen():
    batch, numbers, kept = drawn(1, (16, 16, 16))
    batch.unlabelled[0, 0, 3, 4, 5] = float("nan")
    with kernels.use("always"):
        found, _ = learned_views(batch, numbers, kept.fill_(1), torch.tensor(0), labelled=True)
    assert found[2, 0, 3, 4, 5].isnan()
    assert found.isnan().sum() <= 2

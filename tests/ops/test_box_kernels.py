"""The box of CSE by two kernels: it is the one that the plain twin draws with the same numbers."""

import pytest
import torch

from fheat.methods.cse import _box_weights, box_scores, draw_place
from fheat.ops import kernels


@pytest.fixture
def _interpreted(poisoned):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU; see tests/gpu")


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("grid", [(28, 28, 20), (7, 6, 5), (1, 1, 1)])
def test_scores(grid):
    from fheat.ops.kernels.boxes import score_boxes

    patch = torch.Size((112, 112, 80))
    attention = torch.rand(2, 1, *grid) ** 3
    raw = score_boxes(attention, [_box_weights(*pair, attention.device) for pair in zip(patch, grid, strict=True)])
    if max(grid) > 1:
        found = ((raw - raw.min()) / (raw.max() - raw.min())).view(3, 3, 3)
        assert (found - box_scores(attention, patch)).abs().max() < 1e-5
    whole = torch.nn.functional.interpolate(attention, size=patch, mode="trilinear", align_corners=True)
    assert raw[13].item() == pytest.approx(whole[:, :, 19:93, 19:93, 13:66].double().sum().item(), rel=1e-5)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("value", [None, 0.0, 7.5], ids=["drawn", "nothing", "constant"])
def test_choices_are_those_of_the_twin(value):
    patch = torch.Size((48, 48, 32))
    attention = torch.rand(2, 1, 6, 6, 4) ** 3
    if value is not None:
        attention = torch.full((2, 1, 1, 1, 1), value)
    places = []
    for mode in ("never", "always"):
        torch.manual_seed(3)
        with kernels.use(mode):
            places.append(torch.stack([draw_place(attention, patch) for _ in range(40)]))
    assert torch.equal(*places)
    assert len(places[0].unique()) > 10

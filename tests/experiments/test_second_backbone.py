"""Fig. 4 on tiny phantoms: SegFormer3D with and without gates is trained with CSE, scored and drawn."""

import pytest

from fheat.experiments.plan import make_plan
from fheat.experiments.reproduce import reproduce
from fheat.models.folder import load
from fheat.networks.segformer import SITES
from fheat.ops.gates import gates_of
from fheat.training.runs import read_history

pytestmark = pytest.mark.slow


def test_fig4(tmp_path):
    plan = make_plan(["phantoms"], tmp_path, scale="tiny", device="cpu")
    (shown,) = reproduce(["fig4"], plan=plan)
    assert not shown.failures
    names = [f"la-4/{name}{rate}" for rate in ("", "-at-0-001") for name in ("segformer3d", "fheat-segformer3d")]
    assert [result.name for result in shown.results] == names
    numbers = {(number.row, number.quantity): number for number in shown.presented.numbers}
    assert all(number.state == "done" for number in numbers.values())
    assert numbers["", "survivors"].ours.mean == 8  # after two iterations
    assert 0.02 < numbers["", "D of the survivor"].ours.mean < 0.05
    assert numbers["la-4/fheat-segformer3d", "dice"].published.mean == 90.02
    assert numbers["cost/fheat-segformer3d", "parameters"].ours.mean == 4.952306
    assert [picture.file for picture in shown.presented.pictures][-1] == "fig4-D.svg"
    folder = shown.results[1].plan.runs[0].folder(plan.runs)
    assert read_history(folder).sites == list(SITES)
    assert list(gates_of(load(folder / "final"))) == list(SITES)

"""Ensembles: the mean of probabilities, one network as itself, and networks that do not belong together."""

import numpy as np
import pytest
import torch

from fheat import Predictor, create_model, save
from fheat.data.preprocessing import Intensity, Preprocessing
from fheat.models.card import Card
from fheat.models.ensemble import Ensemble, load_ensemble
from fheat.models.zoo import find_folder
from fheat.system.errors import BadInput

PATCH = (32, 32, 32)
CARD = Card(
    title="test", classes=("background", "inside"), preprocessing=Preprocessing(intensity=Intensity(kind="zscore"))
)


class Constant(torch.nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        return self.logits


@pytest.mark.parametrize("regions", [False, True])
def test_its_probabilities_are_the_mean(regions):
    logits = [3 * torch.randn(2, 3, 4, 4, 4) for _ in range(4)]
    out = Ensemble([Constant(one) for one in logits], regions=regions)(torch.zeros(1))
    probabilities = (lambda z: z.sigmoid()) if regions else (lambda z: z.softmax(dim=1))
    expected = sum(probabilities(one.double()) for one in logits) / 4
    assert (probabilities(out.double()) - expected).abs().max() < 1e-6


def test_certain_networks_stay_finite():
    certain = torch.tensor([200.0, -200.0]).view(1, 2, 1, 1, 1)
    for regions in (False, True):
        out = Ensemble([Constant(certain)] * 2, regions=regions)(torch.zeros(1))
        assert torch.isfinite(out).all()
        assert out[0, 0] > out[0, 1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for seed in range(2):
        torch.manual_seed(seed)
        save(create_model("miniature", patch_size=PATCH), root / f"seed-{seed}", CARD)
    torch.manual_seed(5)
    other = CARD.model_copy(update={"classes": ("background", "a", "b")})
    save(create_model("miniature", out_channels=3, patch_size=PATCH), root / "three", other)
    spaced = CARD.model_copy(update={"preprocessing": Preprocessing(spacing=(1.0, 1.0, 2.0))})
    save(create_model("miniature", patch_size=PATCH), root / "spaced", spaced)
    return root


def test_prediction_with_two_networks_is_that_of_their_mean(folders):
    scan = np.random.default_rng(0).normal(size=(40, 36, 34)).astype(np.float32)
    names = [folders / "seed-0", folders / "seed-1"]
    both = Predictor(names, device="cpu", runtime="torch")
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        each = [Predictor(name, device="cpu", runtime="torch").network(x).softmax(dim=1) for name in names]
        assert (both.network(x).softmax(dim=1) - sum(each) / 2).abs().max() < 1e-6
    assert both.segment(scan).shape == scan.shape
    assert both.card.title == "mean of 2 networks (test)"
    assert both.sources == tuple(names)


def test_one_network_is_itself(folders):
    model = load_ensemble([folders / "seed-0"])
    assert type(model).__name__ != "Ensemble"


@pytest.mark.parametrize(("name", "field"), [("three", "classes"), ("spaced", "preprocessing")])
def test_networks_for_another_task_are_refused(folders, name, field):
    with pytest.raises(BadInput, match=f"has another {field} than") as refusal:
        load_ensemble([folders / "seed-0", folders / name])
    assert str(folders / name) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_run_stands_for_its_best_network(folders, tmp_path):
    run = tmp_path / "run"
    torch.manual_seed(9)
    save(create_model("miniature", patch_size=PATCH), run / "final", CARD)
    assert find_folder(run) == run / "final"
    save(create_model("miniature", patch_size=PATCH), run / "best", CARD)
    assert find_folder(run) == run / "best"
    assert find_folder(folders / "seed-0") == folders / "seed-0"

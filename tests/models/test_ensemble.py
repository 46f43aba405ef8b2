"""Ensembles: the mean of probabilities, one network as itself, and networks that do not belong together."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fheat import Predictor, create_model, save
from fheat.data.preprocessing import Intensity, Preprocessing
from fheat.models.card import Card, Window
from fheat.models.ensemble import Ensemble, load_ensemble
from fheat.models.zoo import find_folder, networks_of
from tests.refusals import refused

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


def prepared(**changes):
    return CARD.model_copy(update={"preprocessing": CARD.preprocessing.model_copy(update=changes)})


MANY = tuple(f"organ number {number}" for number in range(104))
SAME = "average networks that segment the same"
TRAINED = "average networks that were trained with one"
HALF, THIRD = (Window(size=PATCH, stride=(step, step, step)) for step in (16, 11))
REFUSALS = {
    "classes": (
        CARD,
        CARD.model_copy(update={"classes": ("background", "a", "b")}),
        {"out_channels": 3},
        f"has other classes than z0: background, a, b, not background, inside; {SAME}",
    ),
    "many classes": (
        CARD,
        CARD.model_copy(update={"classes": MANY}),
        {"out_channels": 104},
        f"has other classes than z0: 104 of them, not 2; {SAME}",
    ),
    "regions": (
        CARD,
        CARD.model_copy(update={"regions": (2, 1)}),
        {},
        f"has other regions than z0: 2, 1, not none; {SAME}",
    ),
    "output": (Card(), Card(), {"out_channels": 3}, f"has another number of output channels than z0: 3, not 2; {SAME}"),
    "input": (
        CARD,
        CARD,
        {"in_channels": 4},
        "has another number of input channels than z0: 4, not 1; average networks that take the same scans",
    ),
    "spacing": (
        prepared(spacing=(2.5, 2.6, 2.5)),
        prepared(spacing=(3.0, 3.0, 3.0), tolerance=0.1),
        {},
        f"has another spacing than z0: 3 x 3 x 3 mm, not 2.5 x 2.6 x 2.5 mm; {TRAINED} --spacing",
    ),
    "no spacing": (
        CARD,
        prepared(spacing=(3.0, 3.0, 3.0)),
        {},
        f"has another spacing than z0: 3 x 3 x 3 mm, not that of each scan; {TRAINED} --spacing",
    ),
    "nearly the same spacing": (
        prepared(spacing=(0.5, 0.5, 0.5)),
        prepared(spacing=(0.5, 0.5, 0.500001)),
        {},
        f"has another spacing than z0: (0.5, 0.5, 0.500001), not (0.5, 0.5, 0.5); {TRAINED} --spacing",
    ),
    "orientation": (
        prepared(orientation="RAS"),
        prepared(orientation="LPS"),
        {},
        f"has another orientation than z0: LPS, not RAS; {TRAINED} --preprocessing.orientation",
    ),
    "tolerance": (
        CARD,
        prepared(tolerance=0.001),
        {},
        f"has another tolerance of the spacing than z0: 0.001, not 0.05; {TRAINED} --preprocessing.tolerance",
    ),
    "intensities": (
        CARD,
        prepared(intensity=Intensity(kind="window", low=-125, high=275)),
        {},
        f"has other intensities than z0: window -125 to 275, not zscore; {TRAINED} --intensity",
    ),
    "intensities inside": (
        CARD,
        prepared(intensity=Intensity(kind="zscore", nonzero=True)),
        {},
        f"has other intensities than z0: zscore_nonzero, not zscore; {TRAINED} --intensity",
    ),
    "patch": (
        CARD,
        CARD,
        {"patch_size": (16, 32, 32)},
        f"has another patch than z0: 16 x 32 x 32, not 32 x 32 x 32; {TRAINED} --patch-size",
    ),
    "windows": (
        CARD,
        CARD.model_copy(update={"window": HALF}),
        {},
        f"has other windows than z0: 32 x 32 x 32, not none; {TRAINED} --patch-size",
    ),
    "stride": (
        CARD.model_copy(update={"window": HALF}),
        CARD.model_copy(update={"window": THIRD}),
        {},
        "has another window stride than z0: 11 x 11 x 11, not 16 x 16 x 16; "
        "average networks that were validated with one --validation.stride",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_networks_that_do_not_fit_together_are_refused_in_one_short_line(name, tmp_path, monkeypatch):
    one, other, options, says = REFUSALS[name]
    monkeypatch.chdir(tmp_path)
    save(create_model("miniature", **{"patch_size": PATCH}), "z0", one)
    save(create_model("miniature", **({"patch_size": PATCH} | options)), "z2", other)
    line = str(refused(load_ensemble, ["z0", "z2"]))
    assert line == f"z2: {says}"
    assert len(line) < 200


def test_of_many_classes_the_first_that_differs_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = create_model("miniature", out_channels=104, patch_size=PATCH)
    save(network, "z0", Card(classes=MANY))
    save(network, "z2", Card(classes=(*MANY[:50], "spleen", *MANY[51:])))
    line = str(refused(load_ensemble, ["z0", "z2"]))
    assert line == f"z2: has other classes than z0: spleen, not organ number 50; {SAME}"


def test_a_run_stands_for_its_best_network(folders, tmp_path):
    run = tmp_path / "run"
    torch.manual_seed(9)
    save(create_model("miniature", patch_size=PATCH), run / "final", CARD)
    assert find_folder(run) == run / "final"
    save(create_model("miniature", patch_size=PATCH), run / "best", CARD)
    assert find_folder(run) == run / "best"
    assert find_folder(folders / "seed-0") == folders / "seed-0"


@pytest.fixture
def seeds(folders, tmp_path, monkeypatch):
    """Two finished runs and a model in one folder, beside what is hidden and what is no folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/b", "runs/a"):
        shutil.copytree(folders / "seed-0", f"{name}/final")
        Path(name, "config.toml").touch()
    shutil.copytree(folders / "seed-1", "runs/c")
    Path("runs/.claims").mkdir()
    Path("runs/sweep.csv").touch()
    return Path("runs")


def test_a_folder_of_runs_and_models_stands_for_all_of_them(seeds):
    assert networks_of("runs") == networks_of("runs/") == ["runs/a", "runs/b", "runs/c"]
    assert networks_of(seeds) == [seeds / "a", seeds / "b", seeds / "c"]
    both = Predictor("runs", device="cpu", runtime="torch")
    assert both.sources == ("runs/a", "runs/b", "runs/c")
    assert len(both.network.networks) == 3


def test_a_run_a_model_and_a_name_stand_for_themselves(seeds):
    (seeds / "b" / "best").mkdir()
    for name in ("runs/a", "runs/a/final", "runs/b", "runs/c", "la-4", "nowhere", "", seeds / "sweep.csv"):
        assert networks_of(name) == [name]
    Path("scans/imagesTr").mkdir(parents=True)
    assert networks_of("scans") == ["scans"]


def test_a_folder_with_something_else_or_an_unfinished_run_is_refused_in_one_line(seeds):
    shutil.rmtree("runs/b/final")
    line = "runs: holds the run b, which is not finished; finish it, or give the finished ones one by one"
    assert str(refused(networks_of, "runs")) == line
    Path("runs/scans").mkdir()
    line = "holds scans beside runs or models, and it is neither; give the runs or models one by one, such as runs/a"
    assert str(refused(networks_of, seeds)) == f"runs: {line}"

"""Whole runs by every method, with nested regions, with CT windows, and from Python."""

import json

import numpy as np
import pytest
import torch

import fheat
from fheat.cli.main import main
from fheat.data.classes import classes_of, has_regions
from fheat.data.layouts import open_dataset
from fheat.io import read_nifti, write_nifti
from fheat.io.volume import Volume
from fheat.system.errors import BadInput
from fheat.training.runs import read_history
from fheat.training.trainer import Stopped
from tests.training.helpers import SMALL, SMALL_WORDS, Run, StopAfter

SHORT = SMALL | {"iterations": 3, "warm_up": 1, "batch": 1}


REMEMBERED = {
    "mean_teacher": (["teacher.network."], {}),
    "ua_mt": (["teacher.network."], {}),
    "bcp": (["teacher.network."], {"method.pretraining": 2}),
    "cps": (["second."], {}),
    "fixmatch": ([], {}),
    "caml": (["memory.vectors"], {"method.compared": 4, "method.memory": 40, "method.added": 20}),
    "mlrp": (["second."], {}),
    "sassnet": (["head.", "discriminator.", "adam.first", "adam.count"], {"method.discriminator_width": 2}),
    "ss_net": (["memory.vectors", "memory.filled", "projection.norm.mean", "selectors."], {}),
}
"""Parts of each method that checkpoints must hold, and options with which a short run uses all of it."""


@pytest.mark.slow
@pytest.mark.parametrize("method", REMEMBERED)
def test_stopped_and_resumed_is_the_same_run(config, tmp_path, method):
    """A teacher, a second network and a memory are part of every checkpoint."""
    parts, options = REMEMBERED[method]
    settings = config(method=method, iterations=4, batch=2, checkpoint_every=100, validate_every=100, **options)
    whole = Run(settings, tmp_path / "whole")
    whole.train()
    with pytest.raises(Stopped):
        Run(settings, tmp_path / "cut", observers=[StopAfter(3)]).train()
    torch.manual_seed(99)
    again = Run(settings, tmp_path / "cut", resume=True)
    assert again.done == 3
    again.train()
    assert torch.equal(whole.step.history, again.step.history)
    states = whole.step.state(), again.step.state()
    for part in parts:
        assert any(name.startswith(f"method.{part}") and value.any() for name, value in states[0].items())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.fixture(scope="module")
def tumours(tmp_path_factory):
    """Phantoms whose label is split into three nested regions, declared as nnU-Net does."""
    folder = tmp_path_factory.mktemp("tumours") / "scans"
    assert main(["data", "phantom", str(folder), "--cases", "5", "--test", "1", "--shape", "40", "36", "34"]) == 0
    for path in (folder / "labelsTr").glob("*.nii.gz"):
        label = read_nifti(path)
        x = np.arange(label.data.shape[0])[:, None, None]
        middle = np.where(label.data > 0, x, 0).max() // 2
        data = label.data * (1 + (x > middle - 4).astype(np.uint8) + (x > middle + 2).astype(np.uint8))
        write_nifti(Volume(data.astype(np.uint8), label.affine), path)
    described = json.loads((folder / "dataset.json").read_text())
    described["labels"] = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}
    described["regions_class_order"] = [1, 2, 3]
    (folder / "dataset.json").write_text(json.dumps(described))
    return folder


def test_nested_regions_are_trained_validated_and_painted(tumours, tmp_path, capsys):
    words = ["train", str(tumours), *SMALL_WORDS, "--method", "supervised"]
    words += ["--iterations", "3", "--warm-up", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    model = fheat.load(tmp_path / "run" / "final")
    assert model.card.classes == ("whole", "core", "enhancing")
    assert model.card.regions == (1, 2, 3)
    assert model.spec.out_channels == 3
    predictor = fheat.Predictor(model, device="cpu", runtime="torch")
    mask = predictor.segment(next((tumours / "imagesTs").glob("*.nii.gz")))
    assert set(np.unique(mask.data)) <= {0, 1, 2, 3}
    assert predictor.classes == {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)}
    history = read_history(tmp_path / "run")
    assert 0 <= history.validations[-1].mean <= 1


def test_other_methods_train_exclusive_classes_unless_regions_are_asked_for(tumours, tmp_path):
    dataset = open_dataset(tumours)
    assert has_regions(dataset)
    assert classes_of(dataset).names == ("background", "label 1", "label 2", "enhancing")
    regions = classes_of(dataset, regions=True)
    assert regions.regions == ((1, 2, 3), (2, 3), (3,))
    assert regions.painted == (1, 2, 3)
    with pytest.raises(BadInput, match="method cse trains exclusive classes; use a method that takes regions"):
        fheat.train(data=str(tumours), out=tmp_path / "no", device="cpu", **SHORT, **{"regions": "yes"})
    assert not (tmp_path / "no").exists()


def test_regions_that_are_not_nested_are_refused(tumours, tmp_path):
    described = json.loads((tumours / "dataset.json").read_text())
    described["labels"] = {"background": 0, "left": [1, 2], "right": [2, 3]}
    folder = tmp_path / "scans"
    folder.mkdir()
    for name in ("imagesTr", "labelsTr", "splits.json"):
        (folder / name).symlink_to(tumours / name)
    (folder / "dataset.json").write_text(json.dumps(described))
    with pytest.raises(BadInput, match=r"regions that are not nested: right \[2, 3\] is not inside left \[1, 2\]"):
        classes_of(open_dataset(folder), regions=True)


def test_a_window_is_trained_kept_in_the_card_and_predicted_with(scans, tmp_path):
    case = open_dataset(scans).split("train")[0]
    low, high = map(float, np.quantile(read_nifti(case.images[0]).data, (0.1, 0.9)))
    run = fheat.train(
        data=str(scans), out=tmp_path / "run", device="cpu", method="supervised", intensity="window",
        window=(low, high), tolerance=0.2, **SHORT,
    )  # fmt: skip
    preprocessing = run.model().card.preprocessing
    assert (preprocessing.intensity.kind, preprocessing.intensity.low, preprocessing.intensity.high) == (
        "window",
        low,
        high,
    )
    assert preprocessing.tolerance == 0.2
    image = preprocessing.image(read_nifti(case.images[0]))
    assert (image.min(), image.max()) == (0, 1)


def test_python_does_what_the_verb_does(scans, tmp_path):
    words = [*SMALL_WORDS, "--iterations", "3", "--warm-up", "1", "--batch", "1"]
    words += ["--method", "supervised", "--optimiser.clip", "none", "--out", str(tmp_path / "verb")]
    assert main(["train", str(scans), *words]) == 0
    looks = []
    run = fheat.train(
        data=str(scans), method="supervised", out=tmp_path / "python", device="cpu", watch=looks.append,
        optimiser={"clip": None}, **SHORT,
    )  # fmt: skip
    one, other = (fheat.load(tmp_path / name / "final").state_dict() for name in ("verb", "python"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (tmp_path / "verb" / "config.toml").read_bytes() == (tmp_path / "python" / "config.toml").read_bytes()
    assert [look.iteration for look in looks] == [3]
    assert run.best == run.model().card.metrics["validation_dice"]
    assert set(run.strengths) == {"enc1", "enc2", "dec1"}
    again = fheat.train(out=tmp_path / "python", resume=True, device="cpu")
    assert again.strengths == run.strengths
    with pytest.raises(BadInput, match=r"field labeled does not exist, perhaps data\.labelled is meant"):
        fheat.train(data=str(scans), labeled=4, out=tmp_path / "new")

"""Runs that start from a trained model: its network, its weights, what the card says, and going on without it."""

import json
import shutil

import numpy as np
import pytest
import torch

import fheat
from fheat import Card
from fheat.cli.main import main
from fheat.cli.train import _settings
from fheat.data.preprocessing import Preprocessing
from fheat.experiments.planned import PlannedRun
from fheat.io import read_nifti, write_nifti
from fheat.io.volume import Volume
from fheat.models.folder import read_manifest
from fheat.system.errors import BadInput
from fheat.training.run_folder import RunFolder
from fheat.training.runs import read_history
from fheat.training.settings_sources import make_settings
from fheat.training.trainer import Stopped
from tests.training.helpers import Run, StopAfter, settings_of

WORDS = ["--labelled", "2", "--patch-size", "16", "16", "16", "--device", "cpu", "--iterations", "2", "--warm-up", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder of the small network with an option of its own."""
    torch.manual_seed(3)
    network = fheat.create_model("miniature", patch_size=(16, 16, 16), dropout=0.25)
    return fheat.save(network, tmp_path_factory.mktemp("trained") / "model")


def weights(run):
    return {name: value.clone() for name, value in run.step.model.state_dict().items()}


def test_a_run_starts_with_the_network_and_the_weights_of_the_model(scans, model, tmp_path):
    settings = make_settings(
        {
            "data": str(scans),
            "start": str(model),
            "patch_size": (16, 16, 16),
            "labelled": 2,
            "method": "mean_teacher",
            "iterations": 2,
        }
    )
    assert (settings.network.name, settings.network.options) == ("miniature", {"dropout": 0.25})
    run = Run(settings, tmp_path / "run")
    expected = fheat.load(model).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in weights(run).items())
    taught = run.step.method.teacher.network.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in taught.items())
    other = make_settings(
        {"data": str(scans), "network": {"start": str(model), "dropout": 0.5}, "patch_size": (16, 16, 16)}
    )
    assert (other.network.name, other.network.options) == ("miniature", {"dropout": 0.5})


def test_the_verb_stores_the_start_and_the_card_names_its_hash(scans, model, tmp_path, capsys):
    words = ["train", str(scans), *WORDS, "--method", "supervised", "--from", str(model)]
    assert main([*words, "--network.dropout", "0.1", "--out", str(tmp_path / "run")]) == 0
    assert "note: from" not in capsys.readouterr().err
    stored = RunFolder(tmp_path / "run").settings().network
    assert (stored.name, stored.start, stored.options) == ("miniature", str(model), {"dropout": 0.1})
    for part in ("best", "final"):
        start = fheat.load(tmp_path / "run" / part).card.training["start"]
        digest = read_manifest(model).sha256["model.safetensors"]
        assert start == {"model": str(model), "sha256": digest, "fresh": [], "changed": {}, "spacing": None}


def test_a_run_may_start_from_a_run(finished, scans, tmp_path):
    words = ["train", str(scans), *WORDS, "--method", "supervised", "--from", str(finished)]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert RunFolder(tmp_path / "run").settings().network.name == "miniature"
    start = fheat.load(tmp_path / "run" / "final").card.training["start"]
    assert start["sha256"] == read_manifest(finished / "best").sha256["model.safetensors"]


@pytest.fixture(scope="module")
def three_classes(tmp_path_factory):
    """Phantoms with two channels whose label is cut into two classes."""
    folder = tmp_path_factory.mktemp("classes") / "scans"
    assert main(["data", "phantom", str(folder), "--cases", "4", "--test", "0", "--shape", "26", "24", "25"]) == 0
    for path in (folder / "labelsTr").glob("*.nii.gz"):
        label = read_nifti(path)
        upper = np.arange(label.data.shape[2]) > 12
        write_nifti(Volume((label.data * (1 + upper)).astype(np.uint8), label.affine), path)
    for path in sorted((folder / "imagesTr").glob("*_0000.nii.gz")):
        shutil.copy(path, path.with_name(path.name.replace("_0000.nii", "_0001.nii")))
    described = json.loads((folder / "dataset.json").read_text())
    described["labels"] = {"background": 0, "lower": 1, "upper": 2}
    described["channel_names"] = {"0": "first", "1": "second"}
    (folder / "dataset.json").write_text(json.dumps(described))
    return folder


def test_other_classes_and_channels_are_told_in_one_note(three_classes, model, tmp_path, capsys):
    words = ["train", str(three_classes), *WORDS, "--method", "supervised", "--from", str(model)]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "note: from" in line]
    said = "head.weight, head.bias begin with fresh weights; stem.weight has the weights for one channel, shared by 2"
    assert notes == [f"fheat: note: from {model}: {said}"]
    card = fheat.load(tmp_path / "run" / "final").card
    assert card.training["start"]["fresh"] == ["head.weight", "head.bias"]
    assert card.classes == ("background", "lower", "upper")


@pytest.mark.parametrize(("factor", "more"), [(1.0, ()), (0.6, ()), (0.6, ("--plan-only",)), (0.6, ("--spacing",))])
def test_voxels_far_from_those_of_the_model_are_told(scans, tmp_path, capsys, factor, more):
    network = fheat.create_model("miniature", patch_size=(16, 16, 16))
    spacing = tuple(factor * length for length in (3.7, 3.8, 3.9))  # phantoms have nearly these
    model = fheat.save(network, tmp_path / "model", Card(preprocessing=Preprocessing(spacing=spacing)))
    said = " ".join(f"{length:.3g}" for length in spacing)
    more = [*more, *said.split()] if "--spacing" in more else more
    assert main(["train", str(scans), "--from", str(model), *WORDS, *more, "--out", str(tmp_path / "run")]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "note: from" in line]
    if factor == 1 or "--spacing" in more:
        assert notes == []
        return
    (note,) = notes
    voxels = said.replace(" ", " x ")
    assert note.startswith(
        f"fheat: note: from {model}: was trained on voxels of {voxels} mm, and those of this run are "
    )
    assert note.endswith(f"--spacing {said} trains on those of the model")


def test_a_run_goes_on_without_the_model_it_started_from(scans, model, tmp_path):
    here = shutil.copytree(model, tmp_path / "model")
    settings = settings_of(
        data=str(scans), start=str(here), labelled=2, patch_size=(16, 16, 16), iterations=4, warm_up=1, validate_every=9
    )
    whole = Run(settings, tmp_path / "whole")
    whole.train()
    with pytest.raises(Stopped):
        Run(settings, tmp_path / "cut", observers=[StopAfter(2)]).train()
    shutil.rmtree(here)
    again = Run(RunFolder(tmp_path / "cut").settings(), tmp_path / "cut", resume=True)
    again.train()
    assert torch.equal(whole.step.history, again.step.history)
    cards = [fheat.load(tmp_path / name / "final").card.training["start"] for name in ("whole", "cut")]
    assert cards[0] == cards[1]
    assert cards[0]["sha256"] == read_manifest(model).sha256["model.safetensors"]


def test_a_fresh_run_and_one_that_starts_from_a_model_see_the_same_crops(scans, model, tmp_path):
    common = {"data": str(scans), "labelled": 2, "patch_size": (16, 16, 16), "network": "miniature", "iterations": 2}
    runs = [
        Run(settings_of(**common, **more), tmp_path / name)
        for name, more in (("fresh", {}), ("tuned", {"start": str(model)}))
    ]
    batches = [run.step.batches.all()[1] for run in runs]
    assert torch.equal(batches[0].images, batches[1].images)
    assert not torch.equal(weights(runs[0])["stem.weight"], weights(runs[1])["stem.weight"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--from", "nowhere"], 3, "nowhere: no such model folder or zoo model"),
        (["--from", "nowhere", "--network", "miniature"], 3, "nowhere: no such model folder or zoo model"),
        (["--from", "la-4", "--network", "miniature"], 3, "la-4: does not fit miniature: the model has no"),
        (["--network.start=la-4", "--network", "miniature"], 3, "la-4: does not fit miniature"),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(scans, tmp_path, capsys, words, code, says):
    assert main(["train", str(scans), *WORDS, *words, "--out", str(tmp_path / "run")]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error
    assert not (tmp_path / "run").exists()


def test_options_of_the_network_of_the_model_are_options_of_the_verb(scans, model, tmp_path, capsys):
    words = [str(scans), "--from", str(model), "--patch-size", "16", "16", "16", "--network.alpha", "0.6"]
    settings = _settings(words)[1]
    assert settings.network.options == {"alpha": 0.6, "dropout": 0.25}
    file = tmp_path / "c.toml"
    file.write_text(f'[data]\nfolder = "{scans}"\npatch_size = [16, 16, 16]\n[network]\nstart = "{model}"\n')
    settings = _settings(["--config", str(file), "--network.alpha", "0.6"])[1]
    assert settings.network.options == {"alpha": 0.6, "dropout": 0.25}
    assert main(["train", str(scans), "--from", str(model), "--network.mixer", "gelu"]) == 2
    assert "network.mixer" in capsys.readouterr().err


def test_a_planned_run_from_another_model_is_another_run(scans, model, tmp_path):
    here = shutil.copytree(model, tmp_path / "model")
    values = {"data": str(scans), "start": str(here), "patch_size": (16, 16, 16)}
    before = PlannedRun("run", make_settings(values)).key
    assert PlannedRun("run", make_settings(values)).key == before
    torch.manual_seed(4)
    fheat.save(fheat.create_model("miniature", patch_size=(16, 16, 16), dropout=0.25), here, overwrite=True)
    assert PlannedRun("run", make_settings(values)).key != before


def test_python_names_it_start(scans, model, tmp_path):
    run = fheat.train(
        data=str(scans), start=str(model), labelled=2, patch_size=(16, 16, 16), method="supervised", iterations=2,
        warm_up=1, out=tmp_path / "run", device="cpu",
    )  # fmt: skip
    assert run.model().card.training["start"]["model"] == str(model)
    assert read_history(tmp_path / "run").settings.network.start == str(model)
    with pytest.raises(BadInput, match=r"train: field network\.start: nowhere no such model folder or zoo"):
        fheat.train(data=str(scans), start="nowhere", out=tmp_path / "other", device="cpu")

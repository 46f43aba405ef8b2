"""The zoo: names become folders, runs become zoo models, and every model that ships keeps its promises."""

import hashlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import fheat.models.zoo
from fheat import BadInput, Card, Predictor, allocation, create_model, load, save
from fheat.cli.main import main
from fheat.data.appearance import Appearance
from fheat.data.phantom import phantom, write_phantoms
from fheat.inference.predictor import UnusualScan
from fheat.io import Volume, write_nifti
from fheat.metrics.masks import dice
from fheat.models.folder import read_manifest
from fheat.models.zoo import ZOO, checked_name, find_folder, missing_facts, zoo_folder, zoo_names
from fheat.ops.gates import gates_of
from tests.training.helpers import SMALL, Run, settings_of

ROOT = Path(__file__).parents[2]
PATCH = (32, 32, 32)
DATA, LICENCE = "8 phantoms, 4 labelled; validation on the last", "Apache-2.0; no clinical use"
WORDS = {"intended_use": "chambers of phantoms", "limits": "knows no real scan"}


@pytest.fixture(scope="module")
def two_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    for name in ("other", "chamber-2"):
        card = Card(title=name, data=DATA, licence=LICENCE, metrics={"validation_dice": 0.8765})
        save(create_model("fheat_seg", patch_size=PATCH), folder / name, card, dtype="float16")
    (folder / "not-a-model").mkdir()
    return folder


@pytest.fixture
def zoo(two_models, tmp_path, monkeypatch):
    """A zoo with the models `chamber-2` and `other`, seen from an empty folder."""
    monkeypatch.setattr(fheat.models.zoo, "ZOO", two_models)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return two_models


def test_names(zoo):
    assert zoo_names() == ["chamber-2", "other"]
    assert zoo_folder("other") == find_folder("other") == zoo / "other"
    assert load("chamber-2").card.title == "chamber-2"
    assert Predictor("chamber-2", device="cpu").card.title == "chamber-2"


@pytest.mark.parametrize("call", [zoo_folder, find_folder, load, Predictor])
def test_an_unknown_name_lists_the_names(zoo, call):
    with pytest.raises(BadInput) as caught:
        call("chamber-3")
    assert str(caught.value) == (
        "chamber-3: no such model folder or zoo model; did you mean chamber-2? "
        "give a folder written by fheat.save, or one of the zoo: chamber-2, other"
    )


def test_an_empty_zoo_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(fheat.models.zoo, "ZOO", tmp_path / "nowhere")
    assert zoo_names() == []
    with pytest.raises(BadInput, match="one of the zoo: it is empty"):
        load("chamber-2")


def test_a_folder_here_wins_over_the_zoo(zoo):
    save(create_model("fheat_seg", patch_size=PATCH), "other", Card(title="mine"))
    assert load("other").card.title == "mine"
    assert load("chamber-2").card.title == "chamber-2"


@pytest.mark.parametrize("path", ["./other", "../other", "other/", ".\\other", Path("other")])
def test_a_path_is_never_a_name(zoo, path):
    with pytest.raises(BadInput, match=r"no such model folder; give a folder written by fheat\.save$"):
        load(path)


@pytest.mark.parametrize("name", ["", "La", "la 4", "la_4", "../la", "la-", ".la", "a/b"])
def test_names_that_no_model_can_have(name):
    with pytest.raises(ValueError, match="is not usable"):
        checked_name(name)
    assert checked_name("la-4") == "la-4"


def test_verbs_know_the_names(zoo, tmp_path, capsys):
    write_nifti(phantom(0, (40, 36, 34)).image, tmp_path / "scan.nii.gz")
    assert main(["predict", "chamber-2", str(tmp_path / "scan.nii.gz"), "out", "--no-preview", "--device", "cpu"]) == 0
    assert f"model: chamber-2 ({DATA})" in capsys.readouterr().out
    record = json.loads(Path("out/run.json").read_text())
    assert record["model"] == "chamber-2"
    assert record["weights_sha256"] == hashlib.sha256((zoo / "chamber-2/model.safetensors").read_bytes()).hexdigest()
    assert main(["allocation", "chamber-2"]) == 0
    assert "8 of 8 gates open" in capsys.readouterr().out
    for verb in (["allocation", "./chamber-2"], ["predict", "./chamber-2", str(tmp_path / "scan.nii.gz"), "out"]):
        assert main(verb) == 3
        assert "chamber-2: no such model folder; give" in capsys.readouterr().err


def test_models_lists_the_zoo(zoo, capsys, monkeypatch):
    monkeypatch.setattr("fheat.cli.models.list_models", lambda: ["fheat_seg"])
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["zoo"]
    assert [row["name"] for row in rows] == ["chamber-2", "other"]
    assert rows[0]["network"] == "fheat_seg"
    assert rows[0]["validation_dice"] == 0.8765
    assert (rows[0]["data"], rows[0]["licence"]) == (DATA, LICENCE)
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert f"chamber-2: chamber-2; fheat_seg, validation Dice 0.8765\n  data: {DATA}\n  licence: {LICENCE}\n" in out
    assert out.index("fheat_seg takes") < out.index("chamber-2") < out.index("other: other")


@pytest.fixture(scope="module")
def publish():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import publish_zoo
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return publish_zoo


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on phantoms, one gate of whose best model is closed."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run")
    write_phantoms(folder / "scans", 8, test=0, shape=(26, 24, 25))
    schedule = {"iterations": 60, "warm_up": 2, "validate_every": 30, "seed": 7, "rate": 0.03}
    config = settings_of(data=str(folder / "scans"), method="supervised", **(SMALL | {"labelled": None} | schedule))
    Run(config, folder / "run", device="cpu").train()
    model = load(folder / "run" / "best")
    gates_of(model)["enc1"].delta.data.fill_(-0.1)
    save(model, folder / "run" / "best", overwrite=True)
    return folder / "run"


def test_a_run_becomes_a_zoo_model(publish, run, tmp_path):
    folder = publish.publish(
        run, "chamber", data=DATA, licence=LICENCE, **WORDS, title="chamber of phantoms", zoo=tmp_path
    )
    assert folder == tmp_path / "chamber"
    before, after = load(run / "best"), load(folder)
    card = after.card
    assert missing_facts(card) == []
    assert (card.title, card.data, card.licence) == ("chamber of phantoms", DATA, LICENCE)
    assert {"intended_use": card.intended_use, "limits": card.limits} == WORDS
    assert card.metrics == before.card.metrics
    assert card.training["schedule"]["seed"] == card.seed == 7
    assert card.training["schedule"]["iterations"] == 60
    assert card.training["iteration"] == before.card.training["iteration"] in (30, 60)
    assert str(run.parent) not in (folder / "model.json").read_text()
    assert allocation(after)["enc1"].state == "retired"
    assert read_manifest(folder).stored == "float16"
    scan = phantom(99, (26, 24, 25), geometry="canonical").image
    wanted, found = (Predictor(model, device="cpu").segment(scan).data for model in (before, after))
    assert 0.01 < wanted.mean() < 0.9
    assert dice(found == 1, wanted == 1) >= 0.999


def test_publishing_refuses_in_one_line(publish, run, tmp_path):
    facts = {"data": DATA, "licence": LICENCE, "zoo": tmp_path, **WORDS}
    with pytest.raises(BadInput, match="no such model folder"):
        publish.publish(tmp_path, "chamber", **facts)
    with pytest.raises(ValueError, match="is not usable"):
        publish.publish(run, "My Model", **facts)
    with pytest.raises(BadInput, match=r"does not state licence; ") as caught:
        publish.publish(run, "chamber", **(facts | {"licence": ""}))
    assert "\n" not in str(caught.value)
    publish.publish(run, "chamber", **facts)
    with pytest.raises(BadInput, match="exists already"):
        publish.publish(run, "chamber", **facts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chamber"]


def test_publishing_as_a_program(publish, run, tmp_path, monkeypatch, capsys):
    arguments = [str(run), "chamber", "--data", DATA, "--licence", LICENCE, "--zoo", str(tmp_path)]
    arguments += ["--intended-use", "chambers of phantoms", "--limits", "knows no real scan"]
    monkeypatch.setattr(sys, "argv", ["publish_zoo.py", *arguments])
    publish.main()
    out = capsys.readouterr().out
    assert "bytes of weights, validation Dice 0." in out
    assert "enc1" not in out.splitlines()[1]
    dice = load(tmp_path / "chamber").card.metrics["validation_dice"]
    assert out.splitlines()[3] == f"| `chamber` | {dice:.4f} | {DATA} | {LICENCE} |"
    with pytest.raises(SystemExit) as stop:
        publish.main()
    assert stop.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_an_older_model_learns_what_its_scans_looked_like(publish, run, tmp_path, monkeypatch, capsys):
    import add_appearance

    folder = publish.publish(run, "chamber", data=DATA, licence=LICENCE, **WORDS, zoo=tmp_path)
    published = load(folder)
    save(
        published,
        folder,
        published.card.model_copy(update={"appearance": Appearance()}),
        overwrite=True,
        dtype="float16",
    )
    before = read_manifest(folder)
    monkeypatch.setattr(sys, "argv", ["add_appearance.py", str(folder), str(run.parent / "scans")])
    add_appearance.main()
    assert capsys.readouterr().out.startswith("7 training scans\nspacing x (mm): ")
    after = read_manifest(folder)
    assert after.card == published.card  # what training itself had measured
    assert after.sha256["model.safetensors"] == before.sha256["model.safetensors"]
    assert after.model_copy(update={"card": before.card, "sha256": before.sha256}) == before
    monkeypatch.setattr(sys, "argv", ["add_appearance.py", str(folder), str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as stop:
        add_appearance.main()
    assert stop.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_facts_that_are_missing_are_named():
    assert missing_facts(Card()) == [
        "title", "intended_use", "limits", "classes", "intensity", "spacing", "orientation", "appearance", "window",
        "data", "licence",
        "training.iteration", "training.seed", "metrics.validation_dice",
    ]  # fmt: skip


@pytest.mark.parametrize("name", zoo_names())
class TestShipped:
    """Every model that comes with the package."""

    def test_has_a_card_that_can_be_read(self, name, capsys):
        assert main(["models", "--card", name]) == 0
        text = capsys.readouterr().out
        card = read_manifest(ZOO / name).card
        for stated in (card.title, card.intended_use, card.limits, card.data, card.licence):
            assert " ".join(stated.split()) in " ".join(text.split())
        assert f"validation dice {card.metrics['validation_dice']:.4f}" in text
        assert "not stated" not in text
        assert "not for diagnosis" in " ".join(text.lower().split())
        assert max(map(len, text.splitlines())) <= 110
        assert main(["models", "--card", name, "--json"]) == 0
        assert Card.model_validate_json(capsys.readouterr().out) == card

    def test_is_complete_and_small(self, name):
        folder = ZOO / name
        assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors"]
        weights = (folder / "model.safetensors").read_bytes()
        parameters = sum(parameter.numel() for parameter in load(folder).parameters())
        assert len(weights) < min(2.3 * parameters, 8e6)
        manifest = read_manifest(folder)
        assert manifest.sha256["model.safetensors"] == hashlib.sha256(weights).hexdigest()
        assert missing_facts(manifest.card) == []
        assert 0.5 < manifest.card.metrics["validation_dice"] <= 1
        assert checked_name(name) == name
        assert "/" not in json.dumps(manifest.card.training)

    def test_is_on_its_page(self, name):
        text = (ROOT / "docs" / "evidence" / "zoo.md").read_text()
        assert f"| `{name}` | {load(ZOO / name).card.metrics['validation_dice']:.4f} |" in text

    def test_is_retired_and_finite(self, name):
        model = load(ZOO / name)
        assert "closed" not in [row.state for row in allocation(model)]
        assert all(torch.isfinite(value).all() for value in model.state_dict().values())
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())

    def test_segments_a_scan(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        whole = phantom(0, (64, 56, 48)).image
        end = 40 if name.endswith("-l") else 46  # one window, which takes seconds; else several, and not hundreds
        scan = Volume(whole.data[12:52, 10:end, 8:40], whole.affine)
        predictor = Predictor(name, device="cpu")
        warned = pytest.warns(UnusualScan, match="the scan does not look like the training scans")
        with nullcontext() if name == "phantom" else warned:  # warnings are errors, so that no model warns of its own
            mask = predictor.segment(scan)
        assert mask.data.shape == scan.data.shape
        assert mask.data.dtype == np.uint8
        assert np.array_equal(mask.affine, scan.affine)
        assert mask.data.max() <= len(predictor.labels)


def test_the_phantom_model_finds_the_chamber_of_new_phantoms():
    predictor = Predictor(ZOO / "phantom", device="cpu")
    for seed in (7, 8):
        scan = phantom(seed)
        assert dice(predictor.segment(scan.image).data == 1, scan.label.data == 1) > 0.9

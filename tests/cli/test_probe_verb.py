"""`fheat probe` on phantoms: numbers that Python gives too, the same every time, and refusals of one line."""

import json
from dataclasses import replace

import pytest
import torch

from fheat import Card, create_model, load, probe, save
from fheat.cli.main import main
from fheat.data.classes import Classes
from fheat.data.layouts import open_dataset
from fheat.data.phantom import write_phantoms
from fheat.data.preprocessing import Intensity, Preprocessing
from fheat.data.store import VolumeStore
from fheat.methods.base import Task
from fheat.methods.supervised import Supervised, SupervisedSettings
from fheat.networks.registry import spec_of
from fheat.ops.gates import gates_of
from fheat.studies.probe_scans import ProbePlan, draw_crops
from fheat.training.batches import Batches, draw
from fheat.training.scans import load_scans
from tests.training.helpers import SMALL, Run, settings_of

PATCH = (16, 16, 16)
BATCHES = 3
TURNED = Preprocessing(spacing=(2.2, 2.4, 2.0), orientation="LPS", intensity=Intensity(kind="none"))
ATRIUM = Classes(("background", "left_atrium"))


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phantoms") / "scans"
    write_phantoms(folder, 4, test=0, shape=(26, 24, 25))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    model = create_model("miniature", patch_size=PATCH)
    gates_of(model)["enc1"].delta.data.fill_(-0.2)
    return save(model, tmp_path_factory.mktemp("models") / "model", Card(preprocessing=TURNED))


def words(folder, phantoms, *more):
    return [str(word) for word in ("probe", folder, "--data", phantoms, "--device", "cpu", *more)]


def test_what_is_printed_is_what_python_finds(folder, phantoms, tmp_path, capsys):
    given = words(folder, phantoms, "--batches", BATCHES, "--labelled", 2, "--seed", 5, "--json")
    assert main([*given, "--out", str(tmp_path / "found.json")]) == 0
    text = capsys.readouterr().out
    assert (tmp_path / "found.json").read_text() == text
    found = json.loads(text)
    dataset, model = open_dataset(phantoms), load(folder).train()
    only_training = replace(dataset, cases=dataset.split("train"))
    scans = load_scans(only_training, ATRIUM, TURNED, PATCH, labelled=2)
    store = VolumeStore(scans.volumes)
    batches = Batches(store, draw((2, 0), (2, 0), BATCHES, 5), PATCH).all()
    assert [tuple(batch.images.shape) for batch in batches] == [(2, 1, *PATCH)] * BATCHES
    method = Supervised(SupervisedSettings(), Task(PATCH, 2))
    torch.manual_seed(5)  # of dropout
    again = probe(model, lambda network, batch: method.losses(network, batch)["total"], *batches)
    assert found["gates"] == again.to_json()
    assert found["agreement"] == again.agreement
    assert (found["batches"], found["batch"], found["others"], found["labelled"]) == (BATCHES, 2, "closed", 2)
    first = found["gates"][0]
    assert (first["site"], first["state"], first["attenuation"]) == ("enc1", "closed", 1.0)
    assert all(gate["error"] is not None for gate in found["gates"])


def test_the_table_says_how_many_sites_agree(folder, phantoms, capsys):
    given = words(folder, phantoms, "--batches", 1, "--labelled", 1)
    assert main(given) == 0
    table, said = capsys.readouterr().out.split("\n\n")
    lines = table.split("\n")
    assert len(lines) == 4
    agreeing = sum(line.split()[-1] == "yes" for line in lines)
    signs = sum(line.split()[-1] in ("yes", "no") for line in lines)
    assert signs == 2  # enc2 sees one voxel
    assert said == f"P > 0 predicts an open gate, P < 0 a closed one: {agreeing} of 2 sites are as predicted.\n"
    assert main([*given, "--others", "trained"]) == 0
    other = capsys.readouterr().out.split("\n\n")[0].split("\n")
    assert [line.split()[6] for line in other] == [line.split()[6] for line in lines]  # slopes are the same
    assert [line.split()[4] for line in other] != [line.split()[4] for line in lines]


def test_crops_are_those_of_the_labelled_training_scans(folder, phantoms):
    dataset, model = open_dataset(phantoms), load(folder)
    batches = draw_crops(dataset, ATRIUM, model.card, spec_of(model), ProbePlan(PATCH, 3), torch.device("cpu"))
    assert len(dataset.split("train")) == 3
    for batch in batches:
        assert batch.unlabelled.shape == (0, 1, *PATCH)
        assert batch.labels.max() == 1
    assert not torch.equal(batches[0].images, batches[1].images)


def test_scans_are_turned_to_the_orientation_of_the_model(phantoms):
    dataset = open_dataset(phantoms)
    own = load_scans(dataset, ATRIUM, Preprocessing(intensity=Intensity(kind="zscore")), PATCH, labelled=1)
    letters = dict(zip("RLAPSI", "LRPAIS", strict=True))
    turned = "".join(letters[letter] for letter in own.preprocessing.orientation)
    flipped = load_scans(
        dataset, ATRIUM, Preprocessing(orientation=turned, intensity=Intensity(kind="zscore")), PATCH, labelled=1
    )
    assert flipped.preprocessing.orientation == turned
    assert abs(flipped.volumes[0].values()[:, ::-1, ::-1, ::-1] - own.volumes[0].values()).max() < 1e-6


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--batches", 0], 2, "batches=0 is too few"),
        (["--out", "found.txt"], 2, "found.txt is not a .json file"),
        (["--device", "nonsense"], 2, "device 'nonsense' is unknown"),
        (["--others", "open"], 2, "others"),
        (["--method", "cse"], 2, "method"),
        (["--labelled", 9], 3, "labelled training scans, not 9"),
        (["--labelled", 0], 2, "--labelled takes 1 or more, not 0"),
        (["--seed", -1], 2, "--seed takes a whole number"),
        (["--patch-size", 0, 0, 0], 2, "--patch-size takes three lengths"),
        (["--out", "there.json"], 3, "there.json: is a folder; give a file to write to"),
        (["--patch-size", 64, 64, 64], 3, "would be padding"),
    ],
)
def test_refusals(folder, phantoms, tmp_path, monkeypatch, capsys, more, code, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.json").mkdir()
    assert main(words(folder, phantoms, *more)) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert says in error
    assert ("see 'fheat probe --help'" in error) == (code == 2)


def test_a_patch_that_the_network_cannot_take(phantoms, tmp_path, capsys):
    folder = save(create_model("fheat_seg", patch_size=(32, 32, 32)), tmp_path / "model")
    assert main(words(folder, phantoms, "--patch-size", *PATCH)) == 3
    error = capsys.readouterr().err
    assert "smaller than 32 on an axis" in error
    assert error.count("\n") == 1


def test_a_run_stands_for_its_network_its_data_and_its_labels(phantoms, tmp_path, capsys):
    settings = SMALL | {"method": "supervised", "iterations": 1, "warm_up": 0}
    Run(settings_of(data=str(phantoms), **settings), tmp_path / "run", device="cpu").train()
    more = ["--batches", "1", "--device", "cpu", "--json"]
    assert main(["probe", str(tmp_path / "run"), *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["part"], found["data"], found["labelled"]) == ("best", str(phantoms), 2)
    best = ["probe", str(tmp_path / "run" / "best"), *more]
    assert main([*best, "--data", str(phantoms), "--labelled", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["gates"] == found["gates"]
    assert main(["probe", str(tmp_path / "run"), *more, "--labelled", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["labelled"] == 1
    assert main(["probe", str(tmp_path / "run"), *more[:-1]]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'run'}: the network in best\n")
    assert main(best) == 2
    assert "--data is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("network", "options", "card", "says"),
    [
        ("light_unetr", {}, Card(), "has no gates to probe; give a network with gates"),
        ("miniature", {"out_channels": 3}, Card(), "has 2 classes (background, left_atrium), "),
        ("miniature", {"in_channels": 2}, Card(), "has scans with 1 channels, the model takes 2"),
        ("miniature", {}, Card(regions=(1, 2)), "has 1 classes (left_atrium), "),
    ],
)
def test_models_that_do_not_fit(phantoms, tmp_path, capsys, network, options, card, says):
    patch = PATCH if network == "miniature" else (32, 32, 32)
    folder = save(create_model(network, patch_size=patch, **options), tmp_path / "model", card)
    assert main(words(folder, phantoms, "--batches", 1)) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert says in error
    assert main(words(tmp_path / "none", phantoms)) == 3
    assert main(words(folder, tmp_path / "nowhere")) == 3

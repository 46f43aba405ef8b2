"""What lies on disk: models and their gates, runs and their curves, a dataset, the pages, the list of routes."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fheat
from fheat import save
from fheat.io import read_nifti, write_nifti
from fheat.io.volume import Volume
from fheat.training.runs import read_history
from tests.studio.conftest import client_of, until


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Three cases with labels, of which the second has the worst prediction and the third none."""
    root = tmp_path_factory.mktemp("dataset")
    for number, shift in enumerate((1, 3, None)):
        label = np.zeros((12, 12, 12), np.uint8)
        label[3:8, 3:8, 3:8] = 1
        image = Volume(label.astype(np.int16) * 100 + 7, np.eye(4))
        write_nifti(image, root / "data" / "images" / f"case{number}.nii.gz")
        write_nifti(Volume(label, np.eye(4)), root / "data" / "labels" / f"case{number}.nii.gz")
        if shift is not None:
            write_nifti(Volume(np.roll(label, shift, 0), np.eye(4)), root / "masks" / f"case{number}.nii.gz")
    return root


@pytest.fixture(scope="module")
def client(settings, launcher, finished, dataset):
    given = replace(settings, runs=finished.parent, dataset=dataset / "data", predictions=dataset / "masks")
    with client_of(given, launcher) as client:
        yield client


def test_models_are_listed_with_what_their_cards_say(client):
    models = {one["id"]: one for one in client.get("/api/models").json()}
    assert models["mini"]["source"] == "folder"
    assert models["mini"]["classes"] == {"chamber": 1}
    assert models["mini"]["modality"] == "MR"
    assert (models["run"]["source"], models["la-4"]["source"]) == ("run", "zoo")
    assert models["la-4"]["classes"] == {"left_atrium": 1}
    assert models["la-4"]["channels"] == 1
    assert [one["default"] for one in models.values()].count(True) == 1
    assert "folder" not in models["mini"]


def test_the_allocation_is_that_of_the_library(client, model):
    found = client.get("/api/models/mini/allocation").json()
    network = fheat.load(model)
    for row, gate in zip(fheat.allocation(network), found["gates"], strict=True):
        assert (gate["site"], gate["D"], gate["alpha"]) == (row.site, row.D, row.alpha)
        assert gate["open"] == (row.state == "open")
        radius, value = gate["response"][32]
        assert value == pytest.approx(np.exp(-((row.D * radius) ** row.alpha)), abs=1e-4)
        assert gate["response"][0] == [0.0, 1.0]
    assert not {gate["site"]: gate["open"] for gate in found["gates"]}["enc1"]
    assert found["cost"]["retired"]["macs"] == fheat.cost(network).macs
    assert found["cost"]["all_open"]["macs"] == fheat.cost(network.spec.build()).macs
    assert found["cost"]["all_open"]["macs"] > found["cost"]["retired"]["macs"]


def test_runs_are_listed_with_their_curves(client, finished):
    (run,) = client.get("/api/runs").json()
    history = read_history(finished)
    assert (run["id"], run["state"]) == ("run", "done")
    assert (run["network"], run["iteration"], run["iterations"]) == ("miniature", history.done, 6)
    assert run["best_dice"] == max(one.mean for one in history.validations)
    assert "folder" not in run
    curves = client.get("/api/runs/run").json()
    assert [point["iteration"] for point in curves["points"]] == history.iterations
    last = curves["points"][-1]
    assert last["losses"] == {name: history.steps[-1][name] for name in history.losses}
    assert last["dice"] == history.validations[-1].mean
    assert last["gates"]["dec1"]["D"] == history.steps[-1]["D.dec1"]
    later = client.get("/api/runs/run?after=4").json()["points"]
    assert [point["iteration"] for point in later] == [iteration for iteration in history.iterations if iteration > 4]
    assert client.get("/api/runs/none").status_code == 404
    assert client.get("/api/runs/run?after=x").status_code == 422


def test_a_run_that_began_just_now_is_listed(settings, launcher, tmp_path, finished):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.toml").write_text("nonsense")
    with client_of(replace(settings, runs=tmp_path), launcher) as client:
        damaged, new = client.get("/api/runs").json()
        assert (new["iteration"], new["state"], new["best_dice"]) == (0, "stopped", None)
        assert damaged["error"]
        assert client.get("/api/runs/new").json()["points"] == []


def test_the_dataset_shows_the_worst_case_first(client, dataset, tmp_path):
    def scored():
        rows = client.get("/api/dataset").json()
        return rows if sum(row["dice"] is not None for row in rows) == 2 else None

    rows = until(scored)
    assert [row["case"] for row in rows] == ["case1", "case0", "case2"]
    assert [row["dice"] and list(row["dice"].values()) for row in rows] == [[0.4], [0.8], None]
    assert rows[2]["prediction"] is None
    for part, folder in (("image", "data/images"), ("label", "data/labels"), ("prediction", "masks")):
        answer = client.get(rows[0][part])
        (tmp_path / "a.nii.gz").write_bytes(answer.content)
        assert np.array_equal(
            read_nifti(tmp_path / "a.nii.gz").data, read_nifti(dataset / folder / "case1.nii.gz").data
        )
    assert client.get("/api/dataset/2/prediction.nii.gz").status_code == 404
    assert client.get("/api/dataset/9/image.nii.gz").status_code == 404
    assert client.get("/api/dataset/0/secret.nii.gz").status_code == 422


def test_without_folders_there_is_nothing_to_show(settings, launcher):
    with client_of(settings, launcher) as client:
        for path in ("/api/runs", "/api/runs/a", "/api/dataset", "/api/dataset/0/image.nii.gz"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert answer.json()["remedy"].startswith("start with --")


def test_a_damaged_model_is_left_out(settings, launcher, model, tmp_path):
    save(fheat.load(model), tmp_path / "broken")
    text = (tmp_path / "broken" / "model.json").read_text()
    (tmp_path / "broken" / "model.json").write_text(text.replace('"format"', '"fromat"'))
    save(fheat.load(model), tmp_path / "other" / "mini")
    given = replace(settings, models=(model, tmp_path / "broken", tmp_path / "other" / "mini"))
    with client_of(given, launcher) as client:
        names = [one["id"] for one in client.get("/api/models").json()]
        assert names[:2] == ["mini", "mini-2"]
        assert "broken" not in names


def test_routes_describe_themselves_without_anything_from_elsewhere(client):
    schema = client.get("/openapi.json").json()
    assert {"/api/health", "/api/scans", "/api/jobs", "/api/jobs/{number}", "/s/infer/{model}"} <= schema[
        "paths"
    ].keys()
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for path in schema["paths"]:
        assert path in page.text
    assert "//" not in page.text.replace("<!doctype", "")
    assert "<script" not in page.text
    assert "body scan, body model" in page.text


def test_pages_and_their_files_come_from_the_package(client):
    for path in ("/", "/runs", "/allocation", "/dataset"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
    script = client.get("/assets/api.js")
    assert script.headers["content-type"].startswith("text/javascript")
    for path in ("/assets/", "/assets/none.js", "/assets/../app.py", "/assets/%2e%2e/app.py", "/assets//etc/passwd"):
        assert client.get(path).status_code == 404
    health = client.get("/api/health").json()
    assert health == {"status": "ok", "version": fheat.__version__, "jobs": 0}


def test_wrong_bodies_are_refused_in_one_line(client):
    for body in (b"", b"{", b"[]", b"{}", b'{"scan": 1}', b"\xff", b"[" * 60_000, json.dumps({"scan": "a"}).encode()):
        answer = client.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), body
        assert answer.json().keys() == {"error", "remedy"}
        assert "\n" not in answer.json()["error"]

"""Runs that are done once: keys, outcomes, going on after a stop, scores against a slow evaluation."""

import gzip
import json
import shutil

import pytest

from fheat import Predictor
from fheat.data.layouts import open_dataset
from fheat.data.phantom import write_phantoms
from fheat.data.read import read_image, read_label
from fheat.experiments.planned import OUTCOME, SCORES, PlannedRun, perform
from fheat.experiments.scoring import Scoring
from fheat.metrics.evaluate import evaluate
from fheat.models.folder import WEIGHTS
from fheat.system.errors import BadInput
from fheat.training.run_folder import LOG
from fheat.training.settings_sources import make_settings
from fheat.training.trainer import Stopped
from tests.refusals import refused
from tests.training.helpers import SMALL, StopAfter


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "scans"
    write_phantoms(folder, 6, test=1, shape=(26, 24, 25))
    return folder


def planned(scans, name="a", scoring=None, **values):
    settings = {"data": str(scans), "iterations": 4, "warm_up": 1, "validate_every": 2, "checkpoint_every": 1}
    return PlannedRun(name, make_settings(SMALL | settings | values), scoring or Scoring())


@pytest.fixture(scope="module")
def done(scans, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    run = planned(scans, scoring=Scoring(stride=(4, 4, 4), network="final", voxels=False))
    return run, runs, perform(run, runs, device="cpu")


def test_a_run_is_done_once(done):
    run, runs, outcome = done
    before = {path: path.stat().st_mtime_ns for path in run.folder(runs).rglob("*")}
    assert perform(run, runs, device="cpu") == outcome == run.outcome(runs)
    assert {path: path.stat().st_mtime_ns for path in run.folder(runs).rglob("*")} == before
    assert run.state(runs) == "done"


def test_the_outcome_says_what_the_log_says(done):
    run, runs, outcome = done
    lines = [json.loads(line) for line in (run.folder(runs) / LOG).read_text().splitlines()]
    validations = {line["iteration"]: line["validation"] for line in lines if "validation" in line}
    assert (outcome.best, outcome.last) == (max(validations.values()), validations[4])
    assert validations[outcome.best_at] == outcome.best
    last = next(line for line in reversed(lines) if "total" in line)
    assert {site: gate.D for site, gate in outcome.gates.items()} == {
        name[2:]: last[name] for name in last if name[:2] == "D."
    }
    assert outcome.survivors == {site: gate for site, gate in outcome.gates.items() if gate.D > 0}


def test_scores_are_those_of_a_plain_evaluation(done, scans):
    run, runs, _ = done
    (case,) = open_dataset(scans).split("validation")
    image = read_image(case)
    predictor = Predictor(run.folder(runs) / "final", device="cpu")
    predictor.windows = type(predictor.windows)((16, 16, 16), (4, 4, 4))
    expected = evaluate(predictor.segment(image).data, read_label(case, image).data, image.spacing)
    (row,) = run.scores(runs).rows
    assert (row.case, row.label, row.scores) == (case.id, "left_atrium", expected)
    assert run.scores(runs).unit == "mm"


def test_a_stopped_run_goes_on_to_the_same_weights(done, scans, tmp_path):
    run, runs, _ = done
    with pytest.raises(Stopped):
        perform(run, tmp_path, device="cpu", observers=[StopAfter(3)])
    assert run.state(tmp_path) == "interrupted"
    perform(run, tmp_path, device="cpu")
    first, second = (run.folder(folder) / "final" / WEIGHTS for folder in (runs, tmp_path))
    assert first.read_bytes() == second.read_bytes()
    iterations = [json.loads(line) for line in (run.folder(tmp_path) / LOG).read_text().splitlines()]
    assert [line["iteration"] for line in iterations if "total" in line] == [1, 2, 3, 4]


def test_the_key_changes_with_what_decides_and_with_nothing_else(scans):
    key = planned(scans).key
    assert planned(scans, name="b").key == key
    assert planned(scans, checkpoint_every=3, tensorboard=True).key == key
    for values in (
        {"seed": 1},
        {"optimiser.clip": None},
        {"validate_every": 1},
        {"network": {"name": "miniature", "gates": "dec1"}},
        {"network.dropout": 0.0},  # off, but by default it is on
    ):
        assert planned(scans, **values).key != key
    assert planned(scans, scoring=Scoring(largest_component=True)).key != key


def test_a_key_is_that_of_earlier_versions(scans, monkeypatch):
    """Else finished sweeps would be trained again. Version 0.2.0 gave this key to these settings."""
    monkeypatch.setattr(PlannedRun, "_scans", lambda self, dataset: [["a", "train", None, "0"]])
    known = {"labelled": 1, "batch": 1, "patch_size": (16, 16, 16), "network": "fheat_seg", "method": "cse"}
    known |= {"data": str(scans), "iterations": 4, "warm_up": 2}
    keys = {
        asked: PlannedRun("a", make_settings({**known, "optimiser.compile": asked})).key
        for asked in ("auto", "no", False, "yes", True)
    }
    assert keys["auto"] == "5b1b2e91719c63ff787a0bd76131f97c4cdfe56220956fee5b487d6cb20b824d"
    assert keys["no"] == keys[False] == keys["auto"]
    assert keys["yes"] == keys[True] != keys["auto"]


def test_the_key_follows_the_scans_and_not_their_place_or_compression(scans, tmp_path):
    key = planned(scans).key
    elsewhere = shutil.copytree(scans, tmp_path / "elsewhere")
    assert planned(elsewhere).key == key
    image = sorted(elsewhere.glob("imagesTr/*.nii.gz"))[0]
    content = gzip.decompress(image.read_bytes())
    image.write_bytes(gzip.compress(content, 1))
    assert planned(elsewhere).key == key
    image.write_bytes(gzip.compress(content[:-1] + bytes([content[-1] ^ 1])))
    assert planned(elsewhere).key != key


def test_the_key_follows_the_classes_that_the_dataset_declares(scans, tmp_path):
    described = shutil.copytree(scans, tmp_path / "scans") / "dataset.json"
    renamed = described.read_text().replace("left_atrium", "atrium")
    described.write_text(renamed)
    assert planned(tmp_path / "scans").key != planned(scans).key


def test_an_outcome_that_is_damaged_or_of_another_run_is_refused(done, tmp_path):
    run, _, outcome = done
    folder = run.folder(tmp_path)
    folder.mkdir()
    (folder / OUTCOME).write_text("{")
    with pytest.raises(BadInput, match="is not the outcome of a run"):
        run.outcome(tmp_path)
    (folder / OUTCOME).write_text(outcome.model_copy(update={"key": "0" * 64}).model_dump_json())
    with pytest.raises(BadInput, match="is of another run"):
        run.outcome(tmp_path)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b"])
def test_names_are_safe_as_folders(scans, name):
    with pytest.raises(ValueError, match="use letters"):
        planned(scans, name=name)


def test_a_stride_that_leaves_gaps_is_refused_before_training(scans):
    with pytest.raises(ValueError, match=r"scoring.stride \(17, 4, 4\) leaves gaps: .* \(16, 16, 16\)"):
        planned(scans, scoring=Scoring(stride=(17, 4, 4)))


def test_scans_without_labels_are_refused_before_training(scans, tmp_path):
    folder = shutil.copytree(scans, tmp_path / "scans")
    (label,) = (folder / "labelsTs").iterdir()
    label.unlink()
    error = refused(perform, planned(folder, scoring=Scoring(split="test")), tmp_path / "runs", device="cpu")
    assert "has 1 test scan without a label, such as " in error.reason
    assert not (tmp_path / "runs").exists()


def test_scores_that_are_damaged_are_refused_with_what_to_do(done, tmp_path):
    run, _, _ = done
    run.folder(tmp_path).mkdir()
    (run.folder(tmp_path) / SCORES).write_text("{")
    assert "delete it and outcome.json" in refused(run.scores, tmp_path).remedy

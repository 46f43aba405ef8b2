"""Runs that go wrong: weights that diverge, damaged logs and checkpoints, another set of scans. One line each."""

import json
import shutil
import tomllib

import pytest
import torch

from fheat.cli.main import main
from fheat.data.phantom import write_phantoms
from fheat.system.errors import BadInput
from fheat.training import observers
from fheat.training.checkpoints import newest_checkpoint
from fheat.training.optimiser import AdamW
from fheat.training.run_folder import RunFolder
from fheat.training.settings_sources import read_settings, to_toml
from fheat.training.trainer import Stopped
from tests.training.helpers import Run, changed, settings_of


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def refused(capsys, words, *says):
    assert main(["train", *map(str, words), "--device", "cpu"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    for part in says:
        assert part in error
    return error


@pytest.fixture
def stopped(config, tmp_path, scans):
    """A run of its own set of scans, stopped after its first iteration."""
    data = shutil.copytree(scans, tmp_path / "scans")
    run = Run(config(data=str(data), method="supervised", batch=1, iterations=3), tmp_path / "run", device="cpu")
    run.stop()
    with pytest.raises(Stopped):
        run.train()
    return tmp_path / "run"


LARGER = ["--labelled", 2, "--patch-size", 32, 32, 32]
"""Options of a run of a network of this package."""


def test_weights_that_are_not_finite_any_more(larger_scans, tmp_path, capsys):
    words = [larger_scans, *LARGER, "--iterations", 3, "--warm-up", 0, "--learning-rate", 1e38]
    says = (
        f"fheat: {tmp_path / 'run'}: training diverged by iteration 1; ",
        "start again with a lower learning rate or precision fp32; checkpoints before it are kept",
    )
    refused(capsys, [*words, "--method", "supervised", "--out", tmp_path / "run"], *says)


def test_weights_that_are_finite_and_give_nan(larger_scans, tmp_path, capsys):
    words = [larger_scans, *LARGER, "--iterations", 3, "--warm-up", 0, "--learning-rate", 1e6]
    words += ["--method", "supervised", "--validate-every", 2, "--checkpoint-every", 1, "--out", tmp_path / "run"]
    refused(capsys, words, f"fheat: {tmp_path / 'run'}: training diverged by iteration 2; start again")
    assert newest_checkpoint(tmp_path / "run" / "checkpoints").iteration == 1
    assert not (tmp_path / "run" / "best").exists()


def test_a_loss_that_is_not_finite_and_an_output_that_is_nan(config, tmp_path, monkeypatch):
    """The state decides, not the message: the same error of a run with finite losses goes on as it is."""

    def broken(*anything, **options):
        raise ValueError("the network's output is NaN")

    monkeypatch.setattr("fheat.training.validation.validate", broken)
    run = Run(config(method="supervised", batch=1, validate_every=2), tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match="output is NaN"):
        run.train()
    assert run.done == 2
    run.step.history[0, 0] = float("inf")
    run.done = 1
    with pytest.raises(BadInput, match="training diverged by iteration 2; start again with a lower learning rate"):
        run.train()


@pytest.mark.parametrize("name", ["scans \U0001f9e0", "a\x7fb", 'quo"te\\s\n', "Herz-Vorhöfe"])
def test_any_path_survives_the_settings_file(name, tmp_path):
    settings = settings_of(data=name, network_options={"gates": "dec1"})
    assert tomllib.loads(to_toml(settings))["data"]["folder"] == name
    RunFolder(tmp_path / "run").begin(settings)
    assert read_settings(tmp_path / "run" / "config.toml") == settings


DOTTED = {
    "weight_decay": "optimiser.weight_decay",
    "theta_rate": "optimiser.theta",
    "delta_rate": "optimiser.delta",
    "rational_rate": "optimiser.rational",
}


@pytest.mark.parametrize("setting", [{"seed": 2**63}, {"seed": -1}])
@pytest.mark.parametrize("name", ["weight_decay", "theta_rate", "delta_rate", "rational_rate"])
def test_bounds(setting, name, tmp_path, capsys):
    for wrong in (setting, {name: -0.1}):
        ((field, value),) = wrong.items()
        (tmp_path / "c.toml").write_text(f'data = "x"\n{field} = {value}\n')
        refused(
            capsys,
            ["--config", tmp_path / "c.toml", "--out", tmp_path / "run"],
            f"c.toml: field {DOTTED.get(field, 'schedule.seed')}: ",
        )
    assert settings_of(**{"data": "x", "seed": 2**63 - 1, name: 0}).schedule.seed == 2**63 - 1


@pytest.mark.parametrize("broken", [3, 4, 100])
def test_a_run_that_only_skips_is_given_up(config, tmp_path, monkeypatch, broken):
    """Looks every two iterations; given up are ten of which more than nine were skipped."""
    monkeypatch.setattr(observers, "ITERATIONS_BETWEEN_LOOKS", 2)
    monkeypatch.setattr(observers, "ITERATIONS_WITHOUT_HOPE", 10)
    whole = AdamW.step

    def step(self, factor):
        self.skipped += 1 if self.calls < broken else 0
        self.calls += 1
        return whole(self, factor)

    monkeypatch.setattr(AdamW, "calls", 0, raising=False)
    monkeypatch.setattr(AdamW, "step", step)
    settings = config(method="supervised", batch=1, iterations=14, validate_every=100, checkpoint_every=100)
    run = Run(settings, tmp_path / "run", device="cpu")
    if broken < 100:
        run.train()
        return
    with pytest.raises(BadInput, match="training diverged by iteration 12"):
        run.train()


def test_damaged_lines_of_a_log_are_dropped(stopped, capsys):
    log = stopped / "log.jsonl"
    good = log.read_bytes()
    damage = [b"5", b'{"a":1}', b"\xff\xfe", b"[]", b'"text"', b'{"iteration": "x"}', b'{"iteration": null}', b"{", b""]
    log.write_bytes(b"\n".join(damage) + b"\n" + good + b'{"iteration": 1, "tot')
    RunFolder(stopped).rewind_log(1)
    assert log.read_bytes() == good
    log.write_bytes(good + b"\n".join(damage))
    assert main(["train", "--resume", "--out", str(stopped), "--device", "cpu"]) == 0
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["iteration"] for line in steps if "total" in line] == [1, 2, 3]


def test_another_set_of_scans_is_refused(stopped, tmp_path, capsys):
    log = (stopped / "log.jsonl").read_bytes()
    data = tmp_path / "scans"
    settings, order = (json.loads((data / name).read_text()) for name in ("dataset.json", "splits.json"))
    words = ["--resume", "--out", stopped]
    first, second, third = [name for name in order["order"] if name not in order["validation"]][:3]

    others = [second, first, *(name for name in order["order"] if name not in (first, second))]
    (data / "splits.json").write_text(json.dumps(order | {"order": others}))
    refused(capsys, words, f"{stopped}: was begun with other labelled scans (now in another order); restore the data")
    others = [first, third, *(name for name in order["order"] if name not in (first, third))]
    (data / "splits.json").write_text(json.dumps(order | {"order": others}))
    refused(capsys, words, f"was begun with other labelled scans (now without {second});", "or begin a new run")
    (data / "splits.json").write_text(json.dumps(order))

    (data / "dataset.json").write_text(json.dumps(settings | {"labels": {"background": 0, "liver": 1}}))
    refused(capsys, words, "was begun with other classes (now without left_atrium)")
    (data / "dataset.json").write_text(json.dumps(settings))

    assert (stopped / "log.jsonl").read_bytes() == log
    assert main(["train", *map(str, words), "--device", "cpu"]) == 0


def test_the_set_is_not_where_it_lies_and_older_checkpoints_go_on(stopped, tmp_path):
    path = stopped / "checkpoints" / "step-00000001" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["facts"]["set"]["channels"] == 1
    shutil.move(tmp_path / "scans", tmp_path / "moved")
    settings = changed(RunFolder(stopped).settings(), data=str(tmp_path / "moved"))
    assert Run(settings, stopped, resume=True, device="cpu").done == 1
    del manifest["facts"]["set"], manifest["seal"]
    path.write_text(json.dumps(manifest))
    write_phantoms(tmp_path / "other", 5, test=0, shape=(26, 24, 25))
    settings = changed(settings, **{"data": str(tmp_path / "other")})
    assert Run(settings, stopped, resume=True, device="cpu").done == 1


def test_without_a_whole_checkpoint_nothing_begins_anew(stopped, capsys):
    folder = stopped / "checkpoints"
    (folder / "step-00000001" / "manifest.json").write_text("{")
    log = (stopped / "log.jsonl").read_bytes()
    says = (f"fheat: {folder}: has no checkpoint that is whole; restore one, or begin a run in another folder\n",)
    refused(capsys, ["--resume", "--out", stopped], *says)
    assert (stopped / "log.jsonl").read_bytes() == log
    shutil.rmtree(folder / "step-00000001")
    assert newest_checkpoint(folder) is None


def test_batch_norms_of_one_value_are_refused_in_one_line(larger_scans, tmp_path, capsys):
    words = [larger_scans, "--network", "light_unetr", *LARGER, "--batch", 1]
    says = "light_unetr has batch norms that cannot be trained with batch 1 and patch_size (32, 32, 32); use a larger"
    refused(capsys, [*words, "--iterations", 2, "--warm-up", 1, "--out", tmp_path / "run"], says)

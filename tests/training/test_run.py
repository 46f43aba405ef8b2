"""A run: what it leaves on disk, and that stopping, killing and a full disk cannot change its outcome."""

import errno
import json
import signal
import sys
import time

import numpy as np
import pytest
import torch

import fheat.system.files
from fheat import load
from fheat.cli.main import main
from fheat.data.appearance import Appearance, Looks
from fheat.data.layouts import open_dataset
from fheat.data.read import read_image
from fheat.system.errors import BadInput
from fheat.training.checkpoints import KEPT, Checkpoint, newest_checkpoint, save_checkpoint
from fheat.training.run_folder import RunFolder
from fheat.training.settings_sources import read_settings, to_toml
from fheat.training.trainer import Stopped
from tests.forks import Fork
from tests.training.helpers import SMALL_WORDS, Run, StopAfter, changed, settings_of
from tests.training.programs import save_and_be_killed, train, train_and_be_killed


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def weights(folder):
    return load(folder / "final").state_dict()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def numbers(folder):
    """The log without what depends on the clock."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_what_a_run_leaves(config, tmp_path):
    settings = config()
    run = Run(settings, tmp_path / "run", device="cpu")
    final = run.train()
    assert final == tmp_path / "run" / "final"
    lines = numbers(tmp_path / "run")
    steps = [line for line in lines if "total" in line]
    assert [line["iteration"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[0]["D.dec1"] != steps[5]["D.dec1"]
    validations = {line["iteration"]: line["validation"] for line in lines if "validation" in line}
    assert list(validations) == [4, 6]
    assert run.best == max(validations.values())
    model = load(tmp_path / "run" / "best")
    assert model.card.metrics["validation_dice"] == run.best
    assert load(final).card.metrics["validation_dice"] == validations[6]
    assert model.card.classes == ("background", "left_atrium")
    trained = open_dataset(settings.data.folder).split("train")
    looks = [Looks.of(model.card.preprocessing.scan(read_image(case))) for case in trained]
    assert len(looks) == 9  # labelled or not; the validation scan is not among them
    assert model.card.appearance == load(final).card.appearance == Appearance.of(looks)
    assert model.card.training["data"]["labelled"] == 2
    assert RunFolder(tmp_path / "run").settings() == settings
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == KEPT
    found = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert found.iteration == 6
    assert found.facts.keys() == {"best", "latest", "settings", "set", "grid", "compiled"}
    assert (found.facts["best"], found.facts["settings"]) == (run.best, settings.model_dump(mode="json"))


def stopped_and_resumed(settings, folder, at):
    """Stop a run after an iteration, in the next of which it saves its state, and go on to its end."""
    with pytest.raises(Stopped):
        Run(settings, folder, observers=[StopAfter(at + 1)]).train()
    torch.manual_seed(99)  # whatever happens in between
    again = Run(settings, folder, resume=True, device="cpu")
    assert again.done == at + 1
    again.train()


def assert_same_run(whole, parts):
    assert equal(weights(whole), weights(parts))
    stepped = [[line for line in numbers(folder) if "total" in line] for folder in (whole, parts)]
    assert stepped[0] == stepped[1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cse", "supervised"])
@pytest.mark.parametrize("at", [1, 3, 4])
def test_stopped_and_resumed_is_the_same_run(config, whole_run, tmp_path, method, at):
    settings = config(method=method)
    stopped_and_resumed(settings, tmp_path / "parts", at)
    assert_same_run(whole_run(settings).folder.path, tmp_path / "parts")


@pytest.mark.slow
def test_fheat_seg_stopped_and_resumed_is_the_same_run(config, whole_run, larger_scans, tmp_path):
    settings = config(data=str(larger_scans), network="fheat_seg", patch_size=(32, 32, 32), iterations=4)
    stopped_and_resumed(settings, tmp_path / "parts", 1)
    assert_same_run(whole_run(settings).folder.path, tmp_path / "parts")


def test_resuming_without_a_checkpoint_starts_anew(config, tmp_path):
    settings = config(iterations=2)
    Run(settings, tmp_path / "run", device="cpu")
    run = Run(settings, tmp_path / "run", resume=True, device="cpu")
    assert run.done == 0
    run.train()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_killed_twenty_times_it_ends_the_same(config, tmp_path):
    settings = config(method="supervised", batch=1, iterations=300, checkpoint_every=1, validate_every=1000)
    code, printed, error = Fork(train_and_be_killed, settings, tmp_path / "killed", 20).outcome(600)
    assert code == 0, error[-2000:]
    kills, reached = json.loads(printed)
    assert kills == 20
    assert 8 < reached < 300
    Run(changed(settings, checkpoint_every=1000), tmp_path / "whole", device="cpu").train()
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_two_hundred_kills_inside_the_save_loop(tmp_path):
    code, printed, error = Fork(save_and_be_killed, tmp_path, 200).outcome(600)
    assert code == 0, error[-2000:]
    assert int(printed) >= 2  # most kills fall into a write: flushing takes longer than a life


def test_damaged_checkpoints_are_passed_over(tmp_path):
    for iteration in (1, 2):
        save_checkpoint(tmp_path, Checkpoint(iteration, {"x": torch.full((9,), float(iteration))}, {"best": None}))
    path = tmp_path / "step-00000002" / "state.safetensors"
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), 7):
        content[position] ^= 1
        path.write_bytes(content)
        assert newest_checkpoint(tmp_path).iteration == 1
        content[position] ^= 1
    path.write_bytes(content)
    assert newest_checkpoint(tmp_path).iteration == 2
    (tmp_path / "step-00000002" / "manifest.json").write_text("{")
    assert newest_checkpoint(tmp_path).iteration == 1


@pytest.mark.slow
@pytest.mark.parametrize("write", range(8))
def test_a_full_disk_keeps_the_previous_checkpoint_and_exits_4(config, scans, tmp_path, monkeypatch, capsys, write):
    count = [0]
    through = fheat.system.files._write_through

    def full(file, parts):
        count[0] += 1
        if count[0] > 3 + write:  # settings and the first checkpoint are on disk
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", file.name)
        through(file, parts)

    monkeypatch.setattr(fheat.system.files, "_write_through", full)
    words = ["train", str(scans), *SMALL_WORDS, "--method", "supervised"]
    words += ["--warm-up", "1", "--checkpoint-every", "1", "--validate-every", "9"]
    iterations = min(3 + write // 2, 5)
    words += ["--batch", "1", "--iterations", str(iterations)]
    assert main([*words, "--out", str(tmp_path / "run")]) == 4
    assert "No space left on device" in capsys.readouterr().err
    found = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert found.iteration == 1 + write // 2
    monkeypatch.setattr(fheat.system.files, "_write_through", through)
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iterations"] == iterations


def test_settings_come_back_from_toml(config, tmp_path):
    settings = config(network_options={"gates": "dec1", "dropout": 0.1}, stride=(8, 8, 8), labelled=None)
    (tmp_path / "c.toml").write_text(to_toml(settings))
    assert read_settings(tmp_path / "c.toml") == settings
    assert read_settings(tmp_path / "c.toml", {"seed": 7}).schedule.seed == 7
    (tmp_path / "c.toml").write_text("speed = 3\n" + to_toml(settings))
    with pytest.raises(BadInput, match="field speed does not exist"):
        read_settings(tmp_path / "c.toml")
    (tmp_path / "c.toml").write_text("a = = 1")
    with pytest.raises(BadInput, match="is not TOML"):
        read_settings(tmp_path / "c.toml")
    with pytest.raises(BadInput, match=r"field optimiser\.learning_rate"):
        settings_of(**{"data": "x", "rate": -1})
    assert settings_of(data="x").schedule.iterations == 16_000


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "DATA is missing"),
        (["{scans}", "--labelled", "99"], 3, "labelled training scans, not 99"),
        (["{scans}", "--labelled", "9"], 3, "has no scan left to use without its label"),
        (["{scans}", "--iterations", "0"], 2, "fheat: --schedule.iterations: "),
        (["--resume", "--learning-rate", "0.1"], 2, "a resumed run keeps its settings"),
        (["--resume"], 3, "is not a run folder"),
        (["nowhere"], 3, "does not exist"),
    ],
)
def test_what_cannot_be_done_is_one_line(scans, tmp_path, capsys, words, code, says):
    given = [word.format(scans=scans) for word in words]
    assert main(["train", *given, "--out", str(tmp_path / "run"), "--device", "cpu"]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_used_folder_is_not_touched(config, scans, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    assert main(["train", str(scans), *SMALL_WORDS, "--out", str(tmp_path / "run")]) == 3
    assert "exists and is not empty" in capsys.readouterr().err
    assert (tmp_path / "run" / "thesis.txt").read_text() == "precious"


def test_labels_of_other_scans_are_never_read(config, scans, tmp_path):
    """With two labels the run must be the same whatever the other labels say."""
    import shutil

    from fheat.io import Volume, read_nifti, write_nifti

    other = tmp_path / "other"
    shutil.copytree(scans, other)
    order = json.loads((scans / "splits.json").read_text())
    for name in order["order"][2:]:
        if name not in order["validation"]:
            path = other / "labelsTr" / f"{name}.nii.gz"
            label = read_nifti(path)
            write_nifti(Volume(np.roll(label.data, 7, axis=0), label.affine), path)
    histories = []
    for data in (scans, other):
        run = Run(config(data=str(data), iterations=2), tmp_path / f"run-{data.name}", device="cpu")
        run.train()
        histories.append(run.step.history)
    assert torch.equal(*histories)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_say_how_to_go_on(scans, tmp_path, number, code):
    words = ["train", str(scans), *SMALL_WORDS, "--method", "supervised", "--batch", "1"]
    words += ["--iterations", "100000", "--validate-every", "100000", "--out", str(tmp_path / "run")]
    job = Fork(train, *words)
    while not (tmp_path / "run" / "log.jsonl").exists():
        time.sleep(0.05)
        assert job.code is None
    job.send(number)
    exit_code, _, error = job.outcome(60)
    assert exit_code == code
    found = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert f"stopped and saved at iteration {found.iteration}; go on with" in error
    assert found.iteration >= 50

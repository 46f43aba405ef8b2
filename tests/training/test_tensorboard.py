"""TensorBoard: the log as events, each once, and one line where the package is missing."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fheat.cli.main import main
from fheat.system.errors import BadInput
from fheat.training.log import from_line
from fheat.training.tensorboard import TensorBoard, scalars
from fheat.training.trainer import Stopped
from tests.training.helpers import SMALL_WORDS, Run


class Writer:
    """Writes to disk on flush, like the real one, into a new file per writer."""

    def __init__(self, log_dir):
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        count = len(list(Path(log_dir).iterdir()))
        self.path, self.waiting = Path(log_dir) / f"events.out.tfevents.{count}.host", []

    def add_scalar(self, tag, value, step):
        assert isinstance(value, float)
        self.waiting.append([tag, value, step])

    def flush(self):
        with open(self.path, "a") as file:
            file.writelines(json.dumps(event) + "\n" for event in self.waiting)
        self.waiting = []


@pytest.fixture
def board(monkeypatch):
    """A stand-in for the package, which need not be installed."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)


def events(run):
    files = sorted((run / "tensorboard").glob("events.out.tfevents.*"))
    return [tuple(json.loads(line)) for file in files for line in file.read_text().splitlines()]


def logged(run):
    lines = [from_line(line, checked=True) for line in (run / "log.jsonl").read_bytes().splitlines()]
    return [(tag, value, line["iteration"]) for line in lines for tag, value in scalars(line)]


def test_tags():
    line = {"iteration": 7, "total": 1.5, "norm": 0.5, "rate": 0.1, "D.enc1": 0.03, "alpha.enc1": 0.4}
    assert dict(scalars(line)) == {
        "loss/total": 1.5, "train/norm": 0.5, "train/rate": 0.1, "D/enc1": 0.03, "alpha/enc1": 0.4,
    }  # fmt: skip
    assert dict(scalars({"iteration": 7, "per_second": 2.0})) == {"train/iterations_per_second": 2.0}
    found = dict(scalars({"iteration": 7, "validation": 0.5, "cases": {"a.b": 0.4, "c": 0.6}}))
    assert found == {"validation/dice": 0.5, "cases/a.b": 0.4, "cases/c": 0.6}


def test_every_number_of_the_log_is_there_once(config, tmp_path, board):
    settings = config(tensorboard=True)
    run = Run(settings, tmp_path / "run", device="cpu")
    run.train()
    found = events(tmp_path / "run")
    assert found == logged(tmp_path / "run")
    assert len({(tag, step) for tag, _, step in found}) == len(found)
    steps = {tag: [step for name, _, step in found if name == tag] for tag, _, _ in found}
    gates = [f"{kind}/{site}" for site in run.step.gates for kind in ("D", "alpha")]
    for tag in ("loss/total", "loss/supervised", "train/norm", "train/rate", *gates):
        assert steps[tag] == [1, 2, 3, 4, 5, 6]
    assert steps["validation/dice"] == [4, 6]
    assert steps["train/iterations_per_second"] == steps["train/skipped"] == [2, 4, 6]
    assert max(value for tag, value, _ in found if tag == "validation/dice") == run.best


def test_going_on_writes_nothing_twice(config, tmp_path, board):
    settings = config(tensorboard=True, iterations=4, method="supervised", batch=1)
    Run(settings, tmp_path / "whole", device="cpu").train()
    first = Run(settings, tmp_path / "parts", device="cpu")
    first.stop()
    with pytest.raises(Stopped):
        first.train()
    killed = Run(settings, tmp_path / "parts", resume=True, device="cpu")
    numbers = killed.trainer.observers[0]
    numbers.begin(killed.trainer)
    for _ in range(2):  # past the checkpoint at 1, logged but never saved
        killed.step()
        killed.done += 1
    numbers.look(killed.trainer)
    assert max(step for _, _, step in events(tmp_path / "parts")) == 3
    again = Run(settings, tmp_path / "parts", resume=True, device="cpu")
    assert max(step for _, _, step in events(tmp_path / "parts")) == 1
    again.train()
    whole, parts = (
        [event for event in events(tmp_path / name) if event[0] not in ("train/iterations_per_second", "train/skipped")]
        for name in ("whole", "parts")
    )
    assert whole == parts
    assert events(tmp_path / "parts") == logged(tmp_path / "parts")


def test_foreign_files_beside_the_events_stay(tmp_path, board):
    sink = TensorBoard(tmp_path)
    sink.record([{"iteration": 1, "total": 1.0}])
    (tmp_path / "tensorboard" / "notes.txt").write_text("mine")
    TensorBoard(tmp_path).replace([{"iteration": 1, "total": 2.0}])
    assert events(tmp_path) == [("loss/total", 2.0, 1)]
    assert (tmp_path / "tensorboard" / "notes.txt").read_text() == "mine"


def test_without_it_nothing_is_written(config, tmp_path, board):
    Run(config(iterations=1), tmp_path / "run", device="cpu").train()
    assert not (tmp_path / "run" / "tensorboard").exists()
    TensorBoard(tmp_path).record([])
    assert not (tmp_path / "tensorboard").exists()


def test_where_the_package_is_missing(scans, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadInput, match=r"install fheat\[tensorboard\]"):
        TensorBoard(tmp_path).check()
    assert main(["train", str(scans), "--tensorboard", "--out", str(tmp_path / "run")]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "needs the package tensorboard; install fheat[tensorboard]" in error
    assert not (tmp_path / "run").exists()


def test_the_option_of_the_verb(scans, tmp_path, board, capsys):
    out = str(tmp_path / "run")
    assert main(["train", str(scans), *SMALL_WORDS, "--iterations", "1", "--tensorboard", "--out", out]) == 0
    assert "tensorboard = true" in (tmp_path / "run" / "config.toml").read_text()
    assert events(tmp_path / "run") == logged(tmp_path / "run")
    assert main(["train", "--resume", "--device", "cpu", "--out", out]) == 0
    assert main(["train", "--resume", "--tensorboard", "--out", out]) == 2
    assert "leave out --output.tensorboard" in capsys.readouterr().err


def test_the_real_package_reads_it_back(config, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    Run(config(tensorboard=True, iterations=3), tmp_path / "run", device="cpu").train()
    found = accumulators.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    wanted = logged(tmp_path / "run")
    assert set(found.Tags()["scalars"]) == {tag for tag, _, _ in wanted}
    for tag in found.Tags()["scalars"]:
        stored = [(event.step, event.value) for event in found.Scalars(tag)]
        assert stored == [(step, pytest.approx(value)) for name, value, step in wanted if name == tag]

"""A run that goes on with another number of iterations: what stays, what follows, and what is refused."""

import math
import shutil

import pytest
import torch

import fheat
from fheat.cli.main import main
from fheat.methods.registry import _REGISTERED
from fheat.methods.supervised import Supervised
from fheat.system.errors import BadInput
from fheat.training.batches import draw, draw_run
from fheat.training.checkpoints import newest_checkpoint
from fheat.training.run_folder import RunFolder
from fheat.training.runs import read_history
from fheat.training.trainer import Stopped
from tests.training.helpers import Run, StopAfter, changed, content_of

SCANS, CROPS = (3, 5), (2, 4)


def alike(draws, others, count):
    return all(
        torch.equal(one[:count], other[:count])
        for kind, also in zip(draws, others, strict=True)
        for one, other in zip(kind, also, strict=True)
    )


@pytest.mark.parametrize("more", [1, 2, 40])
def test_longer_draws_start_with_the_shorter_ones(more):
    short, once, longest = draw(SCANS, CROPS, 7, 3), *(draw_run(SCANS, CROPS, n, 3, 7) for n in (7 + more, 100))
    assert alike(short, once, 7)
    assert alike(once, longest, 7 + more)
    assert all(len(part) == 7 + more for kind in once for part in kind)
    assert not torch.equal(longest.places[0][7:14], longest.places[0][:7])
    assert not torch.equal(longest.places[0][7:], longest.chances[0][7:])


def test_a_run_of_its_first_length_has_the_draws_it_always_had():
    assert alike(draw(SCANS, CROPS, 9, 3), draw_run(SCANS, CROPS, 9, 3), 9)
    assert alike(draw(SCANS, CROPS, 9, 3), draw_run(SCANS, CROPS, 9, 3, 9), 9)
    shorter = draw_run(SCANS, CROPS, 5, 3, 9)
    assert alike(draw(SCANS, CROPS, 9, 3), shorter, 5)
    assert len(shorter.orders[0]) == 5


@pytest.mark.parametrize("first", range(1, 8))
def test_every_scan_comes_before_any_comes_again_also_across_the_seam(first):
    orders = draw_run(SCANS, CROPS, 30, 0, first).orders
    for order, scans, offset in ((orders[0], 3, 0), (orders[1], 5, 3)):
        flat = order.flatten()
        for start in range(0, flat.numel() - scans + 1, scans):
            assert sorted(flat[start : start + scans].tolist()) == list(range(offset, offset + scans))


def test_a_run_without_unlabelled_crops_is_made_longer_too():
    draws = draw_run((3, 0), (2, 0), 6, 0, 4)
    assert draws.orders[1].shape == (6, 0)
    assert draws.places[1].shape == (6, 0, 3)


@pytest.fixture
def half_done(config, tmp_path):
    """A run of six iterations that was stopped after three."""
    settings = config(iterations=6, warm_up=2, validate_every=3, checkpoint_every=100)
    with pytest.raises(Stopped):
        Run(settings, tmp_path / "run", observers=[StopAfter(3)]).train()
    return settings, tmp_path / "run"


def test_a_longer_run_keeps_its_crops_and_follows_the_longer_schedule(half_done):
    settings, folder = half_done
    first = newest_checkpoint(folder / "checkpoints").tensors["history"]
    run = Run(changed(settings, iterations=10), folder, resume=True)
    assert RunFolder(folder).settings().schedule.iterations == 10
    assert torch.equal(run.step.history[:3], first)
    run.train()
    rate = run.step.history[:, run.step.columns.index("rate")]
    assert rate[2].item() == pytest.approx(1.0)  # of the shorter schedule: (1 + cos 0) / 2
    longer = [(1 + math.cos(math.pi * (n - 2) / 8)) / 2 for n in range(3, 10)]
    assert rate[3:].tolist() == pytest.approx(longer)
    crops = draw_run((2, run.scans.unlabelled), (2, 2), 10, settings.schedule.seed, 6)
    iteration = torch.tensor(5)
    run.step.batches.load(iteration)
    low = run.step.batches(iteration).low
    assert torch.equal(low, run.step.batches.store.low[crops.orders[1][5]])
    history = read_history(folder)
    assert (history.done, history.finished) == (10, True)
    assert history.iterations == list(range(1, 11))
    assert fheat.load(folder / "final").card.training["iteration"] == 10


def test_a_run_that_was_made_longer_is_resumed_bit_by_bit(half_done):
    """Killed at whatever moment: after the first look at the new length, and twice on the way."""
    settings, folder = half_done
    longer = changed(settings, iterations=10)
    twin = shutil.copytree(folder, folder.parent / "twin")
    whole = Run(longer, folder, resume=True)
    whole.train()
    Run(longer, twin, resume=True)  # and is killed before its first iteration
    assert newest_checkpoint(twin / "checkpoints").iteration == 3
    for stop in (5, 8):
        with pytest.raises(Stopped):
            Run(RunFolder(twin).settings(), twin, resume=True, observers=[StopAfter(stop)]).train()
        assert newest_checkpoint(twin / "checkpoints").facts["first"] == 6
    again = Run(RunFolder(twin).settings(), twin, resume=True)
    assert again.done == 8
    again.train()
    assert torch.equal(whole.step.history, again.step.history)
    states = whole.step.state(), again.step.state()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_finished_run_goes_on_and_the_same_number_changes_nothing(config, tmp_path):
    settings = config(iterations=4, validate_every=4)
    Run(settings, tmp_path / "run").train()
    before = content_of(tmp_path / "run")
    fheat.train(out=tmp_path / "run", resume=True, iterations=4, device="cpu")
    assert before == content_of(tmp_path / "run")
    longer = fheat.train(out=tmp_path / "run", resume=True, iterations=6, device="cpu")
    assert longer.settings.schedule.iterations == 6
    assert [score.iteration for score in read_history(tmp_path / "run").validations] == [4, 6]


def test_the_verb_makes_a_run_longer_and_ends_one_earlier(half_done, capsys):
    _, folder = half_done
    assert main(["train", "--resume", "--out", str(folder), "--iterations", "5", "--device", "cpu"]) == 0
    assert "5 iterations" in capsys.readouterr().out
    assert main(["train", "--resume", "--out", str(folder), "--schedule.iterations", "7", "--device", "cpu"]) == 0
    assert read_history(folder).done == 7
    assert newest_checkpoint(folder / "checkpoints").facts["first"] == 6


def test_fewer_than_done_are_refused_in_one_line(half_done, capsys):
    _, folder = half_done
    before = (folder / "config.toml").read_bytes()
    assert main(["train", "--resume", "--out", str(folder), "--iterations", "2", "--device", "cpu"]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "has done 3 iterations, more than 2; give a larger number of iterations" in error
    assert main(["train", "--resume", "--out", str(folder), "--iterations", "0", "--device", "cpu"]) == 2
    assert "--schedule.iterations: Input should be greater than 0" in capsys.readouterr().err
    assert main(["train", "--resume", "--out", str(folder), "--batch", "4", "--iterations", "9"]) == 2
    assert "a resumed run keeps its settings: leave out --data.batch" in capsys.readouterr().err
    assert (folder / "config.toml").read_bytes() == before
    with pytest.raises(BadInput, match=r"was begun with another data\.batch"):
        Run(changed(RunFolder(folder).settings(), batch=1), folder, resume=True)


class HalfAndHalf(Supervised):
    """Its second stage is the second half of the run."""

    def __init__(self, settings, task):
        super().__init__(settings, task)
        self.begun = []

    def stage(self, iteration):
        return int(iteration >= self.task.iterations // 2)

    def begin_stage(self, model, stage):
        self.begun.append(stage)


def test_a_longer_run_does_not_go_back_to_an_earlier_stage(config, tmp_path, monkeypatch):
    monkeypatch.setitem(_REGISTERED, "halves", HalfAndHalf)
    settings = config(method="halves", iterations=4, checkpoint_every=100)
    Run(settings, tmp_path / "run").train()
    longer = Run(changed(settings, iterations=12), tmp_path / "run", resume=True)
    assert longer.step.method.stage(4) == 0
    assert longer.step.method.current_stage == 1
    longer.train()
    assert longer.step.method.begun == []
    assert longer.step.method.current_stage == 1

"""Many runs: each done once, failures kept apart, interruptions that lose nothing; in this process and in others."""

import hashlib
import json
import os
import shutil
import signal
import threading
import time

import pytest

from fheat.experiments.engine import Failure, Interrupted, RunsWatcher, run_all, run_here
from fheat.experiments.local import Local, places
from fheat.experiments.planned import Outcome, perform
from fheat.experiments.worker import Job, StopRequest, claims_of, work
from fheat.system.claims import holder
from fheat.system.sealed import sealed, unsealed
from fheat.training.observers import ITERATIONS_LOGGED_ONE_BY_ONE
from fheat.training.settings_sources import make_settings
from fheat.training.trainer import Stopped
from tests.experiments.engines import Here
from tests.refusals import refused


def weights(run, folder):
    return hashlib.sha256((run.folder(folder) / "final" / "model.safetensors").read_bytes()).hexdigest()


def logged(run, folder):
    """Return the iterations whose losses are in the log, in its order."""
    lines = [json.loads(line) for line in (run.folder(folder) / "log.jsonl").read_text().splitlines()]
    return [line["iteration"] for line in lines if "rate" in line]


class Listener(RunsWatcher):
    def __init__(self):
        self.heard = []

    def ends(self, name, end):
        self.heard.append((name, type(end).__name__))


class AskAfter(StopRequest):
    """Asks to stop in an iteration."""

    def __init__(self, iteration, number=signal.SIGTERM):
        super().__init__()
        self.iteration, self.wanted = iteration, number

    def before(self, trainer):
        if trainer.done == self.iteration - 1:
            self.received.append(self.wanted)
        super().before(trainer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, planned):
    """A folder with the run `seed-0`, done without any engine; to be read only."""
    folder = tmp_path_factory.mktemp("done") / "runs"
    perform(planned("seed-0"), folder, device="cpu")
    return folder


def test_what_is_done_is_kept_and_what_fails_does_not_stop_the_others(folder, planned, scans, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    shutil.copytree(scans, tmp_path / "other")
    lost = planned("lost", data=str(tmp_path / "other"), seed=1)
    assert lost.key  # what it was planned with
    shutil.rmtree(tmp_path / "other")
    runs, engine, listener = [planned("seed-0"), lost, planned("seed-2", seed=2)], Here(), Listener()
    ends = run_all(runs, tmp_path / "runs", engine, listener)
    assert [end.name for end in ends] == ["seed-0", "lost", "seed-2"]
    assert [type(end) for end in ends] == [Outcome, Failure, Outcome]
    assert str(tmp_path / "other") in ends[1].reason
    assert engine.began == ["lost", "seed-2"]
    assert listener.heard == [("seed-0", "Outcome"), ("lost", "Failure"), ("seed-2", "Outcome")]
    again = Here()
    assert run_all(runs[::2], tmp_path / "runs", again) == ends[::2]
    assert again.began == []


def test_an_interrupted_run_goes_on_to_the_same_weights(folder, planned, tmp_path):
    """Asked to stop in the third of four iterations, it saves there, and the log has every iteration once."""
    run = planned("seed-0")
    job = Job.of(run, tmp_path, device="cpu", threads=None)
    with pytest.raises(Stopped) as stopped:
        work(job, AskAfter(3))
    assert stopped.value.iteration == 3
    assert run.state(tmp_path) == "interrupted"
    assert holder(claims_of(run, tmp_path)) is None
    work(job, StopRequest())
    assert weights(run, tmp_path) == weights(run, folder)
    assert logged(run, tmp_path) == [1, 2, 3, 4]


def test_asked_in_the_last_iteration_a_worker_stops_before_it_scores(folder, planned, tmp_path):
    run = planned("seed-0")
    job = Job.of(run, tmp_path, device="cpu", threads=None)
    with pytest.raises(Stopped):
        work(job, AskAfter(4))
    assert weights(run, tmp_path) == weights(run, folder)
    assert run.state(tmp_path) == "interrupted"
    outcome = work(job, StopRequest())
    assert (outcome.best, outcome.gates) == (run.outcome(folder).best, run.outcome(folder).gates)


def test_a_signal_stops_all_and_the_same_call_goes_on(planned, tmp_path):
    """The first worker sends the signal to this very process while it trains, as a terminal would."""

    class Sends(AskAfter):
        def before(self, trainer):
            if trainer.done == self.iteration - 1:
                os.kill(os.getpid(), signal.SIGINT)
            super().before(trainer)

    runs = [planned("seed-3", seed=3), planned("seed-4", seed=4)]
    engine = Here([Sends(2)])
    with pytest.raises(Interrupted) as interrupted:
        run_all(runs, tmp_path, engine)
    assert interrupted.value.number == signal.SIGINT
    assert engine.began == ["seed-3"]
    assert [run.state(tmp_path) for run in runs] == ["interrupted", "not run yet"]
    assert {type(end) for end in run_all(runs, tmp_path, Here())} == {Outcome}
    assert logged(runs[0], tmp_path) == [1, 2, 3, 4]


def test_two_workers_with_one_run_do_it_once(planned, tmp_path):
    """The second one waits for the first one, and reads its outcome."""
    run = planned("seed-5", seed=5)
    job = Job.of(run, tmp_path, device="cpu", threads=None)
    outcomes = []
    workers = [threading.Thread(target=lambda: outcomes.append(work(job, StopRequest()))) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(outcomes) == 2
    assert outcomes[0] == outcomes[1] == run.outcome(tmp_path)
    assert logged(run, tmp_path) == [1, 2, 3, 4]


def test_two_calls_in_different_processes_do_a_run_once(planned, tmp_path):
    """Without workers, too; threads stand for the processes here."""
    run, ends = planned("seed-5", seed=5), []
    calls = [threading.Thread(target=lambda: ends.append(run_here([run], tmp_path, device="cpu"))) for _ in range(2)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert ends == [[run.outcome(tmp_path)]] * 2
    assert logged(run, tmp_path) == [1, 2, 3, 4]


def test_a_signal_stops_what_runs_in_this_process_and_the_same_call_goes_on(planned, tmp_path):
    class Interrupts(RunsWatcher):
        def begins(self, name):
            if name == "seed-4":
                signal.raise_signal(signal.SIGTERM)

    runs = [planned("seed-3", seed=3), planned("seed-4", seed=4)]
    with pytest.raises(Interrupted) as interrupted:
        run_here(runs, tmp_path, device="cpu", watcher=Interrupts())
    assert interrupted.value.number == signal.SIGTERM
    assert [run.state(tmp_path) for run in runs] == ["done", "not run yet"]
    assert [type(end) for end in run_here(runs, tmp_path, device="cpu")] == [Outcome, Outcome]


def test_a_worker_that_was_taken_for_dead_leaves_the_run_to_the_other(planned, tmp_path, monkeypatch, capsys):
    """It is displaced between two iterations; here nobody else goes on, so it waits, and takes the run back."""
    run = planned("seed-5", seed=5)
    monkeypatch.setattr("fheat.system.claims.BEAT", 0.05)

    class Displaces(StopRequest):
        def before(self, trainer):
            if trainer.done == 2 and not os.environ.get("DISPLACED"):
                monkeypatch.setenv("DISPLACED", "1")
                folder = claims_of(run, tmp_path)
                (mine,) = folder.iterdir()
                other = unsealed(mine.read_bytes()) | {"token": "other", "released": True}
                (folder / str(int(mine.name) + 1)).write_bytes(sealed(other))
                later = time.monotonic
                monkeypatch.setattr("fheat.system.claims.time.monotonic", lambda: later() + 45)
            super().before(trainer)

    outcome = work(Job.of(run, tmp_path, device="cpu", threads=None), Displaces())
    assert outcome == run.outcome(tmp_path)
    assert logged(run, tmp_path) == [1, 2, 3, 4]
    assert "another worker goes on with it" in capsys.readouterr().out


def test_a_run_whose_beginning_was_cut_off_begins_again(folder, planned, tmp_path):
    run = planned("seed-0")
    run.folder(tmp_path).mkdir(parents=True)
    (run.folder(tmp_path) / ".config.toml.0123").write_bytes(b"[da")
    work(Job.of(run, tmp_path, device="cpu", threads=None), StopRequest())
    assert weights(run, tmp_path) == weights(run, folder)


def test_other_scans_than_planned_are_refused(planned, scans, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a worker goes to the folder of its job; this leaves it at the end
    job = Job.of(planned("seed-0"), tmp_path, device="cpu", threads=None)
    shutil.copytree(scans, tmp_path / "scans")
    one, other = sorted((tmp_path / "scans" / "labelsTr").iterdir())[:2]
    shutil.copyfile(one, other)
    moved = job.model_copy(update={"settings": job.settings | {"data": {**job.settings["data"], "folder": "scans"}}})
    error = refused(work, moved.model_copy(update={"here": str(tmp_path)}), StopRequest())
    assert "does not hold the scans that the run was planned with" in error.reason
    assert make_settings(moved.settings).data.folder == "scans"  # which is found from the folder of the job


def test_places_on_gpus_take_turns(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def seen(*arguments):
        return [place.environment.get("CUDA_VISIBLE_DEVICES") for place in places(*arguments)]

    assert seen(None, 2) == ["0", "1", "0", "1"]
    assert seen("cuda:1", 2) == ["1", "1"]
    assert seen("cpu", 3) == [None] * 3
    with pytest.raises(ValueError, match="device 'cuda:2' cannot be used: this machine has 2 GPUs"):
        places("cuda:2", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert seen("cuda", 1) == ["GPU-a", "GPU-b"]


@pytest.mark.slow
def test_processes_are_killed_and_stopped_without_harm(folder, planned, tmp_path):
    """One call: a short run, and a long one whose process is killed. Another call: the long one goes on until a signal
    comes. It saves, and nothing of it is left behind."""
    short, long = planned("seed-0"), planned("long", iterations=100_000, seed=6, validate_every=100_000)
    known = [0]

    def act_when_training(do):
        log, until = long.folder(tmp_path) / "log.jsonl", time.monotonic() + 100
        while not (log.exists() and log.stat().st_size > known[0]):
            assert time.monotonic() < until, (tmp_path / "long.log").read_text()
            time.sleep(0.02)
        do(holder(claims_of(long, tmp_path)).pid)
        known[0] = log.stat().st_size + 10_000  # what it must reach the next time

    def while_training(do):
        threading.Thread(target=act_when_training, args=(do,), daemon=True).start()

    while_training(lambda pid: os.kill(pid, signal.SIGKILL))
    ends = run_all([short, long], tmp_path, Local(parallel=2, device="cpu"))
    assert isinstance(ends[0], Outcome)
    assert weights(short, tmp_path) == weights(short, folder)
    assert ends[1] == Failure(
        "long", f"its process was ended by SIGKILL, perhaps for lack of memory; see {tmp_path}/long.log"
    )

    while_training(lambda pid: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted) as interrupted:
        run_all([short, long], tmp_path, Local(parallel=2, device="cpu"))
    assert interrupted.value.number == signal.SIGTERM
    said = (tmp_path / "long.log").read_text().splitlines()
    assert said[0].startswith("long: begins: ")
    assert said[1].startswith("long: goes on: ")
    assert said[2].startswith("long: stopped and saved at iteration ")
    done = logged(long, tmp_path)
    assert done == [i for i in range(1, done[-1] + 1) if i <= ITERATIONS_LOGGED_ONE_BY_ONE or i % 10 == 0]
    assert holder(claims_of(long, tmp_path)) is None


class Refusing(Here):
    """Takes runs and does none."""

    def wait(self, seconds):
        return {self.waiting.pop(0).name: "was not begun"}


def test_the_longest_runs_begin_first(planned, tmp_path):
    """A network that nobody has timed may take longest; ends come in the order of the runs all the same."""
    crops = {"patch_size": (32, 32, 32), "batch": 2}
    runs = [
        planned("short", network="fheat_seg", iterations=10, **crops),
        planned("long", network="fheat_seg", iterations=1000, **crops),
        planned("slow-method", network="fheat_seg", method="ua_mt", iterations=900, **crops),
        planned("not-timed", iterations=20),
        planned("not-timed-longer", iterations=30),
    ]
    engine = Refusing()
    engine.submit = lambda run, folder: (engine.began.append(run.name), Here.submit(engine, run, folder))
    ends = run_all(runs, tmp_path / "runs", engine)
    assert engine.began == ["not-timed-longer", "not-timed", "slow-method", "long", "short"]
    assert [end.name for end in ends] == [run.name for run in runs]

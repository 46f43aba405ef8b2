"""A Ray cluster of two workers on this machine: the same weights and masks as without it, also when a worker is killed.

One cluster serves all tests of this file. Its workers are ended by SIGKILL, which leaves them no time for anything.
"""

import json
import os
import platform
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fheat import Card, create_model, save
from fheat.cli.main import main
from fheat.data.phantom import phantom
from fheat.experiments.engine import Interrupted, run_all
from fheat.experiments.on_ray import OnRay, _do
from fheat.experiments.planned import Outcome, perform
from fheat.experiments.worker import Job, claims_of
from fheat.io import write_nifti
from fheat.system.claims import holder
from tests.experiments.test_engine import logged, weights

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def two_workers(site):
    """A cluster with two processors; workers find the network `tiny` by the environment that it is started in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # by itself 15: beside other tests workers would wait for minutes
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, **options)
        yield
        ray.shutdown()


def when(happened, do):
    """Do something in another thread, once something has happened."""

    def wait():
        until = time.monotonic() + 300
        while not (found := happened()):
            if time.monotonic() > until:
                return
            time.sleep(0.01)
        do(found)

    threading.Thread(target=wait, daemon=True).start()


def worker_of(run, folder, *, beyond=0):
    """Return the process that trains a run, once it has logged more iterations than the given number, else None."""
    log = run.folder(folder) / "log.jsonl"
    owner = holder(claims_of(run, folder))
    iterations = log.read_bytes().count(b'"rate"') if log.exists() else 0  # its last line may not be complete yet
    return owner.pid if owner is not None and iterations > beyond else None


def test_six_runs_are_those_without_ray_though_a_worker_is_killed(two_workers, planned, tmp_path):
    """The killed worker's run goes on elsewhere from its checkpoint; every run is done once and logged once."""
    long = planned("long", iterations=300, checkpoint_every=20)  # long enough to be seen running on a busy machine
    runs = [long, *(planned(f"seed-{seed}", seed=seed) for seed in range(1, 6))]
    alone, together = tmp_path / "alone", tmp_path / "together"
    for run in runs:
        perform(run, alone, device="cpu")
    killed = []

    def kill(pid):
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)

    when(lambda: worker_of(long, together, beyond=20), kill)
    ends = run_all(runs, together, OnRay(parallel=2, device="cpu"))
    assert [end.name for end in ends if isinstance(end, Outcome)] == [run.name for run in runs]
    assert len(killed) == 1
    for run in runs:
        assert weights(run, together) == weights(run, alone)
        assert logged(run, together) == logged(run, alone)
        begun = [line for line in (together / f"{run.name}.log").read_text().splitlines() if ", process " in line]
        assert [line.split(": ")[1] for line in begun] == ["begins", *(["goes on"] if run is long else [])]
    assert f"process {killed[0]}" in (together / "long.log").read_text().splitlines()[0]


def test_a_machine_without_the_shared_folder_is_named(planned, tmp_path):
    job = Job.of(planned("a"), tmp_path / "elsewhere", device="cpu", threads=1)
    assert _do(job.model_dump_json(), "stop") == (
        f"{tmp_path}/elsewhere: is not there on {platform.node()}; give a folder that all machines share"
    )


def test_a_signal_saves_the_runs_of_all_workers(two_workers, planned, tmp_path):
    runs = [planned(f"long-{seed}", seed=seed, iterations=100_000, validate_every=100_000) for seed in (1, 2, 3)]
    when(lambda: worker_of(runs[0], tmp_path), lambda pid: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        run_all(runs, tmp_path, OnRay(parallel=2, device="cpu"))
    log = (runs[0].folder(tmp_path) / "log.jsonl").read_text().splitlines()
    last = json.loads(log[-1])["iteration"]  # the speed, which is logged wherever a run stops; losses may be older
    assert f"stopped at iteration {last}\n" in (tmp_path / "long-1.log").read_text()
    assert (runs[0].folder(tmp_path) / "checkpoints" / f"step-{last:08d}").is_dir()
    assert runs[2].state(tmp_path) == "not run yet"
    assert [path.name for path in (tmp_path / ".claims").glob("stop-*")] == []


def test_masks_and_record_are_those_without_ray_though_a_worker_is_killed(two_workers, site, tmp_path, capsys):
    """A worker is killed while it segments; its scans are done by the other one, and each is recorded once."""
    card = Card(classes=("background", "chamber"), preprocessing={"intensity": {"kind": "zscore"}})
    model = save(create_model("tiny", patch_size=(16, 16, 16)), tmp_path / "model", card)
    for seed in range(6):
        write_nifti(phantom(seed, (64, 64, 48)).image, tmp_path / "scans" / f"case{seed}.nii.gz")
    (tmp_path / "scans" / "bad.nii.gz").write_bytes(b"no scan")
    words = ["predict", str(model), str(tmp_path / "scans"), "--no-preview", "--json", "--runtime", "torch"]
    words += ["--device", "cpu"]
    out, killed = tmp_path / "together", []
    for folder in (tmp_path / "alone", out):
        folder.mkdir()
        (folder / "case0.nii.gz").write_bytes(b"mine")  # a file that is not ours is not replaced
    assert main([*words, str(tmp_path / "alone")]) == 3
    alone = json.loads(capsys.readouterr().out)

    def kill(pids):
        killed.append(pids[0])
        os.kill(pids[0], signal.SIGKILL)

    when(lambda: len(list(out.glob("*.nii.gz"))) > 1 and processes("ray::_Worker.segment", site), kill)
    assert main([*words, str(out), "--engine", "ray", "--parallel", "2"]) == 3
    together = json.loads(capsys.readouterr().out)
    assert len(killed) == 1
    assert comparable(together) == comparable(alone)
    assert [case["id"] for case in together["cases"]] == [f"case{seed}" for seed in range(1, 6)]
    assert (together["kept"], list(together["refused"]), together["complete"]) == ([], ["bad", "case0"], True)
    masks = [{path.name: path.read_bytes() for path in folder.glob("*.nii.gz")} for folder in (tmp_path / "alone", out)]
    assert masks[0] == masks[1]


def processes(title, site):
    """Return the workers of our cluster that do something now: those that were told where the network `tiny` is."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_text().startswith(title) and str(site) in (folder / "environ").read_text():
                found.append(int(folder.name))
    return found


def comparable(record):
    """Return a record without what differs from process to process."""
    own = ("mask", "seconds", "memory_bound_bytes", "memory_parts_bytes")
    cases = [{key: value for key, value in case.items() if key not in own} for case in record["cases"]]
    refused = list(record["refused"])  # whose reasons name the folder
    return record | {"cases": cases, "refused": refused, "date": None, "command": None}

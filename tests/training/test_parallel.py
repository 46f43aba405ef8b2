"""Several processes, on CPUs with gloo: together they do what one does with all scans, and they start, stop and fail
together."""

import json
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

from fheat import load
from fheat.system.errors import BadInput
from fheat.training.checkpoints import newest_checkpoint
from fheat.training.log import from_line
from fheat.training.settings_sources import to_toml
from tests.forks import Fork
from tests.training import programs
from tests.training.helpers import Run

LIMIT = 300
"""Seconds until processes that wait for each other are given up."""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs gloo and signals")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def settings(config, tmp_path):
    def write(name, **others):
        made = config(**({"network_options": {"dropout": 0.0}} | others))
        path = tmp_path / f"{name}.toml"
        path.write_text(to_toml(made))
        return made, path

    return write


def start(words, size=2, program=programs.train):
    """Start processes as torchrun does, but with their exit codes, standard errors and ids at hand."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        Fork(program, *words, environment=place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(size)
    ]


def outcome(jobs):
    """Return exit codes, standard outputs and standard errors."""
    codes, outputs, errors = zip(*(job.outcome(LIMIT) for job in jobs), strict=True)
    return [*codes], [*outputs], [*errors]


def train(path, folder, size=2, program=programs.train):
    words = ["train", "--config", str(path), "--out", str(folder), "--device", "cpu"]
    codes, _, errors = outcome(start(words, size, program))
    assert set(codes) == {0}, "\n".join(errors)[-3000:]
    assert set(errors) == {""}


def lines(folder):
    found = [from_line(line, checked=True) for line in (folder / "log.jsonl").read_bytes().splitlines()]
    return [line for line in found if "total" in line], [line for line in found if "validation" in line]


def weights(folder):
    return load(folder / "final").state_dict()


def largest_difference(one, other):
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


OPTIONS = {
    "cse": {},
    "supervised": {},
    "bcp": {},
    "cps": {"network.instrument": ["stem", "*.project"]},
    "fixmatch": {},
    "mean_teacher": {"method.ramp": 5, "method.consistency": 1.0},
    "mlrp": {},
    "sassnet": {"method.ramp": 5, "method.adversarial": 0.5, "method.discriminator_width": 2},
    "ss_net": {"method.ramp": 5, "method.separation": 1.0},
    "ua_mt": {"method.ramp": 5, "method.consistency": 1.0},
}
"""Methods, with options that let all of their terms count in twenty iterations; one has gates that are put in."""
LEARNED = {"sassnet": "distance", "ss_net": "smoothness", "bcp": None}
"""The loss that falls in these iterations, where the total gains other terms by a ramp; none where stages differ."""


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIONS)
def test_two_processes_are_one_with_twice_the_batch(settings, tmp_path, method):
    """At the paper's rate, in double precision, so that what differs is the method and not the order of sums.

    In single precision one voxel whose confidence is rounded to the other side of its threshold is 1.5e-5 of the
    consistency loss. Without dropout, whose masks are drawn inside the network by each process for its own scans.
    """
    each = 2 if method == "bcp" else 1
    for size, batch in ((2, each), (1, 2 * each)):
        _, path = settings(f"by-{size}", method=method, batch=batch, iterations=20, **OPTIONS[method])
        train(path, tmp_path / f"run-{size}", size, programs.train_precisely)
    expected, found = (lines(tmp_path / f"run-{size}")[0] for size in (1, 2))
    assert [line["iteration"] for line in found] == [*range(1, 21)]
    for line, other in zip(expected, found, strict=True):
        assert line.keys() == other.keys()
        assert all(line[name] == pytest.approx(other[name], rel=1e-6, abs=1e-6) for name in line)
    states = [newest_checkpoint(tmp_path / f"run-{size}" / "checkpoints").tensors for size in (1, 2)]
    # Heads on few vectors amplify rounding: initial weights that differ by 1e-15 end 5e-10 apart in one process too.
    for part, bound in (("model.", 1e-10), ("method.", 1e-8)):
        learned = [{name: value for name, value in state.items() if name.startswith(part)} for state in states]
        if any(learned) and not (method == "cse" and part == "method."):
            assert largest_difference(*learned) < bound
    falls = LEARNED.get(method, "total")
    if falls is not None:
        assert expected[-1][falls] < 0.8 * expected[0][falls]
    if method in ("sassnet", "ss_net"):
        assert expected[-1]["weight"] == OPTIONS[method].get("method.adversarial", 1.0)
    if method == "ua_mt":
        assert any(0 < line["certain"] < 1 for line in found)
    if method == "cse":
        assert (states[0]["method.threshold"] - states[1]["method.threshold"]).abs().max() < 1e-6
        assert found[0]["accepted"] != found[-1]["accepted"]


def test_two_processes_remember_the_same(settings, tmp_path):
    """Memory, second network and running statistics of the heads stay alike, so that a checkpoint holds those of all.

    The attention across samples sees the crops of its own process: two are not one with twice the batch here.
    """
    options = {"method.memory": 40, "method.added": 20, "method.compared": 4}
    made, _ = settings("two", method="caml", batch=1, iterations=3, validate_every=100, **options)
    codes, printed, errors = outcome(start([made, tmp_path / "run"], program=programs.train_and_tell))
    assert codes == [0, 0], errors
    one, other = map(json.loads, printed)
    assert one == other
    assert one["memory.written"] > 0
    assert any(name.startswith("second.") for name in one)


@pytest.mark.slow
def test_torchrun_with_two_processes_is_one_with_twice_the_batch(settings, tmp_path, environment):
    """As users do it, in single precision.

    With a small rate: of gradients that are nothing but rounding errors AdamW still makes steps as long as the rate.
    """
    _, path = settings("two", method="supervised", batch=1, rate=3e-4)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fheat"]
    words = ["train", "--config", str(path), "--out", str(tmp_path / "two"), "--device", "cpu", "--json"]
    done = subprocess.run([*launcher, *words], capture_output=True, text=True, timeout=LIMIT, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["iterations"] == 6  # printed once
    whole, _ = settings("one", method="supervised", batch=2, rate=3e-4)
    one = Run(whole, tmp_path / "one", device="cpu")
    before = {name: value.clone() for name, value in one.step.model.state_dict().items()}
    one.train()
    (expected, measured), (found, also) = lines(tmp_path / "one"), lines(tmp_path / "two")
    for line, other in zip(expected, found, strict=True):
        assert all(line[name] == pytest.approx(other[name], rel=1e-5, abs=1e-5) for name in line)
    for line, other in zip(measured, also, strict=True):
        assert line["validation"] == pytest.approx(other["validation"], abs=1e-3)  # a voxel may change sides
    assert largest_difference(weights(tmp_path / "one"), weights(tmp_path / "two")) < 1e-5
    assert largest_difference(before, weights(tmp_path / "two")) > 1e-3
    assert load(tmp_path / "two" / "final").card.training["processes"] == 2


@pytest.mark.slow
def test_asked_on_one_process_both_stop_and_go_on_as_if_nothing_had_happened(settings, tmp_path):
    """With dropout as it is: the generators of both processes must come back too."""
    made, path = settings("two", batch=1, iterations=40, network_options={}, checkpoint_every=1)
    train(path, tmp_path / "whole")
    folder = tmp_path / "parts"
    jobs = start(["train", "--config", str(path), "--out", str(folder), "--device", "cpu"])
    limit = time.monotonic() + LIMIT
    while not (folder / "checkpoints" / "step-00000002").exists() and time.monotonic() < limit:
        time.sleep(0.005)
        assert [job.code for job in jobs] == [None, None]
    jobs[1].send(signal.SIGTERM)
    codes, _, errors = outcome(jobs)
    assert codes == [143, 143], errors
    found = newest_checkpoint(folder / "checkpoints")
    assert 2 <= found.iteration < 40
    assert found.facts["processes"] == 2
    assert found.tensors["method.threshold"].shape[0] == 2
    assert not torch.equal(*found.tensors["method.threshold"])
    assert f"stopped and saved at iteration {found.iteration}; go on with" in errors[0]
    assert (errors[0].count("\n"), errors[1]) == (1, "")
    with pytest.raises(BadInput, match="is the run of 2 processes, not 1; go on with 2"):
        Run(made, folder, resume=True, device="cpu")
    codes, _, errors = outcome(start(["train", "--resume", "--out", str(folder), "--device", "cpu"]))
    assert codes == [0, 0], errors
    assert largest_difference(weights(tmp_path / "whole"), weights(folder)) == 0
    assert lines(tmp_path / "whole") == lines(folder)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--labelled", "99"], 3, "labelled training scans, not 99"),
        (["--checkpoint-every", "1"], 4, "No space left on device"),  # only the first process writes
    ],
)
def test_what_goes_wrong_on_one_ends_both_with_one_line(settings, tmp_path, words, code, says):
    _, path = settings("two", method="supervised", batch=1, iterations=3)
    basis = ["train", "--config", str(path), "--device", "cpu", "--out", str(tmp_path / "run")]
    codes, outputs, errors = outcome(start([*basis, *words], program=programs.train_on_a_full_disk))
    assert codes == [code, code], errors
    assert says in errors[0]
    assert (errors[0].count("\n"), errors[1], outputs[1]) == (1, "", "")
    assert not outputs[0] or outputs[0].startswith("plan for ")

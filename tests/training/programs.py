"""Programs that tests start as processes of their own."""

import errno
import json
import os
import random
import signal
import sys
import time
from types import SimpleNamespace

import torch

import fheat.system.files
import fheat.training.prepare as prepare
import fheat.training.validation as validation
from fheat.cli.main import main
from fheat.data.store import VolumeStore
from fheat.system import processes
from fheat.training.checkpoints import Checkpoint, newest_checkpoint, save_checkpoint
from tests.training.helpers import Run, changed

TRAIN = """
import sys
from types import SimpleNamespace
from fheat.cli.main import main

sys.modules["fheat.report.write"] = SimpleNamespace(write_report=lambda *arguments, **options: "none")
sys.exit(main(sys.argv[1:]))
"""
"""`python -m fheat` without the report at the end of `train`, which takes longer than the short runs of a test."""


def train(*words):
    """Do what `TRAIN` does."""
    sys.modules["fheat.report.write"] = SimpleNamespace(write_report=lambda *arguments, **options: "none")
    return main(words)


def train_precisely(*words):
    """Train in double precision, without validation."""
    build, crop, norm = prepare.build_network, VolumeStore.crop, torch.nn.utils.get_total_norm
    single = torch.Tensor.float

    def precise_crop(*arguments):
        images, labels = crop(*arguments)
        return images.double(), labels

    prepare.build_network = lambda *arguments: build(*arguments).double()
    validation.validate = lambda *arguments, **options: {"none": 0.0}
    VolumeStore.crop = precise_crop
    torch.Tensor.float = lambda self: self if self.dtype == torch.float64 else single(self)
    torch.nn.utils.get_total_norm = lambda gradients: single(norm(gradients))  # which is what the fused update takes
    return train(*words)


def train_and_tell(settings, folder):
    """Train among other processes and print the sums of all that the method holds at the end, on each of them."""
    with processes.joined():
        run = Run(settings, folder)
        run.train()
        print(json.dumps({name: value.double().sum().item() for name, value in run.step.method.state_dict().items()}))


def train_on_a_full_disk(*words):
    """Train where the disk is full once settings and the first checkpoint are written."""
    through, count = fheat.system.files._write_through, [0]

    def full(file, parts):
        count[0] += 1
        if count[0] > 3:
            raise OSError(errno.ENOSPC, "No space left on device", file.name)
        through(file, parts)

    fheat.system.files._write_through = full
    return train(*words)


def train_and_be_killed(settings, folder, kills):
    """Begin a run, kill it again and again, then let it come to its end; print the kills and the iteration reached."""
    random.seed(0)
    Run(settings, folder)
    reached = done = 0
    while done < kills:
        child = os.fork()
        if child == 0:
            Run(settings, folder, resume=True).train()
            os._exit(0)
        # A quarter of the lives end at once, the others a moment after they have saved something: on any machine.
        limit = time.monotonic() + (random.uniform(0, 0.3) if random.random() < 0.25 else 30)
        before = sorted((folder / "checkpoints").glob("step-*"))
        while time.monotonic() < limit and sorted((folder / "checkpoints").glob("step-*")) == before:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        done += 1
        found = newest_checkpoint(folder / "checkpoints")
        now = 0 if found is None else found.iteration
        assert now >= reached, (now, reached)
        reached = now
    Run(changed(settings, checkpoint_every=1000), folder, resume=True).train()  # nobody kills it any more
    print(json.dumps([done, reached]))


def save_and_be_killed(folder, kills):
    """Save checkpoints as fast as possible and be killed again and again; print the newest one."""
    random.seed(0)
    last = 0
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            while True:
                last += 1
                save_checkpoint(folder, Checkpoint(last, {"x": torch.full((50_000,), float(last))}, {}))
        time.sleep(random.uniform(0.0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = newest_checkpoint(folder)
        if found is not None:
            assert (found.tensors["x"] == found.iteration).all()
            assert found.iteration >= last, (found.iteration, last)
            last = found.iteration
        else:
            assert last == 0
    unloadable = [path for path in folder.glob("step-*") if not (path / "manifest.json").exists()]
    assert not unloadable, unloadable
    print(last)

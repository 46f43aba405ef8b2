"""The memory bound: above what a prediction takes, and not far above."""

import itertools
import json
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import nn

from fheat import Predictor, create_model
from fheat.data.preprocessing import Preprocessing
from fheat.inference.memory import MemoryBound, _Meter, activation_bytes, memory_bound
from fheat.inference.postprocessing import Restorer
from fheat.inference.sliding import SlidingWindow
from fheat.inference.windows import Windows
from fheat.io import Volume

RUN = """
import json, os, sys
import numpy as np
import torch
from torch import nn
from fheat import Card, Predictor
from fheat.inference.windows import Windows
from fheat.io import Volume
from fheat.system.allocator import return_large_blocks

return_large_blocks()  # as the program does
torch.set_num_threads(1)

def measure(line):
    job = {"to": None, "of": (1, 1, 1), "channels": 1, "classes": 2, "components": False, "intensity": {}}
    job |= json.loads(line)
    torch.manual_seed(0)  # some weights give one class everywhere, and no components that take memory
    network = nn.Sequential(nn.Conv3d(job["channels"], 4, 1), nn.ReLU(), nn.Conv3d(4, job["classes"], 1))
    windows = Windows((32, 32, 32), (32, 32, 32))
    card = Card(preprocessing={"spacing": job["to"], "intensity": job["intensity"]})
    predictor = Predictor(network, card=card, windows=windows, largest_component=job["components"])
    shape = job["shape"] if job["channels"] == 1 else (*job["shape"], job["channels"])
    data = np.random.default_rng(0).integers(-1000, 1000, shape, dtype=np.int16)
    volume = Volume(data, np.diag([*job["of"], 1.0]))
    bound = predictor.memory(volume)
    predictor.segment(volume)
    # Not ru_maxrss, which a new process inherits from the one that started it.
    peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps([bound.total, bound.program, peak]), flush=True)

for line in sys.stdin:  # each job in a process that has done nothing but these imports
    child = os.fork()
    if child == 0:
        measure(line)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("null", flush=True)
    import torch._dynamo  # torch loads it with a forward pass, slowly: the first job shows what memory that takes
"""


@pytest.fixture(scope="module")
def measured():
    """Return [bound, program, peak] in bytes of a job, each in a process of its own."""
    command = [sys.executable, "-c", RUN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def ask(job):
            server.stdin.write(json.dumps(job) + "\n")
            server.stdin.flush()
            return json.loads(server.stdout.readline())

        yield ask
        server.stdin.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is reported in other units")
@pytest.mark.parametrize(
    ("job", "times"),
    [
        ({"shape": (300, 300, 300)}, 3),
        ({"shape": (300, 300, 300), "intensity": {"kind": "zscore"}}, 3),
        ({"shape": (200, 200, 120), "channels": 8, "intensity": {"kind": "zscore", "nonzero": True}}, 3),
        ({"shape": (200, 200, 300), "to": (0.7, 0.8, 0.9), "intensity": {"kind": "window", "low": 0, "high": 9}}, 3),
        ({"shape": (300, 300, 300), "components": True}, 3),
        ({"shape": (200, 200, 300), "to": (0.7, 0.8, 0.9)}, 3),
        ({"shape": (300, 300, 300), "to": (2, 2, 2)}, 3),
        ({"shape": (200, 200, 120), "channels": 8}, 3),
        ({"shape": (200, 24, 200), "of": (0.3, 10, 1), "to": (1, 1, 1), "classes": 16}, 3),
        ({"shape": (160, 160, 160), "to": (1.45, 1.45, 1.45), "classes": 8}, 3),
        ({"shape": (200, 200, 200), "classes": 4, "components": True}, 3),
        ({"shape": (320, 320, 200), "of": (0.7, 0.7, 1), "to": (3, 3, 3), "classes": 25}, 3),
    ],
    ids=[
        "plain",
        "z-score",
        "non-zero",
        "window",
        "components",
        "finer",
        "coarser",
        "channels",
        "anisotropic",
        "classes",
        "noise",
        "coarse",
    ],
)
def test_the_peak_stays_within_the_printed_bound(measured, job, times):
    """Beyond what the program itself takes, the bound is at most so many times what is used."""
    bound, program, peak = measured(job)
    assert peak <= bound
    assert bound - program <= times * (peak - program)


def test_memory_follows_the_cross_section_and_not_the_length():
    predictor = Predictor(nn.Conv3d(1, 2, 1), windows=Windows((16, 16, 16), (8, 8, 8)))
    short, long = (
        predictor.memory(Volume(np.zeros((64, 64, length), dtype=np.int16), np.eye(4))) for length in (100, 400)
    )
    assert long.slab == short.slab
    assert (long.planes, long.windows) == (short.planes, short.windows)
    assert long.scan == 4 * short.scan
    assert long.mask == 64 * 64 * 400
    assert "memory at most" in str(long)


def coarse_scan(shape, spacing, to):
    """Return a volume of zeros that take no memory, and how a network sees it."""
    volume = Volume(np.broadcast_to(np.zeros((), np.int16), shape), np.diag([*spacing, 1.0]))
    return volume, Preprocessing(spacing=to).scan(volume)


def bound_of(scan, classes, device="cpu", activations=0):
    sliding = SlidingWindow(nn.Identity(), Windows((96, 96, 96), (48, 48, 48)))
    parts = {"program": 0, "activations": activations, "maps": 0, "components": False, "device": torch.device(device)}
    return sliding, memory_bound(sliding, scan, 2 * np.prod(scan.source_shape), classes=classes, **parts)


def test_what_is_on_a_gpu_is_no_memory_of_this_machine():
    """Sixteen windows of a large network would refuse a scan that needs none of it here."""
    scan = coarse_scan((192, 142, 88), (1, 1, 1), (1, 1, 1))[1]
    here, there = (bound_of(scan, 2, device, activations=30 * 2**30)[1] for device in ("cpu", "cuda"))
    assert (there.slab, there.windows) == (0, 0)
    assert there == replace(here, slab=0, windows=0)
    assert here.total > 30 * 2**30 > 100 * there.total


@pytest.mark.parametrize(
    ("shape", "spacing", "to", "classes", "most"),
    [
        ((512, 512, 600), (0.7, 0.7, 1.0), (3, 3, 3), 25, 1300),
        ((512, 512, 400), (0.5, 0.5, 0.5), (2, 2, 2), 2, 120),
        ((512, 512, 600), (0.7, 0.7, 1.0), (1.5, 1.5, 1.5), 14, 800),
        ((192, 142, 88), (1, 1, 1), (1, 1, 1), 2, 60),
    ],
)
def test_planes_of_a_large_scan_for_a_coarse_network_are_few(shape, spacing, to, classes, most):
    """What is held while planes come back to the scan's voxels is on its grid, times the classes."""
    assert bound_of(coarse_scan(shape, spacing, to)[1], classes)[1].planes < most * 2**20


def test_bringing_planes_back_takes_what_the_bound_says():
    volume, scan = coarse_scan((192, 192, 120), (0.7, 0.7, 1.0), (3, 3, 3))
    sliding, bound = bound_of(scan, 25)
    restorer = Restorer(volume, scan, sliding.axis(scan.shape), ())
    with torch.no_grad(), _Meter() as meter:
        restorer.add(0, torch.rand(25, *scan.shape))
    assert restorer.prediction.mask.data.shape == (192, 192, 120)
    assert meter.peak - 4 * 25 * np.prod(scan.shape) < min(bound.planes, 100 * 2**20)


def test_the_slab_holds_every_channel_and_every_class():
    """Per voxel of the planes held: the image, the sums, their weights, and one value more while planes move."""
    for channels, classes in itertools.product((1, 2, 5), (1, 3)):
        predictor = Predictor(nn.Conv3d(channels, classes, 1), windows=Windows((16, 16, 16), (8, 8, 8)))
        bound = predictor.memory(Volume(np.zeros((40, 30, 100, channels), dtype=np.int16), np.eye(4)))
        assert bound.slab == (channels + classes + 2) * (16 + 8) * 40 * 30 * 4
        assert (bound.scan, bound.reading, bound.mask) == (240_000 * channels, 240_000, 120_000)


def test_the_total_is_the_largest_phase_with_its_reserve_and_the_picture():
    """What is drawn after the windows comes on top: an allocator need not have given their memory back."""
    parts = dict.fromkeys((part.name for part in fields(MemoryBound)), 0)
    largest = {"program": 1000, "scan": 100, "mask": 50, "slab": 10, "planes": 20, "windows": 30}
    bound = MemoryBound(**{**parts, **largest, "statistics": 40, "components": 59, "reading": 99})
    assert bound.total == int(1.05 * (1000 + 100 + 50 + 60))
    assert replace(bound, components=70).total == int(1.05 * (1000 + 100 + 50 + 70))
    assert replace(bound, reading=200).total == int(1.05 * (1000 + 100 + 200))
    assert replace(bound, picture=7).total == bound.total + 7
    predictor = Predictor(nn.Conv3d(1, 2, 1), windows=Windows((16, 16, 16), (8, 8, 8)))
    assert predictor.memory(Volume(np.zeros((16, 16, 16), np.int16), np.eye(4))).picture == 48 * 2**20


def test_activations_of_a_known_chain():
    """Input 1, after the first layer 1 + 8, after the second 8 + 2 channels are alive: ten at the peak."""
    chain = nn.Sequential(nn.Conv3d(1, 8, 1), nn.Conv3d(8, 2, 1))
    classes, found = activation_bytes(chain, (1, 1, 16, 16, 16), torch.device("cpu"))
    assert classes == 2
    voxels = 4 * 16**3
    assert 11 * voxels <= found <= 23 * voxels


def test_activations_grow_with_the_batch():
    model = create_model("fheat_seg", patch_size=(32, 32, 32)).eval()
    one, four = (activation_bytes(model, (batch, 1, 32, 32, 32), torch.device("cpu"))[1] for batch in (1, 4))
    assert 3 * one < four < 4.2 * one


def test_a_bound_follows_windows_that_are_changed():
    """Also after the bound of a scan with other windows is known."""
    volume = Volume(np.zeros((40, 30, 40), dtype=np.int16), np.eye(4))
    predictor, large = (
        Predictor(nn.Conv3d(1, 2, 3, padding=1), windows=Windows(size, size), runtime="torch", device="cpu")
        for size in ((8, 8, 8), (24, 24, 24))
    )
    small = predictor.memory(volume).windows
    predictor.windows = large.windows
    assert predictor.memory(volume).windows == large.memory(volume).windows > 20 * small

"""The memory bound: above what a prediction takes, and not far above."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fheat import Predictor, create_model
from fheat.inference.memory import activation_bytes
from fheat.inference.windows import Windows
from fheat.io import Volume

RUN = """
import json, sys
import numpy as np
import torch
from torch import nn
from fheat import Card, Predictor
from fheat.inference.windows import Windows
from fheat.io import Volume

torch.set_num_threads(1)
shape, spacing, components = json.loads(sys.argv[1])
network = nn.Sequential(nn.Conv3d(1, 4, 1), nn.ReLU(), nn.Conv3d(4, 2, 1))
card = Card(spacing=spacing)
predictor = Predictor(network, card=card, windows=Windows((32, 32, 32), (32, 32, 32)), largest_component=components)
data = np.random.default_rng(0).integers(-1000, 1000, shape, dtype=np.int16)
volume = Volume(data, np.eye(4))
bound = predictor.memory(volume)
predictor.segment(volume)
# Not ru_maxrss, which a new process inherits from the one that started it.
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([bound.total, bound.program, peak]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is reported in other units")
@pytest.mark.parametrize(
    "job",
    [
        [[300, 300, 300], None, False],
        [[300, 300, 300], None, True],
        [[200, 200, 300], [0.7, 0.8, 0.9], False],
        [[300, 300, 300], [2.0, 2.0, 2.0], False],
    ],
    ids=["plain", "components", "finer", "coarser"],
)
def test_the_peak_stays_within_the_printed_bound(job):
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(job)], capture_output=True, text=True, check=True)
    bound, program, peak = json.loads(done.stdout)
    assert peak <= 1.1 * bound
    assert bound - program <= 3 * (peak - program)


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

"""The probe on a GPU: the CPU's numbers, without fused kernels, and generators left alone."""

import pytest
import torch

from fheat import create_model, probe
from fheat.methods.base import Batch, Task
from fheat.methods.supervised import Supervised, SupervisedSettings
from fheat.ops.gates import gates_of
from tests.methods.predictions import batch_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PATCH = (64, 48, 48)


def loss_fn(network, batch):
    return Supervised(SupervisedSettings(), Task(PATCH, 2)).losses(network, batch)["total"]


@pytest.fixture
def model():
    model = create_model("fheat_seg", patch_size=PATCH)
    gates_of(model)["dec2"].set_strength(0.0)
    gates_of(model)["dec1"].set_strength(0.5)
    return model


@pytest.fixture
def batch():
    images, labels = torch.randn(2, 1, *PATCH), torch.randint(2, (2, *PATCH))
    return batch_of(images, labels, images[:0])


def test_a_gpu_finds_what_a_cpu_finds(model, batch):
    here = probe(model.double().eval(), loss_fn, batch._replace(images=batch.images.double()))
    on_gpu = Batch(*(value.cuda() for value in batch))
    there = probe(model.float().cuda().eval(), loss_fn, on_gpu)
    largest = max(abs(row.pairing) for row in here)
    for cpu, gpu in zip(here, there, strict=True):
        assert gpu.pairing == pytest.approx(cpu.pairing, rel=1e-2, abs=1e-4 * largest)
        assert gpu.attenuation == pytest.approx(cpu.attenuation, rel=1e-3)
    assert there["dec2"].attenuation == 1.0
    with torch.autocast("cuda", torch.bfloat16):
        rough = probe(model, loss_fn, on_gpu)
    assert rough["dec1"].pairing == pytest.approx(here["dec1"].pairing, rel=0.1)


def test_the_generators_of_host_and_gpu_stay(model, batch):
    model, batch = model.cuda().train(), Batch(*(value.cuda() for value in batch))
    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    first, second = (probe(model, loss_fn, batch, batch) for _ in range(2))
    assert torch.equal(states[0], torch.get_rng_state())
    assert torch.equal(states[1], torch.cuda.get_rng_state())
    assert first["dec1"].pairing == pytest.approx(second["dec1"].pairing, rel=1e-3)
    assert first["enc3"].error > 0  # dropout differs from batch to batch

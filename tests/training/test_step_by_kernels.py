"""Whole iterations of CSE by fused kernels, in Triton's interpreter: those of the plain step."""

import pytest
import torch

from fheat.ops import kernels
from fheat.ops import largest_component as components
from tests.methods.predictions import cse
from tests.training.test_step import PATCH, build


@pytest.mark.slow
def test_iterations_of_cse_by_kernels_are_the_plain_ones(monkeypatch):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU; see tests/gpu")
    plain = kernels.use("never")(components.largest_component)  # its kernels have their own test
    monkeypatch.setattr("fheat.methods.cse.largest_component", plain)
    histories = []
    for mode in ("never", "always"):
        with kernels.use(mode):
            step = build(cse(PATCH), 3)
            for _ in range(3):
                step()
        histories.append(step.history)
    assert step.optimiser._vector is not None
    assert step.batches._walks is not None
    assert (histories[0] != 0).any(dim=1).all()
    assert torch.allclose(histories[1][:1], histories[0][:1], rtol=1e-5, atol=1e-6)
    assert torch.allclose(histories[1], histories[0], rtol=1e-3, atol=1e-5)

"""AdamW on one vector of all parameters on a GPU: it updates the whole network as torch does, captured too."""

import pytest
import torch

from fheat import create_model
from fheat.ops import kernels
from fheat.system.capture import capture, rehearse
from fheat.training.optimiser import AdamW
from fheat.training.settings import OptimiserSettings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def updated(mode, steps):
    torch.manual_seed(0)
    with kernels.use(mode):
        model = create_model("fheat_seg", patch_size=(48, 48, 32)).cuda()
        optimiser, factor = AdamW(model, OptimiserSettings()), torch.ones((), device="cuda")
        assert (optimiser._vector is not None) == (mode == "auto")
        for one in model.parameters():
            one.grad = torch.randn_like(one)
        rehearse(lambda: optimiser.step(factor))
        graph, norm = capture(lambda: optimiser.step(factor))
        for _ in range(steps):
            for one in model.parameters():
                one.grad.copy_(0.1 * torch.randn_like(one))  # torch scales gradients in place
            graph.replay()
        next(model.parameters()).grad.fill_(float("nan"))
        graph.replay()
    return model, optimiser, norm


def test_updates_are_those_of_torch():
    (plain, own, length), (found, other, norm) = updated("never", 5), updated("auto", 5)
    assert norm.isnan()
    assert length.isnan()
    assert own.skipped == other.skipped == 1
    for one, two in zip(found.parameters(), plain.parameters(), strict=True):
        assert (one - two).abs().max() < 1e-5
    states = own.state(), other.state()
    assert states[0].keys() == states[1].keys()
    assert all(torch.allclose(states[1][name], states[0][name], rtol=1e-4, atol=1e-8) for name in states[0])

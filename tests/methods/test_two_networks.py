"""What methods with two networks share: the second network, the ramp, and code that a captured graph can hold."""

from contextlib import nullcontext

import pytest
import torch

from fheat import create_model
from fheat.methods.base import Batch, Task
from fheat.methods.registry import method_class
from tests.methods.pairs import PATCH, build, crops

METHODS = ("caml", "mlrp")


@pytest.mark.parametrize("name", METHODS)
def test_the_network_that_is_saved_is_the_first_one(name):
    """The method must not add anything to it: no module, no hook, no parameter."""
    torch.manual_seed(3)
    plain = create_model("miniature", patch_size=PATCH, dropout=0.0).double()
    torch.manual_seed(3)
    method, model = build(name)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), plain.parameters(), strict=True))
    assert not any(module._forward_hooks for module in model.modules())
    own = {id(parameter) for parameter in model.parameters()}
    assert not any(id(parameter) in own for parameter in method.trained())
    assert {id(parameter) for parameter in method.second.parameters()} <= {id(one) for one in method.trained()}


@pytest.mark.parametrize("name", METHODS)
def test_unlabelled_terms_rise_with_the_ramp(name):
    method, model = build(name, ramp=3)
    batch, ramp = crops(), "ramp" if name == "caml" else "weight"
    values = [method.losses(model, batch)[ramp].item() for _ in range(5)]
    assert values == pytest.approx([0.0067379, 0.1083680, 0.5737534, 1, 1], rel=1e-5)
    assert method.steps == 5


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("classes", [2, 4])
def test_an_iteration_asks_no_tensor_for_its_values(name, classes, monkeypatch):
    """On the device `meta` tensors have no values: a branch on one, or a shape made from one, would raise here, as it
    would while a graph is captured."""
    monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: nullcontext())  # it does not know the device

    def network():
        return create_model("miniature", out_channels=classes, patch_size=PATCH).to("meta").train()

    kind, model = method_class(name), network()
    method = kind(kind.Settings(), Task(PATCH, 2, classes)).to("meta")
    method.prepare(model, network)
    images, labels = torch.zeros(2, 1, *PATCH, device="meta"), torch.zeros(2, *PATCH, dtype=torch.uint8, device="meta")
    losses = method.losses(model, Batch(images, labels, images, images[:, :, 0, 0, 0], images[:, :, 0, 0, 0]))
    losses["total"].backward()
    assert tuple(losses) == method.names
    assert all(value.shape == () for value in losses.values())

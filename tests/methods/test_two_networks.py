"""What methods with two networks share: the second network, the ramp, and code that a captured graph can hold."""

import pytest
import torch

from fheat import create_model
from fheat.methods.base import Task
from fheat.methods.registry import method_class
from tests.methods.captured import Plain, advance_as_captured
from tests.methods.pairs import PATCH, build, crops
from tests.methods.predictions import batch_of

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
def test_an_iteration_asks_no_tensor_for_its_values(name, classes):
    kind, model = method_class(name), Plain(classes)
    method = kind(kind.Settings(), Task(PATCH, 2, classes))
    method.prepare(model, lambda: Plain(classes))
    images, labels = torch.randn(2, 1, *PATCH), torch.randint(classes, (2, *PATCH), dtype=torch.uint8)
    losses = advance_as_captured(method, model, batch_of(images, labels, torch.randn(2, 1, *PATCH)))
    assert tuple(losses) == method.names
    assert all(value.shape == () and torch.isfinite(value) for value in losses.values())

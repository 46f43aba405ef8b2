"""The trace of a forward pass: every layer and function in order, with the shapes and sources of the real pass."""

import pytest
import torch
from torch import nn

from fheat import create_model
from fheat.gates.dry_run import example_inputs
from fheat.gates.trace import trace


class Small(nn.Module):
    """conv, a part of two layers, a residual, a parameter of its own, and a concatenation."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, groups=1)
        self.part = nn.Sequential(nn.GELU(), nn.Conv2d(4, 4, 1, groups=4))
        self.scale = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        x = self.conv(x)
        y = x + self.part(x)
        return torch.cat([x, y * self.scale], dim=1)


def small(whole=()):
    return trace(Small(), (torch.empty(1, 1, 6, 5, device="meta"),), whole)


def test_every_step_with_its_sources():
    steps = small().steps
    assert [(step.kind, step.path, step.caller, step.sources) for step in steps] == [
        ("input", "", "", ()),
        ("Conv2d", "conv", "", (0,)),
        ("GELU", "part.0", "part", (1,)),
        ("Conv2d", "part.1", "part", (2,)),
        ("add", "", "", (1, 3)),
        ("parameter", "scale", "", ()),
        ("mul", "", "", (4, 5)),
        ("cat", "", "", (1, 6)),
    ]
    assert (steps[1].taken, steps[1].shape, steps[1].kernel) == ((1, 1, 6, 5), (1, 4, 6, 5), (3, 3))
    assert steps[3].groups == 4
    assert steps[-1].shape == (1, 8, 6, 5)


def test_calls_of_modules_and_modules_that_count_as_one_step():
    assert small().calls == {"part": [range(2, 4)]}
    whole = small(whole=["part"])
    assert whole.calls == {}
    assert [step.path for step in whole.steps if step.path] == ["conv", "part", "scale"]
    assert whole.steps[2].kind == "Sequential"
    assert whole.steps[3].sources == (1, 2)


def test_a_layer_that_is_called_twice_is_two_steps():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    steps = trace(model, (torch.empty(2, 3, device="meta"),)).steps
    assert [(step.kind, step.sources) for step in steps] == [
        ("input", ()), ("Linear", (0,)), ("ReLU", (1,)), ("Linear", (2,)),
    ]  # fmt: skip


def test_a_network_that_looks_at_values_runs_with_values():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x) if float(x.sum()) == 0 else x

    steps = trace(Looks(), (torch.empty(2, 3, device="meta"),)).steps
    assert [step.kind for step in steps] == ["input", "sum", "Linear"]


@pytest.mark.parametrize("name", ["fheat_seg", "light_unetr"])
def test_shapes_are_those_of_a_real_pass_and_the_network_is_not_changed(name):
    model = create_model(name, patch_size=(40, 32, 36)).eval()
    steps = trace(model, example_inputs(model, None)).steps
    seen = []
    layers = {path: layer for path, layer in model.named_modules() if path and not list(layer.children())}
    for path, layer in layers.items():
        assert not layer._forward_hooks
        layer.register_forward_hook(
            lambda layer, inputs, output, path=path: seen.append((path, tuple(inputs[0].shape), tuple(output.shape)))
        )
    with torch.no_grad():
        model(torch.zeros(1, 1, 40, 32, 36))
    assert [(step.path, step.taken, step.shape) for step in steps if step.path in layers] == seen
    assert len(seen) > 100

"""Theorem 1 in code: adjacent gates become one at the summed time."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from fheat import FractionalHeat, compose, create_model, merge


def test_times_add():
    gates = [FractionalHeat(alpha=0.5, strength=s) for s in (0.25, 1.0, 4.0)]
    merged = compose(gates)
    assert merged.tau.item() == pytest.approx(0.5 + 1 + 2)
    assert merged.strength.item() == pytest.approx(3.5**2)
    x = torch.randn(1, 2, 5, 6, 7, dtype=torch.float64)
    assert (merged(x) - gates[0](gates[1](gates[2](x)))).abs().max() < 1e-12


@pytest.mark.parametrize("strength", ["relu", "softplus", "exp"])
def test_learned_gates(strength):
    gates = [FractionalHeat(dims=2, strength=strength, initial_strength=s) for s in (0.2, 0.7)]
    x = torch.randn(1, 2, 9, 8)
    merged = compose(gates)
    assert merged.delta.requires_grad
    assert (merged(x) - gates[0](gates[1](x))).abs().max() < 1e-5


def test_closed_gates_add_nothing_and_all_closed_is_closed():
    shut = FractionalHeat(initial_theta=3.0, initial_strength=0.0)
    opened = FractionalHeat()
    assert compose([shut, opened]).strength.item() == pytest.approx(opened.strength.item(), rel=1e-6)
    x = torch.randn(1, 1, 4, 4, 4)
    assert torch.equal(compose([shut, shut])(x), x)


def test_the_same_gate_twice_counts_twice():
    gate = FractionalHeat(alpha=0.75, strength=0.25)
    eight = compose([gate] * 8)
    assert eight.strength.item() == pytest.approx((8 * 0.25**0.75) ** (1 / 0.75))
    assert eight.strength.item() == pytest.approx(4.0)  # the share each of eight redundant gates has of D = 4


def test_merge_shortens_a_sequential_and_keeps_its_function():
    model = nn.Sequential(
        nn.Conv3d(1, 2, 1),
        FractionalHeat(),
        FractionalHeat(initial_strength=0.4),
        FractionalHeat(initial_strength=0.0),
        nn.ReLU(),
        FractionalHeat(),
        nn.Sequential(FractionalHeat(), FractionalHeat()),
    )
    short = merge(model)
    kinds = [type(layer).__name__ for layer in short]
    assert kinds == ["Conv3d", "FractionalHeat", "Identity", "Identity", "ReLU", "FractionalHeat", "Sequential"]
    assert [type(layer).__name__ for layer in short[6]] == ["FractionalHeat", "Identity"]
    assert isinstance(model[2], FractionalHeat)
    x = torch.randn(2, 1, 5, 6, 7)
    assert (short(x) - model(x)).abs().max() < 1e-5


class Backwards(nn.Sequential):
    def forward(self, x):
        for layer in reversed(self):
            x = layer(x) + x
        return x


def test_merge_keeps_names_and_leaves_containers_with_their_own_forward_alone():
    named = nn.Sequential(OrderedDict(conv=nn.Conv3d(1, 1, 1), a=FractionalHeat(), b=FractionalHeat(), act=nn.ReLU()))
    short = merge(named)
    assert list(short._modules) == ["conv", "a", "b", "act"]
    x = torch.randn(1, 1, 4, 5, 6)
    assert (short(x) - named(x)).abs().max() < 1e-5
    own = Backwards(FractionalHeat(), FractionalHeat())
    assert torch.equal(merge(own)(x), own(x))


def test_strengths_that_underflow_have_nothing_to_add():
    gates = [FractionalHeat(strength="softplus") for _ in range(2)]
    for gate in gates:
        gate.delta.data.fill_(-200.0)
    with pytest.raises(ValueError, match="underflow"):
        compose(gates)
    assert len(merge(nn.Sequential(*gates))) == 2


def test_merge_leaves_alone_what_does_not_compose():
    model = nn.Sequential(FractionalHeat(), FractionalHeat(initial_theta=1.0), FractionalHeat(size=(4, 4, 4)))
    assert len(merge(model)) == 3
    network = create_model("fheat_seg", patch_size=(32, 32, 32))
    assert merge(network).state_dict().keys() == network.state_dict().keys()


@pytest.mark.parametrize(
    ("gates", "says"),
    [
        ([], "gates is empty"),
        ([FractionalHeat(), FractionalHeat(initial_theta=1.0)], "alpha from 0.37"),
        ([FractionalHeat(), FractionalHeat(dims=2)], "different grids"),
        ([FractionalHeat(size=4), FractionalHeat(size=5)], "different grids"),
    ],
)
def test_refuses(gates, says):
    with pytest.raises(ValueError) as caught:
        compose(gates)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)

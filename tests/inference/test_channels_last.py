"""FHEAT-Seg as OpenVINO runs it computes what the network computes, and only what is known is written anew."""

import warnings
from collections import Counter

import pytest
import torch
from torch import nn

from fheat import FractionalHeat, create_model
from fheat.inference.channels_last import _built, _ChannelsLast, channels_last
from fheat.inference.compilable import compilable
from fheat.models.ensemble import Ensemble
from fheat.nn.layers import one_group
from tests.inference.test_runtimes import network


@torch.no_grad()
def largest_error(model, grid, channels=1):
    x = torch.randn(2, channels, *grid, generator=torch.Generator().manual_seed(0))
    expected, form = model(x), channels_last(model)
    assert isinstance(form, _ChannelsLast)
    return float((form(x) - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("grid", [(32, 32, 32), (33, 47, 38), (40, 34, 36), (35, 33, 64)])
def test_it_computes_the_same_on_every_grid(grid):
    assert largest_error(network(("enc1", "dec1")), grid) < 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"in_channels": 2},
        {"out_channels": 3},
        {"mixer": "gelu"},
        {"kan_ratio": 2},
        {"operator": "gfnet"},
        {"operator": "l0"},
    ],
)
def test_it_computes_the_same_with_every_option(options):
    torch.manual_seed(0)
    model = create_model("fheat_seg", patch_size=(32, 32, 32), **options).eval()
    for parameter in model.parameters():  # norms, biases and positions would be ones and zeros
        parameter.data += 0.05 * torch.randn_like(parameter)
    assert largest_error(model, (32, 32, 32), model.in_channels) < 1e-4


def heard(model):
    model.enc2.blocks[0].first.fheat.out.register_forward_hook(lambda module, given, output: 2 * output)


def replaced(model):
    model.down1[1] = nn.Sequential(one_group(48))


def another_known_type(model):
    model.stem[2] = nn.Dropout()


def another_mixer(model):
    model.enc1.blocks[0].first.mixer = nn.GELU()


def another_head(model):
    model.head = nn.Sequential(model.head, nn.Dropout())


def approximate(model):
    model.stem[2].approximate = "tanh"


def without_bias(model):
    model.up1[0].bias = None


def with_bias(model):
    model.enc1.blocks[0].depthwise.bias = nn.Parameter(torch.ones(24))


def dilated(model):
    model.enc1.blocks[0].depthwise.dilation, model.enc1.blocks[0].depthwise.padding = (2, 2, 2), (2, 2, 2)


def own_forward(model):
    model.stem[2].forward = torch.tanh


def own_features(model):
    features = model.forward_features
    model.forward_features = lambda x: features(2 * x)


CHANGES = [
    *(heard, replaced, another_known_type, another_mixer, another_head, approximate, without_bias, with_bias, dilated),
    *(own_forward, own_features),
]


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_network_that_is_not_as_built_is_left_to_the_other_form(change):
    model, x = network(), torch.randn(1, 1, 32, 32, 32)
    change(model)
    model.eval()
    assert channels_last(model) is None
    assert (compilable(model)(x) - model(x)).abs().max() < 1e-4


@torch.no_grad()
def test_only_fheat_seg_is_written_anew():
    odd, light = network(), create_model("light_unetr", patch_size=(32, 32, 32))
    odd.enc1 = nn.Identity()
    for model in (odd, light, nn.Sequential(network()), FractionalHeat(dims=3, initial_strength=0.4)):
        assert channels_last(model) is None
    assert channels_last(Ensemble([light, light])) is None


def test_asking_draws_no_random_numbers():
    model, before = network(), torch.get_rng_state()
    _built.cache_clear()
    channels_last(model)
    assert torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def test_tokens_in_the_order_of_the_released_code():
    model = network()
    model.scramble = True
    assert largest_error(model, (64, 32, 32)) < 1e-4


@torch.no_grad()
def test_a_trace_holds_the_operations_of_the_forward_pass_alone():
    """No function of weights, no shape that is asked for: each costs a compiler time."""
    model, x = network(open_gates=()), torch.randn(1, 1, 32, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of shapes that a trace turns into constants
        graph = torch.jit.trace(channels_last(model), (x,), check_trace=False).inlined_graph
    kinds = Counter(node.kind() for node in graph.nodes())
    assert not {"aten::detach", "aten::clone", "aten::select", "aten::movedim", "aten::slice"} & set(kinds)
    assert kinds["aten::repeat"] <= 6  # of squeeze-excitation
    assert kinds["aten::size"] == 0
    assert kinds["aten::_convolution"] == 3 + 8 * (1 + 2 * 6) + 3 + 3 + 1


@torch.no_grad()
def test_the_networks_of_an_ensemble_are_written_anew():
    both, x = Ensemble([network(seed=0), network(seed=1)]).eval(), torch.randn(1, 1, 32, 32, 32)
    form, before = channels_last(both), list(both.networks)
    assert all(isinstance(one, _ChannelsLast) for one in form.networks)
    assert list(both.networks) == before
    assert (form(x) - both(x)).abs().max() < 1e-4

"""FHEAT-Seg as OpenVINO runs it computes what the network computes, and only what is known is written anew."""

import pytest
import torch
from torch import nn

from fheat import FractionalHeat, create_model
from fheat.inference.channels_last import _ChannelsLast, channels_last
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
    assert largest_error(model, (32, 32, 32), model.in_channels) < 1e-4


@torch.no_grad()
def test_only_what_is_known_is_written_anew():
    heard, replaced, odd = network(), network(), network()
    heard.enc2.blocks[0].first.fheat.out.register_forward_hook(lambda module, given, output: 2 * output)
    replaced.down1[1] = nn.Sequential(one_group(48))
    odd.enc1 = nn.Identity()
    for model in (heard, replaced):
        x = torch.randn(1, 1, 32, 32, 32)
        form = channels_last(model)
        assert not isinstance(form, _ChannelsLast)
        assert (form(x) - model(x)).abs().max() < 1e-4
    assert not isinstance(channels_last(odd), _ChannelsLast)
    gate = FractionalHeat(dims=3, initial_strength=0.4)
    x = torch.randn(1, 4, 6, 5, 4)
    assert (channels_last(gate)(x) - gate(x)).abs().max() < 1e-5


@torch.no_grad()
def test_the_networks_of_an_ensemble_are_written_anew():
    both, x = Ensemble([network(seed=0), network(seed=1)]).eval(), torch.randn(1, 1, 32, 32, 32)
    form, before = channels_last(both), list(both.networks)
    assert all(isinstance(one, _ChannelsLast) for one in form.networks)
    assert list(both.networks) == before
    assert (form(x) - both(x)).abs().max() < 1e-4

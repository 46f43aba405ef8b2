"""The stage of an encoder on an eighth of the grid is found in every network, which is left as it was."""

import pytest
import torch
from torch import nn

from fheat import create_model, list_models
from fheat.networks.registry import spec_of
from fheat.networks.stages import encoder_stage

DEEP = "body.next_layer.next_layer.next_layer.downsample"
STAGES = {
    "fheat_seg": ("enc2", 48, {}),
    "fheat_seg_l": ("enc4", 150, {}),
    "light_unetr": ("enc2", 48, {}),
    "light_unetr_l": ("enc4", 150, {}),
    "segresnet": ("body.down_layers.3", 64, {"init_filters": 8}),
    "unet": ("body.1.submodule.1.submodule.0", 16, {"channels": (4, 8, 16, 32, 64)}),
    "dynunet": (DEEP, 32, {"filters": (8, 16, 24, 32, 40)}),
    "swin_unetr": ("body.swinViT.layers2.0", 48, {"feature_size": 12}),
    "mednext": ("body.enc_stages.3", 256, {}),
    "segformer3d": ("enc2", 64, {}),
    "fheat_segformer3d": ("enc2", 64, {}),
    "amber_afno": ("enc2", 64, {}),
    "unetr_pp": ("body.encoder.1", 64, {}),
    "transbts": ("body.transformer", 512, {}),  # an eighth is its coarsest grid
    "slim_unetr": ("enc2", 48, {}),
    "miniature": ("enc1", 8, {}),  # it has a quarter and a sixteenth
}
"""Path and channels of the stage, and options of each network."""


def test_every_network_is_listed():
    assert set(list_models()) == set(STAGES)


@pytest.mark.parametrize("name", STAGES)
def test_the_stage_on_an_eighth_of_the_grid(name):
    """Without values, which makes the pass quick."""
    path, channels, options = STAGES[name]
    network = create_model(name, in_channels=2, patch_size=(32, 32, 32), **options).to("meta")
    found = encoder_stage(network, spec_of(network).in_channels)
    assert (found.path, found.channels) == (path, channels)
    assert found.module is network.get_submodule(path)
    assert found.grid == ((16,) * 3 if name == "miniature" else (8,) * 3)


def test_the_nearest_grid_is_taken():
    """The network has a quarter, which is the finer one of two that are equally near to an eighth, and a sixteenth."""
    network = create_model("miniature").to("meta")
    assert [encoder_stage(network, 1, halvings).path for halvings in (1, 3, 4, 9)] == ["enc1", "enc1", "enc2", "enc2"]


def test_the_network_is_left_as_it_was():
    network = nn.Sequential(
        nn.Conv3d(1, 2, 2, stride=2), nn.BatchNorm3d(2), nn.Dropout(0.5), nn.Upsample(scale_factor=2)
    )
    before, state = {name: value.clone() for name, value in network.state_dict().items()}, torch.get_rng_state()
    assert encoder_stage(network, 1).path == "0"  # it has most of the parameters on the coarsest grid
    assert network.training
    assert network[1].training
    assert not any(module._forward_hooks for module in network.modules())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_a_network_on_one_grid_has_no_such_stage():
    with pytest.raises(ValueError, match="Sequential has no module that returns a coarser grid than its input"):
        encoder_stage(nn.Sequential(nn.Conv3d(1, 2, 1), nn.GELU()), 1)

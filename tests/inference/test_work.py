"""The estimate of what a network computes: that of the exact counter, for layers and for networks."""

import pytest
import torch
from torch import nn

from fheat import cost, create_model
from fheat.inference.work import macs_per_voxel


class Attention(nn.Module):
    def forward(self, x):
        tokens = x.flatten(2).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)


@pytest.mark.parametrize(
    ("network", "macs"),
    [
        (nn.Conv3d(2, 6, 3, padding=1), 2 * 6 * 27),
        (nn.Conv3d(2, 6, 3, padding=1, groups=2), 6 * 27),
        (nn.Conv3d(2, 6, 4, stride=4), 2 * 6),
        (nn.ConvTranspose3d(2, 6, 2, stride=2), 2 * 6 * 8),
        (nn.Linear(16, 5), 2 * 5),
        (nn.ReLU(), 0),
        (Attention(), 2 * 2 * 16**3),
    ],
)
def test_layers_are_counted_by_hand(network, macs):
    assert macs_per_voxel(network, (2, 16, 16, 16)) == macs
    with torch.inference_mode():
        assert macs_per_voxel(network, (2, 16, 16, 16)) == macs


@pytest.mark.parametrize("name", ["fheat_seg", "fheat_seg_l", "light_unetr", "unet", "segresnet"])
def test_a_network_is_estimated_within_a_third(name):
    patch = (64, 64, 64)
    network = create_model(name, patch_size=patch).eval()
    exact = cost(network, (1, 1, *patch)).macs / 64**3
    assert macs_per_voxel(network, (1, *patch)) == pytest.approx(exact, rel=1 / 3)


def test_where_a_network_takes_no_small_window_a_larger_one_is_tried():
    sizes = []

    class Picky(nn.Module):
        def forward(self, x):
            sizes.append(tuple(x.shape))
            if x.shape[-1] < 48:
                raise ValueError("too small")
            return nn.functional.conv3d(x, torch.ones(1, 1, 1, 1, 1))

    assert macs_per_voxel(Picky(), (1, 112, 112, 80)) == 1
    assert sizes == [(1, 1, 32, 32, 32), (1, 1, 64, 64, 64)]
    assert macs_per_voxel(Picky(), (1, 40, 40, 40)) == 0

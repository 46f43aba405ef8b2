"""Convolutions as products of patches: the same function and gradients as the convolutions they are."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat.nn.convolutions import (
    DepthwiseConv3d,
    DepthwiseTransposed3d,
    DoublingDepthwise3d,
    DoublingPointwise3d,
    GroupedConv3d,
    PatchConv3d,
    PatchTransposed3d,
    Pointwise3d,
)
from fheat.nn.layers import EachChannelNorm, resized
from fheat.ops import kernels


def both(layer, plain, x):
    """Output and gradients of the layer as a product, in float32, and of its plain parent, in float64."""
    plain = plain.double()
    plain.load_state_dict(layer.state_dict())
    found = []
    for network, value, mode in ((layer, x, "always"), (plain, x.double(), "never")):
        value = value.clone().requires_grad_()
        with kernels.use(mode):
            y = network(value)
        weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        (y * weight).sum().backward()
        found.append([y.detach(), value.grad, *(parameter.grad for parameter in network.parameters())])
    return found


def assert_close(found, expected, most=2e-6):
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert ((one - other).norm() / other.norm()).item() < most


@pytest.mark.parametrize(("side", "grid"), [(2, (4, 6, 2)), (2, (2, 2, 10)), (3, (3, 6, 9)), (4, (8, 4, 4))])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_patches_to_voxels(side, grid, layout):
    torch.manual_seed(0)
    x = torch.randn(2, 5, *grid).contiguous(memory_format=layout)
    assert_close(*both(PatchConv3d(5, 7, side), nn.Conv3d(5, 7, side, stride=side), x))


@pytest.mark.parametrize(("side", "grid"), [(2, (3, 4, 1)), (3, (1, 1, 1)), (4, (2, 3, 5))])
@pytest.mark.parametrize("channels_last", [False, True])
def test_voxels_to_patches(side, grid, channels_last):
    torch.manual_seed(0)
    layer = PatchTransposed3d(5, 3, side, channels_last=channels_last)
    assert_close(*both(layer, nn.ConvTranspose3d(5, 3, side, stride=side), torch.randn(2, 5, *grid)))
    with kernels.use("always"):
        y = layer(torch.randn(2, 5, 3, 4, 5))
    assert y.is_contiguous(memory_format=torch.channels_last_3d if channels_last else torch.contiguous_format)


def test_a_grid_that_patches_do_not_fill_is_left_to_the_convolution():
    layer, x = PatchConv3d(2, 3, 2), torch.randn(1, 2, 5, 4, 4)
    with kernels.use("always"):
        assert torch.equal(layer(x), F.conv3d(x, layer.weight, layer.bias, stride=2))


def test_without_a_gpu_they_are_the_convolutions():
    x = torch.randn(1, 2, 4, 4, 4)
    down, up = PatchConv3d(2, 3, 2), PatchTransposed3d(2, 3, 2)
    assert torch.equal(down(x), F.conv3d(x, down.weight, down.bias, stride=2))
    assert torch.equal(up(x), F.conv_transpose3d(x, up.weight, up.bias, stride=2))
    assert torch.equal(up(x, output_size=[9, 8, 8]), nn.ConvTranspose3d.forward(up, x, output_size=[9, 8, 8]))


@pytest.mark.parametrize(("side", "grid"), [(1, (3, 4, 1)), (2, (3, 4, 1)), (4, (2, 1, 3))])
def test_voxels_to_patches_channel_by_channel(side, grid):
    plain = nn.ConvTranspose3d(5, 5, side, stride=side, groups=5)
    assert_close(*both(DepthwiseTransposed3d(5, side), plain, torch.randn(2, 5, *grid)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_products_in_each_voxel(layout, stride, bias):
    x = torch.randn(2, 5, 3, 4, 2).contiguous(memory_format=layout)
    assert_close(*both(Pointwise3d(5, 7, stride, bias=bias), nn.Conv3d(5, 7, 1, stride=stride, bias=bias), x))


@pytest.mark.parametrize("grid", [(3, 4, 5), (1, 2, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise(stride, bias, grid):
    plain = nn.Conv3d(5, 5, 3, stride=stride, padding=1, groups=5, bias=bias)
    assert_close(*both(DepthwiseConv3d(5, stride, bias=bias), plain, torch.randn(2, 5, *grid)))


@pytest.mark.parametrize("grid", [(3, 4, 2), (1, 2, 1)])
def test_doubling(grid):
    x = torch.randn(2, 5, *grid)
    assert_close(*both(DoublingDepthwise3d(5), nn.ConvTranspose3d(5, 5, 3, stride=2, padding=1, groups=5), x))
    assert_close(*both(DoublingPointwise3d(5, 3), nn.ConvTranspose3d(5, 3, 1, stride=2), x))


def test_the_norm_of_each_channel():
    norm = EachChannelNorm(5)
    nn.init.normal_(norm.weight)
    results = both(norm, nn.GroupNorm(5, 5), 0.5 + torch.randn(2, 5, 3, 4, 5))
    assert_close(*results, most=5e-6)  # the gradient of the scale is a small difference of large sums
    for mode in ("never", "always"):
        with kernels.use(mode), pytest.raises(ValueError, match="more than 1 value"):
            norm(torch.randn(1, 5, 1, 1, 1))


def test_a_side_that_does_not_keep_the_grid_is_refused():
    with pytest.raises(ValueError, match="side=2 is even"):
        GroupedConv3d(2, 4, 2)


@pytest.mark.parametrize(("channels", "share", "side"), [(3, 2, 3), (2, 2, 5), (4, 1, 3), (1, 3, 1)])
@pytest.mark.parametrize("grid", [(3, 4, 2), (1, 1, 1)])
def test_groups_of_one_channel(channels, share, side, grid):
    plain = nn.Conv3d(channels, share * channels, side, padding=side // 2, groups=channels, bias=False)
    assert_close(*both(GroupedConv3d(channels, share * channels, side), plain, torch.randn(2, channels, *grid)))


@pytest.mark.parametrize(
    ("grid", "new"),
    [((4, 4, 3), (28, 28, 20)), ((5, 3, 7), (9, 3, 13)), ((6, 5, 4), (3, 2, 2)), ((1, 2, 1), (4, 4, 4))],
)
def test_maps_are_resized_by_a_product_along_each_axis(grid, new):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, *grid, requires_grad=True), torch.randn(2, 3, *new)
    exact = x.detach().double().requires_grad_()
    with kernels.use("always"):
        found = resized(x, new)
    expected = F.interpolate(exact, size=new, mode="trilinear")
    gradients = (torch.autograd.grad((y * weight).sum(), at)[0] for y, at in ((found, x), (expected, exact)))
    assert_close([found, next(gradients)], [expected, next(gradients)])
    assert found.is_contiguous(memory_format=torch.channels_last_3d)
    assert resized(x, grid) is x

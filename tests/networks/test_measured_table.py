"""Parameters and multiply-adds of networks that were measured with fvcore elsewhere: our counter gives the same digits.

One input channel, two classes. A network is built without values, which makes it quick to count. Two numbers differ by
one in the last digit, 571.49 and 345.24 of Swin UNETR, although the counters agree exactly on a smaller Swin UNETR
(test_monai_peers). One network of the table, ResidualEncoderUNet, is out of scope: neither the paper nor MONAI has it.
"""

from contextlib import nullcontext

import pytest
import torch
from monai.networks import nets
from torch import nn

from fheat import cost, create_model
from fheat.gates.cost import parameters
from tests.networks.test_sizes import by_fvcore, printed

pytestmark = pytest.mark.slow

LA, CUBE, PADDED, LARGE_CUBE = (112, 112, 80), (96, 96, 96), (128, 128, 96), (128, 128, 128)


def dynunet(*filters, **options):
    stages = len(filters)
    return nets.DynUNet(
        3, 1, 2, [3] * stages, [1] + [2] * (stages - 1), [2] * (stages - 1), filters=list(filters), **options
    )


# what builds it for a patch -> M parameters, then patch: G multiply-adds
MEASURED = {
    "segresnet 8": (lambda _: create_model("segresnet", init_filters=8), "1.176", {LA: "17.77", CUBE: "15.67"}),
    "segresnet 16": (lambda _: create_model("segresnet"), "4.701", {LA: "70.07", CUBE: "61.78"}),
    "segresnet 24": (lambda _: create_model("segresnet", init_filters=24), "10.574", {LA: "156.89", CUBE: "138.32"}),
    "segresnet 32": (lambda _: create_model("segresnet", init_filters=32), "18.796", {LA: "278.22", CUBE: "245.29"}),
    "SegResNetDS 32": (lambda _: nets.SegResNetDS(init_filters=32), "19.914", {LA: "289.17", CUBE: "254.95"}),
    "dynunet": (lambda _: create_model("dynunet"), "16.544", {LA: "226.99", CUBE: "200.12"}),
    "DynUNet, residual": (
        lambda _: dynunet(32, 64, 128, 256, 320, res_block=True), "16.670", {LA: "227.71", CUBE: "200.75"}
    ),
    "dynunet, up to 256": (
        lambda _: create_model("dynunet", filters=(32, 64, 128, 256, 256)), "14.975", {LA: "226.61", CUBE: "199.78"}
    ),
    "dynunet, up to 512": (
        lambda _: create_model("dynunet", filters=(32, 64, 128, 256, 512)), "22.578", {LA: "228.47", CUBE: "201.43"}
    ),
    "DynUNet, six stages": (lambda _: dynunet(32, 64, 128, 256, 320, 320), "31.189", {CUBE: "202.09"}),
    "swin_unetr 24": (
        lambda _: create_model("swin_unetr", feature_size=24), "15.703", {PADDED: "149.68", CUBE: "83.37"}
    ),
    "swin_unetr 48": (lambda _: create_model("swin_unetr"), "62.187", {PADDED: "571.48", CUBE: "319.38"}),
    "SwinUNETR 48, v2": (
        lambda _: nets.SwinUNETR(1, 2, feature_size=48, use_v2=True), "72.762", {CUBE: "345.23"}
    ),
    "UNETR": (lambda patch: nets.UNETR(1, 2, patch), {LA: "92.825", CUBE: "92.802"}, {LA: "83.51", CUBE: "73.51"}),
    "mednext S": (lambda _: create_model("mednext"), "5.551", {LA: "61.86", CUBE: "54.50"}),
    "mednext S, response norms": (
        lambda _: create_model("mednext", response_norm=True), "5.567", {LA: "61.86", CUBE: "54.50"}
    ),
    "mednext B": (lambda _: create_model("mednext", variant="B"), "10.511", {LA: "79.95", CUBE: "70.43"}),
    "mednext M": (lambda _: create_model("mednext", variant="M"), "17.534", {LA: "117.27", CUBE: "103.33"}),
    "mednext L": (lambda _: create_model("mednext", variant="L"), "61.727", {LA: "236.51", CUBE: "208.42"}),
    "mednext S, kernel 5": (lambda _: create_model("mednext", kernel=5), "5.981", {LA: "80.17", CUBE: "70.65"}),
    "VNet": (lambda _: nets.VNet(out_channels=2), "45.598", {LA: "350.24", CUBE: "308.78"}),
    "BasicUNet": (lambda _: nets.BasicUNet(out_channels=2), "5.749", {LA: "143.83", CUBE: "126.81"}),
    "AttentionUnet": (
        lambda _: nets.AttentionUnet(3, 1, 2, (32, 64, 128, 256, 512), (2, 2, 2, 2)),
        "23.626",
        {LA: "187.21", CUBE: "165.05"},
    ),
    "slim_unetr": (lambda patch: create_model("slim_unetr", patch_size=patch), "1.774", {CUBE: "0.967"}),
    "slim_unetr, four channels": (
        lambda patch: create_model("slim_unetr", 4, 3, patch), {LARGE_CUBE: "1.783"}, {LARGE_CUBE: "2.58"}
    ),
    "segformer3d": (lambda _: create_model("segformer3d"), "4.492", {LA: "6.32", CUBE: "5.46"}),
    "amber_afno": (lambda _: create_model("amber_afno"), "3.621", {LA: "5.48", CUBE: "4.79"}),
}  # fmt: skip


class Rearrange(nn.Module):
    """Stand-in for the layer of einops, which MONAI's attention needs for two patterns."""

    def __init__(self, pattern, **lengths):
        super().__init__()
        assert pattern in ("b h (qkv l d) -> qkv b l h d", "b l h d -> b h (l d)")
        self.parts = tuple(lengths.values())

    def forward(self, x):
        return x.unflatten(-1, (*self.parts, -1)).permute(2, 0, 3, 1, 4) if self.parts else x.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("name", MEASURED)
def test_counts_are_the_measured_ones(name, monkeypatch):
    monkeypatch.setattr("monai.networks.blocks.selfattention.Rearrange", Rearrange)  # whether einops is there or not
    build, millions, macs = MEASURED[name]
    for patch, giga in macs.items():
        with nullcontext() if "Swin" in name or "swin" in name else torch.device("meta"):  # Swin reads values
            model = build(patch)
        size = millions if isinstance(millions, str) else millions[patch]
        channels = 4 if "four channels" in name else 1
        assert f"{parameters(model) / 1e6:.3f}" == size
        assert printed(cost(model, (1, channels, *patch)).macs, giga) == giga


def test_the_original_of_dynunet_has_biases_and_more_heads():
    """PlainConvUNet has a bias in each of its convolutions, two on each of nine stages and one that doubles the grid on
    each of four, and a head on each of three more levels, which it uses in training only: 16.548 M, and as many
    multiply-adds as `dynunet`."""
    widths = (32, 64, 128, 256, 320)
    biases = 2 * sum(widths) + 3 * sum(widths[:-1])
    heads = sum(2 * width + 2 for width in widths[1:-1])
    with torch.device("meta"):
        model = create_model("dynunet", filters=widths)
    convolutions = [module for module in model.body.modules() if isinstance(module, nn.Conv3d | nn.ConvTranspose3d)]
    assert len(convolutions) == 2 * 9 + 4
    assert all(module.bias is None for module in convolutions)
    assert sum(module.out_channels for module in convolutions) == biases == 3_040
    assert heads == 902
    assert parameters(model) + biases + heads == 16_547_592


# network, patch -> exact parameters, exact multiply-adds with gates open and closed
EXACT = {
    ("segformer3d", LA): (4_492_066, 6_318_862_592, 6_318_862_592),
    ("segformer3d", CUBE): (4_492_066, 5_458_344_192, 5_458_344_192),
    ("fheat_segformer3d", LA): (4_952_306, 10_181_506_880, 9_355_457_472),
    ("fheat_segformer3d", CUBE): (4_952_306, 8_893_248_768, 8_203_610_880),
    ("amber_afno", LA): (3_621_090, 5_477_346_240, 5_477_346_240),
    ("amber_afno", CUBE): (3_621_090, 4_792_879_872, 4_792_879_872),
    ("slim_unetr", LA): (1_775_742, 1_181_937_788, 1_181_937_788),
    ("slim_unetr", CUBE): (1_773_726, 967_375_440, 967_375_440),
    ("transbts", LA): (31_628_946, 137_631_262_720, 137_631_262_720),
    ("transbts", CUBE): (31_510_162, 119_698_145_280, 119_698_145_280),
    ("unetr_pp", LA): (37_302_378, 53_095_776_256, 53_095_776_256),
    ("unetr_pp", CUBE): (29_865_354, 29_876_622_336, 29_876_622_336),
}


@pytest.mark.parametrize(("name", "patch"), EXACT, ids=lambda value: str(value))
def test_exact_counts(name, patch):
    counted = cost(create_model(name, patch_size=patch))
    assert (counted.parameters, counted.macs, counted.rest) == EXACT[name, patch]


def test_four_channels_and_three_classes():
    """The released SegFormer3D has 4,525,251 parameters with them."""
    assert parameters(create_model("segformer3d", 4, 3)) == 4_525_251


UNUSED = 512 * 512 + 512 + 2 * 512
"""Parameters of a linear layer and a norm that the released TransBTS has and does not use."""
DEEP_SUPERVISION = 32 * 2 + 2 + 64 * 2 + 2
"""Parameters of the two heads for deep supervision of the released UNETR++."""


@pytest.mark.parametrize(
    ("name", "patch", "more", "millions", "giga"),
    [
        ("transbts", LA, UNUSED, "31.893", "137.63"),
        ("transbts", CUBE, UNUSED, "31.774", "119.70"),
        ("unetr_pp", CUBE, DEEP_SUPERVISION, "29.866", "29.88"),
    ],
)
def test_what_is_left_out_of_the_released_networks(name, patch, more, millions, giga):
    counts = EXACT[name, patch]
    assert f"{(counts[0] + more) / 1e6:.3f}" == millions
    assert printed(counts[1], giga) == giga


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["segformer3d", "fheat_segformer3d", "unetr_pp", "transbts", "slim_unetr"])
def test_counter_is_fvcore(name):
    patch = (48, 32, 32)
    model = create_model(name, patch_size=patch)
    assert cost(model).macs == by_fvcore(model, patch)

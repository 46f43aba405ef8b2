"""The peers from MONAI: pinned sizes, the same numbers as MONAI's own networks, and one line where MONAI is missing."""

import json
import subprocess
import sys

import pytest
import torch
from monai.networks import nets

from fheat import BadInput, cost, create_model, load, save
from fheat.cli.main import main
from tests.networks.test_sizes import by_fvcore, printed

LA, CUBE = (112, 112, 80), (96, 96, 96)

# network -> parameters, G multiply-adds of one patch on 112x112x80 and on 96x96x96
SIZES = {
    "segresnet": (4_700_914, "70.07", "61.78"),
    "unet": (4_806_481, "5.857", "5.164"),
    "dynunet": (16_543_650, "226.99", "200.12"),
    "swin_unetr": (62_186_708, "571.43", "319.38"),
    "mednext": (5_550_914, "61.86", "54.50"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_pinned_sizes(name):
    parameters, la, cube = SIZES[name]
    model = create_model(name)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert printed(cost(model).macs, la) == la
    assert printed(cost(model, (1, 1, *CUBE)).macs, cube) == cube


def test_segresnet_widths():
    for filters, millions in ((8, "1.176"), (24, "10.574"), (32, "18.796")):
        model = create_model("segresnet", init_filters=filters)
        assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.3f}" == millions


def test_mednext_variants():
    for variant, kernel, millions in (("B", 3, "10.511"), ("M", 3, "17.534"), ("S", 5, "5.981")):
        model = create_model("mednext", variant=variant, kernel=kernel)
        assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.3f}" == millions


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("segresnet", {"init_filters": 8}),
        ("unet", {"channels": (8, 16, 16, 16, 16)}),
        ("dynunet", {"filters": (8, 16, 16, 16, 16)}),
        ("swin_unetr", {"feature_size": 12}),
        ("mednext", {}),
    ],
)
def test_counter_is_fvcore(name, options):
    patch = (64, 32, 32)
    model = create_model(name, patch_size=patch, **options)
    assert cost(model).macs == by_fvcore(model, patch)


ORIGINALS = {
    "segresnet": ({"init_filters": 8}, lambda: nets.SegResNet(init_filters=8)),
    "unet": (
        {"channels": (4, 8, 8, 16, 16)},
        lambda: nets.UNet(3, 1, 2, (4, 8, 8, 16, 16), (2, 2, 2, 2), num_res_units=2),
    ),
    "dynunet": (
        {"filters": (4, 8, 8, 16, 16)},
        lambda: nets.DynUNet(3, 1, 2, [3] * 5, [1, 2, 2, 2, 2], [2] * 4, filters=[4, 8, 8, 16, 16]),
    ),
    "swin_unetr": ({"feature_size": 12}, lambda: nets.SwinUNETR(1, 2, feature_size=12)),
    "mednext": ({}, lambda: nets.MedNeXtS(in_channels=1, out_channels=2)),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_is_monais_network(name):
    """The same seed gives the same logits, on a grid that needs no padding."""
    options, original = ORIGINALS[name]
    torch.manual_seed(3)
    ours = create_model(name, patch_size=(64, 32, 32), **options).eval()
    torch.manual_seed(3)
    theirs = original().eval()
    x = torch.randn(1, 1, 64, 32, 32)
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs(x), atol=1e-6)


def test_padding_is_cropped_again():
    model = create_model("segresnet", init_filters=8).eval()
    x = torch.randn(1, 1, 37, 34, 32)
    with torch.no_grad():
        whole = model(torch.nn.functional.pad(x, (0, 0, 0, 6, 0, 3)))
        assert torch.allclose(model(x), whole[:, :, :37, :34], atol=1e-6)


def test_the_features_of_the_unet_are_those_of_half_the_grid():
    """Its last stage is the head: what enters it is cropped to the half of the grid, rounded up, that the input has."""
    model = create_model("unet", channels=(4, 8, 8, 8, 8)).eval()
    with torch.no_grad():
        features = model.forward_features(torch.randn(1, 1, 33, 48, 34))
        assert torch.equal(features.logits, model.head(features.penultimate)[:, :, :33])
    assert features.logits.shape == (1, 2, 33, 48, 34)
    assert features.penultimate.shape == (1, 8, 17, 24, 17)
    assert features.attention.shape == (1, 1, 17, 24, 17)


def test_swin_pads_the_patch_of_la(monkeypatch):
    model = create_model("swin_unetr", feature_size=12)
    seen = []
    monkeypatch.setattr(model.body, "forward", lambda x: seen.append(tuple(x.shape)) or x.repeat(1, 12, 1, 1, 1))
    with torch.no_grad():
        assert model(torch.zeros(1, 1, *LA)).shape == (1, 2, *LA)
        model(torch.zeros(1, 1, 32, 32, 32))
    assert seen == [(1, 1, 128, 128, 96), (1, 1, 64, 32, 32)]


def test_attention_is_the_mean_magnitude_of_the_features():
    model = create_model("dynunet", filters=(4, 8, 8, 8, 8)).eval()
    with torch.no_grad():
        features = model.forward_features(torch.randn(1, 1, 33, 32, 40))
    assert features.attention.shape == (1, 1, 33, 32, 40)
    assert torch.equal(features.attention, features.penultimate.abs().mean(dim=1, keepdim=True))


def test_a_folder_holds_each_weight_once(tmp_path):
    model = create_model("dynunet", patch_size=(32, 32, 32), filters=[4, 8, 8, 8, 8])
    folder = save(model, tmp_path / "model")
    assert (folder / "model.safetensors").stat().st_size < 4.5 * sum(p.numel() for p in model.parameters()) + 20_000
    assert load(folder).spec.options == {"filters": [4, 8, 8, 8, 8]}


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("segresnet", {"init_filters": 12}, "init_filters=12"),
        ("unet", {"channels": (4, 8)}, "give 5 whole numbers"),
        ("unet", {"units": -1}, "at least 0"),
        ("dynunet", {"filters": (4, 8)}, "give 5 whole numbers"),
        ("swin_unetr", {"feature_size": 16}, "multiple of 12"),
        ("mednext", {"variant": "XL"}, "use S, B, M or L"),
    ],
)
def test_refuses(name, options, says):
    with pytest.raises(ValueError, match=r"is (not usable|unknown)") as caught:
        create_model(name, **options)
    assert says in str(caught.value)


def test_without_monai_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "monai.networks.nets", None)
    for name in SIZES:
        with pytest.raises(BadInput, match="not installed; install it: pip install monai") as caught:
            create_model(name)
        assert "\n" not in str(caught.value)


def test_models_are_listed_without_monai(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "monai.networks.nets", None)
    monkeypatch.setattr("fheat.cli.models.list_models", lambda: ["light_unetr_l", *SIZES])
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["networks"]] == ["light_unetr_l"]
    assert [line.split()[0] for line in found["not_available"]] == list(SIZES)


def test_the_registry_does_not_import_monai():
    code = "import sys, fheat.networks.registry; print('monai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

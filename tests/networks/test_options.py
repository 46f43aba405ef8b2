"""The ablation options and the registry."""

import numpy as np
import pytest
import torch

from fheat import FractionalHeat, allocation, cost, create_model, list_models, load, register_model, save
from fheat.networks.light_u import SITES as SMALL
from fheat.networks.registry import _NETWORKS, model_options
from fheat.ops.gates import gates_of

LARGE = ("enc3", "enc4", "bottom", "dec4", "dec3")
PATCH = (32, 32, 32)


@pytest.mark.parametrize(("name", "sites"), [("fheat_seg", SMALL), ("fheat_seg_l", LARGE)])
def test_gate_options(name, sites):
    def learnable(gates):
        model = create_model(name, patch_size=PATCH, gates=gates)
        assert set(gates_of(model)) == set(sites)
        return {site for site, gate in gates_of(model).items() if gate.delta is not None}

    assert learnable("learnable") == set(sites)
    assert learnable("closed") == set()
    assert learnable("final_only") == {sites[-1]}
    assert learnable([sites[0], sites[2]]) == {sites[0], sites[2]}
    assert learnable(f"{sites[1]}, {sites[2]}") == {sites[1], sites[2]}
    with pytest.raises(ValueError, match=r"unknown sites enc9: use learnable, closed, final_only or a list from enc"):
        create_model(name, gates=["enc9"])


def test_sites_are_named_in_the_order_data_flows():
    assert SMALL == ("enc1", "enc2", "enc3", "enc4", "dec4", "dec3", "dec2", "dec1")
    assert [row.site for row in allocation(create_model("fheat_seg"))] == list(SMALL)
    assert [row.site for row in allocation(create_model("fheat_seg_l", patch_size=PATCH))] == list(LARGE)


@pytest.mark.parametrize(("alpha", "start"), [("bounded", 0.3715), ("softplus", 0.4269)])
def test_alpha_options(alpha, start):
    row = allocation(create_model("fheat_seg", patch_size=PATCH, alpha=alpha))["dec1"]
    assert row.alpha == pytest.approx(start, abs=1e-4)


def test_unbounded_alpha_may_start_where_the_bounded_one_does():
    bounded = allocation(create_model("fheat_seg", patch_size=PATCH))["dec1"].alpha
    for kind in ("bounded", "softplus"):
        model = create_model("fheat_seg", patch_size=PATCH, alpha=kind, initial_alpha=bounded)
        assert all(row.alpha == pytest.approx(bounded, abs=1e-7) for row in allocation(model))
    model = create_model("fheat_seg_l", patch_size=PATCH, alpha="softplus", initial_alpha=1.4)
    assert allocation(model)["bottom"].alpha == pytest.approx(1.4, abs=1e-6)
    for kind, start in (("bounded", 0.9), ("bounded", 0.3), ("softplus", 0.3), ("fixed", 0.5), (0.75, 0.5)):
        with pytest.raises(ValueError, match="initial_alpha"):
            create_model("fheat_seg", patch_size=PATCH, alpha=kind, initial_alpha=start)


@pytest.mark.parametrize(("alpha", "value"), [("fixed", 0.3715), (0.75, 0.75)])
def test_fixed_alpha_has_no_theta(alpha, value):
    model = create_model("fheat_seg", patch_size=PATCH, alpha=alpha)
    assert all(gate.theta is None for gate in gates_of(model).values())
    assert allocation(model)["enc1"].alpha == pytest.approx(value, abs=1e-4)


def test_kan_ratio_widens_the_mixer():
    one, two = (create_model("fheat_seg", kan_ratio=r) for r in (1, 2))
    grown = sum(p.numel() for p in two.parameters()) - sum(p.numel() for p in one.parameters())
    assert grown == sum(
        2 * c * c + c for c, depth in zip((24, 48, 60, 96), (1, 2, 3, 2), strict=True) for _ in range(4 * depth)
    )


def test_scramble_moves_tokens_only():
    torch.manual_seed(0)
    straight = create_model("light_unetr", patch_size=(64, 64, 32)).eval()
    torch.manual_seed(0)
    scrambled = create_model("light_unetr", patch_size=(64, 64, 32), scramble=True).eval()
    bottom = torch.randn(1, 96, 2, 2, 1)
    moved = scrambled._bottom(bottom)
    assert torch.equal(moved.flatten(), straight._bottom(bottom).flatten(2).transpose(1, 2).flatten())
    assert not torch.equal(moved, straight._bottom(bottom))


def test_position_is_used_as_it_is_on_the_patch_and_resized_elsewhere():
    model = create_model("fheat_seg", patch_size=(112, 112, 80)).eval()
    model.position.data.normal_()
    assert model.position.shape == (1, 96, 4, 4, 3)
    zeros = torch.zeros(1, 96, 4, 4, 3)
    assert torch.equal(model._bottom(zeros), model.position)
    assert model._bottom(torch.zeros(1, 96, 2, 3, 5)).shape == (1, 96, 2, 3, 5)
    model.position.data.fill_(2.0)
    assert (model._bottom(torch.zeros(1, 96, 2, 3, 5)) == 2).all()


def test_numbers_of_other_libraries_are_numbers():
    assert create_model("fheat_seg", patch_size=np.array([32, 40, 48])).patch_size == (32, 40, 48)


REFUSED = [
    (lambda: create_model("fheat_sge"), ValueError, "did you mean 'fheat_seg'"),
    (lambda: create_model("nnunet"), ValueError, "'nnunet' is unknown (did you mean 'dynunet'?): use fheat"),
    (lambda: create_model("nnU-Net"), ValueError, "did you mean 'dynunet'"),
    (lambda: create_model("vnet"), ValueError, "use fheat_seg, fheat_seg_l, light_unetr, light_unetr_l"),
    (lambda: create_model("fheat_seg", mixr="kan"), TypeError, "did you mean 'mixer'"),
    (lambda: create_model("light_unetr_l", gates="closed"), TypeError, "it takes no options"),
    (lambda: create_model("fheat_seg", mixer="relu"), ValueError, "mixer='relu'"),
    (lambda: create_model("fheat_seg", kan_ratio=0), ValueError, "ratio=0"),
    (lambda: create_model("fheat_seg", alpha="free"), ValueError, "alpha='free'"),
    (lambda: create_model("fheat_seg", patch_size=32), ValueError, "patch_size=32"),
    (lambda: create_model("fheat_seg", gates=None), ValueError, "gates=None"),
    (lambda: create_model("fheat_seg", in_channels=0), ValueError, "in_channels=0"),
    (lambda: create_model("fheat_seg", out_channels=-1), ValueError, "out_channels=-1"),
    (lambda: create_model("fheat_seg", patch_size=(112, 112)), ValueError, "patch_size=(112, 112)"),
    (lambda: create_model("fheat_seg", patch_size=(16, 112, 80)), ValueError, "at least 32"),
    (lambda: create_model("fheat_seg", patch_size=(112, 112, -80)), ValueError, "patch_size="),
]


@pytest.mark.parametrize(("build", "error", "says"), REFUSED)
def test_refuses(build, error, says):
    with pytest.raises(error) as caught:
        build()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


class Own(torch.nn.Module):
    def __init__(self, in_channels, out_channels, patch_size, width=4):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv3d(in_channels, width, 3, padding=1), FractionalHeat(), torch.nn.Conv3d(width, out_channels, 1)
        )

    def forward(self, x):
        return self.net(x)


def test_a_network_of_your_own(tmp_path, monkeypatch):
    monkeypatch.setattr("fheat.networks.registry._NETWORKS", dict(_NETWORKS))
    register_model("own", Own)
    assert "own" in list_models()
    assert model_options("own") == {"width": 4}
    model = create_model("own", width=6)
    restored = load(save(model, tmp_path / "own"))
    x = torch.randn(1, 1, 5, 5, 5)
    assert torch.equal(restored(x), model(x))
    with pytest.raises(ValueError, match="'own' exists already"):
        register_model("own", Own)
    with pytest.raises(TypeError, match="does not take in_channels"):
        register_model("other", lambda width=3: None)
    with pytest.raises(TypeError, match=r"options without default \(width\)"):
        register_model("other", lambda in_channels, out_channels, patch_size, width: None)
    register_model("empty", lambda in_channels, out_channels, patch_size: None)
    with pytest.raises(TypeError, match="returned NoneType"):
        create_model("empty")
    assert allocation(create_model("own", patch_size=(6, 5, 4)))["net.1"].grid == (6, 5, 4)
    assert cost(create_model("own", patch_size=(6, 5, 4))).rest == 120 * 4 * (27 + 2)

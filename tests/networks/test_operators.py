"""The operators of FHEAT-Seg: one option, the same rest of the network, counted parameters and multiply-adds."""

import pytest
import torch

from fheat import allocation, cost, create_model, retire
from fheat.gates.dry_run import example_inputs, gate_calls
from fheat.inference.compilable import compilable
from fheat.networks.light_u import SITES, WIDTHS, stage_grid
from fheat.networks.operators import Place, build_operators
from fheat.ops.gates import gates_of, operators_of

PATCH = (32, 48, 32)
ALL = ("heat", "resolvent", "l0", "stochastic_depth", "fnet", "gfnet", "afno")
EXTRA = {"l0": 8, "fnet": -16, "gfnet": 2 * 563_712 - 16, "afno": 2 * (384 + 1344 + 2640 + 4992) - 16}
"""Parameters beyond those with the heat gate at 112x112x80, by the formulas of the operators."""
GIGA = {
    "heat": 1.199,
    "resolvent": 1.199,
    "l0": 1.199,
    "stochastic_depth": 1.199,
    "fnet": 1.012,
    "gfnet": 0.987,
    "afno": 1.046,
}
"""Multiply-adds at 112x112x80 with all sites on."""


@pytest.mark.parametrize(
    "operator", [one if one == "afno" else pytest.param(one, marks=pytest.mark.slow) for one in ALL]
)
def test_parameters_and_multiply_adds(operator):
    model = create_model("fheat_seg", operator=operator)
    counted = cost(model)
    assert counted.parameters == 974_632 + EXTRA.get(operator, 0)
    assert counted.macs / 1e9 == pytest.approx(GIGA[operator], abs=6e-4)
    assert counted.rest == 899_829_468
    assert counted.transforms == (("fourier",) if operator in ("fnet", "gfnet", "afno") else ("product",))
    assert list(counted.sites) == list(SITES)


def test_a_fourier_transform_of_fnet_costs_what_its_formula_says():
    points = 24 * 28 * 28 * 20
    sites = cost(create_model("fheat_seg", operator="fnet")).sites
    assert sites["enc1"] == pytest.approx(2 * 2.5 * points * torch.log2(torch.tensor(float(points))).item(), rel=1e-6)


@pytest.mark.parametrize("patch", [(112, 112, 80), (33, 39, 70), (32, 48, 32)])
def test_grids_of_the_sites_are_those_of_a_forward_pass(patch):
    model = create_model("fheat_seg", patch_size=patch, operator="fnet")
    calls = gate_calls(model, example_inputs(model, None))
    assert {site: call[0].grid for site, call in calls.items()} == {
        site: stage_grid(patch, int(site[-1]) - 1) for site in SITES
    }
    assert [calls[site][0].channels for site in SITES[:4]] == list(WIDTHS)


@pytest.mark.parametrize("operator", ALL[1:])
def test_the_rest_of_the_network_starts_alike(operator):
    def rest(operator):
        torch.manual_seed(3)
        state = create_model("fheat_seg", patch_size=PATCH, operator=operator).state_dict()
        return {name: value for name, value in state.items() if ".gate." not in name}

    first, second = rest("heat"), rest(operator)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_sites_that_are_not_chosen_are_the_identity():
    model = create_model("fheat_seg", patch_size=PATCH, operator="gfnet", gates="final_only")
    assert [type(one).__name__ for one in operators_of(model).values()] == ["FractionalHeat"] * 7 + ["GFNet3D"]
    assert [row.site for row in allocation(model)] == list(SITES[:7])
    assert all(gate.closed for gate in gates_of(model).values())


def test_wrong_options():
    place = {"dec1": Place(24, (8, 12, 8))}
    for options, reason in (
        ({"operator": "attention"}, "operator='attention' is unknown: use heat, resolvent, l0,"),
        ({"operator": "heat", "l0_weight": 0.1}, "l0_weight is for operator 'l0', not 'heat'"),
        ({"operator": "l0", "drop": 0.1}, "drop is for operator 'stochastic_depth', not 'l0'"),
        ({"operator": "fnet", "alpha": 0.5}, "operator 'fnet' has no order"),
        ({"operator": "afno", "initial_alpha": 0.5}, "operator 'afno' has no order"),
    ):
        with pytest.raises(ValueError, match=reason):
            build_operators(place, gates="learnable", **options)
    (l0,) = build_operators(place, "l0", "learnable", l0_weight=0.3).values()
    (depth,) = build_operators(place, "stochastic_depth", "learnable", drop=0.4).values()
    assert (l0.weight, depth.drop) == (0.3, 0.4)


@pytest.mark.parametrize("operator", ["resolvent", "l0", "stochastic_depth"])
def test_gates_are_compiled_as_they_are(operator):
    (gate,) = build_operators({"dec1": Place(3, (5, 4, 6))}, operator, "learnable").values()
    gate.set_strength(0.6)
    x = torch.randn(2, 3, 5, 4, 6)
    written_anew = compilable(gate)
    assert type(written_anew).__name__ == "Gate"
    assert torch.allclose(written_anew(x), gate.eval()(x), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("operator", ALL)
def test_every_operator_trains_and_runs_on_other_grids(operator):
    torch.manual_seed(0)
    model = create_model("fheat_seg", patch_size=PATCH, operator=operator)
    model.train()(torch.randn(2, 1, *PATCH)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    x = torch.randn(1, 1, 33, 39, 35)
    with torch.no_grad():
        model.eval()
        logits = model(x)
        assert logits.shape == (1, 2, 33, 39, 35)
        assert torch.equal(logits, retire(model)(x))
        with torch.autocast("cpu", torch.bfloat16):
            half = model(x)
    assert (half.float() - logits).norm() < 0.2 * logits.norm()

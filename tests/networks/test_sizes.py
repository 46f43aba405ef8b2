"""The pinned sizes: parameters exactly, multiply-adds to the printed digit, our counter equal to fvcore."""

import logging

import pytest
import torch
from fvcore.nn import FlopCountAnalysis

from fheat import cost, create_model, retire
from fheat.ops.gates import gates_of

LA, CUBE = (112, 112, 80), (96, 96, 96)
SMALL = (56, 48, 32)
"""Where fvcore, which computes what it counts, looks at the networks; some of its grids are odd and padded."""

# network, options, patch -> parameters, G multiply-adds with all gates open, with all closed
TABLE = [
    ("fheat_seg", LA, 974_632, "1.199", "0.900"),
    ("fheat_seg", CUBE, 974_632 - 21 * 96, "0.999", "0.754"),
    ("fheat_seg_l", LA, 2_851_196, "57.77", "55.75"),
    ("fheat_seg_l", CUBE, 2_851_196, "50.71", "49.03"),
    ("light_unetr", LA, 1_351_896, "1.015", None),
    ("light_unetr", CUBE, 1_351_896 - 21 * 96, "0.841", None),
    ("light_unetr_l", LA, 3_934_362, "59.45", None),
    ("light_unetr_l", CUBE, 3_934_362, "52.15", None),
]
IDS = [f"{name}-{patch[2]}" for name, patch, *_ in TABLE]


def printed(macs, like):
    return f"{macs / 1e9:.{len(like.split('.')[1])}f}"


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def by_fvcore(model, patch):
    logging.getLogger("fvcore").setLevel(logging.ERROR)
    with torch.no_grad():
        return int(FlopCountAnalysis(model.eval(), torch.zeros(1, 1, *patch)).unsupported_ops_warnings(False).total())


def closed(model):
    for gate in gates_of(model).values():
        gate.delta.data.fill_(-0.1)
    return model


@pytest.mark.parametrize(
    ("name", "patch", "parameters", "opened", "shut"),
    [row if row[0] == "fheat_seg" else pytest.param(*row, marks=pytest.mark.slow) for row in TABLE],
    ids=IDS,
)
def test_pinned_sizes(name, patch, parameters, opened, shut):
    model = create_model(name, patch_size=patch)
    assert sum(p.numel() for p in model.parameters()) == parameters
    counted = cost(model)
    assert counted.parameters == parameters
    assert printed(counted.macs, opened) == opened
    if shut is not None:
        retired = retire(closed(model))
        assert cost(retired).macs == cost(model).macs == counted.rest
        assert printed(counted.rest, shut) == shut


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fheat_seg", "fheat_seg_l", "light_unetr", "light_unetr_l"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_counter_equals_fvcore(name, monkeypatch):
    """With one block per stage, as fvcore is slow; the survivor below has all of them."""
    setting, value = ("DEPTH", 1) if name.endswith("_l") else ("DEPTHS", (1, 1, 1, 1))
    monkeypatch.setattr(f"fheat.networks.{name}.{setting}", value)
    model = create_model(name, patch_size=SMALL)
    counted = cost(model)
    assert counted.macs == by_fvcore(model, SMALL)
    if gates_of(model):
        retired = retire(closed(model))
        assert cost(retired).macs == counted.rest == by_fvcore(retired, SMALL)


def test_gelu_mixer_size():
    assert sum(p.numel() for p in create_model("fheat_seg", mixer="gelu").parameters()) == 969_480


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("transform", "total"), [("product", "1.014"), ("split", "0.957")])
def test_survivor_costs_what_the_design_says(transform, total):
    """Only dec1 open: 1.014 G by plain products, at most 0.96 G by the even/odd split, fvcore on the real graph."""
    model = create_model("fheat_seg")
    for site, gate in gates_of(model).items():
        gate.transform = transform
        if site != "dec1":
            gate.delta.data.fill_(-0.1)
    counted = cost(model)
    assert counted.transforms == (transform,)
    assert printed(counted.macs, total) == total
    assert printed(counted.rest, "0.900") == "0.900"
    assert counted.transform == counted.sites["dec1"] == counted.macs - counted.rest
    assert counted.macs == by_fvcore(retire(model), LA)
    assert cost(model, transform="split").macs <= 0.96e9

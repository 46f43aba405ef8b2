"""Which sizes and networks a run takes when nobody says, and how lists are read."""

from pathlib import Path

import pytest
import torch

from fheat.bench.plan import EVERY_NETWORK, SMALL_NETWORKS, Plan, build, grids, in_its_way, numbers
from fheat.ops import kernels
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput

TINY = (32, 32, 32)


def test_everything_at_once_is_small_on_a_cpu_only():
    here, there = Plan(), Plan(device="cuda")
    assert here.parts == there.parts == ("operator", "step", "window", "scan", "start", "read", "cohort")
    assert here.quick
    assert not there.quick
    assert here.patch_of("window") == (64, 64, 48)
    assert there.patch_of("step") == (112, 112, 80)
    assert here.rounds_of("window") == 3
    assert here.models_of("scan") == (*SMALL_NETWORKS, "segresnet")
    assert there.models_of("scan") == EVERY_NETWORK
    assert here.models_of("start") == there.models_of("cohort") == ("fheat_seg/survivor",)
    assert (here.cases_of("read"), here.cases_of("cohort"), there.cases_of("cohort")) == (4, 4, 20)
    assert Plan(what="read").cases_of("read") == 8


def test_starts_and_cohorts_have_one_network_among_all_parts():
    asked = ("segresnet/plain", "segresnet/compiled", "light_unetr", "fheat_seg")
    assert Plan(models=asked).models_of("start") == ("light_unetr",)
    assert Plan(models=asked[:2]).models_of("cohort") == ("fheat_seg/survivor",)
    assert Plan(models=asked).models_of("window") == asked
    assert Plan(what="start", models=asked).models_of("start") == asked


def test_la_is_the_default_scan():
    plan = Plan(what="scan")
    assert plan.scan_of() == (192, 142, 88)
    assert plan.windows_of().size == (112, 112, 80)
    assert plan.windows_of().stride == (18, 18, 4)
    assert Plan(what="scan", patch=(64, 64, 32)).windows_of().stride == (16, 16, 8)


def test_training_on_a_gpu_is_bfloat16_unless_told():
    assert Plan(device="cuda").precision_of("step") == "bfloat16"
    assert Plan(device="cuda").precision_of("window") == "float32"
    assert Plan(device="cuda", precision="float32").precision_of("step") == "float32"
    assert Plan().precision_of("step") == "float32"
    assert Plan(precision="bfloat16").precision_of("start") == "bfloat16"
    assert Plan(precision="bfloat16").precision_of("cohort") == "float32"  # by torch


def test_lists():
    assert numbers("1,2,4", "batches") == (1, 2, 4)
    assert grids("64,96x96x80", "sizes") == ((64, 64, 64), (96, 96, 80))


@pytest.mark.parametrize("text", ["", "0,1", "2,1", "1,1", "a", "1,,2"])
def test_refuses_numbers(text):
    with pytest.raises(ValueError, match="batches="):
        numbers(text, "batches")


@pytest.mark.parametrize("text", ["64", "96,64", "16,32", "64,64x64", "64,big", "64,64"])
def test_refuses_grids(text):
    with pytest.raises(ValueError, match="sizes="):
        grids(text, "sizes")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"batch": 0}, "batch=0"),
        ({"patch": (16, 64, 64)}, "at least 32"),
        ({"scan": (0, 64, 64)}, "scan="),
        ({"seed": -1}, "seed=-1"),
        ({"what": "scan", "batches": (1, 2)}, "belong to 'fheat bench window'"),
        ({"cases": 1}, "cases=1 is not usable: give 2 or more"),
        ({"what": "start", "cases": 3}, "belongs to 'fheat bench read' and 'fheat bench cohort'"),
        ({"what": "cohort", "data": Path("scans")}, "belongs to 'fheat bench read'"),
    ],
)
def test_refuses_plans(options, says):
    with pytest.raises(ValueError) as caught:
        Plan(**options)
    assert says in str(caught.value)


def test_states_of_gates():
    names = ["fheat_seg/open", "fheat_seg/survivor", "fheat_seg/retired", "fheat_seg_l/survivor"]
    built = build(names, TINY, "cpu").built
    left = {name: [site for site, gate in gates_of(model).items() if not gate.retired] for name, model in built.items()}
    assert len(left["fheat_seg/open"]) == 8
    assert left["fheat_seg/survivor"] == ["dec1"]
    assert left["fheat_seg/retired"] == []
    assert left["fheat_seg_l/survivor"] == ["dec3"]
    assert not any(model.training for model in built.values())


def test_a_plain_network_is_the_same_and_runs_without_kernels():
    built = build(["fheat_seg/survivor", "fheat_seg/survivor/plain", "light_unetr/plain"], TINY, "cpu").built
    first, plain, _ = built.values()
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), plain.parameters(), strict=True))
    with kernels.use("always"):
        usable = [in_its_way(name, lambda: kernels.usable(torch.zeros(1)))() for name in built]
    assert usable == [True, False, False]


def test_unknown_networks_are_refused():
    with pytest.raises(ValueError, match="did you mean 'fheat_seg'"):
        build(["fheat_sge"], TINY, "cpu")
    for name in ("light_unetr/retired", "fheat_seg/shut"):
        with pytest.raises(ValueError, match="only networks with gates have /open, /survivor, /retired"):
            build([name], TINY, "cpu")


def test_a_network_whose_library_is_missing_is_listed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "monai.networks.nets", None)
    found = build(["fheat_seg", "segresnet"], TINY, "cpu")
    assert list(found.built) == ["fheat_seg"]
    assert "not installed" in found.missing["segresnet"]
    with pytest.raises(BadInput, match="none can be built"):
        build(["segresnet", "mednext"], TINY, "cpu")

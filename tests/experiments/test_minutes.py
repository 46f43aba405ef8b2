"""Estimates of cost: the stored speeds are those of the stored results, and the arithmetic is right."""

import pytest
from results import read_result, result_names

from fheat import create_model
from fheat.experiments.minutes import measured_speeds, run_minutes
from fheat.experiments.plan import Plan
from fheat.experiments.records import item
from fheat.networks.padded import PaddedNetwork
from fheat.networks.registry import list_models
from fheat.training.estimate import Gain, shown, speeds

UNITS = 2 * (3 * 3 + 1)
"""Forward passes of an iteration of CSE: two crops, three passes with gradients, one without."""


def test_speeds_of_the_gpu_are_those_of_the_stored_results():
    stored, result = speeds()["cuda"], read_result("bench-step-cuda")
    assert stored.machine == result.machine.name
    measured = {name: value / UNITS for name, value in result.results["step"][0]["milliseconds"].items()}
    cpu = read_result("bench-cpu").results["window"]["milliseconds"]
    direct = ("fheat_seg", "fheat_seg_l", "light_unetr", "segresnet", "segformer3d", "fheat_segformer3d")
    derived = {name: measured[name] for name in direct}
    derived["light_unetr_l"] = measured["fheat_seg_l"] * cpu["light_unetr_l"] / cpu["fheat_seg_l/retired"]
    derived |= {name: gain["eager"] for name, gain in measured_gains().items() if name not in direct}
    assert stored.milliseconds == pytest.approx(derived, rel=0.005)


def gains_of(rows):
    """Return what `torch.compile` gains by network, from those rows of `fheat bench step` that are of CSE."""
    [row] = [one for one in rows if one["method"] == "cse" and (one["patch"], one["batch"]) == ("112x112x80", 2)]
    times = row["milliseconds"]
    return {
        name.removesuffix("/compiled"): {
            "eager": times[name.removesuffix("/compiled")] / UNITS,
            "compiled": times[name] / UNITS,
            "seconds": seconds,
        }
        for name, seconds in row["compile_seconds"].items()
    }


def measured_gains():
    """Return the gains of all stored results of networks with and without `torch.compile`."""
    names = [name for name in result_names() if name.startswith("bench-compiled") and name.endswith("-cuda")]
    found = {}
    for result in map(read_result, names):
        assert result.machine.name == speeds()["cuda"].machine
        assert result.results["step"][0]["precision"] == "bfloat16"
        gains = gains_of(result.results["step"])
        assert not gains.keys() & found.keys()
        found |= gains
    return found


def test_gains_of_compiling_are_those_of_the_stored_results():
    stored, derived = speeds(), measured_gains()
    assert stored["cpu"].compiled == {}
    assert stored["cuda"].compiled.keys() == {"bf16"}
    written = {network: dict(gain) for network, gain in stored["cuda"].compiled["bf16"].items()}
    assert written.keys() == derived.keys()
    for network, gain in written.items():
        assert gain == pytest.approx(derived[network], rel=0.01)


def test_every_network_that_can_be_compiled_was_measured():
    padded = {name for name in list_models() if isinstance(create_model(name, patch_size=(32, 32, 32)), PaddedNetwork)}
    assert measured_gains().keys() == padded


def test_gains_are_times_of_a_forward_pass():
    times = {"segresnet": 100.0, "segresnet/compiled": 60.0, "fheat_seg": 10.0}
    row = {"method": "cse", "patch": "112x112x80", "batch": 2, "milliseconds": times}
    other = row | {"method": "supervised", "compile_seconds": {"segresnet/compiled": 1.0}}
    found = gains_of([row | {"compile_seconds": {"segresnet/compiled": 75.0}}, other])
    assert {name: Gain(**gain) for name, gain in found.items()} == {
        "segresnet": Gain(eager=5.0, compiled=3.0, seconds=75.0)
    }


def test_speeds_of_the_cpu_are_those_of_the_stored_results():
    stored, result = speeds()["cpu"], read_result("bench-cpu")
    assert result.results["window"]["patch"] == "64x64x48"
    assert stored.voxels == 64 * 64 * 48
    names = {"fheat_seg": "fheat_seg/open", "fheat_seg_l": "fheat_seg_l/retired"}
    measured = {name: result.results["window"]["milliseconds"][names.get(name, name)] for name in stored.milliseconds}
    assert stored.milliseconds == pytest.approx(measured, rel=0.002)


def test_minutes_of_a_run(tmp_path):
    row, plan = item("table2").row("la-4/fheat-seg"), Plan({}, tmp_path)
    stored = read_result("bench-step-cuda").results["step"][0]["per_second"]["fheat_seg"]
    assert run_minutes(row, plan, "cuda") == pytest.approx(16_000 / stored / 60, rel=0.005)
    assert run_minutes(row, Plan({}, tmp_path, iterations=4000), "cuda") == pytest.approx(4000 / stored / 60, rel=0.005)
    brats = item("table3").row("brats-25/fheat-seg")
    assert run_minutes(brats, plan, "cuda") / run_minutes(row, plan, "cuda") == pytest.approx(96**3 / (112 * 112 * 80))
    supervised = item("table4").row("la-all/fheat-seg")
    assert run_minutes(supervised, plan, "cpu") / run_minutes(row, plan, "cpu") == pytest.approx(3 / 10)
    assert run_minutes(row.model_copy(update={"network": "not_there"}), plan, "cuda") is None
    assert run_minutes(row.model_copy(update={"method": "not_there"}), plan, "cuda") is None


def test_own_speed_wins_over_the_stored_one(tmp_path):
    class Done:
        per_second, machine = 20.0, {"device": "cuda:1"}
        settings = {"network": {"name": "fheat_seg"}, "method": {"name": "cse"}}  # noqa: RUF012

    measured = measured_speeds([Done(), Done()])
    assert measured == {("cuda", "fheat_seg", "cse"): 20.0}
    row, plan = item("table2").row("la-4/fheat-seg"), Plan({}, tmp_path)
    assert run_minutes(row, plan, "cuda", measured) == pytest.approx(16_000 / 20 / 60)
    assert run_minutes(row, plan, "cpu", measured) == run_minutes(row, plan, "cpu")


def test_times_are_shown_in_minutes_or_hours():
    assert [shown(value) for value in (None, 0.0, 0.2, 3.4, 99, 150)] == [
        "?", "0 min", "under 1 min", "3 min", "99 min", "2 h",
    ]  # fmt: skip

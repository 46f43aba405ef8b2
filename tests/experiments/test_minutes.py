"""Estimates of cost: the stored speeds are those of the stored results, and the arithmetic is right."""

import pytest
from results import read_result

from fheat.experiments.minutes import measured_speeds, run_minutes
from fheat.experiments.plan import Plan
from fheat.experiments.records import item
from fheat.training.estimate import shown, speeds

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
    derived |= {
        name: measured["segresnet"] * cpu[name] / cpu["segresnet"] for name in ("dynunet", "swin_unetr", "mednext")
    }
    assert stored.milliseconds == pytest.approx(derived, rel=0.005)


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

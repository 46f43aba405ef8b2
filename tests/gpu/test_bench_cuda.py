"""`fheat bench` on a GPU: every part runs, forward passes as captured graphs."""

from contextlib import nullcontext

import pytest
import torch

from fheat.bench.plan import Plan
from fheat.bench.run import run_plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PATCH = (64, 64, 48)


def record(**options):
    models = ("fheat_seg/retired", "fheat_seg/survivor", "light_unetr")
    plan = Plan(**{"device": "cuda", "patch": PATCH, "rounds": 3, "models": models} | options)
    return run_plan(plan, "fheat bench", lambda what: nullcontext(lambda done, total: None))


@pytest.mark.parametrize("what", ["operator", "window"])
def test_forward_passes_are_captured(what):
    found = record(what=what)
    assert found["machine"]["name"] == torch.cuda.get_device_name()
    assert found["notes"] == []


def test_growth():
    found = record(what="window", sizes=((64, 64, 64), (128, 128, 128)), batches=(1, 2))["results"]
    for times in (*found["sizes"]["milliseconds"].values(), *found["batches"]["milliseconds"].values()):
        assert 0 < times[0] < times[1]


def test_steps_advance():
    rows = record(what="step", models=("fheat_seg", "light_unetr"))["results"]["step"]
    assert [row["precision"] for row in rows] == ["bfloat16", "bfloat16"]
    assert all(rate > 1 for row in rows for rate in row["per_second"].values())


def test_starts_and_cohorts():
    pytest.importorskip("nibabel")
    options = {"models": ("fheat_seg/survivor",), "rounds": 1, "scan": (96, 80, 64)}
    start = record(what="start", **options)["results"]["start"]["networks"]["fheat_seg/survivor"]
    assert list(start["command_s"]) == list(start["parts_s"]) == ["empty cache", "filled cache"]
    assert all(ratio > 1 for ratio in start["ratio"].values())
    cohort = record(what="cohort", cases=3, **options)["results"]["cohort"]["networks"]["fheat_seg/survivor"]
    assert cohort["same_masks"]
    assert all(0 < row["busy_share"] <= 1 for row in cohort["segmented"].values())


def test_scan():
    pytest.importorskip("nibabel")
    assert all(seconds > 0 for seconds in record(what="scan")["results"]["scan"]["seconds"].values())

"""What tests of kernels share: fresh plans, and memory that is not yet filled."""

import pytest
import torch

from fheat.ops.kernels import launch


@pytest.fixture(autouse=True)
def _fresh_plans():
    """Plans are kept by their sizes; a test that changes the number of programs must not leave its own behind."""
    plans = launch.tiling, launch.channel_tiling, launch.tile_each, launch.runs, launch.runs_for_sums
    plans += (launch.sweep_in_runs,)
    for plan in plans:
        plan.cache_clear()
    yield
    for plan in plans:
        plan.cache_clear()


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that a kernel should fill holds NaN until it does, and -7 where it holds whole numbers."""

    def poisoning(make):
        def fill(*args, **options):
            made = make(*args, **options)
            return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(-7)

        return fill

    monkeypatch.setattr(torch, "empty", poisoning(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoning(torch.empty_like))

"""Kernels take half the time in Triton's interpreter without checks whose outcome nobody sees."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from fheat.ops.kernels import launch


@pytest.fixture(autouse=True, scope="session")
def _without_unread_checks():
    """The interpreter repeats integer arithmetic in 64 bits to find overflow, and looks at it only with `debug`."""
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.runtime.interpreter import interpreter_builder as builder

    before = builder.options
    builder.options = replace(before, sanitize_overflow=before.debug)
    yield
    builder.options = before


@pytest.fixture(autouse=True)
def _fresh_plans():
    """Plans are kept by their sizes; a test that changes the number of programs must not leave its own behind."""
    plans = launch.tiling, launch.channel_tiling, launch.tile_each
    for plan in plans:
        plan.cache_clear()
    yield
    for plan in plans:
        plan.cache_clear()

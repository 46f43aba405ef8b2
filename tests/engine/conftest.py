"""A dataset small enough to train on in a test, and training without its report."""

import sys
from types import SimpleNamespace

import pytest

from fheat.data.phantom import write_phantoms
from fheat.engine.config import TrainConfig


@pytest.fixture(autouse=True)
def _without_report(monkeypatch):
    """`fheat train` ends with its report, which takes longer than these runs and has its tests in tests/report."""
    stand_in = SimpleNamespace(write_report=lambda *arguments, **options: "none")
    monkeypatch.setitem(sys.modules, "fheat.report.write", stand_in)


@pytest.fixture(scope="session")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phantoms") / "scans"
    write_phantoms(folder, 10, test=0, shape=(40, 36, 34))
    return folder


@pytest.fixture
def config(scans):
    def make(**settings):
        defaults = {
            "data": str(scans),
            "labelled": 2,
            "patch_size": (32, 32, 32),
            "iterations": 6,
            "warm_up": 2,
            "validate_every": 4,
            "checkpoint_every": 2,
        }
        return TrainConfig(**(defaults | settings))

    return make

"""A dataset small enough to train on in a test, and runs on it."""

import pytest

from fheat.data.phantom import write_phantoms
from fheat.experiments.planned import PlannedRun
from fheat.experiments.scoring import Scoring
from fheat.training.settings_sources import make_settings
from tests.experiments.tiny import tiny_network


@pytest.fixture(scope="session")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phantoms") / "scans"
    write_phantoms(folder, 5, test=1, shape=(32, 32, 32))
    return folder


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory):
    """The folder in which other processes find the network `tiny`."""
    folder = tmp_path_factory.mktemp("site")
    with tiny_network(folder):
        yield folder


@pytest.fixture(scope="session")
def planned(scans):
    """A function that plans a run of a few iterations; settings are given by their short names."""

    def plan(name, **values):
        settings = {
            "data": str(scans),
            "labelled": 2,
            "batch": 1,
            "patch_size": (16, 16, 16),
            "network": "tiny",
            "method": "supervised",
            "iterations": 4,
            "warm_up": 2,
            "validate_every": 4,
            "checkpoint_every": 2,
        }
        return PlannedRun(name, make_settings(settings | values), Scoring(split="test"))

    return plan

"""A dataset small enough to train on in a test, and training without its report."""

import pytest
import torch

from fheat.data.phantom import write_phantoms
from tests.miniature import declare
from tests.training.helpers import SMALL, Run, settings_of


@pytest.fixture(autouse=True)
def _quick(without_report):
    """No test here looks at the report."""


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """Train as `settings` say, once for all tests that compare with it; to be read only."""
    done = []

    def train(settings):
        known = next((run for run in done if run.settings == settings), None)
        if known is None:
            torch.set_num_threads(1)
            known = Run(settings, tmp_path_factory.mktemp("whole") / "run", device="cpu")
            known.train()
            done.append(known)
        return known

    return train


@pytest.fixture(scope="session")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phantoms") / "scans"
    write_phantoms(folder, 10, test=0, shape=(26, 24, 25))
    return folder


@pytest.fixture(scope="session")
def larger_scans(tmp_path_factory):
    """A dataset with room for crops of 32 voxels a side, which the networks of this package need."""
    folder = tmp_path_factory.mktemp("larger") / "scans"
    write_phantoms(folder, 4, test=0, shape=(36, 34, 33))
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The environment of programs that know the network of these tests as one of an installed package."""
    return declare(tmp_path_factory.mktemp("site"))


@pytest.fixture
def config(scans):
    def make(**settings):
        defaults = {"data": str(scans), "iterations": 6, "warm_up": 2, "validate_every": 4, "checkpoint_every": 2}
        return settings_of(**(defaults | SMALL | settings))

    return make

"""A finished run, small enough for a test."""

import shutil

import pytest
import torch

from fheat.data.phantom import write_phantoms
from tests.training.helpers import Run, settings_of


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("report")
    write_phantoms(root / "scans", 10, test=0, shape=(40, 36, 34))
    settings = {"labelled": 2, "patch_size": (32, 32, 32), "iterations": 6, "warm_up": 2, "validate_every": 3}
    Run(settings_of(data=str(root / "scans"), rate=0.05, **settings), root / "run", device="cpu").train()
    return root / "run"


@pytest.fixture
def run(finished, tmp_path):
    """A copy that a test may damage; it reads the same dataset."""
    return shutil.copytree(finished, tmp_path / "run")

"""Shared settings: one thread per worker, reproducible draws, tolerances by dtype in one table, one finished run."""

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings

settings.register_profile("fheat", deadline=None, derandomize=True, max_examples=300)
settings.load_profile("fheat")
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for programs that tests start: workers would wait for each other's threads

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU, operation by operation; read when they are imported

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _miniature() -> None:
    """Tests of training, runs and reports use this network; those that go through all networks do not see it."""
    from tests.miniature import register

    register()


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fheat train` ends with its report, which takes longer than a short run and has its tests in tests/report."""
    stand_in = SimpleNamespace(write_report=lambda *arguments, **options: "none")
    monkeypatch.setitem(sys.modules, "fheat.report.write", stand_in)


@pytest.fixture(params=list(TOLERANCE), ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six iterations; its dataset lies beside it in `scans`. Tests must not change it."""
    from fheat.data.phantom import write_phantoms
    from tests.training.helpers import SMALL, Run, settings_of

    root = tmp_path_factory.mktemp("report")
    write_phantoms(root / "scans", 10, test=0, shape=(26, 24, 25))
    settings = {"iterations": 6, "warm_up": 2, "validate_every": 3}
    Run(settings_of(data=str(root / "scans"), rate=0.05, **SMALL, **settings), root / "run", device="cpu").train()
    return root / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may damage; it reads the same dataset."""
    return shutil.copytree(finished, tmp_path / "run")

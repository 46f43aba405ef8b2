"""Shared settings: one thread per worker, reproducible draws, tolerances by dtype in one table, one finished run."""

import atexit
import gc
import importlib.util
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
os.environ["FHEAT_CACHE"] = ""  # nothing that an earlier run compiled is used, nor kept
os.environ["OMP_NUM_THREADS"] = "1"  # for programs that tests start: workers would wait for each other's threads

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU, operation by operation; read when they are imported
gc.disable()  # until all tests are collected: what is imported stays
atexit.register(gc.unfreeze)  # some libraries count what they did not get back

BROWSER_FLAGS = [
    "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox", "--disable-gpu-sandbox",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def pytest_collection_finish() -> None:
    """Keep Python from searching all libraries and all tests for cycles again and again while tests run."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _miniature() -> None:
    """Tests of training, runs and reports use this network; those that go through all networks do not see it."""
    from tests.miniature import register

    register()


@pytest.fixture(scope="session", autouse=True)
def _quick_kernels():
    """Kernels run in Triton's interpreter where there is no GPU."""
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        yield
        return
    from tests.interpreter import quick_interpreter

    with quick_interpreter():
        yield


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fheat train` ends with its report, which takes longer than a short run and has its tests in tests/report."""
    stand_in = SimpleNamespace(write_report=lambda *arguments, **options: "none")
    monkeypatch.setitem(sys.modules, "fheat.report.write", stand_in)


@pytest.fixture(params=list(TOLERANCE), ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def train_on_phantoms(root: Path, shape: tuple[int, int, int], **settings: object) -> Path:
    """Train on phantoms in `root / scans` and return the run folder beside them."""
    from fheat.data.phantom import write_phantoms
    from tests.training.helpers import Run, settings_of

    write_phantoms(root / "scans", 10, test=0, shape=shape)
    Run(settings_of(data=str(root / "scans"), **settings), root / "run", device="cpu").train()
    return root / "run"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six iterations; its dataset lies beside it in `scans`. Tests must not change it."""
    from tests.training.helpers import SMALL

    settings = SMALL | {"iterations": 6, "warm_up": 2, "validate_every": 3, "rate": 0.1}
    return train_on_phantoms(tmp_path_factory.mktemp("finished"), (26, 24, 25), **settings)


@pytest.fixture(scope="session")
def finished_fheat_seg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FHEAT-Seg for tests that look into the network; otherwise like `finished`."""
    settings = {"labelled": 2, "patch_size": (32, 32, 32), "iterations": 1, "method": "supervised"}
    return train_on_phantoms(tmp_path_factory.mktemp("fheat_seg"), (40, 36, 34), **settings)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may damage; it reads the same dataset."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests of pages: Playwright takes one in a process."""
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need the Python package playwright")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("browser tests need Chromium: install the package chromium of the system")
    with playwright.sync_playwright() as session:
        opened = session.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        yield opened
        opened.close()

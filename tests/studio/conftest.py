"""What the tests of the service share: a small model, scans, one process that starts tasks, clients and servers."""

import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from fheat import Card, create_model, save
from fheat.data.phantom import phantom
from fheat.io import write_nifti
from fheat.io.volume import Volume
from fheat.models.card import Window
from fheat.studio.app import create_app
from fheat.studio.launcher import Launcher
from fheat.studio.server import bound, server_of
from fheat.studio.settings import StudioSettings
from tests.miniature import declare

TOKEN = "a-token-for-the-tests"
SIDE = 16
SHAPE = (30, 26, 24)
AFFINE = np.array([[-0.8, 0.1, 0, 11], [0.1, 0.8, 0, -7], [0, 0, 1.5, 3], [0, 0, 0, 1.0]])


def save_model(folder: Path, stride: int) -> Path:
    """Save a miniature network for windows of 16 voxels a side, one of its gates closed."""
    torch.manual_seed(0)
    network = create_model("miniature", patch_size=(SIDE,) * 3)
    network.enc1.gate.set_strength(0.0)
    card = Card(
        title="Chamber of a phantom, MR",
        classes=("background", "chamber"),
        preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}},
        window=Window(size=(SIDE,) * 3, stride=(stride,) * 3),
    )
    return save(network, folder, card)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A model that segments the scan at once."""
    return save_model(tmp_path_factory.mktemp("models") / "mini", SIDE // 2)


@pytest.fixture(scope="session")
def endless(tmp_path_factory) -> Path:
    """A model that looks at so many windows that no test waits for its end."""
    return save_model(tmp_path_factory.mktemp("endless") / "endless", 1)


@pytest.fixture(scope="session")
def large_file(tmp_path_factory) -> Path:
    """A scan with 900,000 windows for the endless model."""
    path = tmp_path_factory.mktemp("large") / "large.nii.gz"
    rows = np.arange(112, dtype=np.int16)
    write_nifti(Volume(rows[:, None, None] + rows[:, None] + rows, np.eye(4)), path)
    return path


@pytest.fixture(scope="session")
def launcher(tmp_path_factory):
    """The one process that starts the tasks of all tests; it knows the miniature network as an installed package."""
    site = tmp_path_factory.mktemp("site")
    declare(site)
    folders = [str(site), str(Path(__file__).parents[2]), *sys.path]
    patch = pytest.MonkeyPatch()  # of that process only: other tests must not find the package
    patch.setattr("fheat.studio.launcher.sys", SimpleNamespace(path=folders, executable=sys.executable))
    started = Launcher()
    started.warm_up()
    yield started
    started.close()
    patch.undo()


@pytest.fixture(scope="session")
def scan_file(tmp_path_factory) -> Path:
    """A phantom in an oblique place."""
    path = tmp_path_factory.mktemp("scans") / "scan.nii.gz"
    write_nifti(Volume(phantom(0, SHAPE).image.data, AFFINE), path)
    return path


@pytest.fixture(scope="session")
def settings(model, endless) -> StudioSettings:
    return StudioSettings(token=TOKEN, models=(model, endless), devices=("cpu",), runtime="torch", port=8000)


@contextmanager
def client_of(settings, launcher):
    """A client with the token; `client.service` is the state of the service."""
    app = create_app(settings, launcher=launcher)
    base = f"http://127.0.0.1:{settings.port}"
    with TestClient(app, base_url=base, headers={"Authorization": f"Bearer {settings.token}"}) as client:
        client.service = service_in(app)
        yield client


def service_in(app):
    """Return the state behind the guards of an application."""
    while not hasattr(app, "state"):
        app = app._app
    return app.state.service


@pytest.fixture
def client(settings, launcher):
    with client_of(settings, launcher) as client:
        yield client


@contextmanager
def server_for(settings, launcher=None):
    """A real server on a free port, in a thread; yields its port and the state of the service."""
    with bound(settings) as (opened, running):
        server = server_of(running)
        if launcher is not None:
            server.config.app = create_app(running, launcher=launcher)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        until = time.monotonic() + 60
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        assert server.started
        yield running.port, service_in(server.config.app)
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def until(condition, seconds=300.0):
    """Wait until something is true, and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def sent(client, file, name=None) -> dict:
    """Send a scan and return what the service says of it."""
    answer = client.put(f"/api/scans?name={name or Path(file).name}", content=Path(file).read_bytes())
    assert answer.status_code == 201, answer.text
    return answer.json()


def ended(client, number) -> dict:
    """Wait for the end of a job and return it."""

    def job():
        found = client.get(f"/api/jobs/{number}").json()
        return None if found["state"] in ("queued", "running") else found

    return until(job)


def segmented(client, file, **options) -> dict:
    """Segment a scan and return the job, which is done."""
    scan = sent(client, file)
    started = client.post("/api/jobs", json={"scan": scan["scan"], "model": "mini", **options})
    assert started.status_code == 202, started.text
    job = ended(client, started.json()["job"])
    assert job["state"] == "done", job
    return job

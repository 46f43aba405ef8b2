"""A real browser and a real service with a tiny model. Voxels are compared, not pictures."""

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from fheat import Card, create_model, save
from fheat.data.phantom import phantom
from fheat.io import write_nifti
from fheat.models.card import Window
from fheat.training.run_folder import RunFolder
from tests.miniature import declare
from tests.studio.browser.steps import LAPTOP, LONG, logged
from tests.training.helpers import SMALL, settings_of

SIDE = 16


@pytest.fixture(scope="session")
def studio(tmp_path_factory):
    """A service with a model, a run in progress, a dataset and a folder for labels, and a scan to send."""
    root = tmp_path_factory.mktemp("studio")
    card = Card(
        classes=("background", "chamber", "wall"),
        preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}},
        window=Window(size=(SIDE,) * 3, stride=(SIDE,) * 3),
    )
    torch.manual_seed(0)
    network = create_model("miniature", patch_size=(SIDE,) * 3, out_channels=3)
    save(network, root / "tiny", card)
    made = phantom(3, (30, 28, 26))
    write_nifti(made.image, root / "scan.nii.gz")
    write_nifti(made.label, root / "reference.nii.gz")
    (root / "damaged.nii.gz").write_bytes((root / "scan.nii.gz").read_bytes()[:3000])
    _make_dataset(root, made)
    run = RunFolder(root / "runs" / "first")
    run.begin(settings_of(data=str(root / "dataset"), iterations=100, **SMALL))
    run.log([logged(iteration) for iteration in (1, 2)])
    folders = ["--models", root / "tiny", "--runs", root / "runs", "--labels", root / "labels"]
    folders += ["--dataset", root / "dataset", "--predictions", root / "predictions"]
    command = [sys.executable, "-m", "fheat", "studio", "--port", "0", "--no-browser", "--runtime", "torch", *folders]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, env=declare(root / "site"), cwd=root
    ) as process:
        address = next(re.finditer(r"http://\S+token=\S+", "".join(_until_address(process.stdout))))[0]
        yield SimpleNamespace(root=root, address=address, run=run, origin="http://" + urlsplit(address).netloc)
        process.terminate()
    run.release()


def _until_address(lines):
    for line in lines:
        yield line
        if "token=" in line:
            return


def _make_dataset(root, made):
    for folder in ("imagesTr", "labelsTr"):
        (root / "dataset" / folder).mkdir(parents=True)
    (root / "predictions").mkdir()
    for name in ("a", "b"):
        write_nifti(made.image, root / "dataset" / "imagesTr" / f"{name}_0000.nii.gz")
        write_nifti(made.label, root / "dataset" / "labelsTr" / f"{name}.nii.gz")
    (root / "dataset" / "dataset.json").write_text(
        '{"channel_names": {"0": "MR"}, "labels": {"background": 0, "chamber": 1}, "numTraining": 2, '
        '"file_ending": ".nii.gz"}'
    )
    write_nifti(made.label, root / "predictions" / "a.nii.gz")
    half = np.array(made.label.data)
    half[: half.shape[0] // 2] = 0
    write_nifti(replace(made.label, data=half), root / "predictions" / "b.nii.gz")


@pytest.fixture
def page(browser, studio):
    """A page that has the cookie; at the end, nothing went wrong in it and nothing left the host."""
    context = browser.new_context(viewport=LAPTOP, accept_downloads=True)
    context.set_default_timeout(LONG)
    opened = context.new_page()
    problems, asked = [], []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(studio.address)
    opened.wait_for_selector("#model option", state="attached")
    yield opened
    context.close()
    assert problems == []
    elsewhere = [url for url in asked if urlsplit(url).scheme in ("http", "https", "ws") and studio.origin not in url]
    assert elsewhere == []

"""The wheel and the source archive: what they hold, and that the program works where nothing else of fheat is."""

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fheat import __version__
from fheat.data.phantom import phantom
from fheat.io import Volume, read_nifti, write_nifti
from fheat.models.zoo import ZOO, zoo_names

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
LARGEST = 20e6
"""Number of bytes that neither archive may exceed; six models of 2 MB, one of 6 and a viewer are most of it."""


def build(source, out, *targets):
    """Build archives of a source tree, with the locked hatchling of this environment and without any network."""
    words = [word for target in targets for word in ("-t", target)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out, *words], cwd=source, check=True)


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "sdist", "wheel")
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sdist(built):
    (sdist,) = built.glob("*.tar.gz")
    return sdist


@pytest.mark.slow
def test_both_are_named_after_the_version_and_small(wheel, sdist):
    assert wheel.name == f"fheat-{__version__}-py3-none-any.whl"
    assert sdist.name == f"fheat-{__version__}.tar.gz"
    for archive in (wheel, sdist):
        print(f"{archive.name}: {archive.stat().st_size:,} bytes")
        assert archive.stat().st_size < LARGEST


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = names_in(wheel)
    tracked = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "fheat").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = f"fheat-{__version__}.dist-info"
    assert {name for name in names if not name.startswith(about)} == tracked
    assert {"fheat/py.typed", "fheat/studio/static/index.html", "fheat/studio/static/vendor/niivue.umd.js"} <= tracked
    assert {f"fheat/zoo/{name}/model.safetensors" for name in zoo_names()} <= tracked
    assert {f"{about}/licenses/LICENSE", f"{about}/licenses/src/fheat/studio/static/vendor/LICENCES.txt"} <= set(names)
    assert not any(re.search(r"(^|/)(tests|conftest\.py|test_[^/]*\.py)(/|$)", name) for name in names)


@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel(wheel, sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "SECURITY.md"} <= set(os.listdir(unpacked))
    build(unpacked, tmp_path / "again", "wheel")
    (again,) = (tmp_path / "again").glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """Folder of the programs of a new environment in which fheat is the wheel; other packages are those of the tests.

    A path in a .pth file is searched last, and the .pth files that lie there are not read, so that an editable fheat of
    this environment is not seen.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    words = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--root-user-action", "ignore"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *words, wheel], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder with a scan and without any source of fheat."""
    folder = tmp_path_factory.mktemp("elsewhere")
    whole = phantom(0, (64, 56, 48)).image
    write_nifti(Volume(whole.data[12:52, 10:46, 8:40], whole.affine), folder / "scan.nii.gz")
    return folder


def called(folder, *words):
    """Return what a program prints that knows nothing of the source tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_program_is_that_of_the_wheel(programs, elsewhere):
    assert called(elsewhere, programs / "fheat", "--version") == f"fheat {__version__}\n"
    code = "import fheat, importlib.metadata as m; print(fheat.__file__, m.version('fheat'))"
    file, version = called(elsewhere, programs / "python", "-c", code).split()
    assert Path(file).is_relative_to(programs.parent)
    assert version == __version__


@pytest.mark.slow
def test_the_wheel_segments_a_scan_with_a_model_of_the_zoo(programs, elsewhere):
    called(elsewhere, programs / "fheat", "predict", "hippocampus", "scan.nii.gz", "masks", "--device", "cpu")
    scan, mask = read_nifti(elsewhere / "scan.nii.gz"), read_nifti(elsewhere / "masks" / "scan.nii.gz")
    assert mask.data.shape == scan.data.shape
    assert np.allclose(mask.affine, scan.affine)
    assert set(np.unique(mask.data)) <= {0, 1, 2}
    record = json.loads((elsewhere / "masks" / "run.json").read_text())
    weights = (ZOO / "hippocampus" / "model.safetensors").read_bytes()
    assert record["versions"]["fheat"] == __version__
    assert record["weights_sha256"] == hashlib.sha256(weights).hexdigest()


@pytest.mark.slow
def test_the_wheel_has_the_studio(programs, elsewhere):
    assert "Example: fheat studio" in called(elsewhere, programs / "fheat", "studio", "--help")
    code = "from fheat.studio.app import create_app; import fheat.studio.page_routes as p; print(p.__file__)"
    assert Path(called(elsewhere, programs / "python", "-c", code).strip()).is_relative_to(programs.parent)


def test_the_version_needs_no_installation():
    """`-S` hides every installed package, so nothing but the source tree can state the version."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-S", "-m", "fheat", "--version"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"fheat {__version__}\n"

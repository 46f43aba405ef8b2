"""Run tests with the lowest versions that pyproject.toml allows: `make lower-bounds`.

    python tools/lowest.py --lock      # after a change of a lower bound: write requirements/lowest.txt anew
    python tools/lowest.py             # install them into build/lowest and run the tests there

`requirements/lowest.txt` has the packages that fheat and its extras name, at their lower bounds, with the sha256 of
their files, and those that they need in another version than constraints.txt has. All other packages, torch among
them, are those of the environment that runs this. So the lower bound of torch is not tested here: its builds for CPUs
are not in the registry, and those for GPUs take gigabytes. Ray is left out as well, whose tests start clusters.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from lock import BY_VERSION, CONSTRAINTS, REGISTRY, ROOT, Pin, locked, read_pins, with_hashes
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOWEST = ROOT / "requirements" / "lowest.txt"
ENVIRONMENT = ROOT / "build" / "lowest"
LEFT_OUT: Final = {"cluster", "dev"}
"""Extras that are not installed at their lower bounds."""
TESTS: Final = (
    "tests/cli/test_cli.py",
    "tests/cli/test_completion.py",
    "tests/export/test_export_graphs.py",
    "tests/figures/test_cases.py",
    "tests/figures/test_preview.py",
    "tests/figures/test_rendering.py",
    "tests/io/test_dicom.py",
    "tests/io/test_dicom_seg.py",
    "tests/io/test_h5.py",
    "tests/io/test_nifti.py",
    "tests/io/test_nrrd.py",
    "tests/io/test_rtstruct.py",
    "tests/metrics/test_significance.py",
    "tests/models/test_folder.py",
    "tests/studio/test_views.py",
    "tests/training/test_tensorboard.py",
)
"""Tests that use every package that is installed, in a minute; what only fheat itself does is not among them."""


def lower_bounds(project: Mapping[str, Any]) -> dict[str, str]:
    """Return the lowest allowed version of every package that a project and its extras name, by canonical name."""
    extras = project.get("optional-dependencies", {})
    lines = [*project["dependencies"], *(line for name in extras if name not in LEFT_OUT for line in extras[name])]
    bounds = {}
    for requirement in map(Requirement, lines):
        (bound,) = (one.version for one in requirement.specifier if one.operator == ">=")
        bounds[canonicalize_name(requirement.name)] = bound
    return {name: bound for name, bound in sorted(bounds.items()) if name not in BY_VERSION}


def read_bounds() -> dict[str, str]:
    """Return the lower bounds of this project."""
    return lower_bounds(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def resolved(bounds: Mapping[str, str], pins: Mapping[str, Pin]) -> dict[str, str]:
    """Ask pip which versions go together with the lower bounds; those of `BY_VERSION` stay as they are pinned."""
    held = {name: pins[name].version for name in BY_VERSION}
    words = [f"{name}=={version}" for name, version in {**bounds, **held}.items()]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "--dry-run", "--ignore-installed", "--report", report, *words], check=True)
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    return {canonicalize_name(one["name"]): one["version"] for one in found}


def write_lock() -> None:
    """Write the versions that differ from the pins, with their hashes."""
    pins = read_pins(CONSTRAINTS)
    versions = resolved(read_bounds(), pins)
    own = {
        name: with_hashes(name, Pin(version))
        for name, version in versions.items()
        if name not in BY_VERSION and (name not in pins or pins[name].version != version)
    }
    text = locked(own).partition("\n")[2]
    LOWEST.write_text(f"# Written by 'python tools/lowest.py --lock' from pyproject.toml: do not edit.\n{text}")
    print(f"{len(own)} packages in {LOWEST.relative_to(ROOT)}")


def install() -> Path:
    """Make the environment and return its Python; packages that it lacks are found in the one that runs this."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", ENVIRONMENT], check=True)
    python = ENVIRONMENT / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    words = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes", "--requirement", LOWEST]
    subprocess.run([*pip, "--root-user-action", "ignore", *words], check=True)
    (packages,) = ENVIRONMENT.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def differing(python: Path, bounds: Mapping[str, str]) -> list[str]:
    """Return a line for each package that the new environment does not have at its lower bound."""
    code = "import json, sys; from importlib.metadata import version as v; print(json.dumps([*map(v, sys.argv[1:])]))"
    done = subprocess.run([python, "-c", code, *bounds], capture_output=True, text=True, check=True)
    found = dict(zip(bounds, json.loads(done.stdout), strict=True))
    return [
        f"{name}: {found[name]} is installed and {bound} the lower bound: run python tools/lowest.py --lock"
        for name, bound in bounds.items()
        if Version(found[name]) != Version(bound)
    ]


def registry_answers() -> bool:
    """Return whether packages can be had at all."""
    try:
        with urlopen(f"{REGISTRY}/pip/", timeout=30):
            return True
    except HTTPError:
        return True  # it is there, and its answer is a reason to fail
    except (URLError, OSError):
        return False


def run_tests() -> int:
    """Install the lowest versions and run the tests; return the exit code."""
    try:
        python = install()
    except subprocess.CalledProcessError:
        if registry_answers():
            raise
        print(f"lower bounds: not tested, because {REGISTRY} cannot be reached")
        return 0
    problems = differing(python, read_bounds())
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    # Warnings of old packages about older ones are theirs; the pinned versions are tested without any.
    words = ["-n", "2", "--dist", "worksteal", "-m", "not slow", "-W", "ignore", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run([python, "-m", "pytest", *words], cwd=ROOT, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lock", action="store_true", help="write requirements/lowest.txt and stop")
    if parser.parse_args().lock:
        write_lock()
        return 0
    return run_tests()


if __name__ == "__main__":
    sys.exit(main())

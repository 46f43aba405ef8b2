"""docs/design/architecture.md: the picture is that of the rules, hops exist, the recipes for layout and verb work.

The recipes for a method and a network are followed in tests/test_recipes.py.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import architecture
import numpy as np
import pytest
from results import ROOT

from fheat.io import Volume, write_nifti
from tests.test_house import ROOMS, SOURCE, imported_rooms

PAGE = (ROOT / "docs" / "design" / "architecture.md").read_text()
AFFINE = np.diag([0.5, 0.5, 2.0, 1.0])


def test_the_picture_is_that_of_the_rules():
    picture = architecture.Picture(architecture.read_rooms())
    assert picture.svg() == architecture.PICTURE.read_text(), "run make docs"
    assert picture.svg() == architecture.Picture(architecture.read_rooms()).svg()


def test_the_picture_shows_every_room_and_no_other_import():
    rooms = architecture.read_rooms()
    assert rooms == {room: allowed & ROOMS.keys() for room, allowed in ROOMS.items() if room != "__main__"}
    assert rooms.keys() <= architecture.SUBJECTS.keys()
    drawn = architecture.arrows(rooms)
    assert all(lower in rooms[upper] for upper, lower in drawn)
    chains = {room: {lower for upper, lower in drawn if upper == room} for room in rooms}
    for room in rooms:
        assert architecture.reachable(chains, room) == architecture.reachable(rooms, room)
    level = architecture.levels(rooms)
    assert all(level[upper] > level[lower] for upper, lower in drawn)


def defined_names(path):
    """Return functions, classes and methods of a file, methods as `Class.method`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef))


@pytest.mark.parametrize("way", ["training", "prediction"])
def test_every_hop_names_a_file_and_a_function_that_exist(way):
    section = PAGE.split(f"## The way of a scan in {way}\n")[1].split("\n## ")[0]
    hops = re.findall(r"^(\d+)\. `(src/fheat/[\w/]+\.py)`: `([\w.]+)` \w", section, re.M)
    assert [int(number) for number, *_ in hops] == list(range(1, 11))
    for _, file, name in hops:
        assert name in defined_names(ROOT / file), f"{file} has no {name}"


def test_every_value_that_the_page_names_exists():
    for module, name in re.findall(r"\(`(fheat[\w.]+)\.(\w+)`\):", PAGE):
        assert name in defined_names(ROOT / "src" / f"{module.replace('.', '/')}.py"), f"{module}.{name}"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package in which the recipes were followed; the folder to import it from."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(SOURCE, folder / "src" / "fheat", ignore=shutil.ignore_patterns("__pycache__"))
    for name, code in re.findall(r"```python\n# (src/fheat/\S+)\n(.*?)```", PAGE, re.S):
        assert not (folder / name).exists()
        (folder / name).write_text(code)
    changes = re.findall(r"```diff\n--- (src/fheat/\S+)\n(.*?)```", PAGE, re.S)
    assert len(changes) == 2
    for name, change in changes:
        lines = change.splitlines()
        assert sum(line.startswith("+") for line in lines) == 1, "a recipe adds one line to a registry"
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] == " ")
        after = "".join(f"{line[1:]}\n" for line in lines)
        text = (folder / name).read_text()
        assert text.count(before) == 1, f"{name} does not have the lines that the page shows"
        (folder / name).write_text(text.replace(before, after))
    return folder / "src"


def fheat(package, *words):
    """Run the program of the copy."""
    command = [sys.executable, "-m", "fheat", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(package)})


def write_scan(path, value=None):
    voxels = np.random.default_rng(len(str(path))).normal(size=(12, 10, 8)).astype(np.float32)
    data = voxels if value is None else np.full(voxels.shape, 0, dtype=np.uint8)
    if value is not None:
        data[4:8, 3:7, 2:6] = value
    write_nifti(Volume(data, AFFINE), path)


def test_files_of_the_recipes_keep_the_rules_of_the_house(package):
    for name in re.findall(r"```python\n# src/(fheat/\S+)\n", PAGE):
        room = name.split("/")[1]
        assert set(imported_rooms(package / name)) <= ROOMS[room] | {room}


def test_the_recipe_for_a_layout(package, tmp_path):
    for case in ("anna", "bert", "carl"):
        write_scan(tmp_path / case / "image.nii.gz")
    for case in ("anna", "bert"):
        write_scan(tmp_path / case / "label.nii.gz", value=1)
    checked = fheat(package, "data", "check", tmp_path, "--json")
    assert checked.returncode == 0, checked.stderr
    content = json.loads(checked.stdout)
    assert content["layout"] == "case folders"
    assert [case["case"] for case in content["cases"]] == ["anna", "bert", "carl"]
    assert not [problem for problem in content["problems"] if problem["severity"] == "error"]
    (tmp_path / "empty").mkdir()
    refused = fheat(package, "data", "check", tmp_path / "empty")
    assert refused.returncode == 3


@pytest.mark.slow
def test_the_recipe_for_a_verb(package, tmp_path):
    write_scan(tmp_path / "scan.nii.gz")
    printed = fheat(package, "geometry", tmp_path / "scan.nii.gz", "--json")
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout) == {"shape": [12, 10, 8], "spacing": [0.5, 0.5, 2.0], "orientation": "RAS"}
    assert "spacing: (0.5, 0.5, 2.0)" in fheat(package, "geometry", tmp_path / "scan.nii.gz").stdout
    assert "geometry    print the shape, spacing and orientation of a scan" in fheat(package, "--help").stdout
    assert "the spacing in millimetres" in fheat(package, "geometry", "--help").stdout
    missing = fheat(package, "geometry", tmp_path / "none.nii.gz")
    assert (missing.returncode, missing.stderr.count("\n")) == (3, 1)
    wrong = fheat(package, "geometry", "--no-such-option")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)

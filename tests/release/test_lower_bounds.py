"""Lower bounds: the lock file of the lowest versions is that of pyproject.toml, and every extra has code behind it."""

import ast
import subprocess
import tomllib

import lowest
import pytest
from lock import CONSTRAINTS, ROOT, read_pins
from lowest import LOWEST, TESTS, lower_bounds, read_bounds, run_tests
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"connected-components-3d": "cc3d", "pynrrd": "nrrd", "tomli-w": "tomli_w"}
"""Names of modules that are not those of their packages."""
BY_OTHERS = {
    "onnxscript": "torch.onnx imports it",
    "python-multipart": "starlette imports it to read a form",
    "tensorboard": "torch.utils.tensorboard imports it",
}
"""Packages that no file of fheat imports, and who does."""


def test_the_lock_file_has_the_lower_bounds():
    pins, locks = read_pins(CONSTRAINTS), read_pins(LOWEST)
    for name, bound in read_bounds().items():
        version = locks[name].version if name in locks else pins[name].version
        assert Version(version) == Version(bound), f"{name}: run python tools/lowest.py --lock"
    assert all(pin.hashes for pin in locks.values())
    assert not [name for name, pin in locks.items() if name in pins and pins[name].version == pin.version]


def test_the_pinned_versions_are_allowed():
    pins = read_pins(CONSTRAINTS)
    for name, bound in read_bounds().items():
        if name in pins:
            assert pins[name].version in SpecifierSet(f">={bound}")


def test_bounds_are_read_with_those_of_extras():
    extras = {"more": ["b>=2.5; python_version > '3'"], "dev": ["c>=3"]}
    project = {"dependencies": ["A_a>=1.0,<2", "torch>=2"], "optional-dependencies": extras}
    assert lower_bounds(project) == {"a-a": "1.0", "b": "2.5"}


def imported_modules():
    for path in (ROOT / "src" / "fheat").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.split(".")[0]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                yield from (one.value.split(".")[0] for one in node.args if isinstance(one, ast.Constant))


def test_every_dependency_and_every_extra_has_code_behind_it():
    modules = set(imported_modules())
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *(line for name in extras if name != "dev" for line in extras[name])]:
        name = Requirement(line).name
        used = MODULES.get(name, name.replace("-", "_")) in modules
        assert used != (name in BY_OTHERS), f"{name} is not imported by fheat"


def test_the_tests_that_are_chosen_exist():
    assert [path for path in TESTS if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("reachable", [False, True])
def test_only_an_unreachable_registry_is_forgiven(reachable, monkeypatch, capsys):
    def fail():
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(lowest, "install", fail)
    monkeypatch.setattr(lowest, "registry_answers", lambda: reachable)
    if reachable:
        with pytest.raises(subprocess.CalledProcessError):
            run_tests()
    else:
        assert run_tests() == 0
        assert capsys.readouterr().out == f"lower bounds: not tested, because {lowest.REGISTRY} cannot be reached\n"

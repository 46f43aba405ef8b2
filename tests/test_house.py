"""The rules of the house: directions of import, file sizes, nothing that ties the package to one machine."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import fheat
from fheat.methods.registry import list_methods

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fheat"
FILES = sorted(SOURCE.rglob("*.py"))

# Each room may import the rooms on its right, and itself. Nothing imports cli.
ROOMS = {
    "system": set(),
    "ops": set(),
    "nn": {"ops"},
    "networks": {"nn", "ops", "system"},
    "models": {"data", "gates", "io", "networks", "ops", "system"},
    "gates": {"ops", "system"},
    "testing": {"gates", "ops"},
    "io": {"__init__", "system"},
    "data": {"io", "system"},
    "metrics": {"io", "system"},
    "inference": {"__init__", "data", "figures", "gates", "io", "models", "networks", "nn", "ops", "system"},
    "methods": {"networks", "ops", "system"},
    "training": {"data", "gates", "inference", "io", "methods", "metrics", "models", "networks", "ops", "system"},
    "figures": {"data", "gates", "io", "metrics", "system"},
    "studies": {
        "__init__", "data", "figures", "gates", "inference", "io", "methods", "metrics", "models", "networks", "ops",
        "system", "training",
    },
    "report": {
        "__init__", "data", "figures", "gates", "inference", "io", "metrics", "networks", "studies", "system",
        "training",
    },
    "experiments": {
        "__init__", "data", "figures", "gates", "inference", "io", "methods", "metrics", "models", "networks", "ops",
        "report", "studies", "system", "training",
    },
    "export": {"__init__", "data", "inference", "io", "models", "networks", "ops", "system"},
    "studio": {
        "__init__", "data", "gates", "inference", "io", "metrics", "models", "networks", "ops", "system", "training",
    },
    "bench": {
        "data", "gates", "inference", "io", "methods", "metrics", "models", "networks", "ops", "system", "training",
    },
    "cli": {
        "__init__", "bench", "data", "experiments", "export", "figures", "gates", "inference", "io", "methods",
        "metrics", "models", "networks", "ops", "report", "studies", "studio", "system", "training",
    },
    "__main__": {"cli"},
}  # fmt: skip


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module]
        else:
            continue
        for name in names:
            if name == "fheat":
                yield "__init__"
            elif name.startswith("fheat."):
                yield name.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_flow(path):
    room = room_of(path)
    if room == "__init__":
        return
    assert room in ROOMS, f"the room {room} is not in the plan: add it to ROOMS"
    for other in imported_rooms(path):
        assert other == room or other in ROOMS[room], f"{room} must not import {other}"


def test_rooms_have_no_cycles():
    def reach(room, seen=()):
        assert room not in seen, f"cycle {' -> '.join((*seen, room))}"
        for other in ROOMS.get(room, ()):
            reach(other, (*seen, room))

    for room in ROOMS:
        reach(room)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_is_read_in_one_sitting(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno <= 60, f"{path.name}: {node.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_names_a_machine(path):
    assert not re.search(r"""["']/(home|root|work|data|mnt|tmp|Users)/""", path.read_text())


def test_public_names():
    assert set(fheat.__all__) == {
        "BadInput", "Card", "FractionalHeat", "Predictor", "allocation", "compose", "cost", "create_model", "evaluate",
        "instrument", "list_models", "load", "merge", "probe", "register_method", "register_model", "retire", "save",
        "train",
    }  # fmt: skip
    for name in fheat.__all__:
        assert getattr(fheat, name).__doc__
        assert name in dir(fheat)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fheat.nonsense


def test_version_is_stated_once():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"]
    assert settings["tool"]["hatch"]["version"] == {"path": "src/fheat/__init__.py"}
    headings = re.findall(r"^## (?!Unreleased$)(.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert re.fullmatch(rf"{re.escape(fheat.__version__)} \(\d{{4}}-\d\d-\d\d\)", headings[0])


def test_what_the_tests_run_on_is_pinned():
    pins = (ROOT / "constraints.txt").read_text()
    assert re.search(r"^torch==2\.13\.0$", pins, re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras) == {"dicom", "h5", "nrrd", "export", "cluster", "studio", "tensorboard", "dev"}
    for requirement in [
        *project["dependencies"],
        *(line for extra in ("dev", "dicom", "export", "h5", "nrrd") for line in extras[extra]),
    ]:
        name = re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
        assert re.search(rf"^{re.escape(name)}==", pins.lower().replace("_", "-"), re.M), f"{name} is not pinned"


def test_allocation_is_a_function_and_no_module_replaces_its_class():
    gates = fheat.allocation(fheat.FractionalHeat())
    assert len(gates) == 1
    assert not any("__class__" in path.read_text() for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_training_data_and_verbs_know_no_method_by_name(path):
    """A method is a plug-in: beside its own file, only experiments, studies and benchmarks may choose one."""
    if room_of(path) not in ("training", "data", "cli", "system", "inference", "models", "networks", "gates"):
        return
    tree = ast.parse(path.read_text())
    methods = set(list_methods())
    assert not {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & methods
    shared = {f"fheat.methods.{name}" for name in ("base", "registry")}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fheat.methods"):
            assert node.module in shared, f"{path.name} imports {node.module}"


@pytest.mark.parametrize("name", list_methods())
def test_the_header_of_a_method_says_where_it_comes_from(name):
    header = " ".join((ast.get_docstring(ast.parse((SOURCE / "methods" / f"{name}.py").read_text())) or "").split())
    assert re.search(r"Paper: |without a paper", header)
    assert re.search(r"MIT|Apache|licence", header)
    assert re.search(r"[Dd]eliberate difference", header)


# Files that are opened without `fheat.system.files.open_regular` or `read_capped`, and why that is safe.
OPENED = {
    "bench/read.py: nibabel.load": "plain nibabel is what is timed beside our readers, on scans of the user's own",
    "cli/crash.py: open": "writes the crash file",
    "cli/streams.py: os.open": "the null device",
    "data/recipes/split.py: read_text": "a file of this package",
    "experiments/local.py: open": "the log of a worker, which this process has just created",
    "experiments/on_ray.py: open": "writes the log of a worker",
    "experiments/records.py: read_text": "a file of this package",
    "inference/ledger.py: open": "appends to the journal of this run",
    "inference/memory.py: read_text": "a file of the system",
    "io/child.py: os.open": "the null device",
    "io/h5.py: h5py.File": "only in the confined process, and after open_regular",
    "studies/inside/record.py: np.load": "bytes in memory",
    "studio/archive.py: open": "creates the files of a series",
    "studio/service.py: open": "creates a label",
    "inference/compilers.py: read_bytes": "files of this package",
    "studio/worker.py: os.open": "the null device",
    "studio/workplace.py: open": "creates a lock, and takes one of this user",
    "system/claims.py: open": "creates a claim; files of the system",
    "system/files.py: open": "creates files",
    "system/files.py: os.open": "open_regular itself; flushes a folder",
    "system/machine.py: open": "a file of the system",
    "system/neighbours.py: read_text": "a file of the system",
    "system/plugins.py: read_text": "the metadata of an installed package",
    "training/estimate.py: read_text": "a file of this package",
    "training/run_folder.py: open": "appends to the log, after rewind_log has read it",
}
OPENERS = re.compile(
    r"(?:(?:os|io|gzip|bz2|lzma|tarfile|zipfile)\.open|open|.*\.(?:read_text|read_bytes)|np\.(?:load|loadtxt|genfromtxt"
    r"|fromfile|memmap)|nibabel\.load|safe_open|load_file|h5py\.File|nrrd\.read|dcmread|pydicom\.dcmread)"
)


def openers(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and OPENERS.fullmatch(name := ast.unparse(node.func)):
            in_memory = node.args and ast.unparse(node.args[0]).startswith("BytesIO(")
            if not (name.endswith("dcmread") and in_memory):
                yield f"{path.relative_to(SOURCE).as_posix()}: {re.sub(r'.*[.](?=read_)', '', name)}"


def test_files_are_opened_in_one_place():
    """What blocks, has no end, or is larger than its kind can be is refused where `fheat.system.files` opens it."""
    assert {found for path in FILES for found in openers(path)} == OPENED.keys()

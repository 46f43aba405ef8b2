"""A file or a folder that this user may not read: one line with a remedy for reading, and exit code 4; 3 of a scan."""

import os
import shutil
from pathlib import Path

import pytest

from fheat.cli.main import main
from fheat.models.zoo import zoo_folder
from fheat.system.files import check_file, check_folder, open_regular, read_capped
from tests.refusals import refused

SAYS = "cannot be read (Permission denied); give yourself permission to read it"


@pytest.fixture
def locked(monkeypatch):
    """Return a function that takes the right to read away from a path; root is kept out by force."""
    found = set()

    def kept_out(function):
        def attempt(path, *arguments, **options):
            if not isinstance(path, int) and found & {Path(path), *Path(path).parents}:
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **options)

        return attempt

    for name in ("open", "listdir", "scandir"):
        monkeypatch.setattr(os, name, kept_out(getattr(os, name)))
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in found and access(path, mode))
    return lambda path: found.add(Path(path))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder with a model, settings, results and a folder of scans, which is where the program runs."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(zoo_folder("phantom"), "model")
    for name in ("a.nii.gz", "a.json", "b.json", "a.toml"):
        Path(name).write_text("{}")
    Path("scans").mkdir()
    shutil.copy("a.nii.gz", "scans")
    return tmp_path


@pytest.mark.parametrize("read", [open_regular, lambda path: read_capped(path, 10)])
@pytest.mark.parametrize("call", ["stat", "open"])
def test_a_reader_refuses_it_as_it_refuses_a_folder(read, call, tmp_path, monkeypatch):
    """Of a file in a folder that may not be looked into not even its kind is known."""
    (tmp_path / "file").write_bytes(b"x")

    def forbidden(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, call, forbidden)
    found = refused(read, tmp_path / "file")
    monkeypatch.undo()
    assert str(found) == f"{tmp_path / 'file'}: {SAYS}"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("predict model a.nii.gz out", "model/model.json"),
        ("predict model a.nii.gz out", "model/model.safetensors"),
        ("predict model a.nii.gz out --trust", "a.nii.gz"),
        ("predict model scans out", "scans"),
        ("evaluate a.nii.gz a.nii.gz --trust --labels a=1", "a.nii.gz"),
        ("evaluate scans scans", "scans"),
        ("evaluate a.json b.json", "b.json"),
        ("models --card model", "model/model.json"),
        ("export model a.onnx --to onnx", "model/model.safetensors"),
        ("data check a.json", "a.json"),
        ("data check scans", "scans"),
        ("train scans --config a.toml --out run", "a.toml"),
        ("sweep a.toml --out runs", "a.toml"),
    ],
)
def test_one_line_names_it_with_a_remedy_for_reading(words, name, place, locked, capsys, monkeypatch):
    if words.startswith("evaluate a.json"):
        monkeypatch.setattr("fheat.metrics.table.Table.from_json", lambda *_: None)
    locked(name)
    before = sorted(os.walk("."), key=str) if name != "scans" else None
    assert main(words.split()) == (3 if name == "a.nii.gz" else 4)  # a scan is refused, whatever the reason
    said = capsys.readouterr()
    assert said.err == f"fheat: {name}: {SAYS}\n"
    assert said.out == ""
    monkeypatch.undo()
    os.chdir(place)
    assert before is None or sorted(os.walk("."), key=str) == before
    assert not {"out", "run", "runs", "a.onnx"} & {*os.listdir()}


@pytest.mark.parametrize(
    "check", [lambda folder: check_folder(folder / "new"), lambda folder: check_file(folder / "a")]
)
def test_where_to_write_in_a_folder_that_may_not_be_looked_into_is_no_matter_of_reading(check, tmp_path, monkeypatch):
    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", forbidden)
    monkeypatch.setattr("fheat.cli.models.run", lambda arguments: check(tmp_path / "new"))
    assert main(["models"]) == 4

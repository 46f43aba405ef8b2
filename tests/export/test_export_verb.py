"""`fheat export`: what it prints, and every refusal in one line with nothing written."""

import errno
import json

import pytest

from fheat.cli.main import main
from fheat.export import write
from fheat.export.graphs import GRAPHS
from fheat.export.write import export_model


class Stand:
    """A format that needs no exporter: the file has the recipe, and what runs it is the network plus an error."""

    suffixes = (".onnx",)
    packages = ()
    error = 0.0

    def make(self, network, recipe):
        self.network = network
        return {".onnx": recipe.text().encode()}

    def load(self, files):
        return lambda x: self.network(x) + self.error


@pytest.fixture
def stand(monkeypatch):
    stand = Stand()
    monkeypatch.setattr(write, "GRAPHS", GRAPHS | {"onnx": stand})
    return stand


def refused(capsys, code, *words):
    """Run the verb, which must fail with this code and one line; return that line."""
    assert main(["export", *map(str, words)]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_what_is_printed(stand, models, scan, tmp_path, capsys):
    out = tmp_path / "new" / "m.onnx"
    assert main(["export", str(models["open"]), str(out), "--to", "onnx", "--check", str(scan)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"wrote {out}  {out.stat().st_size:,} bytes"
    assert "any batch of windows 1x32x48x32 only, because the cosine transforms of the open gates dec1 " in lines[2]
    assert lines[3] == "gates: dec1 in the graph, 2 gates gone from it"
    assert lines[4].startswith("noise: 3 windows, logits differ from PyTorch by at most ")
    assert lines[5].startswith("scans: 4 windows, ")
    assert lines[5].endswith(f" 0 of {4 * 32 * 48 * 32:,} voxels get another class")
    assert main(["export", str(models["closed"]), str(out), "--to", "onnx", "--overwrite", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["recipe"]["input"]["step"] == 32
    assert content["on_noise"]["windows"] == 4
    assert content["on_scans"] is None
    assert json.loads(out.read_text()) == content["recipe"]
    assert content["files"] == {str(out): out.stat().st_size, f"{out}.sha256": 64 + len("  m.onnx\n")}
    assert sorted(path.name for path in out.parent.iterdir()) == ["m.onnx", "m.onnx.sha256"]


def test_a_network_that_is_exported_for_its_windows_only(stand, models, tmp_path, monkeypatch):
    """Where a graph for other sizes cannot be made, or is wrong, the recipe says why it is of one size."""

    def make(network, recipe):
        if recipe.input.step is not None:
            raise RuntimeError("a length is baked in\nand more")
        return Stand.make(stand, network, recipe)

    monkeypatch.setattr(stand, "make", make)
    found = export_model(models["closed"], "onnx", tmp_path / "m.onnx").recipe.input
    assert found.step is None
    assert found.fixed_because == "the network could not be exported for other sizes (a length is baked in)"


def test_a_file_that_differs_is_not_written(stand, models, tmp_path, capsys):
    out = tmp_path / "m.onnx"
    stand.error = 0.01
    said = refused(capsys, 3, models["open"], out, "--to", "onnx")
    assert "differs from PyTorch by 0.0" in said
    assert "over the limit of 0.0001" in said
    assert list(tmp_path.iterdir()) == []
    stand.error = 0.0
    export_model(models["open"], "onnx", out)
    before = out.read_bytes()
    stand.error = float("nan")
    assert "differs from PyTorch by inf" in refused(capsys, 3, models["open"], out, "--to", "onnx", "--overwrite")
    assert out.read_bytes() == before


def test_a_file_that_differs_on_the_scans_only(stand, models, scan, tmp_path, capsys, monkeypatch):
    """Unlike noise, the scan is smooth."""

    def run(x):
        return stand.network(x) + (x.diff(dim=-1).abs().mean() < 0.5).float()

    monkeypatch.setattr(stand, "load", lambda files: run)
    said = refused(capsys, 3, models["open"], tmp_path / "m.onnx", "--to", "onnx", "--check", scan)
    assert "of the largest logit, over the limit of 0.0001 on the scans; nothing was written" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["MODEL", "OUT.onnx", "--to", "tensorrt"], 2, "tensorrt"),
        (["MODEL", "OUT.onnx"], 2, "--to"),
        (["MODEL", "MODEL", "OUT.onnx", "--to", "onnx"], 2, "2 models are given: an average of several cannot be"),
        (["MODEL", "OUT.bin", "--to", "openvino"], 3, "OUT.bin: a file for openvino ends in .xml; write OUT.bin.xml"),
        (
            ["MODEL", "taken.pt2", "--to", "pt2"],
            3,
            "taken.pt2: exists already; choose another name, or add --overwrite",
        ),
        (["MODEL", "other.onnx", "--to", "onnx"], 3, "other.onnx.sha256: exists already"),
        (["MODEL", "full", "--to", "bundle"], 3, "full: exists already; choose another folder, or add --overwrite"),
        (["MODEL", "taken.pt2", "--to", "bundle"], 3, "taken.pt2: is a file; give a folder to write to"),
        (["MODEL", "taken.pt2/a.onnx", "--to", "onnx"], 3, "taken.pt2: is a file; give a folder to write to"),
        (["nothing", "OUT.onnx", "--to", "onnx"], 3, "nothing: no such model folder or zoo model"),
        (["MODEL", "OUT.onnx", "--to", "onnx", "--check", "no.nii"], 3, "no.nii"),
        (["MODEL", "OUT.onnx", "--to", "onnx", "--check", "taken.pt2"], 3, "taken.pt2"),
    ],
)
def test_what_cannot_be_done_is_one_line(stand, models, tmp_path, monkeypatch, capsys, words, code, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    for name in ("taken.pt2", "other.onnx.sha256", "full/a"):
        (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    said = refused(capsys, code, *(str(models["open"]) if word == "MODEL" else word for word in words))
    assert says in said
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "taken.pt2").read_text() == "mine"


@pytest.mark.parametrize(("to", "out", "package"), [("onnx", "m.onnx", "onnx"), ("openvino", "m.xml", "openvino")])
def test_a_missing_package_is_one_line(models, tmp_path, monkeypatch, capsys, to, out, package):
    monkeypatch.setattr(write, "find_spec", lambda name: None)
    said = refused(capsys, 3, models["open"], tmp_path / out, "--to", to)
    assert said == f'fheat: {to}: needs the package {package}; pip install "fheat[export]"\n'


@pytest.mark.parametrize("to", ["onnx", "bundle"])
def test_a_full_disk_leaves_nothing(stand, models, tmp_path, monkeypatch, capsys, to):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    said = refused(capsys, 4, models["open"], tmp_path / "m.onnx", "--to", to)
    assert "m.onnx: No space left on device (" in said
    assert "bytes are needed and" in said
    assert list(tmp_path.iterdir()) == []

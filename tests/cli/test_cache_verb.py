"""`fheat cache` shows and removes what is kept."""

import json
import os

import pytest

from fheat.cli.main import main
from fheat.system.cache import write_cached


@pytest.fixture(autouse=True)
def _kernels_elsewhere(monkeypatch):
    """The program sets this variable where it is not set, for the rest of the process."""
    monkeypatch.setenv("TRITON_CACHE_DIR", "somewhere")


def test_entries_are_shown_and_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FHEAT_CACHE", str(tmp_path / "kept"))
    assert main(["cache"]) == 0
    assert "0 compiled networks, 0.0 MB" in capsys.readouterr().out
    write_cached("openvino-12ab", "k" * 64, bytes(2_000_000))
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    assert "1 compiled network, 2.0 MB" in said
    assert "openvino      2.0 MB  last used 20" in said
    assert main(["cache", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(tmp_path / "kept")
    assert [(row["kind"], row["bytes"]) for row in told["entries"]] == [("openvino-12ab", 2_000_040)]
    assert main(["cache", "--clear"]) == 0
    assert "removed 1 compiled network, 2.0 MB" in capsys.readouterr().out
    assert list((tmp_path / "kept").iterdir()) == []


def test_it_says_so_where_nothing_is_kept(monkeypatch, capsys):
    monkeypatch.setenv("FHEAT_CACHE", "")
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith("nothing is kept: the environment variable FHEAT_CACHE is empty")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        monkeypatch.setenv("FHEAT_CACHE", str(tmp_path / place))
        assert main(["cache"]) == 3
        assert capsys.readouterr() == ("", f"fheat: {tmp_path / 'file'}: is a file; give a folder to write to\n")


def test_gpu_kernels_are_kept_below_shown_and_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FHEAT_CACHE", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR")
    assert main(["cache"]) == 0
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert list(tmp_path.iterdir()) == []  # looking makes nothing
    assert "0 compiled networks, 0.0 MB; 0 GPU kernels, 0.0 MB" in capsys.readouterr().out
    kernel = tmp_path / "triton" / "AB12"
    kernel.mkdir(parents=True)
    for name, size in (("convolve.cubin", 400_000), ("convolve.ptx", 200_000), ("convolve.json", 1000)):
        (kernel / name).write_bytes(bytes(size))
    assert main(["cache"]) == 0
    assert "; 1 GPU kernel, 0.6 MB" in capsys.readouterr().out
    assert main(["cache", "--clear", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kernels"], told["kernel_bytes"], told["removed"]) == (1, 601_000, True)
    assert not (tmp_path / "triton").exists()


def test_kernels_stay_where_the_environment_puts_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FHEAT_CACHE", str(tmp_path))
    assert main(["cache", "--clear"]) == 0
    assert os.environ["TRITON_CACHE_DIR"] == "somewhere"


def test_kernels_are_not_kept_where_others_may_write(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("FHEAT_CACHE", str(shared))
    monkeypatch.delenv("TRITON_CACHE_DIR")
    assert main(["cache"]) == 0
    assert "TRITON_CACHE_DIR" not in os.environ

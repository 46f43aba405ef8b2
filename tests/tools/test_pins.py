"""Pins and their hashes: what is listed, what is refused, and that the lock files are those of constraints.txt."""

import re
import sys

import check_pins
import lock
import pytest
from check_pins import environment_problems, lock_problems
from lock import BUILD, BUILDS, BY_VERSION, CONSTRAINTS, ROOT, RUN, Pin, belongs, hashes_of_page, locked, read_pins

A, B = "a" * 64, "b" * 64


def test_the_lock_files_are_those_of_the_constraints():
    build, run = read_pins(BUILD), read_pins(RUN)
    assert lock_problems(read_pins(CONSTRAINTS), {**build, **run}) == []
    assert (set(build), set(build) & set(run), set(run) & set(BY_VERSION)) == (set(BUILDS), set(), set())
    for path in (BUILD, RUN):
        assert path.read_text() == locked(read_pins(path))


def test_every_install_is_locked():
    """What pip installs without hashes is the project and torch; nothing is built outside of the environment."""
    assert "pip install" not in (ROOT / ".ci" / "run").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"pip install .*", makefile) == re.findall(r"pip install .*--no-build-isolation.*", makefile)
    installs = re.findall(r"^\t@\$\(PIP\) (.*)$", makefile, re.M)
    assert all("--require-hashes" in line for line in installs[:-1])
    assert len(installs) == 3
    assert installs[-1].startswith("--constraint constraints.txt --editable")


def test_what_is_written_is_read_back(tmp_path):
    pins = {"a-b": Pin("1.0", "", (A, B)), "c": Pin("2.0+x", "sys_platform == 'linux'", (B,))}
    (tmp_path / "lock.txt").write_text(locked(pins))
    assert read_pins(tmp_path / "lock.txt") == pins
    (tmp_path / "pins.txt").write_text("# a comment\nA_b==1.0\nc==2.0+x ; sys_platform == 'linux'\n")
    assert read_pins(tmp_path / "pins.txt") == {"a-b": Pin("1.0"), "c": Pin("2.0+x", "sys_platform == 'linux'")}


def test_a_marker_says_where_a_pin_holds():
    assert Pin("1", f"sys_platform == '{sys.platform}'").here
    assert not Pin("1", "sys_platform == 'nowhere'").here


@pytest.mark.parametrize(
    ("file", "listed"),
    [
        ("one-1.2-py3-none-any.whl", True),
        ("one-1.2-py2.py3-none-any.whl", True),
        ("one-1.2-cp311-cp311-win_amd64.whl", True),
        ("one-1.2-cp314-cp314t-macosx_11_0_arm64.whl", True),
        ("one-1.2-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("one-1.2.tar.gz", True),
        ("one-1.2-cp310-cp310-win_amd64.whl", False),
        ("one-1.2-pp311-pypy311_pp73-win_amd64.whl", False),
        ("one-1.2-py2-none-any.whl", False),
        ("one-1.20-py3-none-any.whl", False),
        ("one-1.2rc1.tar.gz", False),
        ("one-1.2.exe", False),
    ],
)
def test_files_of_the_version_for_supported_pythons_are_listed(file, listed):
    assert belongs(file, "1.2") is listed


def test_hashes_are_read_from_the_page_of_the_registry():
    page = f"""<a href="https://x/one-1.2%2Bcpu.whl#sha256={A}" data-x="&gt;=3">one</a> <a href="https://x/two">two</a>
    <a href="../one-1.3.whl#md5=12">three</a>"""
    assert hashes_of_page(page) == {"one-1.2+cpu.whl": A}


def test_a_version_that_the_registry_does_not_have_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(lock, "files_of", lambda name: {"one-1.3.tar.gz": A})
    monkeypatch.setattr(lock, "read_pins", lambda path: {"one": Pin("1.2")})
    assert lock.main() == 1
    assert capsys.readouterr().err == "lock: one 1.2: the registry has no file of it: choose another version\n"


PINS = {"one": Pin("1.0"), "torch": Pin("2.0"), "elsewhere": Pin("1", "sys_platform == 'nowhere'")}


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        ({"one": "1.0", "torch": "2.0"}, None),
        ({"one": "1.0", "torch": "2.0+cpu", "pip": "9", "fheat": "0"}, None),
        ({"one": "1.0", "torch": "2.0", "cuda": "7.0"}, None),
        ({"one": "1.0+x", "torch": "2.0"}, "one: 1.0+x is installed and 1.0 pinned"),
        ({"one": "1.0", "torch": "2.1+cpu"}, "torch: 2.1+cpu is installed and 2.0 pinned"),
        ({"torch": "2.0"}, "one: 1.0 is pinned and not installed"),
        ({"one": "1.0", "torch": "2.0", "guest": "1"}, "guest: 1 is installed and not pinned"),
    ],
)
def test_an_environment_that_differs_is_refused(installed, says):
    found = environment_problems(installed, PINS, {"cuda"})
    assert [line.startswith(says) for line in found] == [True] if says else found == []


@pytest.mark.parametrize(
    ("locks", "says"),
    [
        ({"one": Pin("1.0", "", (A,))}, None),
        ({"one": Pin("1.1", "", (A,))}, "differ"),
        ({}, "differ"),
        ({"one": Pin("1.0")}, "has no hash"),
        ({"one": Pin("1.0", "", (A,)), "two": Pin("1", "", (A,))}, "differ"),
    ],
)
def test_lock_files_that_differ_are_refused(locks, says):
    found = lock_problems({"one": Pin("1.0"), "torch": Pin("2.0")}, locks)
    assert [says in line for line in found] == [True] if says else found == []


def test_the_check_ends_with_one_and_names_each_problem(monkeypatch, capsys):
    monkeypatch.setattr(check_pins, "read_pins", lambda path: {"nothing-of-this-name": Pin("1.0", "", (A,))})
    assert check_pins.main() == 1
    assert "nothing-of-this-name: 1.0 is pinned and not installed: run make clean install\n" in capsys.readouterr().err


def test_what_torch_brings_is_followed_with_its_extras(monkeypatch):
    class Fake:
        def __init__(self, *requires):
            self.requires = requires

    packages = {
        "torch": Fake("cuda[blas]==7.0", "bindings<8", "never==1; extra == 'x'", "absent; sys_platform == 'nowhere'"),
        "cuda": Fake("nv_blas==3.*; extra == 'blas'", "nv-fft==3; extra == 'fft'"),
        "bindings": Fake("cuda"),
        "nv-blas": Fake(),
        "nv-fft": Fake(),
        "never": Fake(),
    }
    monkeypatch.setattr(check_pins, "distribution", packages.__getitem__)
    assert check_pins.brought_by(["torch", "other"], packages) == {"cuda", "bindings", "nv-blas"}

"""The container files: what they copy exists, what they install is locked, and nobody in them is root."""

import json
import re
import shlex
import tomllib

import pytest
from lock import BUILD, CONSTRAINTS, ROOT, RUN, Pin, read_pins
from lock_image import EXTRAS, IMAGE, LEFT_OUT, image_pins, image_text, wanted

from fheat import __version__

FILES = ("Containerfile", "Containerfile.cuda")
KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "WORKDIR"}


def instructions(name):
    """Return the instructions of a container file as pairs of a word and the rest, with lines joined."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [tuple(line.split(" ", 1)) for line in joined]


@pytest.fixture(params=FILES)
def name(request):
    return request.param


def test_every_line_is_an_instruction(name):
    found = instructions(name)
    assert {word for word, _ in found} <= KNOWN
    assert [word for word, _ in found][:2] == ["ARG", "FROM"]


def test_the_base_is_one_exact_image(name):
    (base,) = (rest for word, rest in instructions(name) if word == "ARG")
    assert re.fullmatch(r"PYTHON_IMAGE=docker\.io/library/python:3\.11\.\d+-slim-bookworm", base)
    bases = [rest for word, rest in instructions(name) if word == "FROM"]
    assert bases == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]


def test_what_is_copied_exists_and_is_sent(name):
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [rest.split() for word, rest in instructions(name) if word == "COPY" and "--from" not in rest]
    sources = [source for *sources, _ in copied for source in sources]
    assert {"pyproject.toml", "README.md", "LICENSE", "src", "requirements/image.txt"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in sent, f".dockerignore keeps {source} back"


def test_the_wheel_can_be_built_from_what_is_copied(name, tmp_path):
    """hatchling wants the readme and the licence files that pyproject.toml names."""

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = " ".join(rest for word, rest in instructions(name) if word == "COPY").split()
    for file in (project["readme"], *project["license-files"]):
        assert file in copied or file.split("/")[0] in copied


def test_the_program_runs_without_root(name):
    found = instructions(name)
    last = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    final = dict(found[last:])
    assert final["USER"] == "10001:10001"
    assert [word for word, _ in found[last:]].index("USER") > [word for word, _ in found[last:]].index("RUN")
    assert "--uid 10001" in final["RUN"]
    assert json.loads(final["ENTRYPOINT"]) == ["fheat"]
    assert json.loads(final["CMD"]) == ["--help"]


def installs(name):
    commands = [one for word, rest in instructions(name) if word == "RUN" for one in rest.split("&&")]
    return [shlex.split(one) for one in commands if " install " in one]


def test_what_is_installed_is_locked(name):
    """Hashes for all, but for torch of the pinned version and the wheel that was just built."""
    torch = f"torch=={read_pins(CONSTRAINTS)['torch'].version}"
    for words in installs(name):
        locked = "--require-hashes" in words and "--no-deps" in words
        assert locked or torch in words or {"--no-deps", "--no-index", "dist/*.whl"} <= set(words)
    assert sum(torch in words for words in installs(name)) == 1
    files = [words[words.index("--requirement") + 1] for words in installs(name) if "--requirement" in words]
    assert files == ["requirements/build.txt", "requirements/image.txt"]


def test_only_the_cpu_image_takes_the_small_torch():
    cpu, cuda = ("download.pytorch.org/whl/cpu" in (ROOT / name).read_text() for name in FILES)
    assert (cpu, cuda) == (True, False)


def test_the_tags_are_of_this_version(name):
    assert f"-t fheat:{__version__}" in (ROOT / name).read_text()
    assert f"fheat:{__version__}" in (ROOT / "docs" / "start" / "install.md").read_text()


def test_the_lock_of_the_image_is_part_of_the_lock_files():
    locks, image = {**read_pins(BUILD), **read_pins(RUN)}, read_pins(IMAGE)
    assert image.items() <= locks.items()
    assert set(wanted()) - {"torch"} <= set(image)
    assert not {"pytest", "mypy", "playwright", "ray", *LEFT_OUT} & set(image)
    assert IMAGE.read_text() == image_text(), "run make lock"


def test_the_image_has_the_extras_that_the_page_names():
    assert f"[{','.join(EXTRAS)}]" in (ROOT / "docs" / "start" / "install.md").read_text()


def test_requirements_of_requirements_are_followed():
    class Package:
        def __init__(self, name, *requires):
            self.name, self.requires = name, requires

    packages = [
        Package("A", "b"),
        Package("b", "c; extra == 'x'", "triton", "torch"),
        Package("torch", "d"),
        Package("d"),
    ]
    packages += [Package("c"), Package("triton"), Package("other")]
    pins = {name: Pin("1", "", ("a" * 64,)) for name in ("a", "b", "c", "d", "triton", "other")}
    assert list(image_pins(["a"], packages, pins)) == ["a", "b", "d"]

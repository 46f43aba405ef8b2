"""Write requirements/image.txt, what the container files install: the part of the lock files that users need.

    make lock          # after a change of constraints.txt or of an extra

It has fheat's dependencies, those of the extras in `EXTRAS`, and what these need in turn, as the virtual environment
states it, each with the version and the sha256 of requirements/build.txt and run.txt. The project's own tools, the
packages of the tests and torch are not in it.
"""

import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from typing import Final

from lock import BUILD, BY_VERSION, ROOT, RUN, Pin, locked, read_pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sbom import asked_extras, needed, reachable

IMAGE = ROOT / "requirements" / "image.txt"
EXTRAS: Final = ("dicom", "export", "h5", "nrrd", "studio")
LEFT_OUT: Final = {"triton": "torch for GPUs brings the one version that it works with"}
"""Packages that are reached and must not be in the image, with the reason."""


def wanted() -> list[str]:
    """Return the canonical names of what fheat and the extras of the image name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for name in EXTRAS for line in project["optional-dependencies"][name])]
    return [canonicalize_name(Requirement(line).name) for line in lines]


def image_pins(names: Iterable[str], packages: Iterable[Distribution], locks: Mapping[str, Pin]) -> dict[str, Pin]:
    """Return the locks of packages by name, and of all that they require here."""
    by_name = {canonicalize_name(package.name): package for package in packages}
    asked = asked_extras(by_name.values())
    graph = {name: needed(package, asked.get(name, ())) for name, package in by_name.items()}
    reached = reachable(names, graph) - set(BY_VERSION) - set(LEFT_OUT)
    return {name: locks[name] for name in sorted(reached) if name in locks}


def image_text() -> str:
    """Return the text of requirements/image.txt."""
    pins = image_pins(wanted(), distributions(), {**read_pins(BUILD), **read_pins(RUN)})
    return locked(pins)


def main() -> int:
    IMAGE.write_text(image_text())
    print(f"{len(read_pins(IMAGE))} packages in {IMAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Check that the virtual environment holds what the lock files say, and nothing else: part of `make lint`.

pip compares sha256 while it installs; this check sees afterwards that no other version, and no package that is not
pinned, got in, and that the lock files are those of constraints.txt. It ends with 1 and a line for each problem.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import distribution, distributions

from lock import BUILD, BY_VERSION, CONSTRAINTS, RUN, Pin, read_pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NOT_PINNED = {"fheat", "pip"}
"""The project itself, and what comes with Python and installs all others."""


def lock_problems(pins: Mapping[str, Pin], locks: Mapping[str, Pin]) -> list[str]:
    """Return in what the lock files differ from the pins, and which of their packages have no hash."""
    found = []
    for name in sorted({*pins, *locks} - set(BY_VERSION)):
        pin, lock = pins.get(name), locks.get(name)
        if pin is None or lock is None or (pin.version, pin.marker) != (lock.version, lock.marker):
            found.append(f"{name}: the lock files and constraints.txt differ: run make lock")
        elif not lock.hashes:
            found.append(f"{name}: has no hash in the lock files: run make lock")
    return found


def environment_problems(installed: Mapping[str, str], pins: Mapping[str, Pin], brought: Collection[str]) -> list[str]:
    """Return what is missing, of another version, or not pinned.

    Args:
        installed: version of every installed package by canonical name.
        pins: the pins of constraints.txt.
        brought: packages that those in `BY_VERSION` bring along, such as those of CUDA, and that need no pin.
    """
    found = []
    for name, pin in pins.items():
        version = installed.get(name)
        if version is None and pin.here:
            found.append(f"{name}: {pin.version} is pinned and not installed: run make clean install")
        elif version is not None and _public(name, version) != pin.version:
            found.append(f"{name}: {version} is installed and {pin.version} pinned: run make clean install")
    for name, version in installed.items():
        if name not in pins and name not in NOT_PINNED and name not in brought:
            found.append(f"{name}: {version} is installed and not pinned: add it to constraints.txt, or remove it")
    return sorted(found)


def _public(name: str, version: str) -> str:
    """Return a version without the name of a build, such as `+cpu`, where builds are not told apart."""
    return version.partition("+")[0] if name in BY_VERSION else version


def brought_by(names: Iterable[str], installed: Collection[str]) -> set[str]:
    """Return what installed packages require here, with the extras that they ask for, and what that requires again."""
    seen: set[tuple[str, str]] = set()
    waiting = [(name, "") for name in names if name in installed]
    while waiting:
        package, extra = waiting.pop()
        for requirement in map(Requirement, distribution(package).requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                name = canonicalize_name(requirement.name)
                new = {(name, one) for one in ("", *requirement.extras)} - seen if name in installed else set()
                seen |= new
                waiting += new
    return {name for name, _ in seen}


def main() -> int:
    installed = {canonicalize_name(one.name): one.version for one in distributions()}
    pins, locks = read_pins(CONSTRAINTS), {**read_pins(BUILD), **read_pins(RUN)}
    brought = brought_by(BY_VERSION, installed)
    found = [*lock_problems(pins, locks), *environment_problems(installed, pins, brought)]
    if found:
        print("\n".join(found), file=sys.stderr)
        return 1
    by_version = sorted(name for name in installed if name in BY_VERSION or (name in brought and name not in pins))
    count = sum(name in locks for name in installed)
    print(f"{count} packages have the locked version; pip compares sha256 when it installs them")
    print(f"without sha256: {', '.join(f'{name} {installed[name]}' for name in by_version)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

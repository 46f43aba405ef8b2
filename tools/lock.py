"""Write the lock files: the sha256 of every file that the registry holds for the versions in constraints.txt.

    make lock          # after a change of constraints.txt

`requirements/build.txt` has what builds packages from source, and `requirements/run.txt` all others. pip installs both
with `--require-hashes`. All files for the supported versions of Python are listed, so they hold on every platform.
The packages in `BY_VERSION` are in neither, because no list of hashes covers all of their builds.
"""

import re
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urldefrag
from urllib.request import Request, urlopen

from packaging.markers import Marker
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
BUILD, RUN = ROOT / "requirements" / "build.txt", ROOT / "requirements" / "run.txt"
REGISTRY = "https://pypi.org/simple"
BUILDS: Final = frozenset(
    {"editables", "hatchling", "packaging", "pathspec", "pluggy", "setuptools", "tomlkit", "trove-classifiers"}
)
BY_VERSION: Final = {"torch": "each device has a build of its own, and those for the CPU are not in the registry"}
"""Packages that are held by their version only, with the reason."""
OLDEST: Final = 11
"""The oldest Python 3 whose files are listed."""
_PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)[ ]*(?:;[ ]*([^\\\n]*[^\\\s]))?", re.M)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")


@dataclass(frozen=True)
class Pin:
    """One version of one package; `marker` says where it is installed, and an empty one everywhere."""

    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()

    @property
    def here(self) -> bool:
        """Whether this platform installs it."""
        return not self.marker or Marker(self.marker).evaluate()


def read_pins(path: Path) -> dict[str, Pin]:
    """Return the pins of a file by canonical name, each with the hashes that follow it in a lock file."""
    text = path.read_text()
    found = list(_PIN.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return {
        canonicalize_name(match[1]): Pin(match[2], match[3] or "", tuple(_HASH.findall(text, match.end(), end)))
        for match, end in zip(found, ends, strict=True)
    }


def locked(pins: dict[str, Pin]) -> str:
    """Return the text of a lock file."""
    lines = ["# Written by 'make lock' from constraints.txt: do not edit."]
    for name, pin in sorted(pins.items()):
        lines.append(f"{name}=={pin.version}" + (f" ; {pin.marker}" if pin.marker else "") + " \\")
        lines.append(" \\\n".join(f"    --hash=sha256:{value}" for value in pin.hashes))
    return "\n".join(lines) + "\n"


def files_of(name: str) -> dict[str, str]:
    """Return the sha256 of every file that the registry holds for a package, by file name."""
    request = Request(f"{REGISTRY}/{name}/", headers={"Accept": "text/html"})
    with urlopen(request, timeout=60) as answer:
        return hashes_of_page(answer.read().decode())


def hashes_of_page(page: str) -> dict[str, str]:
    """Return the sha256 of every file that a page of the registry links to, by file name."""
    found: dict[str, str] = {}

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            url, fragment = urldefrag(dict(attributes).get("href") or "")
            if tag == "a" and fragment.startswith("sha256="):
                found[unquote(url.rpartition("/")[2])] = fragment.removeprefix("sha256=")

    Links().feed(page)
    return found


def belongs(file: str, version: str) -> bool:
    """Return whether a file is a wheel for a supported Python, or a source archive, of this version."""
    try:
        if not file.endswith(".whl"):
            return str(parse_sdist_filename(file)[1]) == version
        _, of, _, tags = parse_wheel_filename(file)
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return False
    return str(of) == version and any(_supported(tag.interpreter, tag.abi) for tag in tags)


def _supported(interpreter: str, abi: str) -> bool:
    numbers = re.fullmatch(r"cp3(\d+)", interpreter)
    return interpreter.startswith("py3") or (numbers is not None and (abi == "abi3" or int(numbers[1]) >= OLDEST))


def with_hashes(name: str, pin: Pin) -> Pin:
    """Return the pin with the hashes of its files, or raise `ValueError` where the registry has none."""
    hashes = tuple(sorted({value for file, value in files_of(name).items() if belongs(file, pin.version)}))
    if not hashes:
        raise ValueError(f"{name} {pin.version}: the registry has no file of it: choose another version")
    return Pin(pin.version, pin.marker, hashes)


def main() -> int:
    pins = {name: pin for name, pin in read_pins(CONSTRAINTS).items() if name not in BY_VERSION}
    try:
        complete = {name: with_hashes(name, pin) for name, pin in pins.items()}
    except (OSError, ValueError) as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    BUILD.write_text(locked({name: pin for name, pin in complete.items() if name in BUILDS}))
    RUN.write_text(locked({name: pin for name, pin in complete.items() if name not in BUILDS}))
    print(f"{len(complete)} packages, {sum(len(pin.hashes) for pin in complete.values())} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())

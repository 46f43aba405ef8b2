"""Fetch the viewer that `fheat studio` ships from the npm registry, as its lock file says.

    python tools/studio_assets.py            # writes src/fheat/studio/static/vendor
    python tools/studio_assets.py --check    # writes nothing; ends with 1 where a file there is another one

`tools/studio/package-lock.json` (`npm install --package-lock-only` in that folder) has the sha512 of every package. A
package whose content is another one is refused. NiiVue's bundle contains the packages that it depends on, so the
licences of all of them go beside it. NiiVue's own package has no licence file: its text is in `tools/studio`.
"""

import base64
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "tools" / "studio"
VENDOR = ROOT / "src" / "fheat" / "studio" / "static" / "vendor"
REGISTRY: Final = "https://registry.npmjs.org"
VIEWER: Final = "@niivue/niivue"
BUNDLE: Final = "niivue.umd.js"
LICENCES: Final = "LICENCES.txt"


def locked(lock: Path = SETTINGS / "package-lock.json") -> Iterator[tuple[str, str, str, str]]:
    """Yield name, version, licence and integrity of each package that is part of the bundle."""
    for place, package in json.loads(lock.read_text())["packages"].items():
        if place and not package.get("optional"):
            name = place.rpartition("node_modules/")[2]
            yield name, package["version"], package["license"], package["integrity"]


def address(name: str, version: str) -> str:
    """Return where the registry has a package: `@scope/name` is stored as `@scope/name/-/name-VERSION.tgz`."""
    return f"{REGISTRY}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"


def check(content: bytes, integrity: str, name: str) -> None:
    """Raise `ValueError` where a package is not the one that was locked."""
    kind, _, expected = integrity.partition("-")
    found = base64.b64encode(hashlib.new(kind, content).digest()).decode()
    if found != expected:
        raise ValueError(f"{name}: its {kind} is {found}, and the lock file says {expected}")


def member(package: bytes, path: str) -> bytes | None:
    """Return a file of a package, or None; the case of the name does not matter."""
    with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as archive:
        for entry in archive:
            if entry.isfile() and entry.name.partition("/")[2].lower() == path.lower():
                return archive.extractfile(entry).read()
    return None


def licence(package: bytes, name: str, stated: str) -> str:
    """Return the licence of a package: its own file, else the name of the licence that it states."""
    if name == VIEWER:
        return (SETTINGS / "niivue-LICENSE").read_text()
    texts = (member(package, path) for path in ("LICENSE", "LICENSE.md", "LICENSE.txt", "licence"))
    return next((text.decode() for text in texts if text), f"Licence: {stated}")


def assets() -> dict[str, bytes]:
    """Return the files to ship, by name."""
    bundle = b""
    parts = [f"{BUNDLE} is that of {VIEWER}, unchanged. It contains the packages below."]
    for name, version, stated, integrity in locked():
        with urlopen(address(name, version)) as answer:
            package = answer.read()
        check(package, integrity, name)
        if name == VIEWER:
            bundle = member(package, f"dist/{BUNDLE}") or b""
        parts.append(f"{name} {version}\n\n{licence(package, name, stated).strip()}")
    if not bundle:
        raise ValueError(f"{VIEWER} has no dist/{BUNDLE}")
    lines = (line.rstrip() for line in f"\n\n{'-' * 80}\n\n".join(parts).splitlines())
    return {BUNDLE: bundle, LICENCES: ("\n".join(lines) + "\n").encode()}


def main() -> int:
    fetched = assets()
    if "--check" in sys.argv[1:]:
        other = [name for name, content in fetched.items() if (VENDOR / name).read_bytes() != content]
        print("\n".join(f"{name} is not what the lock file says: run tools/studio_assets.py" for name in other))
        return 1 if other else 0
    VENDOR.mkdir(parents=True, exist_ok=True)
    for name, content in fetched.items():
        (VENDOR / name).write_bytes(content)
        print(f"{VENDOR.relative_to(ROOT) / name}: {len(content):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

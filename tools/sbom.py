"""Write the bill of materials of the virtual environment: dist/sbom.json, CycloneDX 1.6.

    make sbom

The project is the root. A package is `required` where the project cannot run without it, `optional` where an extra
brings it, and `excluded` where it is only for development. Two calls in one environment write the same bytes, so the
file has neither a date nor a random number.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lock import BUILD, BY_VERSION, ROOT, RUN, Pin, read_pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SBOM = ROOT / "dist" / "sbom.json"
PROJECT = "fheat"
DEVELOPMENT = "dev"
"""The extra of what only developers need."""
LONGEST_LICENCE = 100
"""Some packages have the whole text of their licence in the field of its name."""


def reference(package: Distribution) -> str:
    """Return the package URL, by which the bill refers to a package."""
    return f"pkg:pypi/{canonicalize_name(package.name)}@{quote(package.version, safe='')}"


def licences(package: Distribution) -> list[dict[str, Any]]:
    """Return what a package says of its licence: an SPDX expression, else names, else nothing."""
    metadata = package.metadata
    if metadata.get("License-Expression"):
        return [{"expression": metadata["License-Expression"]}]
    classified = [
        line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or () if line.startswith("License ::")
    ]
    stated = (metadata.get("License") or "").strip()
    short = [stated] if stated and len(stated) <= LONGEST_LICENCE and "\n" not in stated else []
    return [{"license": {"name": name}} for name in (classified or short)]


def component(package: Distribution, scope: str, locks: Mapping[str, Pin]) -> dict[str, Any]:
    """Return the entry of one package, with the hashes of its files where they are locked."""
    name = canonicalize_name(package.name)
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference(package),
        "name": name,
        "version": package.version,
        "scope": scope,
        "purl": reference(package),
    }
    if licences(package):
        entry["licenses"] = licences(package)
    if name in locks:
        entry["externalReferences"] = [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{name}/{package.version}/#files",
                "comment": "sha256 of every file of this version for the supported versions of Python",
                "hashes": [{"alg": "SHA-256", "content": value} for value in locks[name].hashes],
            }
        ]
    elif name in BY_VERSION:
        entry["properties"] = [{"name": "fheat:held-by-version-only", "value": BY_VERSION[name]}]
    return entry


def requirements(package: Distribution, extras: Iterable[str] = ()) -> list[Requirement]:
    """Return what a package requires on this platform, with extras that it has."""
    found = map(Requirement, package.requires or ())
    words = ("", *extras)
    return [one for one in found if one.marker is None or any(one.marker.evaluate({"extra": word}) for word in words)]


def needed(package: Distribution, extras: Iterable[str] = ()) -> list[str]:
    """Return the canonical names of what a package requires on this platform, with extras that it has."""
    return sorted({canonicalize_name(one.name) for one in requirements(package, extras)})


def asked_extras(packages: Iterable[Distribution]) -> dict[str, set[str]]:
    """Return the extras that packages ask others for, by the name of the other: `cuda-toolkit[cublas]`."""
    asked: dict[str, set[str]] = {}
    for package in packages:
        for one in requirements(package):
            asked.setdefault(canonicalize_name(one.name), set()).update(one.extras)
    return asked


def reachable(names: Iterable[str], graph: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the names, those they require, and so on."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in graph and name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def bill(packages: Iterable[Distribution], locks: Mapping[str, Pin]) -> dict[str, Any]:
    """Return the bill of materials of installed packages, of which one is the project."""
    by_name = {canonicalize_name(package.name): package for package in packages}
    project = by_name.pop(PROJECT)
    asked = asked_extras(by_name.values())
    graph = {name: needed(package, asked.get(name, ())) for name, package in by_name.items()}
    extras = set(project.metadata.get_all("Provides-Extra") or ())
    required = reachable(needed(project), graph)
    optional = reachable(needed(project, extras - {DEVELOPMENT}), graph)
    scopes = {
        name: "required" if name in required else "optional" if name in optional else "excluded" for name in graph
    }
    edges = {reference(project): needed(project, extras)} | {reference(by_name[name]): graph[name] for name in graph}
    root = component(project, "required", {}) | {"type": "application"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {key: value for key, value in root.items() if key != "scope"}},
        "components": [component(by_name[name], scopes[name], locks) for name in sorted(by_name)],
        "dependencies": [
            {"ref": name, "dependsOn": sorted(reference(by_name[other]) for other in others if other in by_name)}
            for name, others in sorted(edges.items())
        ],
    }


def main(path: Path = SBOM) -> int:
    content = bill(distributions(), {**read_pins(BUILD), **read_pins(RUN)})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {path} with {len(content['components'])} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where the datasets of the paper lie: what `--data` says, checked."""

from collections.abc import Sequence
from pathlib import Path

from fheat.data.layouts import open_dataset
from fheat.experiments.records import datasets
from fheat.system.errors import BadInput
from fheat.system.settings import nearest


def locate(given: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each dataset that is given, or raise `BadInput`.

    Each entry is `NAME=FOLDER`, where the name is that of a dataset of the paper or of its recipe in any spelling
    (la, LA, brats, BRATS2019), or a folder that holds folders with such names.
    """
    found: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        named = {_dataset(name): Path(folder)} if equals else _inside(Path(text))
        for dataset, path in named.items():
            if found.get(dataset, path) != path:
                raise BadInput(path, f"is {dataset}, and so is {found[dataset]}", "give each dataset once")
            open_dataset(path)  # refuses what is no dataset before anything is trained
            found[dataset] = path
    return found


def _dataset(name: str) -> str:
    known = _names()
    if name.lower() not in known:
        remedy = f"use one of {', '.join(datasets())}"
        raise BadInput(f"--data {name}", f"is no dataset of the paper{nearest(name.lower(), known)}", remedy)
    return known[name.lower()]


def _inside(folder: Path) -> dict[str, Path]:
    """Return the datasets in a folder, by the names of its folders."""
    if not folder.is_dir():
        raise BadInput(folder, "is not a folder", "give NAME=FOLDER, or a folder that holds la/, brats/ or others")
    known = _names()
    found = {known[path.name.lower()]: path for path in sorted(folder.iterdir()) if path.name.lower() in known}
    if not found:
        remedy = f"name the dataset, such as --data la={folder}"
        raise BadInput(folder, f"holds none of the folders {', '.join(datasets())}", remedy)
    return found


def _names() -> dict[str, str]:
    """Return the dataset that each name means: its own, and that of its recipe."""
    own = {name: name for name in datasets()}
    recipes = {known.recipe: name for name, known in datasets().items() if not name.endswith("-original")}
    return {"pancreas-b": "pancreas", **recipes, **own}

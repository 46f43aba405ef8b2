"""Descriptions of datasets: `dataset.json` of nnU-Net and MSD, `splits.json`, MONAI datalists, lists of h5 files."""

import json
import os
from pathlib import Path
from random import Random
from typing import Any

from fheat.data.layouts import open_dataset
from tests.attack.kinds import Kind, Made, Recipe, doubtful
from tests.attack.mutators.raw import apply_raw, draw_raw
from tests.attack.mutators.trees import apply_tree, draw_tree, with_depth

NAMES = ("a", "b", "c")
NNUNET = {
    "channel_names": {"0": "MR"},
    "labels": {"background": 0, "organ": 1},
    "file_ending": ".nii",
    "numTraining": 3,
    "unlabelled": ["c"],
}
SPLITS = {"order": list(NAMES), "validation": ["b"]}
ENTRIES = [{"image": f"images/{name}.nii", "label": f"labels/{name}.nii"} for name in NAMES]
MSD = {"training": ENTRIES, "test": ["images/t.nii"], "labels": {"0": "background", "1": "organ"}, "numTraining": 3}
DATALIST = {"training": ENTRIES, "validation": ENTRIES[:1], "unlabelled": [{"image": "images/u.nii"}]}
LAYOUTS = ("nnunet", "splits", "msd", "datalist")


def _draw(random: Random) -> Recipe:
    steps = draw_tree(random) if random.random() < 0.7 else draw_raw(random)
    return {"base": {"layout": random.choice(LAYOUTS)}, "steps": steps}


def _make(recipe: Recipe, folder: Path) -> Made:
    layout, steps = recipe["base"]["layout"], recipe["steps"]
    tree: Any = {"nnunet": NNUNET, "splits": SPLITS, "msd": MSD, "datalist": DATALIST}[layout]
    text = json.dumps(tree).encode()
    content = apply_raw(text, steps)
    if content == text:
        content = with_depth(json.dumps(apply_tree(tree, steps))).encode(errors="surrogatepass")
    name = {"splits": "splits.json", "datalist": "list.json"}.get(layout, "dataset.json")
    files = {f"data/{name}": content}
    if layout in ("nnunet", "splits"):
        files |= {f"data/imagesTr/{one}_0000.nii": b"" for one in NAMES}
        files |= {f"data/labelsTr/{one}.nii": b"" for one in NAMES}
    if layout == "splits":
        files["data/dataset.json"] = json.dumps(NNUNET).encode()
    return Made(files, doubtful("any dataset may be meant", layout))


def _agrees(found: Any, layout: str) -> bool:
    """Return whether no file of the dataset lies outside its folder; a datalist may name absolute paths."""
    root = os.path.abspath(found.root)
    files = [path for case in found.cases for path in (*case.images, case.label) if path is not None]
    allowed = layout == "datalist"
    return all(os.path.abspath(path).startswith(root + os.sep) or (allowed and path.is_absolute()) for path in files)


KINDS = (Kind("dataset", _draw, _make, lambda folder: open_dataset(folder / "data"), _agrees, weight=3),)

"""What the program computes from given inputs, through its command line: references that no redesign may change.

`python -m tests.references.measure` writes `references.json` anew. Numbers are kept as Python prints them, which is
exact; on the machine they were made on a later version must repeat them bit by bit, on another one closely.
"""

import contextlib
import hashlib
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch

from fheat.cli.main import main

STORED = Path(__file__).with_name("references.json")
SMALL = "--patch-size 32 32 32 --warm-up 5 --device cpu"


def machine() -> dict[str, Any]:
    """What decides how floating-point sums are ordered."""
    decisive = ("model name", "cpu family", "model\t", "stepping", "flags")  # one name serves several generations
    cores = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    model = "".join(line.partition(":")[2].strip() for line in cores if line.startswith(decisive))
    return {"cpu": hashlib.sha256(model.encode()).hexdigest()[:16], "torch": torch.__version__, "numpy": np.__version__}


def run(words: str) -> str:
    """Run the program and return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(words.split())
    assert code == 0, (words, code)
    return out.getvalue()


def losses(run_folder: Path) -> list[dict[str, float]]:
    """Return the lines of a log that hold losses and gates, and those that hold a validation."""
    lines = [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("crc32", None)  # the version that made the references had none
    return [line for line in lines if "total" in line or "validation" in line]


def crop(images: Path) -> None:
    """Keep the middle of every scan along two axes, so that a few windows cover it."""
    for path in images.glob("*.nii.gz"):
        image = nibabel.load(path).slicer[:, 16:80, 6:66]
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine), path)


def measure(folder: Path) -> dict[str, Any]:
    """Compute every reference, in a folder that is empty."""
    torch.set_num_threads(1)
    scans = folder / "scans"
    run(f"data phantom {scans} --cases 10 --test 4 --shape 40 36 34 --seed 3")
    cse = f"train {scans} --method cse --labelled 2 --iterations 30 --checkpoint-every 10 --validate-every 15 {SMALL}"
    run(f"{cse} --out {folder / 'cse'}")
    supervised = f"train {scans} --method supervised --iterations 10 {SMALL}"
    run(f"{supervised} --out {folder / 'supervised'}")
    found = {"cse": losses(folder / "cse"), "supervised": losses(folder / "supervised")}
    again = folder / "again"
    shutil.copytree(folder / "cse", again)
    shutil.rmtree(again / "checkpoints" / "step-00000030")
    shutil.rmtree(again / "final")
    run(f"train --resume --device cpu --out {again}")
    found["resumed"] = losses(again)
    run(f"data phantom {folder / 'large'} --cases 2 --test 0 --seed 5")
    images, options = folder / "large" / "imagesTr", "--device cpu --runtime torch --stride 56 56 40 --no-preview"
    crop(images)
    run(f"predict la-4 {images} {folder / 'masks'} {options}")
    found["masks"] = {
        path.name: [int(mask.sum()), hashlib.sha256(mask.tobytes()).hexdigest()]
        for path in sorted((folder / "masks").glob("*.nii.gz"))
        for mask in [np.ascontiguousarray(np.asarray(nibabel.load(path).dataobj), np.uint8)]
    }
    model = folder / "cse" / "final"
    found["allocation"] = json.loads(run(f"allocation {model} --json"))
    found["zoo allocation"] = json.loads(run("allocation la-4 --json"))
    found["cost"] = json.loads(run("models --json"))
    found["cost"]["zoo"] = [model for model in found["cost"]["zoo"] if model["name"] == "la-4"]  # the only one then
    found["probe"] = json.loads(run(f"probe {model} --data {scans} --labelled 2 --batches 2 --device cpu --json"))
    for where in ("model", "data"):
        found["probe"].pop(where, None)  # a path, and this folder's
    found["allocation"].pop("model", None)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        STORED.write_text(json.dumps({"machine": machine(), "values": measure(Path(place))}, indent=1) + "\n")
    sys.stdout.write(f"wrote {STORED}\n")

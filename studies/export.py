"""Export the zoo in every format, compare on windows of real scans, and segment with the files alone:
`python studies/export.py --la LA --hippocampus HIPPOCAMPUS`.

Both folders are datasets in a layout that fheat reads. The first two validation scans of each are taken. Of every
export the result has the largest difference from PyTorch, the voxels with another class, time and bytes; of the ONNX
file also what the two scripts examples/segment_onnx*.py make of a scan, and of the bundle what `python -m monai.bundle
run` makes of it, each as Dice with the mask of `fheat predict --runtime torch`. A model whose dataset is left out keeps
the result that is stored.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import onnx
from record import ROOT, read_result, result_names, write_result

from fheat import Predictor
from fheat.data.layouts import open_dataset
from fheat.data.resample import resample
from fheat.export.write import export_model
from fheat.io import read_volume, write_nifti

NAME = "export-cpu"
TARGETS = {"onnx": "model.onnx", "openvino": "model.xml", "pt2": "model.pt2", "bundle": "bundle"}
SCRIPTS = {"short": "segment_onnx.py", "example": "segment_onnx_any.py"}
"""Scripts of examples/ by their names in the result; the short one takes scans as they are stored only."""
OTHER_SPACING = (0.9, 0.7, 0.8)
"""Spacing of the second scan to segment, relative to the stored one, so that resampling is part of the comparison."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--la", type=Path)
    parser.add_argument("--hippocampus", type=Path)
    options = parser.parse_args()
    results = read_result(NAME).results if NAME in result_names() else {"exports": [], "dice_with_predict": {}}
    for model, data in (("la-4", options.la), ("hippocampus", options.hippocampus)):
        if data is None:
            continue
        scans = [case.images[0] for case in open_dataset(data).split("validation")[:2]]
        with tempfile.TemporaryDirectory() as folder:
            rows = [exported(model, to, Path(folder) / name, scans) for to, name in TARGETS.items()]
            results["exports"] = [row for row in results["exports"] if row["model"] != model] + rows
            results["dice_with_predict"][model] = segmented(model, Path(folder), scans[0])
        store(results)


def store(results: dict[str, Any]) -> None:
    write_result(
        NAME,
        title="Exports of the zoo beside PyTorch: logits on windows of real scans, time, bytes, masks without fheat",
        command="python studies/export.py --la LA --hippocampus HIPPOCAMPUS",
        seed=0,
        note="other programs shared the processor: cpu_seconds is the time of the program alone, comparing included",
        settings={"scans": 2, "other_spacing": list(OTHER_SPACING)},
        results=results,
    )


def exported(model: str, to: Any, target: Path, scans: list[Path]) -> dict[str, Any]:
    start = time.process_time()
    result = export_model(model, to, target, scans=scans)
    assert result.on_scans is not None
    row = {
        "model": model,
        "format": to,
        "largest_difference": result.on_scans.largest,
        "other_class": result.on_scans.other_class,
        "voxels": result.on_scans.voxels,
        "windows": result.on_scans.windows,
        "largest_difference_on_noise": result.on_noise.largest,
        "seconds": round(result.seconds, 1),
        "cpu_seconds": round(time.process_time() - start, 1),
        "bytes": sum(result.files.values()),
        "step": result.recipe.input.step,
        "open_gates": list(result.recipe.gates.open),
    }
    if to == "onnx":
        counts = Counter(node.op_type for node in onnx.load(str(target)).graph.node)
        row["operations"] = dict(counts.most_common())
    return row


def segmented(model: str, folder: Path, scan: Path) -> dict[str, dict[str, float]]:
    """Return the least Dice of a class with the mask of `fheat predict`, for a scan as stored and resampled."""
    (folder / "scans").mkdir()
    volume = read_volume(scan)
    a, b, c = (length * factor for length, factor in zip(volume.spacing, OTHER_SPACING, strict=True))
    write_nifti(volume, folder / "scans" / "stored.nii.gz")
    write_nifti(resample(volume, (a, b, c)), folder / "scans" / "resampled.nii.gz")
    blocked = "import runpy, sys; sys.modules['fheat'] = sys.modules['torch'] = None; sys.argv = sys.argv[1:]"
    code = f"{blocked}; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = [("short", "stored"), ("example", "stored"), ("example", "resampled")]
    for kind, name in done:
        words = [ROOT / "examples" / SCRIPTS[kind], folder / "model.onnx", folder / "scans" / f"{name}.nii.gz"]
        subprocess.run([sys.executable, "-c", code, *words, folder / f"{name}-{kind}.nii.gz"], check=True)
    command = [sys.executable, "-m", "monai.bundle", "run", "--config_file", "configs/inference.json"]
    command += ["--dataset_dir", str(folder / "scans"), "--output_dir", str(folder / "out")]
    subprocess.run(command, cwd=folder / "bundle", check=True, capture_output=True)
    predictor = Predictor(model, runtime="torch", device="cpu")
    found: dict[str, dict[str, float]] = {"short": {}, "example": {}, "bundle": {}}
    for name in ("stored", "resampled"):
        expected = predictor.segment(folder / "scans" / f"{name}.nii.gz", check=False).data
        masks = {kind: f"{name}-{kind}.nii.gz" for kind, scan in done if scan == name}
        masks["bundle"] = f"out/{name}.nii.gz"
        for kind, file in masks.items():
            labels = np.asarray(nibabel.load(folder / file).dataobj)
            found[kind][name] = min(dice(labels == value, expected == value) for value in np.unique(expected) if value)
    return found


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return float(2 * (a & b).sum() / (a.sum() + b.sum()))


if __name__ == "__main__":
    main()

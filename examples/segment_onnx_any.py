"""Segment any scan of one channel with an exported ONNX file, by numpy, scipy, nibabel and onnxruntime alone.

    fheat export la-4 la-4.onnx --to onnx
    python examples/segment_onnx_any.py la-4.onnx scan.nii.gz mask.nii.gz

What is done here is what the recipe in the metadata of the file says; docs/reference/export-recipe.md explains its
fields. Nested regions and largest components are left out.
"""

import itertools
import json
import sys

import nibabel
import numpy as np
import onnxruntime
from nibabel.orientations import apply_orientation, axcodes2ornt, io_orientation, ornt_transform
from scipy import ndimage, special


def resample(x, steps, shape):
    centred = (np.array(x.shape) - 1 - (np.array(shape) - 1) * steps) / 2  # both grids share their centre
    return ndimage.affine_transform(x, steps, centred, tuple(shape), order=1, mode="nearest")


session = onnxruntime.InferenceSession(sys.argv[1])
recipe = json.loads(session.get_modelmeta().custom_metadata_map["fheat_recipe"])
if recipe["regions"] or recipe["largest_component"] or recipe["input"]["channels"] != 1:
    sys.exit("this example leaves out regions, components and several channels: see docs/reference/export-recipe.md")
scan, size, rule = nibabel.load(sys.argv[2]), recipe["window"]["size"], recipe["intensity"]
here, there = io_orientation(scan.affine), axcodes2ornt(recipe["orientation"] or nibabel.aff2axcodes(scan.affine))
x = apply_orientation(scan.get_fdata(), ornt_transform(here, there))
spacing = np.array(scan.header.get_zooms())[ornt_transform(there, here)[:, 0].astype(int)]
low, high = (rule["low"], rule["high"]) if rule["kind"] == "window" else (0, 1)
seen = x[x != 0] if rule["nonzero"] else x
shift, scale = (seen.mean(), seen.std() or 1) if rule["kind"] == "zscore" else (low, high - low)
x = ((x - shift) / scale).clip(*((0, 1) if rule["kind"] == "window" else (-np.inf, np.inf)))
steps = np.divide(recipe["spacing"] or spacing, spacing)
steps = np.where((abs(1 / steps - 1) <= recipe["tolerance"]).all(), 1, steps)
grid = resample(x, steps, np.maximum(np.rint(x.shape / steps), 1).astype(int)).astype(np.float32)
short = np.maximum(np.subtract(size, grid.shape), 0)
padded = np.pad(grid, [(n // 2, n - n // 2) for n in short])
axes = zip(padded.shape, size, recipe["window"]["stride"], strict=True)
sums = np.zeros((len(recipe["classes"]), *padded.shape))
for box in itertools.product(*([slice(i, i + s) for i in (*range(0, n - s, d), n - s)] for n, s, d in axes)):
    sums[:, *box] += special.softmax(session.run(None, {"image": padded[None, None, *box]})[0][0], axis=0)
inner = tuple(slice(n // 2, n // 2 + length) for n, length in zip(short, grid.shape, strict=True))
labels = np.argmax([resample((p / sums.sum(axis=0))[inner], 1 / steps, x.shape) for p in sums], axis=0)
mask = apply_orientation(labels.astype(np.uint8), ornt_transform(there, here))
nibabel.Nifti1Image(mask, scan.affine).to_filename(sys.argv[3])

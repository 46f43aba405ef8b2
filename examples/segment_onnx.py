"""Segment a scan with an exported ONNX file in twenty lines, by numpy, scipy, nibabel and onnxruntime alone.

    fheat export la-4 la-4.onnx --to onnx
    python examples/segment_onnx.py la-4.onnx scan.nii.gz mask.nii.gz

The scan must have the orientation and the spacing that the network was trained on, as the scans of its dataset have,
and the model z-scored intensities; segment_onnx_any.py turns and resamples other scans. See docs/how-to/export.md.
"""

import itertools
import json
import sys

import nibabel
import numpy as np
import onnxruntime
from scipy import special

session, scan = onnxruntime.InferenceSession(sys.argv[1]), nibabel.load(sys.argv[2])
recipe = json.loads(session.get_modelmeta().custom_metadata_map["fheat_recipe"])
rule, zooms, codes = recipe["intensity"], scan.header.get_zooms(), nibabel.aff2axcodes(scan.affine)
assert (rule["kind"], rule["nonzero"], *codes) == ("zscore", False, *(recipe["orientation"] or codes))
assert np.allclose(zooms, recipe["spacing"] or zooms, recipe["tolerance"], 0)
pads = [(n // 2, n - n // 2) for n in np.maximum(np.subtract(recipe["window"]["size"], scan.shape), 0)]
image = np.pad(((x := scan.get_fdata()) - x.mean()) / x.std(), pads).astype(np.float32)
axes = zip(image.shape, *(recipe["window"][name] for name in ("size", "stride")), strict=True)
sums = np.zeros((len(recipe["classes"]), *image.shape))
for box in itertools.product(*([slice(i, i + s) for i in (*range(0, n - s, d), n - s)] for n, s, d in axes)):
    sums[:, *box] += special.softmax(session.run(None, {"image": image[None, None, *box]})[0][0], axis=0)
mask = sums.argmax(axis=0)[tuple(slice(a, a + n) for (a, _), n in zip(pads, scan.shape, strict=True))]
nibabel.Nifti1Image(mask.astype(np.uint8), scan.affine).to_filename(sys.argv[3])

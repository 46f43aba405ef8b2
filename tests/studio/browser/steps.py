"""Steps that browser tests share."""

import gzip
import re

import nibabel
import numpy as np

LONG = 60_000
"""Milliseconds that a step may take on a crowded machine; none of them is waited for in vain."""
LAPTOP, PHONE, STAMP = ({"width": w, "height": h} for w, h in ((1024, 640), (375, 812), (200, 200)))


def logged(iteration):
    values = {"iteration": iteration, "total": 1 / iteration, "supervised": 0.5 / iteration, "rate": 0.01}
    return values | {f"{name}.{site}": 0.5 for site in ("enc1", "enc2", "dec1") for name in ("D", "alpha")}


def send_scan(page, studio, name="scan.nii.gz"):
    page.set_input_files("#file", studio.root / name)
    page.wait_for_selector("#scan-facts .name")


def segment(page):
    page.select_option("#model", "tiny")
    page.click("#start")
    page.wait_for_selector("#result:not([hidden])")
    return int(re.search(r"/api/jobs/(\d+)/", page.get_attribute("#downloads a", "href"))[1])


def readout(page):
    """Return the voxel under the crosshair along the axes of the file."""
    return tuple(map(int, re.search(r"voxel (-?\d+), (-?\d+), (-?\d+)", page.inner_text("#readout")).groups()))


def fetched(page, studio, path):
    """Return the voxels and the affine of a NIfTI file of the service."""
    content = page.request.get(studio.origin + path).body()
    image = nibabel.Nifti1Image.from_bytes(gzip.decompress(content))
    return np.asarray(image.dataobj), image.affine


def middle(page, dx=0, dy=0):
    box = page.locator("#canvas").bounding_box()
    return box["x"] + box["width"] / 2 + dx, box["y"] + box["height"] / 2 + dy

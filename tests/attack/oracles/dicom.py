"""A DICOM series of single-frame grey images in Explicit VR Little Endian, read from the standard (PS3.3, PS3.5).

Only files that hold exactly the elements of a plain image are judged; whatever else a mutation made of them is
doubtful.
"""

import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.attack.kinds import Verdict, contradiction, doubtful, healthy
from tests.attack.oracles.grids import judge_affine

Elements = dict[int, tuple[str, bytes]]
LONG = ("OB", "OW", "UN", "SQ", "UT")
VRS = {
    0x00020000: "UL", 0x00020001: "OB", 0x00020002: "UI", 0x00020003: "UI", 0x00020010: "UI", 0x00080016: "UI",
    0x00080018: "UI", 0x00080060: "CS", 0x00180050: "DS", 0x0020000D: "UI", 0x0020000E: "UI", 0x00200013: "IS",
    0x00200032: "DS", 0x00200037: "DS", 0x00200052: "UI", 0x00280002: "US", 0x00280004: "CS", 0x00280010: "US",
    0x00280011: "US", 0x00280030: "DS", 0x00280100: "US", 0x00280101: "US", 0x00280102: "US", 0x00280103: "US",
    0x00281052: "DS", 0x00281053: "DS", 0x7FE00010: "OW",
}  # fmt: skip
"""Elements of a plain image, each with its value representation."""
EXACT = {
    0x00020001: b"\0\1", 0x00020002: b"1.2.840.10008.5.1.4.1.1.2\0", 0x00020010: b"1.2.840.10008.1.2.1\0",
    0x00080016: b"1.2.840.10008.5.1.4.1.1.2\0", 0x00080060: b"CT", 0x00280002: b"\1\0", 0x00280004: b"MONOCHROME2 ",
    0x00280100: b"\x10\0", 0x00280101: b"\x10\0", 0x00280102: b"\x0f\0",
}  # fmt: skip
"""Values from which a plain image does not differ."""
SAME = (0x0020000E, 0x00280010, 0x00280011, 0x00200052)
"""Series, rows, columns and frame of reference are the same in all slices of a scan."""


def parse(content: bytes) -> Elements | None:
    """Return the elements of a file in order, or None where it is not the plain sequence of elements it should be."""
    if content[:132] != bytes(128) + b"DICM":
        return None
    elements: Elements = {}
    at, last = 132, -1
    while at < len(content):
        if at + 8 > len(content):
            return None
        group, element, vr = struct.unpack_from("<HH2s", content, at)
        tag, name = group << 16 | element, vr.decode("latin-1")
        if name in LONG:
            if at + 12 > len(content):
                return None
            start, length = at + 12, struct.unpack_from("<I", content, at + 8)[0]
        else:
            start, length = at + 8, struct.unpack_from("<H", content, at + 6)[0]
        if tag <= last or VRS.get(tag) != name or start + length > len(content):
            return None
        elements[tag] = name, content[start : start + length]
        at, last = start + length, tag
    return elements


def judge(files: Sequence[bytes]) -> Verdict:
    """Return the verdict on the slices of a series, in any order."""
    slices = []
    for content in files:
        elements = parse(content)
        if elements is None or elements.keys() != VRS.keys():
            return doubtful("a file is not a plain image")
        if any(elements[tag][1] != value for tag, value in EXACT.items()):
            return doubtful("a file is another kind of image")
        slices.append(elements)
        if any(not value for _, value in elements.values()):
            return doubtful("an element is empty")
    for tag in SAME:
        values = {elements[tag][1] for elements in slices}
        if len(values) > 1:
            if VRS[tag] == "UI" and len({value.rstrip(b"\0 ") for value in values}) == 1:
                return doubtful(f"element {tag:08x} is padded with a space instead of a zero")
            return contradiction(f"element {tag:08x} differs between slices")
    images = [_image(elements) for elements in slices]
    faults = [image for image in images if isinstance(image, Verdict)]
    return min(faults, key=lambda fault: fault.optional) if faults else _stack(images)


def _numbers(elements: Elements, tag: int, count: int) -> np.ndarray | None:
    text = elements[tag][1].decode("latin-1")
    words = text.rstrip(" ").split("\\")
    if len(words) != count or not all(re.fullmatch(r"[-+]?\d{1,9}(\.\d{1,9})?", word) for word in words):
        return None
    return np.array([float(word) for word in words])


def _image(elements: Elements) -> dict[str, Any] | Verdict:
    fields = {"position": (0x00200032, 3), "cosines": (0x00200037, 6), "spacing": (0x00280030, 2)}
    fields |= {"intercept": (0x00281052, 1), "slope": (0x00281053, 1)}
    image: dict[str, Any] = {name: _numbers(elements, tag, count) for name, (tag, count) in fields.items()}
    if any(value is None for value in image.values()):
        joined = any(b"_" in elements[tag][1] for tag, _ in fields.values())
        return contradiction("a number has an underscore") if joined else doubtful("a number is not plain")
    rows, columns = (struct.unpack("<H", elements[tag][1])[0] for tag in (0x00280010, 0x00280011))
    if rows * columns == 0 or len(elements[0x7FE00010][1]) < 2 * rows * columns:
        return contradiction("rows and columns do not fit the pixels")
    if len(elements[0x7FE00010][1]) != 2 * rows * columns:
        return doubtful("more pixels than declared")
    signed = elements[0x00280103][1]
    if signed not in (b"\0\0", b"\1\0") or min(image["spacing"]) <= 0:
        return doubtful("PixelRepresentation or PixelSpacing is odd")
    cosines = image["cosines"].reshape(2, 3)
    lengths = np.linalg.norm(cosines, axis=1)
    wrong = max(abs(lengths - 1).max(), abs(cosines[0] @ cosines[1]))
    if wrong > 1e-6:
        return contradiction("the cosines are not orthonormal") if wrong > 5e-3 else doubtful("the cosines are inexact")
    pixels = np.frombuffer(elements[0x7FE00010][1], "<i2" if signed == b"\1\0" else "<u2").reshape(rows, columns)
    if image["slope"][0] == 0:
        return doubtful("the slope is 0")
    return image | {"cosines": cosines, "pixels": pixels.T * image["slope"] + image["intercept"]}


def _stack(images: list[dict[str, Any]]) -> Verdict:
    first = images[0]
    for name in ("spacing", "cosines"):
        apart = max(np.abs(image[name] - first[name]).max() for image in images)
        if apart > 0:
            reason = f"{name} differs between slices"
            return contradiction(reason) if apart > 0.01 else doubtful(reason)
    normal = np.cross(*first["cosines"])
    images = sorted(images, key=lambda image: float(image["position"] @ normal))
    positions = np.array([image["position"] for image in images])
    if len(images) < 2:
        return doubtful("a single slice")
    gaps = np.diff(positions @ normal)
    usual = float(np.median(gaps))
    aside = (positions - positions[0]) - np.outer((positions - positions[0]) @ normal, normal)
    if gaps.min() < 5e-4 or np.abs(gaps - usual).max() > max(0.02 * usual, 0.02) or np.abs(aside).max() > 0.5:
        return contradiction(f"the slices are {gaps.tolist()} mm apart, and {np.abs(aside).max():g} mm aside")
    if np.abs(gaps - usual).max() > 1e-4 or np.abs(aside).max() > 1e-4:
        return doubtful("the slices are not quite regular")
    affine = np.eye(4)
    affine[:3, 0] = first["cosines"][0] * first["spacing"][1]
    affine[:3, 1] = first["cosines"][1] * first["spacing"][0]
    affine[:3, 2] = (positions[-1] - positions[0]) / (len(images) - 1)
    affine[:3, 3] = positions[0]
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    voxels = np.stack([image["pixels"] for image in images], axis=-1)
    fault = judge_affine(affine, voxels.shape)
    if fault is not None:
        return fault if not fault.optional else doubtful(fault.reason, (voxels, affine))
    return healthy((voxels, affine))

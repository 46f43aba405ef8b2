"""Segmentation of a scan, slice by slice, through a program that takes boxes."""

from collections.abc import Sequence

import numpy as np

from fheat.inference.prompt_program import PromptProgram
from fheat.inference.prompts import Axis, Box, plane_axes
from fheat.io.volume import Volume
from fheat.system.progress import Progress, silent


def segment_prompted(
    program: PromptProgram, scan: Volume, boxes: Sequence[Box], axis: Axis, progress: Progress = silent
) -> Volume:
    """Return the mask of all boxes, (X, Y, Z) uint8, in the place of the scan.

    An image has the second axis of a slice as rows and the first as columns, as most readers of scans show them. Where
    masks overlap, the label with the higher logit has the voxel. Slices without a box stay background.

    Args:
        program: what segments an image.
        scan: one channel, (X, Y, Z).
        boxes: the prompts; a program that takes no box is asked once per box, and what is in it does not matter.
        axis: axis across which slices are cut.
        progress: called with the number of boxes done and their total.
    """
    if scan.data.ndim != 3:
        raise ValueError(f"the scan has shape {scan.data.shape}: give one channel, (X, Y, Z)")
    adapter, limits = program.adapter, program.adapter.limits(scan.data)
    labels = np.zeros(scan.data.shape, dtype=np.uint8)
    planes, painted = np.moveaxis(scan.data, axis, 0), np.moveaxis(labels, axis, 0)
    by_slice: dict[int, list[Box]] = {}
    for box in boxes:
        by_slice.setdefault(box.slice, []).append(box)
    done = 0
    for index, here in sorted(by_slice.items()):
        plane = planes[index].T
        image = adapter.prepare(plane, limits)
        rows, columns = adapter.filled(plane.shape)
        factors = np.array([columns / plane.shape[1], rows / plane.shape[0]] * 2, dtype=np.float32)
        best = np.full(plane.shape, adapter.threshold, dtype=np.float32)
        for box in here:
            corners = np.array([*box.low, *box.high], dtype=np.float32) * factors
            logits = adapter.undo(program.logits(image, corners), plane.shape).numpy()
            better = logits > best
            painted[index].T[better] = box.label
            best[better] = logits[better]
            done += 1
            progress(done, len(boxes))
    return Volume(labels, scan.affine)


def every_slice(scan: Volume, axis: Axis) -> list[Box]:
    """Return one box around each whole slice with the label 1: prompts for a program that takes no box."""
    first, second = plane_axes(axis)
    size = scan.data.shape[first], scan.data.shape[second]
    return [Box(1, index, (0, 0), size) for index in range(scan.data.shape[axis])]

"""Connected components of a mask."""

from collections.abc import Sequence

import cc3d
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

_AT_ONCE = 2**22


def keep_largest(labels: NDArray[np.uint8], regions: Sequence[int] = ()) -> None:
    """Keep the largest 26-connected component of each class, in place.

    Without `regions` each label value is a class. With them, nested from the outermost to the innermost, each is a
    class together with those inside it; what an inner one loses falls to the one around it. Of equally large components
    the first met stays. A mask with a single component per class is unchanged.
    """
    if regions:
        for level, value in enumerate(regions):
            inside = np.isin(labels, regions[level:])
            labels[_all_but_largest(inside)] = 0 if value == regions[0] else regions[level - 1]
        return
    for value, box in enumerate(ndimage.find_objects(labels), start=1):
        if box is not None:
            labels[box][_all_but_largest(labels[box] == value)] = 0


def _all_but_largest(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    components, count = cc3d.connected_components(inside, connectivity=26, return_N=True)
    if count <= 1:
        return np.zeros_like(inside)
    sizes = np.zeros(count + 1, dtype=np.int64)
    flat = components.ravel(order="K")
    for start in range(0, flat.size, _AT_ONCE):  # counting needs eight bytes per voxel
        sizes += np.bincount(flat[start : start + _AT_ONCE], minlength=count + 1)
    other: NDArray[np.bool_] = components != 1 + np.argmax(sizes[1:])
    other &= inside
    return other

"""Connected components of a mask."""

import cc3d
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage


def keep_largest(labels: NDArray[np.uint8]) -> None:
    """Keep the largest 26-connected component of each label value, in place.

    Of equally large ones the first met stays. An empty mask, and one with a single component per value, is unchanged.
    """
    for value, box in enumerate(ndimage.find_objects(labels), start=1):
        if box is None:
            continue
        inside = labels[box] == value
        components, count = cc3d.connected_components(inside, connectivity=26, return_N=True)
        if count > 1:
            sizes = cc3d.statistics(components, no_slice_conversion=True)["voxel_counts"]
            labels[box][inside & (components != 1 + np.argmax(sizes[1:]))] = 0

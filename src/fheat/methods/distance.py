"""Signed distance maps of crops, the shape target of SASSNet."""

import edt
import numpy as np
from numpy.typing import NDArray


def signed_distance(mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the distance to the object's border, (X, Y, Z): positive outside, negative inside, within [-1, 1].

    Outside, the distance in voxels to the object; inside, to what is not the object; each divided by its largest value
    in the crop. The voxels of the object that touch the outside are 0. What lies beyond the crop counts as neither. A
    crop without a border, all object or none, is 0 everywhere.
    """
    inside = np.ascontiguousarray(mask, dtype=np.uint8)
    if inside.min() == inside.max():
        return np.zeros(mask.shape, np.float32)
    outer, inner = edt.edt(1 - inside), edt.edt(inside)
    found = outer / outer.max() - inner / inner.max()
    found[inner == 1] = 0  # exactly the voxels with a face on the outside
    return np.asarray(found, dtype=np.float32)

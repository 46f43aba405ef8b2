"""Overlap of two binary masks."""

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


def dice(prediction: Mask, reference: Mask) -> float:
    """2 |P and R| / (|P| + |R|); 1 where both are empty."""
    total = np.count_nonzero(prediction) + np.count_nonzero(reference)
    return 2.0 * int(np.count_nonzero(prediction & reference)) / int(total) if total else 1.0


def jaccard(prediction: Mask, reference: Mask) -> float:
    """|P and R| / |P or R|; 1 where both are empty."""
    union = np.count_nonzero(prediction | reference)
    return int(np.count_nonzero(prediction & reference)) / int(union) if union else 1.0

"""Constant tensors (cosine matrices, frequency tables): built once in float64, kept per device and dtype."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BUILT: dict[Hashable, Tensor] = {}


def constant(
    build: Callable[..., NDArray[np.float64]],
    arguments: tuple[Any, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Return `build(*arguments)` as a tensor on `device`; later calls with the same key return the same tensor.

    The array is computed in float64 whatever `dtype` is: a cosine matrix built in float32 is off by ten times
    the rounding of its own entries. Compiled before its first eager call, a table is computed inside the graph.
    """
    key = (build, arguments, device, dtype)
    found = _BUILT.get(key)
    if found is None:
        # A table born under inference_mode could never take part in training later.
        with torch.inference_mode(False):
            found = torch.from_numpy(build(*arguments)).to(device=device, dtype=dtype)
        # A traced or fake tensor belongs to the trace that made it and must not outlive it.
        if type(found) is Tensor and not torch.compiler.is_compiling():
            _BUILT[key] = found
    return found

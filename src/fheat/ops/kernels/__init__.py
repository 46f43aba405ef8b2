"""Fused GPU kernels, written in Triton, and when they are used.

Each has a plain twin in PyTorch that says what it computes; the twin is also what runs on a CPU, under `torch.compile`,
`torch.export`, in float64, and wherever Triton is missing. `FHEAT_KERNELS=never` in the environment, or
`with kernels.use("never")`, turns them off.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["auto", "never", "always"]
_mode: list[Mode] = ["never" if os.environ.get("FHEAT_KERNELS") == "never" else "auto"]


@contextmanager
def use(mode: Mode) -> Iterator[None]:
    """Within the block: `auto` as by default, `never`, or `always`, also on a CPU, for Triton's interpreter."""
    _mode.append(mode)
    try:
        yield
    finally:
        _mode.pop()


def usable(x: Tensor) -> bool:
    """Whether kernels take the work on `x` now."""
    if _mode[-1] != "auto":
        return _mode[-1] == "always"
    kind = x.device.type
    return (
        kind == "cuda"
        and (x.dtype in (torch.float32, torch.bool) or (x.dtype != torch.float64 and torch.is_autocast_enabled(kind)))
        and 0 < x.numel() < 2**31
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and _found()
    )


@cache
def _found() -> bool:
    return find_spec("triton") is not None

"""Fused GPU kernels, written in Triton, and the rule when they are used.

Each kernel has a plain twin in PyTorch that defines what it computes. The twin runs on a CPU, under `torch.compile`,
`torch.export` and `torch.func`, in float64, and wherever Triton or the C compiler that it needs is missing. Kernels
have first derivatives only. `FHEAT_KERNELS=never` in the environment, or `with kernels.use("never")`, turns them off.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["auto", "never", "always"]
_WORDS = ("auto", "never")
_asked = os.environ.get("FHEAT_KERNELS", "auto")
if _asked not in _WORDS:
    raise ValueError(f"FHEAT_KERNELS={_asked!r} in the environment is unknown: use one of {', '.join(_WORDS)}")
_mode: ContextVar[Mode] = ContextVar("mode", default="never" if _asked == "never" else "auto")


@contextmanager
def use(mode: Mode) -> Iterator[None]:
    """Set within the block when kernels are used: `auto` (the default), `never`, or `always`.

    `always` is for tests: Triton's interpreter then runs the kernels on a CPU too. Other threads are not concerned. The
    backward pass on a GPU runs in one of them: it follows the forward pass that it belongs to, so that what a gradient
    asks must be asked before.
    """
    before = _mode.get()
    _mode.set(mode)
    try:
        yield
    finally:
        _mode.set(before)


def usable(x: Tensor) -> bool:
    """Return whether the kernels are used for work on `x` now."""
    if torch.compiler.is_compiling():  # first, as a compiler cannot look into a context
        return False
    mode, kind = _mode.get(), x.device.type
    if mode != "auto":
        return mode == "always"
    return (
        kind == "cuda"
        and (x.dtype in (torch.float32, torch.bool) or (x.dtype != torch.float64 and torch.is_autocast_enabled(kind)))
        and 0 < x.numel() < 2**31
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch._C._are_functorch_transforms_active()
        and _work(x.device)
    )


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which kernels start on the device of `x`: Triton takes the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@cache
def _work(device: torch.device) -> bool:
    """Return whether a kernel can be built and run here, which takes Triton and a C compiler."""
    if find_spec("triton") is None:
        return False
    try:
        from fheat.ops.kernels.norm import one_group_norm

        one, many = torch.ones(16, device=device), torch.ones(1, 2, 2, 2, 16, device=device)
        with on_device(many):
            one_group_norm(many, one, one)
        torch.cuda.synchronize(device)
    except Exception as error:
        warnings.warn(f"fused kernels cannot be built here ({error}): plain PyTorch is used, slower", stacklevel=2)
        return False
    return True

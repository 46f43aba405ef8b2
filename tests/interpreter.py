"""Triton's interpreter, in which kernels run where there is no GPU, in half of its time and with the same bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from inspect import getmembers

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

INTERPRETED = interpreter.ReduceOps.generic_reduce
_known = lru_cache(interpreter._get_np_dtype)


@contextmanager
def quick_interpreter() -> Iterator[None]:
    """Leave out checks whose outcome nobody sees, look names and types up once, and reduce slices, not elements.

    The interpreter repeats integer arithmetic in 64 bits to find overflow, and looks at it only with `debug`.
    """
    options = interpreter.interpreter_builder.options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=options.debug))
        patch.setattr(interpreter, "_get_np_dtype", np_dtype)
        patch.setattr(interpreter, "_patch_builtin", patch_builtins)
        patch.setattr(interpreter.ReduceOps, "generic_reduce", reduce_slices)
        yield


def np_dtype(kind: tl.dtype) -> np.dtype:
    """Return what the function of the interpreter returns, which makes a table of all types for each call."""
    scalar = kind.scalar
    return np.dtype(np.uint64) if isinstance(scalar, tl.pointer_type) else _known(scalar)


@lru_cache
def _builtins(package: object) -> list[str]:
    return [name for name, member in getmembers(package) if tl.core.is_builtin(member)]


def patch_builtins(package: object, builder: object, scope: interpreter._LangPatchScope) -> None:
    """Do what the function of the interpreter does, which looks for builtins in each call of each function."""
    for name in _builtins(package):
        member = getattr(package, name)
        if tl.core.is_builtin(member):  # not yet replaced
            interpreter._patch_attr(package, name, member, builder, scope)


def reduce_slices(self: interpreter.ReduceOps, given: tuple[tl.tensor, ...]) -> list[tl.tensor]:
    """Combine one slice after the other, each at once; the interpreter does so for one element after the other."""
    if self.axis is None:
        return INTERPRETED(self, given)
    slices = zip(*(np.moveaxis(one.handle.data, self.axis, 0) for one in given), strict=True)
    total = first = next(slices)
    for part in slices:
        combined = self.combine_fn.fn(*_tensors(self, total, given), *_tensors(self, part, given))
        found = combined if isinstance(combined, tuple) else (combined,)
        total = [one.handle.data.reshape(like.shape) for one, like in zip(found, first, strict=True)]
    if self.keep_dims:
        total = [np.expand_dims(one, self.axis) for one in total]
    return _tensors(self, total, given)


def _tensors(reduction, arrays, like) -> list[tl.tensor]:
    return [reduction.to_tensor(array, one.dtype) for array, one in zip(arrays, like, strict=True)]

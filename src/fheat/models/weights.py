"""Checks of a weight file before memory is spent on it: its header, and a memory bound for the network it is for.

A safetensors file begins with the length of its header, 8 bytes, and the header: JSON with the type, the shape and the
place of every tensor. Nothing else of the file is read here.
"""

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from fheat.system.errors import BadInput

LARGEST_HEADER: Final = 4 * 2**20
"""Number of bytes that the header of a weight file may have; that of FHEAT-Seg has 30,000."""
SIZES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of a number of each type that a network may have."""
GET_AGAIN: Final = "restore the folder from its source, or write it again with fheat.save"
_IN_FLOAT32: Final = "convert the network to float32, and write it again with fheat.save"


class Claimed(NamedTuple):
    """Type and shape of a tensor, as the header of a weight file states them."""

    kind: str
    """Type of its numbers as safetensors names it, such as F32."""
    shape: tuple[int, ...]


def read_header(file: BinaryIO, path: Path) -> dict[str, Claimed]:
    """Return what a weight file says about its tensors, or raise `BadInput` where its size contradicts it."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if length > min(size - 8, LARGEST_HEADER):
        raise BadInput(path, f"is not a safetensors file (a header of {length:,} bytes in {size:,})", GET_AGAIN)
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        places = sorted(tuple(entry["data_offsets"]) for entry in header.values())
        found = {str(name): Claimed(str(entry["dtype"]), tuple(entry["shape"])) for name, entry in header.items()}
        whole = all(isinstance(n, int) and n >= 0 for entry in found.values() for n in entry.shape)
        joined = [0, *(end for _, end in places)] == [*(begin for begin, _ in places), size - 8 - length]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise BadInput(path, f"is not a safetensors file ({reason})", GET_AGAIN) from None
    for name, entry in found.items():
        if entry.kind not in SIZES:
            raise BadInput(path, f"key {name!r} is {entry.kind}, which no network here computes with", _IN_FLOAT32)
        begin, end = header[name]["data_offsets"]
        if not whole or not joined or end - begin != prod(entry.shape) * SIZES[entry.kind]:
            raise BadInput(path, f"key {name!r}: its type, shape and place contradict each other", GET_AGAIN)
    return found


class Budget(TorchFunctionMode):
    """Raises `MemoryError` in its block before the tensors that are created there exceed a number of bytes together."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.spent = limit, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _device_constructors():
            sizes = {name: value for name, value in kwargs.items() if name not in ("generator", "pin_memory")}
            made = _without_memory(func, args, sizes)
            self.spent += made.numel() * made.element_size()
            if self.spent > self.limit:
                raise MemoryError(f"it would take more than {self.limit / 2**20:,.0f} MiB to build it")
        return func(*args, **kwargs)


def _without_memory(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Return the tensor that a constructor would make, with its size and without its memory."""
    if func is torch.arange and len(args) == 1 and isinstance(args[0], int) and not kwargs:
        return torch.empty(args[0], dtype=torch.int64, device="meta")  # torch would load half a second of libraries
    made: torch.Tensor = func(*args, **{**kwargs, "device": "meta"})
    return made

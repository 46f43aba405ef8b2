"""The machine: which device can be used, what a result was measured on, and what to say when memory runs out."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fheat.system.errors import BadInput


def machine(device: str = "cpu") -> dict[str, object]:
    """Return processor or GPU name, thread count and versions, for the `machine` field of a result file."""
    return {
        "device": device,
        "name": torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: found for name in ("numpy", "scipy", "monai") if (found := installed_version(name)) is not None},
    }


def usable_device(name: str | torch.device) -> torch.device:
    """Return the device if something can be computed on it, else raise a `ValueError` of one line."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown: use cpu, cuda or cuda:1") from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {str(name)!r} cannot be used ({str(error).splitlines()[0]})") from None
    return device


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None where none is, or where it lies without its description."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor_features() -> str:
    """Return the name of the processor and its instruction sets, on which compiled code depends."""
    return f"{_processor()} {_cpu_field('flags') or ''}"


def lacks_bfloat16() -> bool:
    """Return whether the processor is known to have no instructions for bfloat16, so that it is imitated there."""
    flags = _cpu_field("flags")
    return flags is not None and "bf16" not in flags


def _processor() -> str:
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _cpu_field(name: str) -> str | None:
    """Return a field of the first processor; None where the system has no such list."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(name))
    except (OSError, StopIteration):
        return None


_HOST = "can't allocate memory"
"""Words of the RuntimeError with which torch reports on a CPU that memory ran out."""


@contextmanager
def memory_for(what: str, where: Path | str, device: torch.device, remedy: str) -> Iterator[None]:
    """Turn running out of memory, on the host or on a GPU, into `BadInput` with a remedy."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if (
            isinstance(error, RuntimeError)
            and not isinstance(error, torch.OutOfMemoryError)
            and _HOST not in str(error)
        ):
            raise
        raise BadInput(where, f"{what} does not fit into the memory of {device}", remedy) from None

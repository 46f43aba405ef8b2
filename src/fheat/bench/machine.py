"""Where a result was measured: the processor or GPU and the versions that matter."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def machine(device: str = "cpu") -> dict[str, object]:
    """Return processor or GPU name, thread count and versions, for the `machine` field of a result file."""
    return {
        "device": device,
        "name": torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: found for name in ("numpy", "scipy", "monai") if (found := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

"""What a stored result says about where it was measured."""

import platform
from importlib.metadata import version

import torch


def machine(device: str = "cpu") -> dict[str, object]:
    """Return processor or GPU name, thread count and versions, for the `machine` field of a result file."""
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    return {
        "device": device,
        "name": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "scipy": version("scipy"),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

"""The arguments that the scripts here have in common; timing and machine are in `fheat.bench`."""

import argparse
from pathlib import Path


def arguments(description: str | None, name: str, *, rounds: int, data: str | None = None) -> argparse.Namespace:
    """Read --device, --rounds and --out; the result file is benchmarks/results/NAME-DEVICE.json if not given.

    With `data`, what the folder holds, also --data.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", type=Path, help=f"result file (default: benchmarks/results/{name}-DEVICE.json)")
    if data is not None:
        parser.add_argument("--data", type=Path, help=data)
    options = parser.parse_args()
    options.out = options.out or Path(__file__).parent / "results" / f"{name}-{options.device}.json"
    return options

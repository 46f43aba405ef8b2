"""Store what the examples print that the documentation shows: `python studies/examples.py`."""

import subprocess
import sys

from record import ROOT, write_result

EXAMPLES = ("instrument_resnet_2d", "instrument_monai_unet")


def output(name: str) -> str:
    script = ROOT / "examples" / f"{name}.py"
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout


def main() -> None:
    write_result(
        "examples-cpu",
        title="What the examples of gates in a residual network and in a MONAI UNet print",
        command="python studies/examples.py",
        seed=0,
        results={name: {"lines": output(name).splitlines()} for name in EXAMPLES},
    )


if __name__ == "__main__":
    main()

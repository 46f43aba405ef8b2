"""Store what `fheat demo --json` prints, with the machine it ran on: `python benchmarks/demo.py`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from record import machine

OPTIONS = ("--seed", "0", "--iterations", "120")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fheat", "demo", "--json", *OPTIONS, "--out", folder]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result = {"command": f"fheat demo --json {' '.join(OPTIONS)}", "seed": 0, "machine": machine()}
    path = Path(__file__).parent / "results" / "demo-cpu.json"
    path.write_text(json.dumps(result | {"result": json.loads(printed)}, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

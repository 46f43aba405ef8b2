"""Let the scripts of this folder use what `tools/results.py` has: arguments, and how results are read and written."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from results import ROOT, RUNS, Result, arguments, from_root, read_result, result_names, write_result

__all__ = ["ROOT", "RUNS", "Result", "arguments", "from_root", "read_result", "result_names", "write_result"]

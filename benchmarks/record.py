"""Let the scripts of this folder use what `tools/results.py` has: their arguments and the one way to write a result."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from results import ROOT, arguments, write_result

__all__ = ["ROOT", "arguments", "write_result"]

"""Memory that is released goes back to the system."""

import subprocess
import sys

import pytest

CODE = """
import sys
import numpy as np
from fheat.inference.memory import resident_bytes
from fheat.system.allocator import return_large_blocks

if sys.argv[1] == "returned":
    return_large_blocks()
kept = [bytearray(50_000) for _ in range(200)]  # fill the holes that imports have left
before = resident_bytes()
for _ in range(8):
    blocks = [np.ones(3 * 2**20) for _ in range(4)]  # 24 MB each
    kept.append(bytearray(50_000))  # lies behind them where they are taken from the same place
    del blocks
print(resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_large_blocks_are_returned_although_small_ones_lie_behind_them():
    held = {
        way: int(subprocess.run([sys.executable, "-c", CODE, way], capture_output=True, check=True).stdout)
        for way in ("returned", "as it is")
    }
    assert held["returned"] < 4 * 2**20
    assert held["as it is"] > 20 * 2**20, "the C library does this by itself now: the function can go"

"""From which axis length an algorithm of `fheat.ops.dct` is the fastest, per kind of device.

Read off `benchmarks/results/transforms-*.json`, which `benchmarks/transforms.py` writes; a test holds the two together.
"""

from typing import Final

# device kind -> (even/odd split from this length on, FFT from this length on)
CROSSOVERS: Final[dict[str, tuple[int, int]]] = {"cpu": (128, 768), "cuda": (768, 2048)}

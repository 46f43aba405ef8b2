"""Time surface distances next to medpy on the same masks, in one run: `python benchmarks/surface.py`.

The masks are a bumpy organ and a slightly moved copy with a spacing of 1 x 1 x 2.5 mm, at the size of a patch and of a
CT. hd95 and asd are timed together, as an evaluation needs them; the largest difference of the two programs is stored
too.
"""

import time

import numpy as np
from medpy.metric import binary
from numpy.typing import NDArray
from record import write_result

from fheat import evaluate

SPACING = (1.0, 1.0, 2.5)
SHAPES = ((112, 112, 88), (512, 512, 200))


def organ(shape: tuple[int, ...], shift: tuple[float, ...]) -> NDArray[np.bool_]:
    axes = np.meshgrid(*(np.linspace(-1, 1, length) for length in shape), indexing="ij")
    radius = np.sqrt(sum((axis - step) ** 2 for axis, step in zip(axes, shift, strict=True)))
    return radius < 0.6 + 0.1 * np.sin(8 * axes[0] + 3) * np.cos(7 * axes[1]) * np.sin(5 * axes[2] + 1)


def main() -> None:
    rows = {}
    for shape in SHAPES:
        prediction, reference = organ(shape, (0.0, 0.0, 0.0)), organ(shape, (0.03, -0.02, 0.01))
        start = time.perf_counter()
        found = evaluate(prediction, reference, SPACING)
        ours = time.perf_counter() - start
        start = time.perf_counter()
        hd95 = float(binary.hd95(prediction, reference, SPACING))
        asd = float(binary.asd(prediction, reference, SPACING))
        theirs = time.perf_counter() - start
        difference = max(abs(found["hd95"] - hd95), abs(found["asd"] - asd))
        name = "x".join(map(str, shape))
        print(f"{name}: fheat {ours:.2f} s (all metrics), medpy {theirs:.2f} s (hd95 + asd), ratio {theirs / ours:.0f}")
        rows[name] = {
            "fheat_s": ours,
            "medpy_s": theirs,
            "ratio": theirs / ours,
            "hd95": hd95,
            "asd": asd,
            "largest_difference": difference,
        }
    write_result(
        "surface-cpu",
        title="Time of surface distances beside medpy on the same masks",
        command="python benchmarks/surface.py",
        seed=None,
        settings={"spacing": SPACING},
        results=rows,
    )


if __name__ == "__main__":
    main()

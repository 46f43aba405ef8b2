"""Time the synthetic scans, measure how hard they are, and draw some: `python studies/phantom.py`.

Two methods that learn nothing are scored, both with the best threshold for the label: all voxels that are brighter than
the threshold, and the connected part of these around the deepest labelled voxel. `lost_by_opening` is the share of the
label that a ball with a radius of three voxels cannot enter.
"""

import io
import time
from pathlib import Path

import cc3d
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from record import ROOT, write_result
from scipy import ndimage

from fheat.data import phantom as generator
from fheat.data import phantom_shapes

CASES = 40
TIMED = (((112, 96, 72), 30), ((256, 256, 256), 5))
STAGES = (
    (generator, "_chest"),
    (generator, "_add_organ"),
    (generator, "_add_atrium"),
    (generator, "_receive"),
    (phantom_shapes.Waves, "on"),
)


def best_threshold_dice(image: NDArray[np.int16], label: NDArray[np.uint8]) -> float:
    """The largest Dice of `image >= threshold` over all thresholds."""
    total = np.bincount(image.ravel())[::-1].cumsum()
    inside = np.bincount(image[label > 0], minlength=total.size)[::-1].cumsum()
    return float((2 * inside / (total + inside[-1])).max())


def best_region_dice(image: NDArray[np.int16], label: NDArray[np.uint8]) -> float:
    """The largest Dice of a region grown from the deepest labelled voxel, of the smoothed image, over thresholds."""
    smooth = ndimage.gaussian_filter(image.astype(np.float32), 0.8)
    seed = np.unravel_index(ndimage.distance_transform_edt(label).argmax(), label.shape)
    best = 0.0
    for threshold in np.percentile(smooth[label > 0], np.linspace(0, 40, 20)):
        regions = cc3d.connected_components(smooth >= threshold, connectivity=6)
        region = (regions == regions[seed]) & (regions[seed] > 0)
        best = max(best, float(2 * region[label > 0].sum() / (region.sum() + label.sum())))
    return best


def lost_by_opening(label: NDArray[np.uint8], radius: int = 3) -> float:
    ball = np.linalg.norm(np.indices((2 * radius + 1,) * 3) - radius, axis=0) <= radius
    return 1 - float(ndimage.binary_opening(label, ball).sum() / label.sum())


def measure(seed: int) -> dict[str, float]:
    made = generator.phantom(seed)
    image, label = made.image.data, made.label.data
    return {
        "best_threshold_dice": best_threshold_dice(image, label),
        "best_region_dice": best_region_dice(image, label),
        "label_share": float(label.mean()),
        "lost_by_opening": lost_by_opening(label),
        "components": int(cc3d.connected_components(label, connectivity=26).max()),
    }


def milliseconds(shape: tuple[int, int, int], rounds: int) -> dict[str, float]:
    """Milliseconds per million voxels of one case after another: smallest and median."""
    times = []
    for seed in range(rounds + 1):
        start = time.perf_counter()
        generator.phantom(seed, shape)
        times.append(1e9 * (time.perf_counter() - start) / np.prod(shape))
    return {"smallest": min(times[1:]), "median": float(np.median(times[1:]))}


def stages(shape: tuple[int, int, int], seeds: int) -> dict[str, float]:
    """Milliseconds per million voxels within the larger functions; `on` (the smooth fields) is partly inside others."""
    spent = {name: 0.0 for _, name in STAGES}

    def timed(owner: object, name: str) -> None:
        inner = getattr(owner, name)

        def outer(*arguments: object) -> object:
            start = time.perf_counter()
            result = inner(*arguments)
            spent[name] += time.perf_counter() - start
            return result

        setattr(owner, name, outer)

    before = [getattr(owner, name) for owner, name in STAGES]
    for owner, name in STAGES:
        timed(owner, name)
    for seed in range(seeds):
        generator.phantom(seed, shape)
    for (owner, name), inner in zip(STAGES, before, strict=True):
        setattr(owner, name, inner)
    return {name.lstrip("_"): 1e9 * value / (seeds * np.prod(shape)) for name, value in spent.items()}


def draw(path: Path, seeds: tuple[int, ...] = (1, 5, 9)) -> None:
    """Axial, coronal and sagittal slices as a radiologist sees them, plain and with the label outlined."""
    figure, panels = plt.subplots(3, 2 * len(seeds), figsize=(2 * len(seeds) * 1.6, 4.8), facecolor="black")
    for column, seed in enumerate(seeds):
        made = generator.phantom(seed, (128, 128, 128), geometry="canonical")
        image, label = made.image.data[::-1], made.label.data[::-1]
        middle = np.round(ndimage.center_of_mass(label)).astype(int)
        middle += (0, -10, 10)  # where the upper veins leave
        for row, axis in enumerate((2, 1, 0)):
            for side in (0, 1):
                panel = panels[row, 2 * column + side]
                panel.imshow(image.take(middle[axis], axis).T, "gray", origin="lower", vmax=np.percentile(image, 99.5))
                if side:
                    panel.contour(label.take(middle[axis], axis).T, [0.5], colors="tab:red", linewidths=1.2)
                panel.axis("off")
    figure.subplots_adjust(0, 0, 1, 1, 0.02, 0.02)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=72)
    Image.open(drawn).convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def main() -> None:
    speed = {"x".join(map(str, shape)): milliseconds(shape, rounds) for shape, rounds in TIMED}
    where = {"x".join(map(str, shape)): stages(shape, rounds // 3) for shape, rounds in TIMED}
    cases = [measure(seed) for seed in range(CASES)]
    hardness = {
        name: {"mean": float(np.mean(values)), "smallest": min(values), "largest": max(values)}
        for name in cases[0]
        for values in [[case[name] for case in cases]]
    }
    draw(ROOT / "docs" / "images" / "phantom.png")
    for name, row in speed.items():
        print(f"{name}: {row['smallest']:.0f} ms per million voxels at best, {row['median']:.0f} in the median")
    for name, row in hardness.items():
        print(f"{name}: {row['mean']:.3f} ({row['smallest']:.3f} to {row['largest']:.3f})")
    write_result(
        "phantom-cpu",
        title="How fast the synthetic scans are made, and how hard they are without learning",
        command="python studies/phantom.py",
        seed=list(range(CASES)),
        settings={"generator_version": generator.VERSION, "cases": CASES},
        results={"ms_per_million_voxels": speed, "ms_per_million_voxels_within": where, "hardness": hardness},
    )


if __name__ == "__main__":
    main()

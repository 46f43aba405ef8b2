"""Segment and score a cohort of CT-size scans: `python benchmarks/cohort.py --scans 1000 --device cuda`.

It is what `fheat bench cohort` measures, see `fheat.bench.cohort`, with the network of the zoo's la-4 and scans of
`--shape` 512x512x300 voxels of int16 in .nii.gz. The network takes them as they are, in windows of 112x112x80 every
`--stride` voxels, 18x18x4 as for LA. Masks are scored one and `--workers` at a time.
"""

import tempfile
from pathlib import Path
from typing import Any

from record import arguments, write_result

from fheat.bench.cohort import Cohort, score_times, segment_times, write_cohort
from fheat.system.processors import processors
from fheat.system.text import grid_name

DIGITS = {"busy_share": 3, "peak_over_bound": 3, "time_of_overlap": 3, "time_of_several": 3, "cases_per_minute": 1}
"""Decimals of the numbers that do not have two."""


def main() -> None:
    options = arguments(
        __doc__,
        "cohort",
        rounds=1,
        scans="number of scans (default: 12)",
        shape="size of a scan (default: 512x512x300)",
        stride="voxels between windows (default: 18x18x4)",
        workers="number of masks that are scored at a time (default: one for each processor)",
        made="folder with a cohort that `write_cohort` has made (default: one is made)",
    )
    count, shape, stride = (
        int(options.scans or 12),
        triple(options.shape, 512, 512, 300),
        triple(options.stride, 18, 18, 4),
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(options.made or place)
        if not options.made:
            write_cohort(folder, count, shape)
        cohort = Cohort(folder, count, shape, "la-4", options.device, stride=stride)
        segmented = segment_times(cohort, options.rounds, lambda done, total: print(f"{done} of {total}", flush=True))
        scored = score_times(cohort, int(options.workers or processors()))
    write_result(
        options.name,
        title="A cohort of scans segmented in turn and overlapping, and its masks scored one or several at a time",
        command=f"python benchmarks/cohort.py --scans {count} --shape {grid_name(shape)} --stride {grid_name(stride)}"
        + (" --device cuda" if options.device == "cuda" else ""),
        seed=0,
        device=options.device,
        settings={
            "scans": count,
            "shape": grid_name(shape),
            "network": "la-4 without resampling, windows of 112x112x80",
            "stride": grid_name(stride),
            "rounds": options.rounds,
            "unit": "the fastest round of each way; only ratios are claimed",
        },
        results=rounded({**segmented, **scored}),
        out=options.out,
    )


def triple(text: str | None, *otherwise: int) -> tuple[int, int, int]:
    """Return the three numbers of a text such as 18x18x4."""
    x, y, z = map(int, text.split("x")) if text else otherwise
    return x, y, z


def rounded(found: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping whose times have two decimals; whole numbers and truth values stay as they are."""
    return {
        name: rounded(value)
        if isinstance(value, dict)
        else round(value, DIGITS.get(name, 2))
        if isinstance(value, float)
        else value
        for name, value in found.items()
    }


if __name__ == "__main__":
    main()

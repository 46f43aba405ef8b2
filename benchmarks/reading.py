"""Time reading scans in this process and in a confined one: `python benchmarks/reading.py --data FOLDER`.

It is what `fheat bench read --data FOLDER` measures, see `fheat.bench.read`, for the first ten scans and four threads,
as training has. FOLDER is a dataset in any layout that `fheat data check` knows. Only ratios are claimed: `ratio` and
`threads_ratio` are those of confined reading to reading in this process.
"""

from record import arguments, write_result

from fheat.bench.read import CONFINED, TRUSTED, read_times
from fheat.bench.timing import Timer
from fheat.data.layouts import open_dataset

SCANS = 10
THREADS = 4


def main() -> None:
    options = arguments(__doc__, "reading", rounds=5, data="a dataset; its first scans are read")
    if options.data is None:
        raise SystemExit("give --data FOLDER")
    found = read_times(Timer(rounds=options.rounds), open_dataset(options.data), SCANS, THREADS)
    times, together = found["seconds"], found["threads_seconds"]
    results = {
        "seconds": {way: round(total, 3) for way, total in times.items()},
        "ratio": round(times[CONFINED] / times[TRUSTED], 3),
        "threads_seconds": {way: round(total, 3) for way, total in together.items()},
        "threads_ratio": round(together[CONFINED] / together[TRUSTED], 3),
        "store_seconds": {way: round(total, 3) for way, total in found.get("store_seconds", {}).items()},
        "start_s": round(found["start_s"], 2),
    }
    print(results)
    write_result(
        options.name,
        title="Time of reading scans in a confined process beside reading them in this one",
        command="python benchmarks/reading.py --data LA",
        seed=None,
        settings={
            "unit": "medians of the rounds, in turns in one process; only ratios are claimed",
            "rounds": options.rounds,
            "scans": found["scans"],
            "first_scan_bytes": found["first_scan_bytes"],
            "threads": THREADS,
        },
        results=results,
        out=options.out,
    )


if __name__ == "__main__":
    main()

"""`predict` over thousands of small scans in one process: `python -m tests.attack.campaigns.soak_predict --count 5000`.

Resident memory and open files are noted as it goes. What may grow is the record that becomes run.json: an entry of a
scan takes about 3 KiB, so from the first fifth of the scans to the last one memory may grow by 8 KiB for each scan.
"""

import os
import sys
import tempfile
from pathlib import Path

from fheat import Predictor
from fheat.inference.memory import resident_bytes
from fheat.inference.record import SegmentedScan
from fheat.inference.stages import FolderWatcher
from tests.attack.campaigns.common import options, report
from tests.attack.campaigns.predicting import make_model, make_scans

BYTES_PER_SCAN = 8 * 1024
EVERY = 50


class Meter(FolderWatcher):
    """Notes memory and the number of open files after every fiftieth scan."""

    def __init__(self) -> None:
        self.scans = 0
        self.notes: list[tuple[int, int, int]] = []

    def segmented(self, scan: SegmentedScan) -> None:
        """Note what the process holds."""
        self.scans += 1
        if self.scans % EVERY == 0:
            self.notes.append((self.scans, resident_bytes(), len(os.listdir("/proc/self/fd"))))


def main() -> int:
    """Segment all scans and compare the beginning with the end."""
    said = options(__doc__, "soak-predict-cpu", count=5000)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        scans = make_scans(base / "scans", [f"case{number:05d}" for number in range(said.count)], side=34)
        predictor = Predictor(make_model(base / "model"), device="cpu", runtime="torch")
        meter = Meter()
        record = predictor.segment_folder(scans, base / "out", watcher=meter)
        masks, size = len(list((base / "out").glob("*.nii.gz"))), (base / "out" / "run.json").stat().st_size
    begin, *_, end = [note for note in meter.notes if note[0] >= said.count // 5]
    growth = (end[1] - begin[1]) / (end[0] - begin[0])
    faults = [f"memory grows by {growth:.0f} bytes per scan"] if growth > BYTES_PER_SCAN else []
    faults += [f"{begin[2]} open files became {end[2]}"] if end[2] > begin[2] else []
    faults += [f"{masks} masks of {said.count} scans"] if masks != said.count or len(record.cases) != said.count else []
    results = {
        "scans": masks,
        "mib_at_a_fifth": round(begin[1] / 2**20, 1),
        "mib_at_the_end": round(end[1] / 2**20, 1),
        "bytes_per_scan": round(growth),
        "open_files": [begin[2], end[2]],
        "run_json_bytes_per_scan": round(size / said.count),
    }
    return report(
        said,
        "soak_predict",
        "Prediction of thousands of scans: memory and open files at the beginning and end",
        {},
        {**results, "faults": faults},
    )


if __name__ == "__main__":
    sys.exit(main())

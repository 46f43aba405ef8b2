"""Scans that overlap: the files of scans in turn, some ahead and some behind, within the bound, whatever happens."""

import errno
import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from fheat import Card, Predictor, create_model
from fheat.cli.main import main
from fheat.data.phantom import phantom
from fheat.inference import masks, overlap, stages
from fheat.inference.folder import predict_folder
from fheat.inference.overlap import Overlap, in_background
from fheat.inference.stages import FolderWatcher
from fheat.inference.windows import Windows
from fheat.io import Volume, read_nifti, write_nifti
from fheat.system.signals import interruptible

SIZE = (16, 16, 16)
CARD = Card(classes=("background", "chamber"), preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}})
LENGTHS = (34, 30, 34, 24)
LONG = 20
"""Seconds after which a thread that waits for another one gives up."""


def predictor_of(**options):
    torch.manual_seed(0)
    network = create_model("miniature", patch_size=SIZE)
    return Predictor(network, card=CARD, device="cpu", runtime="torch", windows=Windows(SIZE, SIZE), **options)


@pytest.fixture
def scans(tmp_path):
    """Return a folder of four scans, none larger than the first; there is a file among them that is none."""
    for seed, length in enumerate(LENGTHS):
        write_nifti(phantom(seed, (34, 24, length)).image, tmp_path / "scans" / f"case{seed}.nii.gz")
    (tmp_path / "scans" / "case1b.nii.gz").write_bytes(b"no scan")
    return tmp_path / "scans"


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """Let one scan be ahead and one behind, whatever the machine; return a function that sets another number."""

    def let(count):
        monkeypatch.setattr(overlap, "scans_beside", lambda: count)

    let(1)
    return let


class Log(FolderWatcher):
    """Keeps what is done, and told, in order; `during` is called while a scan is in the network."""

    def __init__(self, during=lambda case: None):
        self.events, self.bounds, self.during = [], {}, during

    @contextmanager
    def segmenting(self, case, workload):
        self.events.append(("windows", case))
        self.bounds[case] = workload.bound
        self.during(case)
        yield lambda done, total: None

    def segmented(self, scan):
        self.events.append(("told", scan.id))

    def refused(self, case, reason):
        self.events.append(("told", case))


@pytest.fixture
def log(monkeypatch):
    """Return a watcher that also logs when, and in which thread, a scan is read, and when its mask is written."""
    log, read, write = Log(), stages.read_image, masks.write_nifti

    def reading(case, limit):
        here = "reading" if threading.current_thread() is threading.main_thread() else "ahead"
        log.events.append((here, case.id))
        return read(case, limit)

    def writing(volume, path):
        write(volume, path)
        log.events.append(("written", path.name.split(".")[0]))

    monkeypatch.setattr(stages, "read_image", reading)
    monkeypatch.setattr(masks, "write_nifti", writing)
    return log


def facts(out):
    """Return what run.json says but for times, memory and the folder, and the content of all other files."""
    record = json.loads((out / "run.json").read_text())
    record["date"] = None
    for case in record["cases"]:
        case["seconds"] = case["memory_bound_bytes"] = case["memory_parts_bytes"] = None
        case["mask"] = case["mask"].removeprefix(str(out))
    return record, {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != "run.json"}


@pytest.mark.parametrize(
    "options", [{}, {"largest_component": True, "probabilities": True, "uncertainty": "entropy"}], ids=["plain", "maps"]
)
@pytest.mark.parametrize("count", [1, 3])
def test_files_and_record_are_those_of_scans_in_turn(scans, tmp_path, options, count, beside):
    beside(count)
    for both in (False, True):
        predictor = predictor_of(**options)
        record = predict_folder(predictor, scans, tmp_path / str(both), overlap=both)
        assert [scan.id for scan in record.cases] == [f"case{i}" for i in range(4)]
        assert list(record.refused) == ["case1b"]
    assert facts(tmp_path / "True") == facts(tmp_path / "False")
    assert len(facts(tmp_path / "True")[1]) == 4 * (2 + len(options) - ("largest_component" in options))
    again = predict_folder(predictor, scans, tmp_path / "True", overlap=True)
    assert (again.kept, again.cases, list(again.refused)) == ([f"case{i}" for i in range(4)], [], ["case1b"])


def test_the_next_is_read_and_the_last_is_written_while_one_is_in_the_network(scans, tmp_path, monkeypatch):
    """In the network each scan waits for the other two, in vain if they wait for it."""
    (scans / "case1b.nii.gz").unlink()
    read, write, reading, inside = stages.read_image, masks.write_nifti, {}, {}
    for name in [f"case{i}" for i in range(4)]:
        reading[name], inside[name] = threading.Event(), threading.Event()

    def slow_write(volume, path):
        following = inside.get(f"case{int(path.name[4]) + 1}")
        assert following is None or following.wait(LONG)
        write(volume, path)

    def during(case):
        inside[case].set()
        following = reading.get(f"case{int(case[4]) + 1}")
        assert following is None or following.wait(LONG)

    monkeypatch.setattr(stages, "read_image", lambda case, limit: reading[case.id].set() or read(case, limit))
    monkeypatch.setattr(masks, "write_nifti", slow_write)
    record = predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, watcher=Log(during), overlap=True)
    assert [scan.id for scan in record.cases] == [f"case{i}" for i in range(4)]


def test_one_scan_is_ahead_and_one_behind(scans, tmp_path, log):
    """A scan is read once the one two before has left the network, and after one that is refused in its turn."""
    predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, watcher=log, overlap=True)
    for number in range(2, 4):
        first_read = min(i for i, (what, case) in enumerate(log.events) if case == f"case{number}")
        assert log.events.index(("windows", f"case{number - 2}")) < first_read
        assert log.events.index(("told", f"case{number - 2}")) < log.events.index(("windows", f"case{number}"))
    read = [event for event in log.events if event[0] in ("reading", "ahead")]
    assert read == [
        ("reading", "case0"),
        ("ahead", "case1"),
        ("ahead", "case1b"),
        ("reading", "case1b"),
        ("reading", "case2"),
        ("ahead", "case3"),
    ]
    assert [case for what, case in log.events if what == "told"] == ["case0", "case1", "case1b", "case2", "case3"]


def test_several_scans_are_ahead_and_several_behind(scans, tmp_path, log, beside, monkeypatch):
    """Masks are written only when the last scan is in the network, and all are read ahead but the first."""
    (scans / "case1b.nii.gz").unlink()
    beside(3)
    last, write = threading.Event(), masks.write_nifti
    log.during = lambda case: last.set() if case == "case3" else None
    monkeypatch.setattr(masks, "write_nifti", lambda volume, path: last.wait(LONG) and write(volume, path))
    predictor = predictor_of()
    record = predict_folder(predictor, scans, tmp_path / "out", preview=False, watcher=log, overlap=True)
    assert {case for what, case in log.events if what == "reading"} == {"case0"}
    assert {case for what, case in log.events if what == "ahead"} == {"case1", "case2", "case3"}
    assert [scan.id for scan in record.cases] == [f"case{i}" for i in range(4)]
    told = [case for what, case in log.events if what == "told"]
    assert told == [f"case{i}" for i in range(4)]
    assert log.events.index(("windows", "case3")) < log.events.index(("told", "case0"))
    voxels = [34 * 24 * length for length in LENGTHS]
    ahead = [(3 - number) * 4 * voxels[0] for number in range(4)]
    behind = [sum(3 * count for count in voxels[:number]) for number in range(4)]
    assert [log.bounds[f"case{i}"].others for i in range(4)] == [a + b for a, b in zip(ahead, behind, strict=True)]


def test_as_many_scans_are_ahead_as_there_is_memory_for(scans, tmp_path, log, beside, monkeypatch):
    (scans / "case1b.nii.gz").unlink()
    beside(3)
    limit = 2 * 4 * 34 * 24 * LENGTHS[0]  # two scans while they are read
    for room in (stages, overlap):
        monkeypatch.setattr(room, "fits", lambda bound, others=0: others <= limit)
    record = predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, watcher=log, overlap=True)
    assert [scan.id for scan in record.cases] == [f"case{i}" for i in range(4)]
    assert log.bounds["case0"].others == limit
    assert max(bound.others for bound in log.bounds.values()) <= limit
    assert {case for what, case in log.events if what == "ahead"} >= {"case1", "case2"}


def test_where_memory_ends_what_was_read_ahead_is_left_to_its_turn(scans, tmp_path, log, beside, monkeypatch):
    (scans / "case1b.nii.gz").unlink()
    beside(2)
    expected = predict_folder(predictor_of(), scans, tmp_path / "expected", preview=False)
    del log.events[:]
    asked = []

    def scarce(bound, others=0):
        asked.append(others)
        return others == 0 or len(asked) < 3  # the first scan and what is ahead of it still fit

    monkeypatch.setattr(stages, "fits", scarce)
    monkeypatch.setattr(overlap, "fits", scarce)
    record = predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, watcher=log, overlap=True)
    assert [scan.mask_sha256 for scan in record.cases] == [scan.mask_sha256 for scan in expected.cases]
    read = [event for event in log.events if event[0] in ("reading", "ahead")]
    assert sorted(read[:3]) == [("ahead", "case1"), ("ahead", "case2"), ("reading", "case0")]
    assert read[3:] == [("reading", "case2"), ("reading", "case3")]
    assert [log.bounds[f"case{i}"].others > 0 for i in range(4)] == [True, False, False, False]


@pytest.mark.parametrize("odd", ["larger", "no scan"])
def test_after_a_scan_that_is_read_in_its_turn_the_others_are_read_ahead_again(odd, tmp_path, log, beside):
    """Two scans are read ahead of the odd one and again behind it; all later ones are read once."""
    beside(3)
    for number in range(9):
        path = tmp_path / "scans" / f"case{number}.nii.gz"
        write_nifti(phantom(number, (24, 24, 30 if number == 2 and odd == "larger" else 24)).image, path)
    if odd == "no scan":
        path = tmp_path / "scans" / "case2.nii.gz"
        path.write_bytes(b"no scan")
    record = predict_folder(predictor_of(), tmp_path / "scans", tmp_path / "out", watcher=log, overlap=True)
    assert len(record.cases) == 9 - (odd == "no scan")
    assert [case for what, case in log.events if what == "reading"] in (["case0", "case2"], ["case0", "case2", "case3"])
    ahead = [case for what, case in log.events if what == "ahead"]
    assert [ahead.count(f"case{number}") for number in range(6, 9)] == [1, 1, 1]


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (8, 2), (16, 4), (96, 4)])
def test_how_many_scans_are_beside_one(cores, count, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(overlap, "processors", lambda: cores)
    assert overlap.scans_beside() == count


def test_a_scan_larger_than_those_before_is_read_in_its_turn(scans, tmp_path, log):
    (scans / "case1b.nii.gz").unlink()
    write_nifti(phantom(1, (34, 24, 35)).image, scans / "case1.nii.gz")
    predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, watcher=log, overlap=True)
    read = [event for event in log.events if event[0] in ("reading", "ahead")]
    assert read == [
        ("reading", "case0"),
        ("ahead", "case1"),
        ("reading", "case1"),
        ("ahead", "case2"),
        ("ahead", "case3"),
    ]
    assert log.events.index(("told", "case0")) < log.events.index(("reading", "case1"))
    assert log.bounds["case1"].others == 2 * 2 * 34 * 24 * 35


def test_the_bound_counts_the_scan_before_and_the_largest_so_far(scans, tmp_path, log):
    (scans / "case1b.nii.gz").unlink()
    predictor = predictor_of(largest_component=True)
    record = predict_folder(predictor, scans, tmp_path / "out", preview=False, watcher=log, overlap=True)
    alone = [predictor.memory(read_nifti(scans / f"case{i}.nii.gz")) for i in range(4)]
    voxels = [34 * 24 * length for length in LENGTHS]
    assert [bound.scan for bound in alone] == [2 * count for count in voxels]  # phantoms are stored as int16
    behind = [0, *(2 * count + count + 14 * count for count in voxels)]
    ahead = [4 * voxels[0], 4 * voxels[0], 4 * voxels[0], 0]  # voxels, and a copy of one channel
    for number, bound in enumerate(alone):
        others = behind[number] + ahead[number]
        seen = log.bounds[f"case{number}"]
        bound = replace(bound, program=seen.program)  # what the process holds may have changed since then
        assert seen == replace(bound, others=others)
        assert record.cases[number].memory_bound_bytes == seen.total
        assert seen.total == pytest.approx(bound.total + 1.05 * others, abs=1)


def test_without_the_memory_scans_have_the_machine_for_themselves(scans, tmp_path, log, monkeypatch):
    predictor = predictor_of()
    largest = max(predictor.memory(read_nifti(scans / f"case{i}.nii.gz")).total for i in range(4))
    for path in scans.iterdir():
        path.write_bytes((scans / "case0.nii.gz").read_bytes())
    monkeypatch.setattr(stages, "machine_bytes", lambda: largest)
    predict_folder(predictor, scans, tmp_path / "out", preview=False, watcher=log, overlap=True)
    names = ["case0", "case1", "case1b", "case2", "case3"]
    assert log.events == [(what, name) for name in names for what in ("reading", "windows", "written", "told")]
    assert {(bound.others, bound.total) for bound in log.bounds.values()} == {(0, largest)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_scan_in_work_with_its_mask(scans, tmp_path, number):
    log = Log(lambda case: case == "case1" and signal.raise_signal(number))
    with interruptible(), pytest.raises(KeyboardInterrupt) as stopped:
        predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, watcher=log, overlap=True)
    assert stopped.value.args == ({signal.SIGINT: 130, signal.SIGTERM: 143}[number],)
    assert [event for event in log.events if event[0] == "told"] == [("told", "case0"), ("told", "case1")]
    record, files = facts(tmp_path / "out")
    assert ([case["id"] for case in record["cases"]], record["complete"]) == (["case0", "case1"], False)
    assert list(files) == ["case0.nii.gz", "case1.nii.gz"]
    again = predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, overlap=True)
    assert (again.kept, [scan.id for scan in again.cases]) == (["case0", "case1"], ["case2", "case3"])


def test_an_interruption_within_a_scan_keeps_the_mask_behind_it(scans, tmp_path):
    def during(case):
        if case == "case1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, watcher=Log(during), overlap=True)
    record, files = facts(tmp_path / "out")
    assert [case["id"] for case in record["cases"]] == [name.split(".")[0] for name in files] == ["case0"]


def test_a_full_disk_stops_the_run_and_leaves_the_record_of_what_is_done(scans, tmp_path, monkeypatch):
    write = masks.write_nifti

    def full(volume, path):
        if path.name == "case1.nii.gz":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(volume, path)

    monkeypatch.setattr(masks, "write_nifti", full)
    with pytest.raises(OSError, match="No space left"):
        predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, overlap=True)
    record, files = facts(tmp_path / "out")
    assert ([case["id"] for case in record["cases"]], record["complete"]) == (["case0"], False)
    assert list(files) == ["case0.nii.gz"]


def test_of_several_masks_behind_one_that_fails_loses_none_of_the_others(scans, tmp_path, beside, monkeypatch):
    """The disk is full for one mask while those after it are written; the next run knows them as its own."""
    (scans / "case1b.nii.gz").unlink()
    beside(3)
    write, others = masks.write_nifti, threading.Event()

    def full(volume, path):
        if path.name == "case1.nii.gz":
            others.wait(LONG)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(volume, path)
        if path.name == "case2.nii.gz":
            others.set()

    monkeypatch.setattr(masks, "write_nifti", full)
    with pytest.raises(OSError, match="No space left"):
        predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, overlap=True)
    record, files = facts(tmp_path / "out")
    assert {case["id"] for case in record["cases"]} == {name.split(".")[0] for name in files} >= {"case0", "case2"}
    assert not list((tmp_path / "out").glob(".run-*.jsonl"))
    monkeypatch.setattr(masks, "write_nifti", write)
    again = predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, overlap=True)
    assert again.refused == {}
    assert sorted([*again.kept, *(scan.id for scan in again.cases)]) == [f"case{i}" for i in range(4)]


def test_a_mask_that_cannot_be_written_refuses_its_scan_only(scans, tmp_path, monkeypatch):
    write = masks.write_nifti

    def broken(volume, path):
        if path.name == "case0.nii.gz":
            raise ValueError("no way")
        write(volume, path)

    monkeypatch.setattr(masks, "write_nifti", broken)
    record = predict_folder(predictor_of(), scans, tmp_path / "out", preview=False, overlap=True)
    assert [scan.id for scan in record.cases] == ["case1", "case2", "case3"]
    assert list(record.refused) == ["case0", "case1b"]
    assert "no way" in record.refused["case0"]


def test_the_line_of_a_scan_says_its_place_whatever_is_still_written(scans, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(predict_folder.__kwdefaults__, "overlap", True)
    assert main(["predict", "phantom", str(scans), str(tmp_path / "out"), "--no-preview", "--runtime", "torch"]) == 3
    told = [line for line in capsys.readouterr().err.splitlines() if ": case" in line and line.startswith("scan")]
    places = [(line.split(":")[0].split(",")[0], line.split(": ")[1]) for line in told]
    assert places == [(f"scan {place} of 5", f"case{i}") for place, i in ((1, 0), (2, 1), (4, 2), (5, 3))]


RUN = """
import sys, torch
from pathlib import Path
from torch import nn
from fheat import Predictor
from fheat.inference.folder import predict_folder
from fheat.inference.masks import Preview
from fheat.inference.windows import Windows
from fheat.system.allocator import return_large_blocks

torch.set_num_threads(1)
torch.manual_seed(0)
return_large_blocks()
network = nn.Sequential(nn.Conv3d(1, 4, 1), nn.ReLU(), nn.Conv3d(4, 2, 1))
components, reference = sys.argv[3] == "components", None if sys.argv[4] == "none" else Path(sys.argv[4])
predictor = Predictor(network, windows=Windows((32, 32, 32), (32, 32, 32)), largest_component=components)
record = predict_folder(predictor, sys.argv[1], sys.argv[2], overlap=True, preview=Preview(reference=reference))
bound = max(scan.memory_bound_bytes for scan in record.cases)
others = max(scan.memory_parts_bytes["others"] for scan in record.cases)
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(bound, others, peak)
"""


def test_an_interruption_of_the_wait_for_the_last_mask_leaves_it_ours(scans, tmp_path, monkeypatch):
    """Its journal stays, so that the next run knows a mask that no record has."""
    (scans / "case1b.nii.gz").unlink()
    interrupted, left = [], Overlap.left

    def during(case):
        if case == "case1":
            interrupted.append(case)
            raise KeyboardInterrupt

    def impatient(self):
        if interrupted:
            raise KeyboardInterrupt
        return left(self)

    monkeypatch.setattr(Overlap, "left", impatient)
    with pytest.raises(KeyboardInterrupt):
        predict_folder(predictor_of(), scans, tmp_path / "out", watcher=Log(during), overlap=True)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["cases"] == []
    interrupted.clear()
    again = predict_folder(predictor_of(), scans, tmp_path / "out", overlap=True)
    assert again.refused == {}
    assert [*again.kept, *(scan.id for scan in again.cases)] == [f"case{i}" for i in range(4)]
    assert not list((tmp_path / "out").glob(".run-*.jsonl"))


def test_a_scan_that_is_read_ahead_keeps_no_program_from_ending():
    begun, never = threading.Event(), threading.Event()
    reading = in_background(lambda: begun.set() or never.wait())
    assert begun.wait(LONG)
    (thread,) = [one for one in threading.enumerate() if one.name == "reading"]
    assert thread.daemon
    assert not reading.done()
    never.set()
    assert reading.result(LONG)
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 / 0).result(LONG)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is reported in other units")
@pytest.mark.parametrize(("kept", "written"), [("components", 14), ("reference", 10)])
def test_the_peak_of_scans_that_overlap_stays_within_the_bound(tmp_path, kept, written):
    """Behind the network either the largest component is looked for, or a picture with a reference is drawn."""
    noise = np.random.default_rng(0)
    for number in range(4):
        data = noise.integers(-1000, 1000, (200, 200, 200 - 20 * (number % 2)), dtype=np.int16)
        write_nifti(Volume(data, np.eye(4)), tmp_path / "scans" / f"case{number}.nii")
        write_nifti(Volume((data > 0).astype(np.uint8), np.eye(4)), tmp_path / "references" / f"case{number}.nii.gz")
    reference = str(tmp_path / "references") if kept == "reference" else "none"
    command = [sys.executable, "-c", RUN, str(tmp_path / "scans"), str(tmp_path / "out"), kept, reference]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bound, others, peak = map(int, said.split())
    assert others > 200**3 * (2 + 1 + written)
    assert peak <= bound

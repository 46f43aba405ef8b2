"""Reading in another process: the same volumes, errors and warnings as in this one, and no file that stops this one."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel
import numpy as np
import pytest

from fheat import BadInput
from fheat.io import Volume, child, confined, parse_volume, read_series, read_volume, trusting, write_nifti
from fheat.io.confined import ConfinedReader, read_confined
from fheat.system.trust import VARIABLE, is_trusting

LIMIT = 2**30


def scan(shape=(9, 8, 7), dtype=np.int16, seed=0):
    return (1000 * np.random.default_rng(seed).random(shape)).astype(dtype)


def saved(path, data=None, **options):
    write_nifti(Volume(scan(**options) if data is None else data, np.diag([0.5, 0.625, 2, 1])), path)
    return path


def outcome(read, path, **options):
    """Return what two ways of reading must agree on: all that a volume has, or the words of a refusal."""
    try:
        volume = read(path, **options)
    except BadInput as error:
        return error.path, error.reason, error.remedy
    data, flags = volume.data, volume.data.flags
    order = flags.f_contiguous, flags.c_contiguous, flags.writeable
    return data.tobytes(), data.dtype, data.shape, order, volume.affine.tobytes(), volume.affine.dtype


def agree(path, **options):
    found = outcome(read_volume, path, **options)
    assert found == outcome(parse_volume, path, **options)
    return found


def test_healthy_nifti_files_come_back_as_in_this_process(tmp_path):
    for dtype in ("u1", "i2", "u2", "i4", "f4", "f8"):
        for ending in (".nii", ".nii.gz"):
            assert len(agree(saved(tmp_path / f"{dtype}{ending}", dtype=dtype))) == 6
    agree(saved(tmp_path / "channels.nii.gz", shape=(5, 4, 3, 2)))
    agree(saved(tmp_path / "mask.nii.gz", scan() > 500))
    agree(saved(tmp_path / "Ünusual \udcff name.nii.gz"))
    image = nibabel.Nifti1Image(scan(dtype=">i2"), np.eye(4))
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, tmp_path / "scaled.nii")
    nibabel.save(nibabel.Nifti2Image(scan(), np.eye(4)), tmp_path / "second.nii.gz")
    for name in ("scaled.nii", "second.nii.gz"):
        assert len(agree(tmp_path / name)) == 6


def test_a_reader_that_was_started_ahead_reads_the_next_file(tmp_path):
    confined._close_idle()
    confined.start_reader()
    confined.start_reader()
    (reader,) = confined._IDLE[os.getpid()]
    process = reader._process.pid
    agree(saved(tmp_path / "scan.nii.gz"))
    assert [one._process.pid for one in confined._IDLE[os.getpid()]] == [process]


def test_each_of_many_threads_keeps_its_reader_and_two_stay_afterwards(tmp_path, monkeypatch):
    """Without `many_readers` four threads that read at a time start two processes anew with every round of files."""
    confined._close_idle()
    path, begun, started = saved(tmp_path / "scan.nii.gz"), threading.Barrier(4), confined._start
    starts = []
    monkeypatch.setattr(confined, "_start", lambda: starts.append(1) or started())

    def read(number):
        begun.wait(60)
        return read_volume(path).data

    with ThreadPoolExecutor(4) as threads:
        with confined.many_readers(4):
            volumes = list(threads.map(read, range(12)))
            assert len(starts) == len(confined._IDLE[os.getpid()]) == 4
        assert len(confined._IDLE[os.getpid()]) == confined.MOST_IDLE == 2
        assert all(np.array_equal(one, scan()) for one in volumes)
        list(threads.map(read, range(12)))
    assert len(starts) > 6
    assert confined._WANTED == [0]


def test_a_reader_that_cannot_be_started_ahead_is_no_error(monkeypatch, tmp_path):
    confined._close_idle()
    monkeypatch.setattr(confined.sys, "executable", str(tmp_path / "missing"))
    confined.start_reader()
    assert not confined._IDLE[os.getpid()]


def test_200_damaged_nifti_files_are_refused_in_the_same_words(tmp_path):
    content, rng = saved(tmp_path / "good.nii").read_bytes(), np.random.default_rng(0)
    packed = saved(tmp_path / "good.nii.gz").read_bytes()
    refused = 0
    for trial in range(200):
        changed = bytearray(packed if trial % 4 == 0 else content)
        changed[int(rng.integers(min(len(changed), 352)))] = int(rng.integers(256))
        path = tmp_path / ("bad.nii.gz" if trial % 4 == 0 else "bad.nii")
        path.write_bytes(changed[: rng.integers(len(changed))] if trial % 10 == 0 else changed)
        refused += len(agree(path, limit=2**20)) == 3
    assert refused > 60


def test_nrrd_and_what_is_no_scan(tmp_path):
    nrrd = pytest.importorskip("nrrd")
    header = {"space": "LPS", "space directions": np.eye(3), "space origin": np.zeros(3)}
    for encoding in ("raw", "gzip"):
        nrrd.write(str(tmp_path / f"{encoding}.nrrd"), scan(), header | {"encoding": encoding})
        assert len(agree(tmp_path / f"{encoding}.nrrd")) == 6
    content = (tmp_path / "gzip.nrrd").read_bytes()
    for length in (0, 40, 200, len(content) - 9):
        (tmp_path / "cut.nrrd").write_bytes(content[:length])
        assert len(agree(tmp_path / "cut.nrrd")) == 3
    (tmp_path / "notes.txt").write_text("hello")
    for name in ("notes.txt", "missing.nii", "missing.txt", "missing.nrrd"):
        assert len(agree(tmp_path / name)) == 3
    (tmp_path / "folder.nii").mkdir()
    assert "holds no DICOM files" in agree(tmp_path / "folder.nii")[1]


def test_dicom_series_with_their_headers(tmp_path):
    pytest.importorskip("pydicom")
    from tests.io.dicom_series import save, slices

    folder = tmp_path / "series"
    save(slices(scan((12, 10, 7)), np.diag([1, 1, 2, 1])), folder)
    assert len(agree(folder)) == 6
    series = read_series(folder)
    with trusting():
        trusted = read_series(folder)
    assert series.sources == trusted.sources
    assert np.array_equal(series.volume.data, trusted.volume.data)
    damaged = sorted(folder.iterdir())[3]
    damaged.write_bytes(damaged.read_bytes()[:600])
    path, *_ = agree(folder)
    assert path in (folder, damaged)
    sorted(folder.iterdir())[3].unlink()
    assert "a gap of" in agree(folder)[1]


def test_a_relative_path_starts_from_where_this_process_is(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name / "scan.nii", seed=ord(name))
    for name in ("a", "b"):
        monkeypatch.chdir(tmp_path / name)
        assert np.array_equal(read_volume("scan.nii").data, scan(seed=ord(name)))
        assert agree("missing.nii")[0] == Path("missing.nii")


def test_trusted_files_are_read_here(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.nii.gz")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("fheat.io.read_confined", lambda *_: pytest.fail("another process was asked"))
    with trusting():
        assert is_trusting()
        with trusting(False):
            assert np.array_equal(read_volume(path).data, scan())
        seen = []
        thread = threading.Thread(target=lambda: seen.append(read_volume(path)))
        thread.start()
        thread.join()
        assert len(seen) == 1
    assert not is_trusting()
    with trusting(False):
        assert not is_trusting()


def changed_child(tmp_path, monkeypatch, instead):
    """Put other lines in the place of the call of the parser in the reading process."""
    text, call = Path(child.__file__).read_text(), "arrays, affine = read(request)"
    assert call in text
    source = tmp_path / "child.py"
    source.write_text(text.replace(call, f"{instead}; {call}"))
    monkeypatch.setattr(child, "__file__", str(source))


def test_warnings_of_a_reader_arrive(tmp_path, monkeypatch):
    changed_child(tmp_path, monkeypatch, "warnings.warn('odd', RuntimeWarning); warnings.warn('new', ImportWarning)")
    with ConfinedReader() as reader:
        with pytest.warns() as heard:
            assert reader.read("volume", saved(tmp_path / "a.nii"), LIMIT).arrays["image"].shape == (9, 8, 7)
        assert [(one.category, str(one.message)) for one in heard] == [(RuntimeWarning, "odd"), (UserWarning, "new")]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the limits are those of POSIX")
@pytest.mark.parametrize(
    ("instead", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "is damaged (the process that read it ended with code 11)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "is damaged (the process that read it ended with code 9)"),
        ("os.kill(os.getpid(), signal.SIGALRM)", "took longer than"),
        ("os.kill(os.getpid(), signal.SIGXCPU)", "took longer than"),
        ("bytearray(2**46)", "needs more memory than its size allows"),
        ("open('new', 'wb', 0).write(b'x')", "is damaged (OSError: [Errno 27] File too large)"),
        ("[os.open('.', os.O_RDONLY) for _ in range(70)]", "is damaged (OSError: [Errno 24] Too many open files: '.')"),
        ("os.write(2, b'x'); print('x', flush=True); 1 / 0", "is damaged (ZeroDivisionError: division by zero)"),
    ],
)
@pytest.mark.parametrize("kind", ["volume", "h5"])
def test_a_file_that_goes_too_far_and_the_next_one(tmp_path, monkeypatch, kind, instead, says):
    """The real process, with a parser that ends the way a heap overflow, the clock or a limit ends it."""
    path = saved(tmp_path / "a.nii")
    with ConfinedReader() as reader:
        with monkeypatch.context() as patch:
            changed_child(tmp_path, patch, instead)
            with pytest.raises(BadInput) as caught:
                reader.read(kind, path, LIMIT)
            assert caught.value.path == path
            assert caught.value.reason.startswith(says)
        if instead.endswith("SIGSEGV)"):
            assert np.array_equal(reader.read("volume", path, LIMIT).arrays["image"], scan())


def stand_in(tmp_path, monkeypatch, body):
    """Put a script in the place of the reading process."""
    script = tmp_path / "child.py"
    script.write_text(f"import os, sys, time\nfor line in sys.stdin:\n    {body}\n    sys.stdout.flush()\n")
    monkeypatch.setattr(child, "__file__", str(script))


SOUND = '"warnings": [], "affine": null'


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(1)",
        "print('nonsense')",
        "print('[]')",
        "print('7')",
        f"""print('{{"arrays": [], {SOUND}}}')""",
        f"""print('{{"arrays": [["image", "O", [2, 2, 2], "C"]], {SOUND}}}' + 'x' * 64)""",
        f"""print('{{"arrays": [["image", "<f4", [-2, -2, 2], "C"]], {SOUND}}}')""",
        f"""print('{{"arrays": [["image", "<f4", [2, 2, 2.5], "C"]], {SOUND}}}')""",
        f"""print('{{"arrays": [["image", "<f4", [2, 2, 2], "K"]], {SOUND}}}')""",
        f"""print('{{"arrays": [["image", "<f4", [20000, 20000, 20000], "C"]], {SOUND}}}')""",
        f"""print('{{"arrays": [["image", "<f4", [2, 2, 2], "C"]], {SOUND}}}'); sys.stdout.flush(); os._exit(0)""",
        """print('{"error": ["reason"], "warnings": []}')""",
        "print('x' * 2000000)",
        "print('[' * 60000)",
    ],
)
def test_a_process_that_lies_is_replaced(tmp_path, monkeypatch, body):
    path = saved(tmp_path / "a.nii")
    with ConfinedReader() as reader:
        stand_in(tmp_path, monkeypatch, body)
        with pytest.raises(BadInput, match=r"is damaged \(the (process that read it|answer of its reader)"):
            reader.read("volume", path, LIMIT)
        assert reader._process is None


@pytest.mark.parametrize(
    "affine", ["null", "[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]", "[[NaN, 0, 0, 0]]"]
)
def test_a_place_in_space_that_cannot_be_is_refused(tmp_path, monkeypatch, affine):
    reply = f'{{"arrays": [["image", "|u1", [2, 2, 2], "F"]], "affine": {affine}, "warnings": []}}'
    stand_in(tmp_path, monkeypatch, f"print('{reply}'); sys.stdout.write('x' * 8)")
    with ConfinedReader() as reader:
        monkeypatch.setattr("fheat.io.read_confined", reader.read)
        with pytest.raises(BadInput, match="makes no sense"):
            read_volume(tmp_path / "a.nii")


def test_an_error_names_no_other_file_and_has_one_line(tmp_path, monkeypatch):
    reply = '{"error": ["elsewhere/passwd", "is\\\\nodd\\\\u001b[1m", "x"], "warnings": []}'
    stand_in(tmp_path, monkeypatch, f"print('{reply}')")
    with ConfinedReader() as reader, pytest.raises(BadInput) as caught:
        reader.read("volume", tmp_path / "a.nii", LIMIT)
    assert caught.value.path == tmp_path / "a.nii"
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_process_that_hangs_is_stopped(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.nii")
    with ConfinedReader(timeout=0.2) as reader:
        stand_in(tmp_path, monkeypatch, "time.sleep(3600)")
        with pytest.raises(BadInput, match=r"took longer than 0\.2"):
            reader.read("volume", path, LIMIT)


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_signals_are_for_the_parent(tmp_path):
    path = saved(tmp_path / "a.nii")
    with ConfinedReader() as reader:
        reader.read("volume", path, LIMIT)
        process = reader._process
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process.pid, number)
        assert reader.read("volume", path, LIMIT).arrays["image"].shape == (9, 8, 7)
        assert reader._process is process
        assert os.getpgid(process.pid) != os.getpgid(0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("kind", ["volume", "h5"])
def test_reading_processes_end_with_the_parent(tmp_path, monkeypatch, kind):
    """The parent is killed while a parser would work for an hour; nobody closes anything."""
    note = "open(2, 'wb', closefd=False).write(b'%d ' % os.getpid())"
    changed_child(tmp_path, monkeypatch, f"{note}; time.sleep(3600)")
    code = (
        "import subprocess, sys\nfrom fheat.io import child, confined\n"
        f"child.__file__ = {str(tmp_path / 'child.py')!r}\n"
        "subprocess.DEVNULL = None\n"  # so that the processes can say who they are
        f"confined.ConfinedReader().read({kind!r}, 'a.nii', 2**20)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, cwd=tmp_path)
    said = b""
    while b" " not in said:
        said += parent.stderr.read(1)
    parent.kill()
    parent.wait()
    parent.stderr.read()  # returns when all have closed it, which is when they have ended
    parent.stderr.close()
    state = Path(f"/proc/{int(said)}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.01)


def test_threads_read_at_the_same_time(tmp_path):
    """Each waits in the middle of its reading for the other, so one process for both would never end."""
    paths = [saved(tmp_path / f"{seed}.nii", seed=seed) for seed in range(2)]
    both, seen = threading.Barrier(2), {}
    start = confined._ask

    def ask(*arguments):
        both.wait(120)
        start(*arguments)

    def work(seed):
        seen[seed] = read_confined("volume", paths[seed], LIMIT).arrays["image"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confined, "_ask", ask)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for seed in range(2):
        assert np.array_equal(seen[seed], scan(seed=seed))

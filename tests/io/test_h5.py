"""HDF5: voxels come back as stored, and no file reaches this process or stops it."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from fheat import BadInput
from fheat.io.confined import ConfinedReader
from fheat.io.h5 import read_h5
from tests.refusals import refused

h5py = pytest.importorskip("h5py")


def voxels(shape=(9, 8, 7), dtype=np.float32, seed=0):
    return (100 * np.random.default_rng(seed).random(shape)).astype(dtype)


def write(path, image=None, label=None, **options):
    with h5py.File(path, "w") as file:
        for name, data in (("image", image), ("label", label)):
            if data is not None:
                file.create_dataset(name, data=data, **options)
    return path


def refusal(path, **options):
    error = refused(read_h5, path, **options)
    assert str(path) in str(error)
    return error.reason


@pytest.mark.parametrize("image_type", ["f4", "f8", "f2", "i2", ">f4"])
@pytest.mark.parametrize("label_type", ["u1", "i2", "u2", ">i4"])
def test_voxels_and_types_come_back(tmp_path, image_type, label_type):
    image, label = voxels(dtype=image_type), (voxels(seed=1) > 50).astype(label_type)
    path = write(tmp_path / "a.h5", image, label, compression="gzip", chunks=(3, 4, 5))
    again, mask = read_h5(path, spacing=(0.5, 0.625, 2))
    assert np.array_equal(again.data, image)
    assert np.array_equal(mask.data, label)
    assert again.data.dtype == np.dtype(image_type).newbyteorder("=")
    assert mask.data.dtype == np.dtype(label_type).newbyteorder("=")
    assert again.spacing == mask.spacing == (0.5, 0.625, 2)
    assert again.orientation == "RAS"


def test_bool_labels_absent_labels_and_odd_names(tmp_path):
    mask = voxels(seed=1) > 50
    path = write(tmp_path / "Ünusual \udcff name.h5", voxels(), mask)
    label = read_h5(path)[1]
    assert label.data.dtype == np.uint8
    assert np.array_equal(label.data, mask)
    assert read_h5(write(tmp_path / "b.h5", voxels()))[1] is None


@pytest.mark.slow
def test_500_mutated_files_and_the_parent_lives(tmp_path):
    """Bytes, runs and truncations at random: BadInput or a sound volume, and good files in between are read right."""
    image, label = voxels((12, 11, 10)), (voxels((12, 11, 10), seed=1) > 50).astype(np.uint8)
    good, path = write(tmp_path / "good.h5", image, label, compression="gzip"), tmp_path / "bad.h5"
    content, rng = good.read_bytes(), np.random.default_rng(3)
    # Nearly all of the file is voxels; three of four changes go where its structure is.
    structure = np.flatnonzero(np.frombuffer(content, np.uint8)[:2400] != 0)
    refused = passed = 0
    for trial in range(500):
        changed = bytearray(content)
        for _ in range(rng.integers(1, 6)):
            place = int(rng.choice(structure)) if rng.random() < 0.75 else int(rng.integers(len(content)))
            piece = rng.bytes(int(rng.integers(1, 9))) if rng.random() < 0.7 else b"\xff" * int(rng.integers(1, 9))
            changed[place : place + len(piece)] = piece
        path.write_bytes(changed[: rng.integers(len(content))] if trial % 10 == 0 else changed)
        try:
            volume, mask = read_h5(path, limit=2**26)
        except BadInput:
            refused += 1
        else:
            assert np.isfinite(volume.data).all()
            assert mask is None or mask.data.shape == volume.data.shape
            passed += 1
        if trial % 50 == 0:
            assert np.array_equal(read_h5(good)[0].data, image)
    assert refused > 200
    assert passed > 20


def test_what_leads_out_of_the_file_is_refused(tmp_path):
    other = write(tmp_path / "other.h5", voxels())
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file["image"] = h5py.ExternalLink("other.h5", "/image")
    assert refusal(tmp_path / "external.h5") == "field image is a link to another place"
    with h5py.File(tmp_path / "soft.h5", "w") as file:
        file["scan"] = voxels()
        file["image"] = h5py.SoftLink("/scan")
    assert refusal(tmp_path / "soft.h5") == "field image is a link to another place"
    layout = h5py.VirtualLayout(shape=(9, 8, 7), dtype="f4")
    layout[:] = h5py.VirtualSource(other, "image", shape=(9, 8, 7))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("image", layout)
    assert refusal(tmp_path / "virtual.h5") == "field image is kept in other files"
    (tmp_path / "secret").write_bytes(bytes(504 * 4))
    with h5py.File(tmp_path / "storage.h5", "w") as file:
        file.create_dataset("image", (9, 8, 7), "f4", external=[(str(tmp_path / "secret"), 0, 504 * 4)])
    assert refusal(tmp_path / "storage.h5") == "field image is kept in other files"


@pytest.mark.parametrize(
    ("image", "label", "says"),
    [
        (None, np.zeros((2, 2, 2)), "has no dataset 'image', only ['label']"),
        (np.zeros((4, 4)), None, "field image has shape (4, 4): expected (X, Y, Z)"),
        (np.zeros((2, 2, 2, 2)), None, "field image has shape (2, 2, 2, 2): expected (X, Y, Z)"),
        (np.zeros((0, 2, 2)), None, "field image has shape (0, 2, 2): expected (X, Y, Z)"),
        (np.zeros((2, 2, 2), complex), None, "field image has type complex128: expected integers or floats"),
        (np.full((2, 2, 2), "x", h5py.string_dtype()), None, "field image has type object"),
        (np.full((2, 2, 2), np.nan), None, "field image holds 8 voxels that are NaN or infinite"),
        (np.zeros((2, 2, 2)), np.full((2, 2, 2), np.inf), "field label holds 8 voxels"),
        (np.zeros((2, 2, 2)), np.zeros((2, 2, 3)), "field label has shape (2, 2, 3), the image (2, 2, 2)"),
    ],
)
def test_what_is_not_a_scan_is_refused(tmp_path, image, label, says):
    assert refusal(write(tmp_path / "a.h5", image, label)).startswith(says)


def test_groups_missing_files_folders_and_text(tmp_path):
    with h5py.File(tmp_path / "group.h5", "w") as file:
        file.create_group("image")
    assert refusal(tmp_path / "group.h5") == "field image is a group, not a dataset"
    assert refusal(tmp_path / "missing.h5") == "cannot be read (No such file or directory)"
    assert refusal(tmp_path) == "is a folder"
    (tmp_path / "text.h5").write_text("hello" * 100)
    assert refusal(tmp_path / "text.h5").startswith("is damaged")


def test_declared_sizes_are_capped_before_reading(tmp_path):
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("image", (2000, 2000, 2000), "f4", chunks=(100, 100, 100))
    assert (tmp_path / "huge.h5").stat().st_size < 10_000
    assert refusal(tmp_path / "huge.h5") == "declares 32,000,000,000 bytes, over the limit of 8,589,934,592"
    path = write(tmp_path / "a.h5", voxels(dtype=np.float32), voxels(dtype=np.uint8))
    assert refusal(path, limit=9 * 8 * 7 * 5 - 1) == "declares 2,520 bytes, over the limit of 2,519"
    assert read_h5(path, limit=9 * 8 * 7 * 5)[0].data.shape == (9, 8, 7)


def test_voxels_that_are_not_in_the_file_are_not_made_up(tmp_path, monkeypatch):
    """HDF5 fills what was never written: 1,400 bytes that declare 1.9 GiB became 1.9 GiB of zeros here."""
    monkeypatch.setattr("fheat.io.confined._declared", lambda *_: pytest.fail("memory was taken for it"))
    for name, options in {
        "chunked": {"chunks": (800, 800, 800)},
        "whole": {},
        "late": {"chunks": (8, 800, 800)},
    }.items():
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            data = file.create_dataset(
                "image", (800, 800, 800), "f4", compression="gzip" if options else None, **options
            )
            if name == "late":
                data[:8] = 1
        assert path.stat().st_size < 100_000
        assert refusal(path).startswith("field image declares 2,048,000,000 bytes of voxels and holds ")
    with h5py.File(tmp_path / "gap.h5", "w") as file:
        file.create_dataset("image", (8, 8, 8), "f4", chunks=(4, 8, 8))[:4] = voxels((4, 8, 8))
    assert refusal(tmp_path / "gap.h5") == "field image holds 1 of 2 chunks"


def test_a_mask_that_packs_as_well_as_gzip_can_is_read(tmp_path):
    path = write(tmp_path / "a.h5", voxels((64, 64, 64)), np.zeros((64, 64, 64), np.uint8), compression="gzip")
    assert not read_h5(path)[1].data.any()


@pytest.mark.skipif(os.name != "posix", reason="memory is bounded where the system lets it be")
def test_a_chunk_larger_than_memory_allows(tmp_path):
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        data = file.create_dataset(
            "image", (1, 1, 1), "f4", chunks=(900, 1000, 1000), maxshape=(None, None, None), compression="gzip"
        )
        data.id.write_direct_chunk((0, 0, 0), b"\x78\x9c" + bytes(64))
    assert refusal(tmp_path / "chunk.h5", limit=2**20)


def test_threads_do_not_mix_their_answers(tmp_path):
    paths = [write(tmp_path / f"{seed}.h5", voxels((40, 40, 40), seed=seed)) for seed in range(4)]
    wrong = []

    def work(seed):
        for _ in range(5):
            if not np.array_equal(read_h5(paths[seed])[0].data, voxels((40, 40, 40), seed=seed)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is inherited without a fork")
def test_a_forked_process_starts_its_own_reader(tmp_path):
    """As a loader of training does; both processes read at once."""
    write(tmp_path / "a.h5", voxels(seed=1)), write(tmp_path / "b.h5", voxels(seed=2))
    code = (
        "import os, sys\nfrom fheat.io.h5 import read_h5\n"
        "means = {name: read_h5(name)[0].data.mean() for name in ('a.h5', 'b.h5')}\n"
        "child = os.fork()\n"
        "name = 'b.h5' if child else 'a.h5'\n"
        "right = all(read_h5(name)[0].data.mean() == means[name] for _ in range(20))\n"
        "os._exit(0 if right else 1) if child == 0 else None\n"
        "print(right, os.waitpid(child, 0)[1], 'h5py' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0", "False"]


def test_without_h5py_the_remedy_is_named(tmp_path, monkeypatch):
    (tmp_path / "h5py.py").write_text("raise ImportError('no such package')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with ConfinedReader() as reader, pytest.raises(BadInput, match=r"needs the package h5py; install fheat\[h5\]"):
        reader.read("h5", tmp_path / "a.h5", 2**20)

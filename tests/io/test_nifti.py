"""NIfTI: exact round trips in every orientation, and no damaged file that passes."""

import gzip
import os
import struct
import tracemalloc

import nibabel
import numpy as np
import pytest

from fheat import BadInput
from fheat.io import Volume, read_nifti, write_nifti
from tests.grids import affines
from tests.refusals import refused


def scan(shape=(9, 8, 7), dtype=np.int16, seed=0):
    rng = np.random.default_rng(seed)
    return (1000 * rng.random(shape)).astype(dtype)


def stored_header(data, affine=None):
    """Return the header of a single file with these voxels, as it is stored."""
    header = nibabel.Nifti1Image(data, np.eye(4) if affine is None else affine).header
    header["vox_offset"] = 352
    return header


def refusal(path, **options):
    return str(refused(read_nifti, path, **options))


def test_every_orientation_and_spacing_comes_back(tmp_path):
    count = 0
    for affine, spacing in affines():
        volume = Volume(scan(), affine)
        write_nifti(volume, tmp_path / "scan.nii.gz")
        again = read_nifti(tmp_path / "scan.nii.gz")
        assert np.abs(again.affine - affine).max() < 1e-5
        assert np.abs(np.linalg.solve(affine, again.affine) - np.eye(4)).max() < 1e-4
        assert again.orientation == volume.orientation
        assert again.spacing == pytest.approx(spacing, rel=1e-6)
        assert np.array_equal(again.data, volume.data)
        count += 1
    assert count == 432
    assert os.listdir(tmp_path) == ["scan.nii.gz"]


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "f4", "f8"])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_types_come_back(tmp_path, dtype, ending):
    volume = Volume(scan(dtype=dtype), np.eye(4))
    write_nifti(volume, tmp_path / f"a{ending}")
    again = read_nifti(tmp_path / f"a{ending}")
    assert again.data.dtype == volume.data.dtype
    assert np.array_equal(again.data, volume.data)
    loaded = nibabel.load(tmp_path / f"a{ending}")
    assert np.array_equal(np.asarray(loaded.dataobj), volume.data)


def test_masks_channels_scaling_byte_order_and_version_two(tmp_path):
    write_nifti(Volume(scan() > 500, np.eye(4)), tmp_path / "mask.nii.gz")
    assert read_nifti(tmp_path / "mask.nii.gz").data.dtype == np.uint8
    write_nifti(Volume(scan((5, 4, 3, 2)), np.eye(4)), tmp_path / "channels.nii")
    assert read_nifti(tmp_path / "channels.nii").data.shape == (5, 4, 3, 2)
    data = scan()
    image = nibabel.Nifti1Image(data, np.eye(4))
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, tmp_path / "scaled.nii")
    loaded = nibabel.load(tmp_path / "scaled.nii").get_fdata()
    assert np.abs(read_nifti(tmp_path / "scaled.nii").data - loaded).max() < 1e-3
    big = nibabel.Nifti1Image(data, np.eye(4), header=nibabel.Nifti1Header(endianness=">"))
    big.to_filename(tmp_path / "big.nii")
    assert np.array_equal(read_nifti(tmp_path / "big.nii").data, data)
    nibabel.save(nibabel.Nifti2Image(data, np.eye(4)), tmp_path / "two.nii.gz")
    assert np.array_equal(read_nifti(tmp_path / "two.nii.gz").data, data)
    nibabel.save(nibabel.Nifti1Image(data[..., None, None], np.eye(4)), tmp_path / "five.nii")
    assert read_nifti(tmp_path / "five.nii").data.shape == data.shape


def test_every_flipped_bit_is_detected(tmp_path):
    """2,000 of 2,000: the file is refused, or (in the name and time fields of gzip) the content is the same."""
    path = tmp_path / "scan.nii.gz"
    write_nifti(Volume(scan((24, 24, 12)), np.eye(4)), path)
    good, content = read_nifti(path), path.read_bytes()
    rng = np.random.default_rng(1)
    refused = 0
    for place, bit in zip(rng.integers(0, len(content), 2000), rng.integers(0, 8, 2000), strict=True):
        changed = bytearray(content)
        changed[place] ^= 1 << int(bit)
        path.write_bytes(changed)
        try:
            again = read_nifti(path)
        except BadInput:
            refused += 1
        else:
            assert place < 10, f"byte {place} changed unnoticed"
            assert np.array_equal(again.data, good.data)
            assert np.array_equal(again.affine, good.affine)
    assert refused > 1980


def test_every_truncation_is_detected(tmp_path):
    for ending in (".nii", ".nii.gz"):
        path = tmp_path / f"scan{ending}"
        write_nifti(Volume(scan((16, 16, 8)), np.eye(4)), path)
        content = path.read_bytes()
        for keep in [0, 1, 10, 100, 347, 348, 351, 352, *range(400, len(content), 97), len(content) - 1]:
            path.write_bytes(content[:keep])
            assert path.name in refusal(path)


def test_bombs_are_refused_within_the_limit(tmp_path):
    """The content is unpacked up to what the header declares and one byte more, whatever else the stream holds."""
    path = tmp_path / "bomb.nii.gz"
    header = stored_header(np.zeros((2, 2, 2), np.float32))
    with gzip.open(path, "wb", compresslevel=9) as stream:
        stream.write(header.binaryblock + bytes(4))
        for _ in range(256):
            stream.write(bytes(2**20))
    assert path.stat().st_size * 900 < 256 * 2**20
    tracemalloc.start()
    assert "declares 32 bytes of voxels and holds more" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
    header.set_data_shape((2000, 2000, 2000))
    (tmp_path / "huge.nii").write_bytes(header.binaryblock + bytes(108))
    assert "declares 32,000,000,000 bytes" in refusal(tmp_path / "huge.nii")
    assert "over the limit of 8,589,934,592" in refusal(tmp_path / "huge.nii")


def test_nothing_is_allocated_that_a_packed_file_cannot_hold(tmp_path):
    """Deflate makes at most 1,032 bytes of one, so that a short file cannot hold what a header of 4 GB declares."""
    path = tmp_path / "short.nii.gz"
    header = stored_header(np.zeros((2, 2, 2), np.float32))
    header.set_data_shape((1000, 1000, 1000))
    path.write_bytes(gzip.compress(header.binaryblock + bytes(4)))
    tracemalloc.start()
    assert "declares 4,000,000,000 bytes of voxels and holds at most" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_mutated_headers_give_bad_input_or_a_sound_geometry(tmp_path):
    """2,000 headers with random bytes, floats and extremes: nothing but BadInput escapes, no broken grid passes."""
    path = tmp_path / "scan.nii"
    write_nifti(Volume(scan(), np.diag([0.6, 0.7, 1.3, 1.0])), path)
    content = path.read_bytes()
    rng = np.random.default_rng(2)
    extremes = [struct.pack("<f", v) for v in (np.nan, np.inf, -np.inf, 0.0, 1e38, -1e38, 1e-45)]
    extremes += [struct.pack("<h", v) for v in (-1, 0, 32767, -32768)]
    passed = refused = 0
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(rng.integers(1, 5)):
            place = int(rng.integers(0, 348))
            piece = rng.bytes(int(rng.integers(1, 5))) if rng.random() < 0.5 else extremes[rng.integers(len(extremes))]
            changed[place : place + len(piece)] = piece
        path.write_bytes(changed[: len(content)])
        try:
            volume = read_nifti(path, limit=2**26)
        except BadInput:
            refused += 1
            continue
        passed += 1
        assert np.isfinite(volume.affine).all()
        assert abs(np.linalg.det(volume.affine)) > 0
        assert all(0 < step <= 1000 for step in volume.spacing)
        assert volume.data.ndim in (3, 4)
    assert passed > 100
    assert refused > 500


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda h: h.__setitem__("sform_code", 0) or h.__setitem__("qform_code", 0), "sform_code"),
        (lambda h: h.__setitem__("srow_x", [np.nan, 0, 0, 0]), "field affine holds NaN"),
        (lambda h: h.__setitem__("srow_x", [0, 0, 0, 0]), "field affine"),
        (lambda h: h.__setitem__("pixdim", [1, 2, 1, 1, 1, 1, 1, 1]), "field pixdim"),
    ],
)
def test_bad_fields_are_named(tmp_path, change, says):
    header = stored_header(scan())
    header.set_sform(np.eye(4), 1)
    change(header)
    (tmp_path / "a.nii").write_bytes(header.binaryblock + bytes(4) + scan().tobytes(order="F"))
    assert says in refusal(tmp_path / "a.nii")


def test_other_refusals(tmp_path):
    nan = scan(dtype=np.float32)
    nan[1, 2, 3] = np.nan
    nibabel.save(nibabel.Nifti1Image(nan, np.eye(4)), tmp_path / "nan.nii")
    assert "holds 1 voxels that are NaN" in refusal(tmp_path / "nan.nii")
    nibabel.save(nibabel.Nifti1Image(np.ones((3, 3), np.uint8), np.eye(4)), tmp_path / "flat.nii")
    assert "field dim gives shape (3, 3)" in refusal(tmp_path / "flat.nii")
    nibabel.save(nibabel.Nifti1Image(np.ones((3, 3, 3), np.complex64), np.eye(4)), tmp_path / "complex.nii")
    assert "field datatype" in refusal(tmp_path / "complex.nii")
    (tmp_path / "text.nii").write_text("hello" * 200)
    refusal(tmp_path / "text.nii")
    assert "cannot be read" in refusal(tmp_path / "missing.nii")
    assert "is a folder" in refusal(tmp_path)
    with pytest.raises(BadInput, match="NIfTI ending"):
        write_nifti(Volume(scan(), np.eye(4)), tmp_path / "scan.png")


@pytest.mark.parametrize(
    "affine",
    [
        np.full((4, 4), np.nan),
        np.zeros((4, 4)),
        np.eye(3),
        np.diag([1e9, 1, 1, 1]),
        np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]),
    ],
)
def test_no_volume_without_a_geometry(affine):
    with pytest.raises(ValueError, match="affine"):
        Volume(scan(), affine)


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "scan.nii.gz"
    write_nifti(Volume(scan(), np.eye(4)), path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_nifti(Volume(scan(seed=1), np.eye(4)), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["scan.nii.gz"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hello, this is no scan" * 20, "it begins with the bytes 68 65, not with 1f 8b"),
        (b"\x5c\x01" + bytes(400), "it begins with the bytes 5c 01, not with 1f 8b"),
        (b"h", "it begins with the bytes 68, not with 1f 8b"),
        (gzip.compress(b"hello, this is no scan" * 20) + b"trailing", "other bytes than 1f 8b follow its end"),
    ],
    ids=["text", "not packed", "one byte", "trailing"],  # gzip writes the time into the bytes
)
def test_the_bytes_that_are_quoted_are_those_of_the_file(tmp_path, content, says):
    path = tmp_path / "scan.nii.gz"
    path.write_bytes(content)
    error = refused(read_nifti, path)
    assert says in error.reason
    assert error.path == path
    if says.startswith("it begins"):
        assert "take .gz off its name if it is not packed" in error.remedy

"""DICOM series: every orientation lands where it was built, and every broken series is refused by name."""

import itertools
import sys
import time

import numpy as np
import pytest

pytest.importorskip("pydicom")

import pydicom
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    JPEG2000MC,
    CTImageStorage,
    DeflatedExplicitVRLittleEndian,
    EnhancedCTImageStorage,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEGLosslessSV1,
    MRImageStorage,
    RLELossless,
    RTStructureSetStorage,
)

from fheat import BadInput
from fheat.io.dicom import read_dicom
from tests.grids import oblique
from tests.io.dicom_series import SHAPE, affines, save, scan, slices
from tests.refusals import refused

PLAIN = np.diag([0.625, 0.5, 1.25, 1.0])


def along_the_normal(data, affine):
    """The same voxels with the last axis in the direction of columns x rows: the order slices are sorted in."""
    if np.linalg.det(affine[:3, :3]) > 0:
        return data, affine
    turned = affine.copy()
    turned[:, 3] = affine @ [0, 0, data.shape[2] - 1, 1]
    turned[:3, 2] *= -1
    return data[:, :, ::-1], turned


def refusal(folder, **options):
    return str(refused(read_dicom, folder, **options))


def test_every_orientation_and_spacing_lands_where_it_was_built(tmp_path):
    count = 0
    for affine in list(affines())[::4]:  # every orientation, every pair of spacing and angle
        data = np.zeros(SHAPE, np.int16)
        marker = (3, 7, 5)
        data[marker] = 1000
        volume = read_dicom(save(slices(data, affine), tmp_path / "s")).volume
        voxels, expected = along_the_normal(data, affine)
        assert np.abs(volume.affine - expected).max() < 1e-6
        assert np.array_equal(volume.data, voxels)
        found = np.argwhere(volume.data == 1000)
        assert found.shape == (1, 3)
        assert np.abs(volume.affine @ [*found[0], 1] - affine @ [*marker, 1]).max() < 1e-6
        count += 1
    assert count == 108


@pytest.mark.parametrize("order", ["shuffled", "reversed"])
def test_names_and_numbers_of_the_files_do_not_matter(tmp_path, order):
    images = slices(scan(), PLAIN)
    names = [f"IM{index}" for index in range(SHAPE[2])]
    names = names[::-1] if order == "reversed" else list(np.random.default_rng(3).permutation(names))
    for index, image in enumerate(images):
        image.InstanceNumber = (5 * index) % 7
    series = read_dicom(save(images, tmp_path, names))
    assert np.array_equal(series.volume.data, scan())
    assert [source.SOPInstanceUID for source in series.sources] == [image.SOPInstanceUID for image in images]
    assert not any("PixelData" in source for source in series.sources)


@pytest.mark.parametrize(("storage", "modality"), [(CTImageStorage, "CT"), (MRImageStorage, "MR")])
@pytest.mark.parametrize("syntax", [None, ImplicitVRLittleEndian, RLELossless])
def test_storage_classes_and_transfer_syntaxes(tmp_path, storage, modality, syntax):
    images = slices(scan(), PLAIN, storage=storage, modality=modality)
    for image in images:
        if syntax is RLELossless:
            image.compress(RLELossless, generate_instance_uid=False)
        elif syntax is not None:
            image.file_meta.TransferSyntaxUID = syntax
    assert np.array_equal(read_dicom(save(images, tmp_path)).volume.data, scan())


def test_big_endian(tmp_path):
    images = slices(scan(), PLAIN)
    for image in images:
        image.file_meta.TransferSyntaxUID = ExplicitVRBigEndian
        image.PixelData = np.frombuffer(image.PixelData, "<i2").astype(">i2").tobytes()
        image["PixelData"].VR = "OW"
    volume = read_dicom(save(images, tmp_path)).volume
    assert np.array_equal(volume.data, scan())
    assert volume.data.dtype.isnative


@pytest.mark.parametrize(
    ("slope", "intercept", "kind"), [(1, -1024, np.int16), (2, 5, np.int16), (0.37, -3.5, np.float32), (40, 0, "f4")]
)
def test_rescaling(tmp_path, slope, intercept, kind):
    images = slices(scan(), PLAIN, RescaleSlope=slope, RescaleIntercept=intercept)
    data = read_dicom(save(images, tmp_path)).volume.data
    expected = scan().astype(np.float64) * slope + intercept
    assert data.dtype == kind
    assert np.abs(data - expected).max() <= 1e-3
    if kind == np.int16:
        assert np.array_equal(data, expected)


def test_each_slice_has_its_own_rescaling_and_types_meet_in_float(tmp_path):
    images = slices(scan(), PLAIN)
    for index, image in enumerate(images):
        image.RescaleSlope, image.RescaleIntercept = (1, 10) if index < 3 else (f"{0.5 * index}", 0)
    data = read_dicom(save(images, tmp_path)).volume.data
    assert data.dtype == np.float32
    for index in range(SHAPE[2]):
        expected = scan()[:, :, index] + 10.0 if index < 3 else scan()[:, :, index] * 0.5 * index
        assert np.array_equal(data[:, :, index], expected.astype(np.float32))


def test_unsigned_values_beyond_int16_stay_exact(tmp_path):
    stored = scan().view(np.uint16)
    assert stored.max() > 2**15
    data = read_dicom(save(slices(stored, PLAIN), tmp_path)).volume.data
    assert data.dtype == np.float32
    assert np.array_equal(data, stored)


def test_bystanders_are_passed_over(tmp_path):
    save(slices(scan(), PLAIN), tmp_path)
    (tmp_path / "README").write_text("about this scan")
    (tmp_path / "DICOMDIR").write_bytes(bytes(128) + b"DICM" + b"never opened")
    (tmp_path / ".hidden.dcm").write_bytes(b"")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "000.dcm").write_bytes(b"")
    assert np.array_equal(read_dicom(tmp_path).volume.data, scan())


def test_rounded_positions_are_one_grid(tmp_path):
    """Jitter of 0.004 mm, as positions written with two decimals have, is not a gap."""
    affine = np.eye(4)
    affine[:3, :3] = oblique(17) @ np.diag([0.5, 0.5, 0.7])
    images = slices(scan(), affine)
    for image in images:
        image.ImagePositionPatient = [round(float(v), 2) for v in image.ImagePositionPatient]
    assert np.abs(read_dicom(save(images, tmp_path)).volume.affine - affine).max() < 0.01


@pytest.mark.parametrize(("field", "depth"), [("SliceThickness", 3.0), ("SpacingBetweenSlices", 4.0)])
def test_a_single_slice_needs_a_depth(tmp_path, field, depth):
    (image,) = slices(scan((12, 10, 1)), PLAIN)
    del image.SliceThickness
    assert "its depth is unknown" in refusal(save([image], tmp_path))
    setattr(image, field, depth)
    assert read_dicom(save([image], tmp_path)).volume.spacing == pytest.approx((0.625, 0.5, depth))
    setattr(image, field, -depth)
    assert "negative depth" in refusal(save([image], tmp_path))


def every(**fields):
    def change(images):
        for image, (name, value) in itertools.product(images, fields.items()):
            setattr(image, name, value)

    return change


def one(index=2, **fields):
    return lambda images: every(**fields)([images[index]])


def drop(name):
    return lambda images: delattr(images[2], name)


def move(images, index, offset):
    images[index].ImagePositionPatient = (np.array(images[index].ImagePositionPatient, float) + offset).tolist()


def lean(images):
    for index in range(len(images)):
        move(images, index, [0, 0.1 * index, 0])


def drift(images):
    """Every distance within 1 % of the usual one, the middle of the stack 1.7 % of it off the line."""
    for index in range(len(images)):
        move(images, index, [0, 0, 0.01 * 0.99 * 1.25 * min(index, 6 - index)])


def syntax(uid):
    def change(images):
        images[2].file_meta.TransferSyntaxUID = uid
        if uid.is_encapsulated:
            images[2].PixelData = encapsulate([images[2].PixelData])

    return change


REFUSALS = {
    "missing slice": (lambda images: images.pop(3), "a gap of 2.5 mm where slices are 1.25 mm apart: 002.dcm at"),
    "uneven": (lambda images: move(images, 3, [0, 0, 0.1]), "a gap of 1.35 mm where slices are 1.25 mm apart"),
    "drift": (drift, "distances between slices drift"),
    "duplicate": (lambda images: images.append(images[4]), "two slices at one position: 004.dcm at"),
    "two series": (one(SeriesInstanceUID="1.2.3"), "holds 2 series (of 6, 1 files)"),
    "rows": (one(Rows=9), "field Rows is 10 in 000.dcm and 9 in 002.dcm"),
    "columns": (one(Columns=9), "field Columns is 12 in 000.dcm and 9 in 002.dcm"),
    "spacing": (one(PixelSpacing=[0.5, 0.626]), "field PixelSpacing is [0.5, 0.625] in 000.dcm and [0.5, 0.626]"),
    "turned": (one(ImageOrientationPatient=[0, 1, 0, -1, 0, 0]), "field ImageOrientationPatient is ["),
    "frame": (one(FrameOfReferenceUID="1.2.3"), "field FrameOfReferenceUID is"),
    "tilt": (lean, "the stack leans 4.57 degrees from the normal of its slices (gantry tilt)"),
    "sideways": (lambda images: move(images, 3, [0.5, 0, 0]), "gantry tilt"),
    "multi-frame": (one(NumberOfFrames=4), "is multi-frame (NumberOfFrames 4, CT Image Storage)"),
    "enhanced": (one(SOPClassUID=EnhancedCTImageStorage, NumberOfFrames=2), "Enhanced CT Image Storage"),
    "colour": (one(SamplesPerPixel=3, PhotometricInterpretation="RGB"), "are (3, 'RGB'): not grey values"),
    "palette": (one(PhotometricInterpretation="PALETTE COLOR"), "'PALETTE COLOR'"),
    "structures": (one(SOPClassUID=RTStructureSetStorage), "RT Structure Set Storage: not an image"),
    "table": (one(ModalityLUTSequence=[Dataset()]), "field ModalityLUTSequence"),
    "no pixels": (drop("PixelData"), "field PixelData is missing"),
    "few pixels": (one(PixelData=bytes(100)), "002.dcm: is damaged"),
    "no position": (drop("ImagePositionPatient"), "field ImagePositionPatient is None: expected 3 finite numbers"),
    "no orientation": (drop("ImageOrientationPatient"), "field ImageOrientationPatient is None"),
    "no spacing": (drop("PixelSpacing"), "field PixelSpacing is None: expected 2 finite numbers"),
    "no frame": (drop("FrameOfReferenceUID"), "field FrameOfReferenceUID is missing"),
    "no class": (drop("SOPClassUID"), "field SOPClassUID is missing: not an image"),
    "nan position": (one(ImagePositionPatient=["7e7", 0, 0]), "field ImagePositionPatient is"),
    "flat": (every(PixelSpacing=[0, 0.5]), "has spacing"),
    "not unit": (every(ImageOrientationPatient=[1, 0, 0, 0, 2, 0]), "not two perpendicular unit vectors"),
    "not perpendicular": (every(ImageOrientationPatient=[1, 0, 0, 0.6, 0.8, 0]), "not two perpendicular unit vectors"),
    "nan slope": (one(RescaleSlope="7e7"), "field RescaleSlope is nan"),
    "no slope": (one(RescaleSlope=0), "field RescaleSlope is 0"),
    "lossless jpeg": (syntax(JPEGLosslessSV1), "field TransferSyntaxUID is JPEG Lossless"),
    "unknown syntax": (syntax(JPEG2000MC), "field TransferSyntaxUID is JPEG 2000 Part 2"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_field_and_value(tmp_path, name):
    change, says = REFUSALS[name]
    if name == "lossless jpeg" and pydicom.pixels.get_decoder(JPEGLosslessSV1).is_available:
        pytest.skip("this machine decodes it")
    images = slices(scan(), PLAIN)
    change(images)
    save(images, tmp_path)
    if name.startswith("nan"):  # pydicom does not write it; no UID holds the letter
        (tmp_path / "002.dcm").write_bytes((tmp_path / "002.dcm").read_bytes().replace(b"7e7", b"nan"))
    assert says in refusal(tmp_path)


def test_float_pixels_must_be_finite(tmp_path):
    images = slices(scan(), PLAIN)
    for image in images:
        plane = np.frombuffer(image.PixelData, "<i2").astype(np.float32)
        del image.PixelData, image.PixelRepresentation, image.BitsStored, image.HighBit
        image.BitsAllocated, image.FloatPixelData = 32, plane.tobytes()
    assert np.array_equal(read_dicom(save(images, tmp_path)).volume.data, scan())
    plane[:3] = np.nan, np.inf, -np.inf
    images[-1].FloatPixelData = plane.tobytes()
    assert "006.dcm: holds 3 voxels that are NaN or infinite" in refusal(save(images, tmp_path))


def test_refused_before_pixels_are_decoded(tmp_path, monkeypatch):
    folder = save(slices(scan(), PLAIN), tmp_path)
    monkeypatch.setattr(Dataset, "pixel_array", property(lambda self: pytest.fail("decoded")))
    assert "declares 3,360 bytes of voxels, over the limit of 3,359" in refusal(folder, limit=3359)
    assert "has over 100 bytes" in refusal(folder, limit=100)
    images = slices(scan(), PLAIN)
    every(Rows=65535, Columns=65535)(images)
    assert "declares 120,255,414,300 bytes" in refusal(save(images, folder))


def test_deflated_files_are_not_unpacked(tmp_path, monkeypatch):
    images = slices(scan(), PLAIN)
    syntax(DeflatedExplicitVRLittleEndian)(images)
    folder = save(images, tmp_path)
    monkeypatch.setattr("zlib.decompress", lambda *args: pytest.fail("unpacked"))
    assert "002.dcm: field TransferSyntaxUID is Deflated Explicit VR" in refusal(folder)


def test_folders_that_are_none(tmp_path):
    assert "holds no DICOM files" in refusal(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    assert "holds no DICOM files" in refusal(tmp_path)
    assert "is a file" in refusal(tmp_path / "a.txt")
    assert "cannot be read (No such file" in refusal(tmp_path / "none")
    save(slices(scan(), PLAIN), tmp_path)
    (tmp_path / "003.dcm").write_bytes(b"")
    assert "003.dcm: is named .dcm and lacks the DICM mark" in refusal(tmp_path)
    (tmp_path / "003.dcm").write_bytes(bytes(128) + b"DICM" + b"\x02\x00\x10\x00garbage")
    assert "003.dcm: " in refusal(tmp_path)


def test_without_pydicom(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    assert refusal(tmp_path) == f"{tmp_path}: needs the package pydicom; install fheat[dicom]"


def test_interrupts_and_lack_of_memory_pass(tmp_path, monkeypatch):
    folder = save(slices(scan(), PLAIN), tmp_path)
    for error in (MemoryError, KeyboardInterrupt):

        def fail(self, error=error):
            raise error

        monkeypatch.setattr(Dataset, "pixel_array", property(fail))
        with pytest.raises(error):
            read_dicom(folder)


def element_ranges(content):
    """Byte ranges of the top-level elements, explicit little endian with short lengths, after the meta group."""
    place, ranges = 132, []
    while place < len(content):
        long = content[place + 4 : place + 6] in (b"OB", b"OW", b"SQ", b"UN", b"UT")
        head = 12 if long else 8
        size = int.from_bytes(content[place + (8 if long else 6) : place + head], "little")
        ranges.append((place, place + head + size))
        place += head + size
    return ranges


def mutate(content, ranges, rng):
    changed = bytearray(content)
    kind = rng.integers(4)
    if kind == 0:
        for _ in range(rng.integers(1, 6)):
            changed[rng.integers(128, len(changed))] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        start, stop = ranges[rng.integers(len(ranges))]
        junk = [b"\xff" * 4, b"nan\\inf\\", b"-1e400\\1", bytes(8), rng.bytes(6)][rng.integers(5)]
        place = int(rng.integers(start, stop))
        changed[place : place + len(junk)] = junk
    elif kind == 2:
        (a, b), (c, d) = sorted(ranges[i] for i in rng.choice(len(ranges), 2, replace=False))
        changed = changed[:a] + changed[c:d] + changed[b:c] + changed[a:b] + changed[d:]
    else:
        changed = changed[: rng.integers(133, len(changed))]
    return bytes(changed)


def test_mutated_files_give_bad_input_or_a_sound_volume(tmp_path):
    """500 of 500, none longer than two seconds."""
    path = save(slices(scan((6, 5, 3)), PLAIN, RescaleSlope=1, RescaleIntercept=-1024), tmp_path) / "001.dcm"
    content = path.read_bytes()
    ranges, rng = element_ranges(content), np.random.default_rng(4)
    assert ranges[-1][1] == len(content)
    refused = passed = 0
    for _ in range(500):
        path.write_bytes(mutate(content, ranges, rng))
        begun = time.perf_counter()
        try:
            series = read_dicom(tmp_path, limit=2**26)
        except BadInput as error:
            refused += "\n" not in str(error)
        else:
            assert series.volume.data.shape == (6, 5, 3)
            assert np.isfinite(series.volume.data).all()
            assert np.abs(series.volume.affine - PLAIN).max() < 0.02
            passed += 1
        assert time.perf_counter() - begun < 2
    assert refused + passed == 500
    assert refused > 150
    assert passed > 50

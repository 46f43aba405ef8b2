"""NIfTI headers that contradict themselves or the length of their file are refused, with the field in the message."""

import gzip
import struct

import nibabel
import numpy as np
import pytest

from fheat.io import Volume, read_nifti, write_nifti
from tests.refusals import refused

DATA = np.arange(9 * 8 * 7, dtype=np.int16).reshape(9, 8, 7)
AFFINE = np.diag([-0.6, 0.7, 0.9, 1.0])
FIRST, SECOND = (nibabel.Nifti1Image, 352), (nibabel.Nifti2Image, 544)


def stored(tmp_path, change=None, *, kind=FIRST, voxels=None, between=bytes(4), order="<"):
    """Write an image with both forms set, its header changed; `between` are the flag of extensions and these."""
    image, offset = kind
    header = image.header_class(endianness=order)
    header.set_data_shape(DATA.shape)
    header.set_data_dtype(DATA.dtype.newbyteorder(order))
    header.set_sform(AFFINE, 1)
    header.set_qform(AFFINE, 1)
    header.set_xyzt_units("mm", "sec")
    header["vox_offset"] = offset - 4 + len(between)
    header["scl_slope"], header["scl_inter"] = 1, 0
    if change is not None:
        change(header)
    path = tmp_path / "a.nii"
    content = DATA.astype(DATA.dtype.newbyteorder(order)).tobytes(order="F") if voxels is None else voxels
    path.write_bytes(header.binaryblock + between + content)
    return path


def setting(**fields):
    def change(header):
        for name, value in fields.items():
            header[name] = value

    return change


def at(field, index, value):
    def change(header):
        header[field][index] = value

    return change


@pytest.mark.parametrize("kind", [FIRST, SECOND])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_sound_file_is_read(tmp_path, kind, order):
    volume = read_nifti(stored(tmp_path, kind=kind, order=order))
    assert np.array_equal(volume.data, DATA)
    assert volume.data.dtype == np.int16
    assert np.abs(volume.affine - AFFINE).max() < 1e-6


@pytest.mark.parametrize("kind", [FIRST, SECOND])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (setting(bitpix=32), "field bitpix is 32, field datatype 4 has 16 bits"),
        (setting(bitpix=0), "field bitpix is 0"),
        (setting(datatype=77), "field datatype is 77"),
        (setting(datatype=2), "field bitpix is 16"),
        (setting(datatype=2, bitpix=8), "declares 504 bytes of voxels and holds more"),
        (at("dim", 3, 6), "declares 864 bytes of voxels and holds more"),
        (at("dim", 3, 8), "declares 1,152 bytes of voxels and holds 1,008"),
        (at("dim", 3, -7), "field dim gives shape (9, 8, -7)"),
        (at("dim", 0, 0), "field dim[0] is 0"),
        (at("dim", 0, 2), "field dim gives shape (9, 8)"),
        (at("dim", 0, 8), "field dim[0] is 8"),
        (setting(vox_offset=0), "field vox_offset is 0"),
        (setting(vox_offset=351), "field vox_offset is 351"),
        (setting(vox_offset=2**30), "field vox_offset is 1.07374e+09"),
        (setting(vox_offset=560), "field vox_offset leaves bytes before the voxels"),
        (setting(magic=b"n+3"), "field magic"),
        (setting(scl_slope=np.nan), "fields scl_slope, scl_inter are nan, 0"),
        (setting(scl_slope=np.inf), "fields scl_slope, scl_inter are inf, 0"),
        (setting(scl_inter=np.nan), "fields scl_slope, scl_inter are 1, nan"),
        (setting(scl_slope=0, scl_inter=np.inf), "fields scl_slope, scl_inter are 0, inf"),
        (setting(xyzt_units=4), "field xyzt_units is 4"),
        (setting(xyzt_units=2 + 56), "field xyzt_units is 58"),
        (setting(xyzt_units=2 + 128), "field xyzt_units is 130"),
        (setting(sform_code=6), "field sform_code is 6"),
        (setting(qform_code=-1), "field qform_code is -1"),
        (setting(sform_code=0, qform_code=0), "does not say where it lies"),
        (setting(qoffset_x=5), "fields sform and qform are both set and put a corner 5 mm apart"),
        (setting(quatern_c=0.99), "fields sform and qform are both set"),
        (setting(quatern_b=3), "no rotation"),
        (at("pixdim", 0, 3), "field pixdim[0] is 3"),
        (at("pixdim", 0, 1), "fields sform and qform are both set"),
        (at("pixdim", 1, -0.6), "field pixdim gives the spacing"),
        (at("pixdim", 1, np.nan), "field pixdim gives the spacing"),
        (at("pixdim", 1, 0.7), "field pixdim"),
    ],
)
def test_contradictions_are_refused(tmp_path, kind, change, says):
    assert says in str(refused(read_nifti, stored(tmp_path, change, kind=kind)))


def test_a_pair_and_another_header_are_refused(tmp_path):
    assert "another file" in str(refused(read_nifti, stored(tmp_path, setting(magic=b"ni1"))))
    assert "not 348 or 540" in str(refused(read_nifti, stored(tmp_path, setting(sizeof_hdr=347))))


@pytest.mark.parametrize("more", [b"\0", bytes(16), bytes(4096), b"x"])
def test_bytes_after_the_voxels_are_refused(tmp_path, more):
    """Zeros as well: a mask that ends in background would otherwise hide a wrong size."""
    voxels = DATA.tobytes(order="F") + more
    path = stored(tmp_path, voxels=voxels)
    assert "declares 1,008 bytes of voxels and holds more" in str(refused(read_nifti, path))
    packed = tmp_path / "a.nii.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert "declares 1,008 bytes of voxels and holds more" in str(refused(read_nifti, packed))


def test_gzip_members_and_padding(tmp_path):
    content, path = stored(tmp_path).read_bytes(), tmp_path / "a.nii.gz"
    whole = gzip.compress(content)
    for good in (whole, whole + bytes(512), gzip.compress(content[:400]) + gzip.compress(content[400:])):
        path.write_bytes(good)
        assert np.array_equal(read_nifti(path).data, DATA)
    for bad in (whole + b"x", whole + gzip.compress(b"x"), whole[:-1], whole[:-8] + bytes(8)):
        path.write_bytes(bad)
        assert "a.nii.gz" in str(refused(read_nifti, path))


def test_units_become_millimetres(tmp_path):
    for unit, factor in ((0, 1), (1, 1000), (2, 1), (3, 0.001)):
        volume = read_nifti(stored(tmp_path, setting(xyzt_units=unit + 8)))
        assert volume.spacing == pytest.approx((0.6 * factor, 0.7 * factor, 0.9 * factor))
        assert np.abs(volume.affine[:3] - factor * AFFINE[:3]).max() < 1e-6 * factor


def test_what_means_that_there_is_no_scale_is_read(tmp_path):
    for change in (setting(scl_slope=0, scl_inter=0), setting(scl_slope=np.nan, scl_inter=np.nan)):
        assert np.array_equal(read_nifti(stored(tmp_path, change)).data, DATA)
    nibabel.save(nibabel.Nifti1Image(DATA, AFFINE), tmp_path / "nibabel.nii.gz")  # which writes NaN and NaN
    assert np.array_equal(read_nifti(tmp_path / "nibabel.nii.gz").data, DATA)


def test_forms_may_differ_by_rounding_and_alone_by_anything(tmp_path):
    read_nifti(stored(tmp_path, setting(qoffset_x=0.1)))
    volume = read_nifti(stored(tmp_path, setting(qoffset_x=5, sform_code=0)))
    assert volume.affine[0, 3] == 5
    assert read_nifti(stored(tmp_path, setting(qoffset_x=5, qform_code=0))).affine[0, 3] == 0


def test_rotations_of_every_angle_agree_with_their_quaternion(tmp_path):
    """Near half a turn a quaternion in 32-bit floats is least exact."""
    for angle in (0.1, 1.0, 3.0, 3.14, 3.1415, 3.14159, 3.141592):
        turn = np.eye(4)
        turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        image = nibabel.Nifti1Image(np.zeros((512, 512, 2), np.uint8), turn @ np.diag([0.5, 0.5, 1, 1]))
        image.set_sform(image.affine, 1)
        image.set_qform(image.affine, 1)
        nibabel.save(image, tmp_path / "turned.nii.gz")
        assert np.abs(read_nifti(tmp_path / "turned.nii.gz").affine - image.affine).max() < 1e-6


def test_extensions(tmp_path):
    def extension(size, code=6):
        return struct.pack("<ii", size, code) + b"x" * (size - 8)

    flag = bytes([1, 0, 0, 0])
    for good in (
        flag + extension(16),
        flag + extension(32) + extension(16),
        bytes(20),
        flag + extension(16) + bytes(16),
    ):
        path = stored(tmp_path, between=good)
        assert np.array_equal(read_nifti(path).data, DATA)
    for bad, says in (
        (flag + extension(16) + b"x" * 4, "field vox_offset leaves"),
        (flag + struct.pack("<ii", 64, 6) + bytes(8), "an extension of 64 bytes is declared where 16 are left"),
        (flag + struct.pack("<ii", 4, 6) + bytes(8), "an extension of 4 bytes"),
        (bytes(4) + b"x" * 16, "field vox_offset leaves"),
    ):
        assert says in str(refused(read_nifti, stored(tmp_path, between=bad)))


def test_scaled_values_beyond_float32_are_refused(tmp_path):
    path = stored(tmp_path, setting(scl_slope=3e38))
    assert "voxels that are NaN or infinite" in str(refused(read_nifti, path))


def test_what_is_written_is_sound_in_any_size(tmp_path):
    for shape in ((1, 1, 1), (3, 2, 1, 4)):
        write_nifti(Volume(np.ones(shape, np.float32), AFFINE), tmp_path / "w.nii.gz")
        assert read_nifti(tmp_path / "w.nii.gz").data.shape == shape

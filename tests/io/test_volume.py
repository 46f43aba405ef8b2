"""A volume on its way to a file and from a nibabel image."""

import nibabel
import numpy as np
import pytest

from fheat import BadInput
from fheat.io import Volume, read_nifti
from tests.grids import affines


@pytest.mark.parametrize("name", ["mask.nii", "mask.nii.gz"])
def test_saving_keeps_voxels_and_affine(tmp_path, name):
    for affine, _ in affines():
        volume = Volume(np.random.default_rng(0).integers(0, 5, (5, 4, 3)).astype(np.uint8), affine)
        volume.save(tmp_path / name)
        again = read_nifti(tmp_path / name)
        assert np.array_equal(again.data, volume.data)
        assert again.data.dtype == np.uint8
        assert np.abs(again.affine - affine).max() < 1e-5 * np.abs(affine).max()
    with pytest.raises(BadInput, match="has no NIfTI ending"):
        volume.save(tmp_path / "mask.png")


def test_a_nibabel_image_is_what_its_file_is(tmp_path):
    affine = np.diag([-0.25, 0.25, 0.5, 1.0])
    data = np.random.default_rng(0).integers(-100, 100, (5, 4, 3)).astype(np.int16)
    for unit in ("mm", "meter", "micron"):
        image = nibabel.Nifti1Image(data[..., None], affine)
        image.header.set_xyzt_units(unit)
        nibabel.save(image, tmp_path / "scan.nii.gz")
        stored = read_nifti(tmp_path / "scan.nii.gz")
        for one in (image, nibabel.load(tmp_path / "scan.nii.gz")):
            volume = Volume.from_nibabel(one)
            assert np.array_equal(volume.data, stored.data)
            assert volume.data.dtype == np.int16
            assert volume.affine == pytest.approx(stored.affine)
    scaled = nibabel.Nifti1Image(data.astype(np.float32), affine)
    scaled.header.set_data_dtype(np.uint8)
    nibabel.save(scaled, tmp_path / "scaled.nii")
    volume = Volume.from_nibabel(nibabel.load(tmp_path / "scaled.nii"))
    assert volume.data == pytest.approx(read_nifti(tmp_path / "scaled.nii").data, rel=1e-6)


def test_an_image_of_a_format_without_units_is_in_millimetres():
    image = nibabel.MGHImage(np.zeros((3, 3, 3), np.float32), np.diag([2.0, 2.0, 2.0, 1.0]))
    assert Volume.from_nibabel(image).spacing == (2.0, 2.0, 2.0)

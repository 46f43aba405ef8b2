"""A scan becomes a mask: the same one as without the service, in the place of the scan."""

import numpy as np

from fheat import Predictor
from fheat.io import read_nifti
from tests.studio.conftest import segmented


def downloaded(client, address, tmp_path):
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    assert "attachment" in answer.headers["content-disposition"]
    (tmp_path / "file.nii.gz").write_bytes(answer.content)
    return read_nifti(tmp_path / "file.nii.gz")


def test_the_mask_is_that_of_the_predictor(client, model, scan_file, tmp_path):
    job = segmented(client, scan_file)
    mask = downloaded(client, job["result"]["mask"], tmp_path)
    expected = Predictor(model, device="cpu", runtime="torch").segment(scan_file)
    assert np.array_equal(mask.data, expected.data)
    assert np.allclose(mask.affine, expected.affine, atol=1e-6)
    assert job["result"]["classes"] == {"chamber": 1}
    voxel = abs(np.linalg.det(mask.affine[:3, :3])) / 1000
    assert job["result"]["volumes_ml"]["chamber"] == round(int(mask.data.sum()) * voxel, 3)
    assert job["done"] == job["of"] > 0

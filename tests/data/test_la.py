"""The 80 real scans of the LA benchmark, where they are at hand: all pass, and h5 and NIfTI hold the same voxels."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from fheat.data.check import check
from fheat.data.layouts import open_dataset
from fheat.data.read import read_image, read_label

LA = Path(os.environ.get("FHEAT_LA", Path(__file__).parents[3] / "shared" / "data" / "la"))
pytestmark = pytest.mark.skipif(not (LA / "dataset.json").exists(), reason="FHEAT_LA names no copy of the LA scans")


@pytest.mark.slow
def test_all_scans_pass():
    start = time.perf_counter()
    report = check(open_dataset(LA), workers=2)
    assert time.perf_counter() - start < 30
    assert report.problems == ()
    assert len(report.rows) == 80
    assert len({row.content for row in report.rows}) == 80
    assert len(report.dataset.split("validation")) == 8
    for row in report.rows:
        assert row.spacing == pytest.approx((0.625,) * 3)
        assert row.shape[2] == 88
        assert set(row.labels) == {0, 1}
        assert 0.01 < row.labels[1] / np.prod(row.shape) < 0.25


@pytest.mark.skipif(not (LA / "h5").exists(), reason="no h5 scans beside the NIfTI ones")
def test_h5_scans_are_the_nifti_scans():
    pytest.importorskip("h5py")
    dataset = open_dataset(LA / "h5")
    assert (dataset.name, len(dataset.cases)) == ("LA", 2)
    assert check(dataset).problems == ()
    nifti = {case.id: case for case in open_dataset(LA).cases}
    for case in dataset.cases:
        image, twin = read_image(case), read_image(nifti[case.id])
        assert np.abs(image.data - twin.data).max() <= 2e-6
        assert np.array_equal(read_label(case).data, read_label(nifti[case.id]).data)
        assert np.allclose(image.affine, twin.affine)

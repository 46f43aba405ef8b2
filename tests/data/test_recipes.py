"""Each recipe: known scans in, known numbers out, every voxel where it was."""

import json
import shutil

import numpy as np
import pytest

from fheat import BadInput
from fheat.data.recipes import RecipeOptions
from fheat.data.recipes.la import margins
from fheat.data.recipes.prepare import prepare
from fheat.data.recipes.split import split_of
from fheat.io import Volume, read_nifti, write_nifti
from tests.data.downloads import (
    AFFINE,
    block,
    make_abdomen,
    make_brats,
    make_hnc,
    make_la,
    make_msd,
    make_pancreas,
    noise,
    output,
    save,
    slow_box,
    world,
)


@pytest.mark.parametrize("cropped", [False, True])
def test_la_numbers_and_crop(tmp_path, cropped):
    shape = (220, 150, 6)
    cases = make_la(tmp_path / "src", shape)
    summary = prepare("la", tmp_path / "src", tmp_path / "dst", options=RecipeOptions(benchmark_crop=cropped))
    assert summary.train == cases[:1]
    assert summary.validation == cases[1:2]
    assert summary.test == cases[2:]
    assert len(summary.missing) == 97
    for seed, case in enumerate(cases):
        raw = noise(shape, seed).astype(np.uint8).astype(np.float64)
        expected = (raw - raw.mean()) / raw.std()
        mask = block(shape, ((18, 23), (15, 21), (3, 9)))
        image, label = output(tmp_path / "dst", case, part="Ts" if seed == 2 else "Tr")
        if cropped:
            low, high = slow_box(mask)
            bounds = []
            for axis in range(2):
                before, after = margins(case)[axis]
                assert 10 <= before <= 19
                assert 10 <= after <= 19
                grow = max(112 - (high[axis] - low[axis]), 0) // 2
                bounds.append((max(low[axis] - before - grow, 0), min(high[axis] + after + grow, shape[axis])))
            cut = (*(slice(*pair) for pair in bounds), slice(None))
            first = (bounds[0][0], bounds[1][0], 0)
            assert image.data.shape < shape
        else:
            cut, first = ..., (0, 0, 0)
            assert image.data.mean(dtype=np.float64) == pytest.approx(0, abs=1e-5)
            assert image.data.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)
        assert np.abs(image.data - expected[cut]).max() < 1e-5
        assert np.array_equal(label.data, mask[cut])
        assert np.abs(world(image, (0, 0, 0)) - AFFINE @ [*first, 1]).max() < 1e-4
    assert len({margins(case) for case in cases}) == 3


@pytest.mark.parametrize(
    ("case", "x", "y"),
    [
        ("06SR5RBREL16DQ6M8LWS", (10, 10), (17, 10)),
        ("UZUZZT2W9IUSHL6ASOX3", (18, 15), (10, 17)),
        ("UPT6DX9IQY9JAZ7HJKA7", (16, 17), (17, 12)),
    ],
)
def test_la_margins_are_the_same_everywhere_and_for_ever(case, x, y):
    """Published scores rest on the crop: these numbers may never change."""
    assert margins(case) == (x, y, (0, 0))


def test_la_h5_is_taken_as_it_is_and_not_cropped_again(tmp_path):
    h5py = pytest.importorskip("h5py")
    case = split_of("la", []).order[0]
    folder = tmp_path / "src" / "2018LA_Seg_Training Set" / case
    folder.mkdir(parents=True)
    data = np.random.default_rng(0).normal(3, 2, (12, 11, 8)).astype(np.float32)
    mask = block(data.shape, ((3, 6), (4, 8), (2, 5)))
    with h5py.File(folder / "mri_norm2.h5", "w") as file:
        file["image"], file["label"] = data, mask
    with pytest.raises(BadInput, match="cropped already; leave out --benchmark-crop"):
        prepare("la", tmp_path / "src", tmp_path / "dst", options=RecipeOptions(benchmark_crop=True))
    summary = prepare("la", tmp_path / "src", tmp_path / "dst")
    assert summary.kind == "h5"
    assert json.loads((tmp_path / "dst" / "dataset.json").read_text())["preparation"]["cropped_around_label"]
    image, label = output(tmp_path / "dst", case)
    assert np.array_equal(image.data, data)
    assert np.array_equal(label.data, mask)
    assert image.spacing == pytest.approx((0.625,) * 3)


def slow_linear(data, at):
    """Trilinear interpolation at one point, corner by corner; the border voxel beyond the border."""
    at = [min(max(x, 0), size - 1) for x, size in zip(at, data.shape, strict=True)]
    total = 0.0
    for corner in np.ndindex(2, 2, 2):
        index = [min(int(x) + c, size - 1) for x, c, size in zip(at, corner, data.shape, strict=True)]
        weight = np.prod([(x - int(x)) if c else 1 - (x - int(x)) for x, c in zip(at, corner, strict=True)])
        total += weight * data[tuple(index)]
    return total


@pytest.mark.parametrize("cropped", [False, True])
def test_pancreas_a(tmp_path, cropped):
    shape = (40, 36, 20)
    make_pancreas(tmp_path / "src", shape)
    summary = prepare("pancreas-a", tmp_path / "src", tmp_path / "dst", options=RecipeOptions(benchmark_crop=cropped))
    assert summary.test == ("0064", "0067")
    scan, mask = (read_nifti(file) for file in sorted((tmp_path / "src").rglob("*0001.nii.gz"), key=lambda f: f.name))
    image, label = output(tmp_path / "dst", "0001")
    # 0.8 mm in plane: 1.25 voxels per step on every axis, whatever the slice distance.
    size = (32, 29, 16)
    assert image.data.shape == ((96, 96, 96) if cropped else size)
    assert image.spacing == pytest.approx((1.0, 1.0, 2.0), abs=1e-5)
    assert image.data.min() == 0
    assert image.data.max() == 1
    for index in np.random.default_rng(0).integers(0, size, (40, 3)):
        value = (min(max(slow_linear(scan.data, index * 1.25), -125), 275) + 125) / 400
        assert image.data[tuple(index)] == pytest.approx(value, abs=1e-4)
        assert np.abs(world(image, index) - AFFINE @ [*(index * 1.25), 1]).max() < 1e-4
    for index in np.ndindex(size):
        nearest = tuple(min(int(i * 1.25 + 0.5), n - 1) for i, n in zip(index, shape, strict=True))
        if any(abs(i * 1.25 % 1 - 0.5) < 1e-6 for i in index):
            continue
        assert label.data[index] == mask.data[nearest]
    if cropped:
        assert not image.data[size[0] :].any()
        assert not label.data[:, :, size[2] :].any()


def test_pancreas_a_takes_the_spacing_of_the_second_axis_for_all(tmp_path):
    mask = block((30, 36, 20), ((10, 17), (12, 18), (4, 9)))
    scan = noise(mask.shape, 0, 0, 100)
    affine = np.diag([0.5, 0.75, 2.0, 1.0])
    save(tmp_path / "src" / "image0001.nii.gz", scan, affine)
    save(tmp_path / "src" / "label0001.nii.gz", mask, affine)
    prepare("pancreas-a", tmp_path / "src", tmp_path / "dst")
    image, label = output(tmp_path / "dst", "0001")
    assert image.data.shape == label.data.shape == (22, 27, 15)  # three quarters of each; 22.5 goes to the even
    assert image.spacing == pytest.approx((0.5 / 0.75, 1.0, 2.0 / 0.75), rel=1e-6)


def test_pancreas_a_crop_is_the_box_and_25_more(tmp_path):
    shape = (160, 150, 140)
    mask = block(shape, ((40, 90), (50, 71), (100, 115)))
    scan = np.full(shape, -1000, np.int16)
    scan[mask > 0] = 50
    scan[0, 0, 0] = 1000
    save(tmp_path / "src" / "image0001.nii.gz", scan, np.diag([1.0, 1, 1, 1]))
    save(tmp_path / "src" / "label0001.nii.gz", mask, np.diag([1.0, 1, 1, 1]))
    prepare("pancreas-a", tmp_path / "src", tmp_path / "dst", options=RecipeOptions(benchmark_crop=True))
    image, label = output(tmp_path / "dst", "0001")
    # x: 40-25 .. 89+2+25. y: 25 .. 97 is 72 wide, 24 more, 12 per side. z: 75 .. 140, 65 wide, 31 more, no room above.
    first = (15, 13, 44)
    assert image.data.shape == (116 - 15, 96, 96)
    assert np.array_equal(image.affine[:3, 3], first)
    assert np.array_equal(label.data, mask[15:116, 13:109, 44:140])
    assert np.allclose(image.data[label.data > 0], 1 if scan.max() == 50 else 175 / 400)


@pytest.mark.parametrize("cropped", [False, True])
def test_pancreas_b(tmp_path, cropped):
    """On a cubic polynomial away from the border a cubic B-spline is exact, which needs no other resampler."""
    shape = (150, 140, 30)
    affine = np.diag([0.8, 0.8, 2.0, 1.0])
    x, y, z = np.meshgrid(*(np.arange(size) for size in shape), indexing="ij")
    data = (20 + 0.5 * (x - 75) + 0.002 * (y - 70) ** 2 + 0.01 * (z - 15) ** 3).astype(np.float32)
    mask = block(shape, ((60, 81), (50, 76), (10, 20)))
    save(tmp_path / "src" / "image0057.nii.gz", data, affine)
    save(tmp_path / "src" / "label0057.nii.gz", mask, affine)
    summary = prepare("pancreas-b", tmp_path / "src", tmp_path / "dst", options=RecipeOptions(benchmark_crop=cropped))
    assert summary.train == ("0057",)
    image, label = output(tmp_path / "dst", "0057")
    size = (120, 112, 60)
    nearest = [np.floor(np.arange(n) * step + 0.5).astype(int) for n, step in zip(size, (1.25, 1.25, 0.5), strict=True)]
    full = mask[np.ix_(*(index.clip(max=n - 1) for index, n in zip(nearest, shape, strict=True)))]
    assert image.data.mean(dtype=np.float64) == pytest.approx(0, abs=1e-4)
    assert image.data.std(dtype=np.float64) == pytest.approx(1, abs=1e-4)
    assert image.spacing == pytest.approx((1, 1, 1), abs=1e-5)
    first, last = (0, 0), size[:2]
    if cropped:
        low, high = np.argwhere(full).min(0), np.argwhere(full).max(0)
        grow = [max(96 - (high[axis] - low[axis]), 0) // 2 for axis in (0, 1)]
        first = tuple(max(low[axis] - 25 - grow[axis], 0) for axis in (0, 1))
        last = tuple(min(high[axis] + 25 + grow[axis], size[axis]) for axis in (0, 1))
    assert np.array_equal(label.data, full[first[0] : last[0], first[1] : last[1]])
    assert np.abs(image.affine[:2, 3] - first).max() < 1e-5
    # Undo the z-score with two voxels, then compare with the polynomial at the voxels' true places.
    where = np.array([(30, 30, 20), (50, 60, 24), (60, 40, 36), (44, 52, 30), (70, 70, 26)])
    at = (where + np.array([*first, 0])) * (1.25, 1.25, 0.5)
    truth = 20 + 0.5 * (at[:, 0] - 75) + 0.002 * (at[:, 1] - 70) ** 2 + 0.01 * (at[:, 2] - 15) ** 3
    truth = (truth.clip(-125, 275) + 125) / 400
    values = np.array([image.data[tuple(index)] for index in where], np.float64)
    slope = (values[1] - values[0]) / (truth[1] - truth[0])
    assert np.abs(values - values[0] - slope * (truth - truth[0])).max() < 1e-3


def test_pancreas_b_rounds_sizes_down_as_stored_in_single_precision(tmp_path):
    """0.7 mm is a little less in the files the benchmark was made from: 30 voxels are 20 of 1 mm, not 21."""
    mask = block((30, 20, 10), ((5, 9), (5, 9), (2, 7)))
    save(tmp_path / "src" / "image0057.nii.gz", noise(mask.shape, 0, 0, 100), np.diag([0.7, 0.5, 1.0, 1.0]))
    save(tmp_path / "src" / "label0057.nii.gz", mask, np.diag([0.7, 0.5, 1.0, 1.0]))
    prepare("pancreas-b", tmp_path / "src", tmp_path / "dst")
    assert output(tmp_path / "dst", "0057")[0].data.shape == (20, 10, 10)


def test_pancreas_b_rounds_the_exact_spacing_of_dicom_to_single_precision_too(tmp_path):
    """DICOM states 0.7 mm in decimals, of which 30 are 21 mm; in single precision they are a little less."""
    pytest.importorskip("pydicom")
    from tests.io import dicom_series

    mask = block((30, 20, 10), ((5, 9), (5, 9), (2, 7)))
    affine = np.diag([-0.7, -0.5, 1.0, 1.0])
    scan = dicom_series.slices(noise(mask.shape, 0, 0, 100), affine)
    assert float(scan[0].PixelSpacing[1]) * 30 == 21
    dicom_series.save(scan, tmp_path / "src" / "PANCREAS_0057" / "study" / "series")
    save(tmp_path / "src" / "labels" / "label0057.nii.gz", mask, affine)
    prepare("pancreas-b", tmp_path / "src", tmp_path / "dst")
    assert output(tmp_path / "dst", "0057")[0].data.shape == (20, 10, 10)


def test_pancreas_dicom_series_and_labels_in_another_orientation(tmp_path):
    pytest.importorskip("pydicom")
    from tests.io import dicom_series

    shape = (24, 22, 12)
    mask = block(shape, ((8, 12), (3, 9), (2, 6)))
    scan = np.full(shape, -1000, np.int16)
    scan[mask > 0] = 60
    scan[0, 0, 0] = 1000
    affine = np.diag([-1.0, -1.0, 1.0, 1.0])
    source = tmp_path / "src"
    dicom_series.save(dicom_series.slices(scan, affine), source / "PANCREAS_0001" / "study" / "series")
    # The label is stored as RAS with an origin of its own: both first axes run the other way.
    stored = Volume(mask[::-1, ::-1].copy(), np.eye(4))
    write_nifti(stored, source / "labels" / "label0001.nii.gz")
    summary = prepare("pancreas-a", source, tmp_path / "dst")
    assert summary.kind == "dicom"
    image, label = output(tmp_path / "dst", "0001")
    assert np.array_equal(label.data, mask)
    assert np.allclose(image.data[mask > 0], 185 / 400)
    assert np.allclose(image.affine, affine)

    write_nifti(Volume(mask[::-1].copy(), np.eye(4)), source / "labels" / "label0001.nii.gz")
    with pytest.raises(BadInput, match="give --flip-labels y"):
        prepare("pancreas-a", source, tmp_path / "other")
    prepare("pancreas-a", source, tmp_path / "other", options=RecipeOptions(flip_labels="y"))
    assert np.array_equal(output(tmp_path / "other", "0001")[1].data, mask)

    shutil.copytree(source / "PANCREAS_0001" / "study" / "series", source / "PANCREAS_0001" / "study" / "second")
    with pytest.raises(BadInput, match="holds 2 folders with files"):
        prepare("pancreas-a", source, tmp_path / "third")


def test_brats_numbers(tmp_path):
    cases = make_brats(tmp_path / "src")
    summary = prepare("brats2019", tmp_path / "src", tmp_path / "dst")
    assert (summary.train, summary.validation, summary.test) == (cases[:1], cases[1:2], cases[2:])
    image, label = output(tmp_path / "dst", cases[0])
    # The brain fills [2, 12) x [3, 11) x [1, 10); the last slice of each axis is lost.
    assert image.data.shape == (9, 7, 8)
    assert np.abs(world(image, (0, 0, 0)) - AFFINE @ [2, 3, 1, 1]).max() < 1e-4
    raw = noise((10, 8, 9))[:9, :7, :8].astype(np.float64)
    most = sorted(raw.ravel())[int(np.ceil(0.999 * raw.size)) - 1]
    clipped = np.minimum(raw, most)
    assert np.abs(image.data - (clipped - clipped.mean()) / clipped.std()).max() < 1e-5
    assert set(np.unique(label.data)) == {0, 1}
    assert np.array_equal(np.argwhere(label.data).min(0), [2, 2, 2])
    assert label.data.sum() == 3 * 4 * 3


def test_brats_background_keeps_a_constant_value(tmp_path):
    case = split_of("brats2019", []).order[0]
    scan = np.zeros((9, 9, 9), np.int16)
    scan[1:8, 1:8, 1:8] = noise((7, 7, 7), 0, 100, 200)
    scan[3, 3, 3] = 0
    save(tmp_path / "src" / f"{case}_flair.nii.gz", scan)
    save(tmp_path / "src" / f"{case}_seg.nii.gz", block(scan.shape, ((4, 5), (4, 5), (4, 5))))
    prepare("brats2019", tmp_path / "src", tmp_path / "dst")
    image, _ = output(tmp_path / "dst", case)
    hole = image.data[2, 2, 2]
    inside = image.data[image.data != hole]
    assert hole < -3
    assert inside.mean(dtype=np.float64) == pytest.approx(0, abs=1e-5)
    assert inside.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)


def test_msd_channels_regions_and_unlabelled(tmp_path):
    make_msd(tmp_path / "src")
    summary = prepare("msd-task01", tmp_path / "src", tmp_path / "dst")
    assert summary.unlabelled == ("BRATS_485",)
    assert not (tmp_path / "dst" / "labelsTs" / "BRATS_485.nii.gz").exists()
    case = summary.train[0]
    stored = read_nifti(tmp_path / "src" / "imagesTr" / f"{case}.nii.gz").data
    for channel in range(4):
        image, label = output(tmp_path / "dst", case, channel)
        inside = stored[3:, :, :, channel].astype(np.float64)
        assert np.abs(image.data - (stored[..., channel] - inside.mean()) / inside.std()).max() < 1e-5
    assert np.array_equal(label.data, read_nifti(tmp_path / "src" / "labelsTr" / f"{case}.nii.gz").data)
    written = json.loads((tmp_path / "dst" / "dataset.json").read_text())
    assert written["labels"] == {
        "background": 0,
        "whole_tumour": [1, 2, 3],
        "tumour_core": [2, 3],
        "enhancing_tumour": [3],
    }
    assert written["regions_class_order"] == [1, 2, 3]
    assert written["channel_names"] == {"0": "FLAIR", "1": "T1w", "2": "T1gd", "3": "T2w"}
    assert json.loads((tmp_path / "dst" / "splits.json").read_text())["unlabelled"] == ["BRATS_485"]


def test_msd_index_may_not_lead_outside(tmp_path):
    make_msd(tmp_path / "src")
    index = tmp_path / "src" / "dataset.json"
    for name, says in (("../x.nii.gz", "leaves the dataset"), ("/x.nii.gz", "is the absolute path")):
        index.write_text(json.dumps({"training": [{"image": name, "label": name}]}))
        with pytest.raises(BadInput, match=rf"dataset\.json: field training\.0\.image .*{says}"):
            prepare("msd-task01", tmp_path / "src", tmp_path / "dst")
    for content, field in (
        ("[]", r"\(top\)"),
        ('{"training": [{}]}', r"training\.0\.image"),
        ('{"test": []}', "training"),
    ):
        index.write_text(content)
        with pytest.raises(BadInput, match=f"dataset\\.json: field {field}: "):
            prepare("msd-task01", tmp_path / "src", tmp_path / "dst")
    index.write_text("no JSON")
    with pytest.raises(BadInput, match="is not JSON"):
        prepare("msd-task01", tmp_path / "src", tmp_path / "dst")


def test_abdomen_window_and_spacing(tmp_path):
    make_abdomen(tmp_path / "src")
    summary = prepare("abdomenct1k", tmp_path / "src", tmp_path / "dst")
    assert summary.unlabelled == ("Case_01001",)
    case = summary.train[0]
    stored = read_nifti(tmp_path / "src" / "imagesTr" / f"{case}_0000.nii.gz")
    image, _ = output(tmp_path / "dst", case)
    assert np.abs(image.data - (stored.data.clip(-160, 240) + 160.0) / 400).max() < 1e-6
    assert np.allclose(image.affine, AFFINE)
    prepare("abdomenct1k", tmp_path / "src", tmp_path / "coarse", options=RecipeOptions(spacing=(1.6, 1.6, 1.6)))
    image, label = output(tmp_path / "coarse", case)
    assert image.spacing == pytest.approx((1.6, 1.6, 1.6), abs=1e-5)
    assert image.data.shape == label.data.shape == (5, 4, 6)
    centre = [(size - 1) / 2 for size in image.data.shape]
    assert np.abs(world(image, centre) - AFFINE @ [4.5, 3.5, 2.5, 1]).max() < 1e-4


def test_hnc_takes_only_what_was_scanned_before_therapy(tmp_path):
    names = make_hnc(tmp_path / "src")
    summary = prepare("hnc", tmp_path / "src", tmp_path / "dst")
    assert sorted((*summary.train, *summary.validation, *summary.test)) == sorted(names)
    image, label = output(tmp_path / "dst", summary.train[0])
    assert image.data.mean(dtype=np.float64) == pytest.approx(0, abs=1e-5)
    assert image.data.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    assert set(np.unique(label.data)) == {0, 1, 2}
    assert np.allclose(image.affine, AFFINE)

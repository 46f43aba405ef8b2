"""One preprocessing value: streamed planes, whole arrays and labels agree, in training and in prediction."""

import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fheat import BadInput, Card, Predictor
from fheat.data.case import Case, Dataset
from fheat.data.classes import Classes
from fheat.data.intensity import moments, window, zscore
from fheat.data.layouts import open_dataset
from fheat.data.orientation import reorient
from fheat.data.phantom import write_phantoms
from fheat.data.preprocessing import NOT_RESAMPLED, Intensity, Preprocessing, tensor_of
from fheat.data.resample import resample
from fheat.inference.windows import Windows
from fheat.io import Volume, read_nifti, write_nifti
from fheat.training import scans as scans_module
from fheat.training.scans import load_scans

INTENSITIES = (
    Intensity(),
    Intensity(kind="zscore"),
    Intensity(kind="zscore", nonzero=True),
    Intensity(kind="window", low=-60.0, high=140.0),
)
SPACING = (0.8, 1.0, 1.5)
AFFINE = np.array([[0, -1.0, 0, 30], [0, 0, 1.5, -8], [-0.8, 0, 0, 12], [0, 0, 0, 1]])
"""Axes out of order and flipped, with the spacing above."""


def stored(*, channels=2, kind=np.int16, order="F", shape=(23, 19, 21)):
    values = np.random.default_rng(2).normal(40, 120, size=(*shape, channels)).clip(-900, 900)
    values[:5] = 0
    data = values.astype(kind) if channels > 1 else values[..., 0].astype(kind)
    return Volume(np.asarray(data, order=order), AFFINE)


def obvious(volume, value):
    """The same in whole arrays: turn, map each channel, resample unless all axes are within the tolerance."""
    view = reorient(volume, value.orientation or volume.orientation)
    channels = view.data if view.data.ndim == 4 else view.data[..., None]
    mapped = []
    for channel in np.moveaxis(channels, -1, 0):
        if value.intensity.kind == "zscore":
            inside = channel[channel != 0] if value.intensity.nonzero else channel
            mapped.append(zscore(channel, inside.mean(dtype=np.float64), inside.std(dtype=np.float64)))
        elif value.intensity.kind == "window":
            mapped.append(window(channel, value.intensity.low, value.intensity.high))
        else:
            mapped.append(channel.astype(np.float32))
    data = np.stack(mapped, axis=-1) if view.data.ndim == 4 else mapped[0]
    if value.spacing is None or np.allclose(view.spacing, value.spacing, rtol=value.tolerance):
        return data
    return resample(Volume(data, view.affine), value.spacing).data


def values():
    grids = (
        (None, None),
        (None, (0.7, 1.3, 1.1)),
        ("RAS", (2.3, 0.45, 1.0)),
        ("PIL", None),
        ("RAS", (1.03, 1.46, 0.8)),
    )
    for (orientation, spacing), intensity in itertools.product(grids, INTENSITIES):
        yield Preprocessing(orientation=orientation, spacing=spacing, intensity=intensity)


@pytest.mark.parametrize("kind", [np.int16, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("nonzero", [False, True])
@pytest.mark.parametrize("shape", [(3, 4, 5), (37, 61, 83), (128, 96, 64)])
def test_moments_are_numpys_bit_for_bit(kind, order, nonzero, shape):
    data = np.random.default_rng(0).normal(300, 90, size=(*shape, 2)).astype(kind)
    data[:2] = 0
    for channel in np.moveaxis(np.asarray(data, order=order), -1, 0):
        inside = channel[channel != 0] if nonzero else channel
        assert moments(channel, nonzero=nonzero) == (inside.mean(dtype=np.float64), inside.std(dtype=np.float64))


def test_moments_of_nothing_divide_by_one():
    assert moments(np.zeros((3, 3, 3)), nonzero=True) == (0.0, 1.0)
    assert moments(np.full((3, 3, 3), 7)) == (7.0, 0.0)


@pytest.mark.parametrize("kind", [np.int16, np.float32, np.float64])
def test_the_default_is_the_identity(kind):
    for volume in (stored(kind=kind), stored(kind=kind, channels=1)):
        image = Preprocessing().image(volume)
        assert image.dtype == np.float32
        assert image.flags.c_contiguous
        assert np.array_equal(image, volume.data.astype(np.float32))
        same = Preprocessing(orientation=volume.orientation, spacing=volume.spacing)
        assert np.array_equal(same.image(volume), image)
    label = Volume((stored(channels=1).data % 3).astype(np.uint8), AFFINE)
    assert np.array_equal(Preprocessing().label(label), label.data)


@pytest.mark.parametrize("value", list(values()), ids=str)
@pytest.mark.parametrize(("channels", "order"), [(1, "F"), (3, "C")])
def test_whole_arrays_and_planes_in_any_pieces_are_the_obvious_ones(value, channels, order):
    volume = stored(channels=channels, order=order)
    expected = obvious(volume, value)
    assert np.array_equal(value.image(volume), expected)
    planes = expected[None] if channels == 1 else np.moveaxis(expected, -1, 0)
    scan = value.scan(volume)
    assert (scan.channels, scan.shape) == (channels, expected.shape[:3])
    for axis, piece in itertools.product(range(3), (1, 8, 100)):
        cuts = [*range(0, scan.shape[axis], piece), scan.shape[axis]]
        parts = [scan.planes(axis, start, stop) for start, stop in itertools.pairwise(cuts)]
        assert np.array_equal(torch.cat(parts, dim=axis + 1).numpy(), planes)


@pytest.mark.parametrize("intensity", [*INTENSITIES, Intensity(kind="window", low=0.1, high=0.4)], ids=str)
@pytest.mark.parametrize("kind", ["u1", "<i2", ">i2", "<u2", "<u4", "<f2", "<f4", ">f4", "<f8", "longdouble"])
@pytest.mark.parametrize("writeable", [True, False])
def test_torch_maps_intensities_as_numpy_does_bit_for_bit(intensity, kind, writeable):
    volume = stored(kind=np.float64)
    volume = Volume(np.abs(volume.data).astype(kind), volume.affine)
    volume.data.flags.writeable = writeable
    scan = Preprocessing(orientation="PIL", intensity=intensity).scan(volume)
    expected = scan.planes(1, 2, 17)
    assert torch.equal(scan._mapped_on(torch.device("cpu"), scan._data[:, 2:17]), expected)
    assert torch.equal(scan.planes(1, 2, 17, torch.device("cpu")), expected)
    assert expected.unique().numel() > 1


def test_voxels_between_other_things_become_a_tensor():
    records = np.zeros((3, 4, 5), dtype=[("mark", "u1"), ("value", "<f4")])
    records["value"] = np.arange(60).reshape(3, 4, 5)
    assert torch.equal(tensor_of(records["value"]), torch.arange(60.0).reshape(3, 4, 5))


@pytest.mark.parametrize("value", list(values()), ids=str)
def test_labels_lie_on_the_grid_of_the_image(value):
    label = Volume((stored(channels=1).data % 5).astype(np.int16), AFFINE)
    view = reorient(label, value.orientation or label.orientation)
    kept = value.spacing is None or np.allclose(view.spacing, value.spacing, rtol=value.tolerance)
    expected = view if kept else resample(view, value.spacing, labels=True)
    found = value.label(label)
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected.data)
    assert found.shape == value.scan(label).shape


def test_a_label_whose_header_is_rounded_otherwise_keeps_the_grid_of_its_image():
    """The image lies just within the tolerance and its label just beyond."""
    value, image = Preprocessing(spacing=(1.05, 1.05, 1.05)), Volume(np.zeros((20, 20, 20), np.int16), np.eye(4))
    label = Volume(np.ones((20, 20, 20), np.uint8), np.diag([0.997, 0.997, 0.997, 1.0]))
    assert value.label(label).shape == (19, 19, 19)
    assert value.scan(image).shape == value.scan(image).label(label).shape == (20, 20, 20)


@given(st.tuples(*[st.floats(0.9, 1.1)] * 3))
def test_a_scan_is_kept_only_if_all_axes_are_within_the_tolerance(ratios):
    value = Preprocessing(spacing=(2.0, 2.0, 2.0), tolerance=0.05)
    spacing = tuple(2.0 * ratio for ratio in ratios)
    if all(abs(ratio - 1) < 0.0499 for ratio in ratios):
        assert value.steps(spacing) == NOT_RESAMPLED
    elif any(abs(ratio - 1) > 0.0501 for ratio in ratios):
        expected = [1.0 if abs(1 / ratio - 1) < 1e-3 else 1 / ratio for ratio in ratios]
        assert value.steps(spacing) == pytest.approx(expected)


def test_moments_are_those_of_the_stored_voxels_and_measured_once(monkeypatch):
    volume = stored(channels=1)
    value = Preprocessing(orientation="RAS", spacing=(1.4, 1.4, 1.4), intensity=Intensity(kind="zscore"))
    calls = []
    monkeypatch.setattr("fheat.data.preprocessing.moments", lambda *a, **k: calls.append(1) or moments(*a, **k))
    scan = value.scan(volume)
    assert not calls  # nothing is measured before a plane is asked for
    parts = [scan.planes(0, start, start + 1) for start in range(scan.shape[0])]
    assert len(calls) == 1
    again = value.scan(volume, scan.moments)
    assert np.array_equal(again.whole(), torch.cat(parts, dim=1)[0].numpy())
    assert len(calls) == 1
    assert scan.moments == ((volume.data.mean(dtype=np.float64), volume.data.std(dtype=np.float64)),)


def test_training_refuses_a_scan_that_no_scanner_gives(tmp_path):
    """One of three is stored in metres: on the grid of the others it would have a billion times its voxels."""
    cases = []
    for index in range(3):
        affine = np.diag([*[500.0 if index == 2 else 0.5] * 3, 1.0])
        paths = tmp_path / f"{index}.nii.gz", tmp_path / f"label{index}.nii.gz"
        write_nifti(Volume(stored(channels=1).data + np.int16(index), affine), paths[0])
        write_nifti(Volume((stored(channels=1).data > 100).astype(np.uint8), affine), paths[1])
        cases.append(Case(str(index), (paths[0],), paths[1], split="train"))
    dataset = Dataset("three", tmp_path, "plain", tuple(cases))
    classes = Classes(("background", "foreground"))
    with pytest.raises(BadInput, match=r"2\.nii\.gz: spacing x is 500 mm.*--allow implausible-spacing"):
        load_scans(dataset, classes, Preprocessing(), (16, 16, 16))
    alone = Dataset("one", tmp_path, "plain", (cases[2],))
    scans = load_scans(alone, classes, Preprocessing(), (16, 16, 16), allow=["implausible-spacing"])
    assert scans.preprocessing.spacing == (500, 500, 500)


class Seen(torch.nn.Module):
    """Keeps the windows it is given."""

    def __init__(self):
        super().__init__()
        self.windows = []

    def forward(self, x):
        self.windows.append(x.clone())
        return torch.cat([x, -x], dim=1)


@pytest.mark.parametrize("intensity", INTENSITIES, ids=str)
@pytest.mark.parametrize("stretch", [1.03, 1.2])
def test_training_and_prediction_see_the_same_voxels(intensity, stretch, tmp_path):
    """Two scans at the median spacing, one within the tolerance of it or beyond."""
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / folder).mkdir()
    cases = []
    for index in range(3):
        affine = AFFINE @ np.diag([*[stretch if index == 2 else 1.0] * 3, 1.0])
        image = Volume(stored(channels=1).data + np.int16(index), affine)
        label = Volume((image.data > 100).astype(np.uint8), affine)
        paths = tmp_path / "imagesTr" / f"{index}.nii.gz", tmp_path / "labelsTr" / f"{index}.nii.gz"
        for volume, path in zip((image, label), paths, strict=True):
            write_nifti(volume, path)
        cases.append(Case(str(index), (paths[0],), paths[1], split="validation" if index == 2 else "train"))
    dataset = Dataset("three", tmp_path, "plain", tuple(cases))
    classes = Classes(("background", "foreground"))
    scans = load_scans(dataset, classes, Preprocessing(intensity=intensity), (16, 16, 16))
    assert scans.preprocessing.intensity == intensity
    assert scans.preprocessing.tolerance == 0.05
    assert scans.preprocessing.spacing == pytest.approx(SPACING)
    _, image, label = scans.validation[0]
    card = Card(preprocessing=scans.preprocessing)
    predictor = Predictor(Seen(), card=card, windows=Windows((32, 32, 32), (32, 32, 32)), runtime="torch")
    predictor.segment(tmp_path / "imagesTr" / "2.nii.gz")
    before = [(32 - length) // 2 for length in image.shape]
    inner = tuple(slice(lead, lead + length) for lead, length in zip(before, image.shape, strict=True))
    assert np.array_equal(predictor.network.windows[0][0, 0][inner].numpy(), image)
    assert label.shape == image.shape
    assert (image.shape == (23, 19, 21)) == (stretch < 1.05)


def test_many_readers_pack_what_one_does(tmp_path, monkeypatch):
    """Nine scans, one of which needs resampling, so that it is read twice; the second takes the longest."""
    write_phantoms(tmp_path, 9, shape=(28, 26, 24))
    coarse = read_nifti(tmp_path / "imagesTr" / "phantom_0003_0000.nii.gz").affine @ np.diag([2, 1, 1, 1])
    for name in ("imagesTr/phantom_0003_0000.nii.gz", "labelsTr/phantom_0003.nii.gz"):
        write_nifti(Volume(read_nifti(tmp_path / name).data, coarse), tmp_path / name)
    dataset, read = open_dataset(tmp_path), scans_module.read_image

    def slow(case):
        time.sleep(0.1 * (case.id == "phantom_0001"))
        return read(case)

    monkeypatch.setattr(scans_module, "read_image", slow)
    found = []
    for count in (1, 5):
        classes = Classes(("background", "chamber"))
        found.append(load_scans(dataset, classes, Preprocessing(), (16, 16, 16), readers=count))
    one, many = found
    assert one.names == many.names == [f"phantom_{number:04d}" for number in range(8)]  # the last one is held out
    for first, second in zip(one.validation[0], many.validation[0], strict=True):
        assert np.array_equal(first, second)
    assert len({volume.shape for volume in one.volumes}) > 1
    for first, second in zip(one.volumes, many.volumes, strict=True):
        for part in ("voxels", "table", "label", "low", "high"):
            here, there = getattr(first, part), getattr(second, part)
            assert (here is None and there is None) or (here.dtype == there.dtype and np.array_equal(here, there))
    for part in ("preprocessing", "appearance", "fingerprint"):
        assert getattr(one, part) == getattr(many, part)


@pytest.mark.parametrize(
    "wrong",
    [
        {"orientation": "RAX"},
        {"spacing": (1.0, 0.0, 1.0)},
        {"tolerance": -0.1},
        {"intensity": {"kind": "window", "low": 3}},
        {"colour": "red"},
    ],
)
def test_values_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValidationError):
        Preprocessing(**wrong)


def test_orientation_letters_are_capitals():
    assert Preprocessing(orientation="lps").orientation == "LPS"

"""The predictor: a mask lands where the scan is, in every orientation, spacing and angle."""

import itertools

import nibabel
import numpy as np
import pytest
import torch
from torch import nn

from fheat import Card, Predictor, create_model, save
from fheat.data.orientation import reorient
from fheat.data.preprocessing import Intensity, Preprocessing
from fheat.data.resample import coordinates, interpolate, resample
from fheat.inference.postprocessing import Restorer, keep_largest, paint
from fheat.inference.windows import Windows
from fheat.io import Volume, read_nifti, read_volume, write_nifti
from fheat.models.card import Window
from fheat.ops.gates import gates_of
from tests.grids import affines
from tests.io.dicom_series import save as save_series
from tests.io.dicom_series import slices

OFFSET = (1, -2, 3)


class Marker(nn.Module):
    """Labels the voxel OFFSET steps (right, anterior, superior) of every bright one."""

    def forward(self, x):
        moved = torch.roll(x, OFFSET, dims=(2, 3, 4))
        return torch.cat([torch.full_like(moved, 0.5), moved], dim=1) * 1000


class Threshold(nn.Module):
    """Labels bright voxels."""

    def forward(self, x):
        return torch.cat([torch.full_like(x, 0.5), x], dim=1) * 20


def window(length=64):
    return Windows((length,) * 3, (length,) * 3)


def test_a_marker_lands_on_the_same_physical_voxels_in_every_orientation(tmp_path):
    predictor = Predictor(Marker(), card=Card(preprocessing={"orientation": "RAS"}), windows=window(24))
    rng = np.random.default_rng(0)
    count = 0
    for affine, _ in list(affines())[::4]:  # every orientation, every pair of spacing and angle
        data = np.zeros((13, 12, 11), dtype=np.int16)
        marker = rng.integers(4, 8, 3)
        data[tuple(marker)] = 1
        write_nifti(Volume(data, affine), tmp_path / "scan.nii")
        scan = read_nifti(tmp_path / "scan.nii")
        write_nifti(predictor.segment(tmp_path / "scan.nii"), tmp_path / "mask.nii.gz")
        mask = read_nifti(tmp_path / "mask.nii.gz")
        assert np.abs(mask.affine - scan.affine).max() <= 1e-6
        assert mask.data.shape == data.shape
        canonical = nibabel.as_closest_canonical(nibabel.Nifti1Image(data, scan.affine)).affine
        expected = scan.affine[:3, :3] @ marker + scan.affine[:3, 3] + canonical[:3, :3] @ OFFSET
        (found,) = np.argwhere(mask.data)
        assert np.abs(mask.affine[:3, :3] @ found + mask.affine[:3, 3] - expected).max() < 1e-4
        count += 1
    assert count == 108


def test_resampling_keeps_the_place_in_every_orientation():
    """A box comes back within one voxel of the coarser grid on every face, whatever spacing the network asks for."""
    predictor = Predictor(
        Threshold(), card=Card(preprocessing={"orientation": "LPS", "spacing": (1.1, 0.9, 1.3)}), windows=window(32)
    )
    for affine, spacing in list(affines())[::4]:
        shape = [max(6, round(24 / step)) if step < 5 else 6 for step in spacing]
        low, high = [n // 3 for n in shape], [n - n // 4 for n in shape]
        data = np.zeros(shape, dtype=np.float32)
        data[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = 1
        mask = predictor.segment(Volume(data, affine))
        assert np.array_equal(mask.affine, affine)
        assert mask.data.shape == data.shape
        sure = np.ones(shape, dtype=bool)
        for axis, step in enumerate(spacing):
            index = np.arange(shape[axis])
            near = (
                np.minimum(abs(index - low[axis] + 0.5), abs(index - high[axis] + 0.5)) * step <= max(1.3, step) * 0.7
            )
            sure &= ~near.reshape([-1 if other == axis else 1 for other in range(3)])
        assert sure.sum() > 20
        assert np.array_equal(mask.data[sure], data[sure].astype(np.uint8))
        assert 2 * (mask.data * data).sum() / (mask.data.sum() + data.sum()) > 0.9


def test_a_real_network_gives_the_same_mask_in_all_48_orientations():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 3, 3, padding=1)).eval()
    grid = Preprocessing(orientation="RAS", spacing=(1.0, 1.2, 0.8), intensity=Intensity(kind="zscore"))
    card = Card(preprocessing=grid)
    predictor = Predictor(net, card=card, windows=Windows((12, 12, 12), (6, 6, 6)))
    data = np.random.default_rng(0).normal(100, 20, (17, 14, 19)).astype(np.float32)
    scan = nibabel.Nifti1Image(data, np.diag([0.7, 1.5, 1.0, 1.0]))
    expected = predictor.segment(Volume(data, scan.affine)).data
    assert set(np.unique(expected)) == {0, 1, 2}
    for order, signs in itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3)):
        turned = scan.as_reoriented(np.column_stack([order, signs]))
        mask = predictor.segment(Volume(np.asarray(turned.dataobj), turned.affine))
        back = nibabel.as_closest_canonical(nibabel.Nifti1Image(mask.data, mask.affine))
        assert np.array_equal(np.asarray(back.dataobj), expected)


def test_every_kind_of_image_gives_the_same_mask(tmp_path):
    """A path, a DICOM folder, a volume, a nibabel image, and an array or tensor with an affine."""
    affine = np.diag([-1.5, -1.5, 2.0, 1.0])
    data = np.random.default_rng(0).integers(0, 900, (24, 20, 12)).astype(np.int16)
    volume = Volume(data, affine)
    volume.save(tmp_path / "scan.nii.gz")
    save_series(slices(data, affine), tmp_path / "series")
    card = Card(preprocessing={"orientation": "RAS", "spacing": (1.0, 1.0, 1.0), "intensity": {"kind": "zscore"}})
    predictor = Predictor(Threshold(), card=card, windows=window(48))
    expected = predictor.segment(volume)
    assert 0 < expected.data.sum() < expected.data.size
    given = (tmp_path / "scan.nii.gz", str(tmp_path / "scan.nii.gz"), nibabel.Nifti1Image(data, affine))
    masks = [predictor.segment(image) for image in given]
    masks += [predictor.segment(image, affine=affine.tolist()) for image in (data, torch.from_numpy(data))]
    for mask in masks:
        assert np.array_equal(mask.data, expected.data)
        assert mask.affine == pytest.approx(affine)
    series = predictor.segment(tmp_path / "series")
    read = predictor.segment(read_volume(tmp_path / "series"))
    assert np.array_equal(series.data, read.data)
    assert not np.array_equal(predictor.segment(data), expected.data)  # taken to be on the network's grid
    with pytest.raises(ValueError, match="affine is for arrays"):
        predictor.segment(volume, affine=affine)
    with pytest.raises(ValueError, match="affine"):
        predictor.segment(data, affine=np.zeros((4, 4)))


def test_equal_grids_leave_probabilities_untouched():
    data = np.random.default_rng(1).random((20, 9, 30)).astype(np.float32)
    mask = Predictor(Threshold(), windows=Windows((8, 8, 8), (4, 4, 4))).segment(data)
    assert np.array_equal(mask, data > 0.5)


PIECES = (1, 3, 8, 11, 100)
GRIDS = tuple(
    Preprocessing(orientation=orientation, spacing=spacing)
    for orientation, spacing in (("RAS", (0.7, 1.3, 1.1)), ("PIL", (2.3, 0.45, 1.0)), (None, (1.4, 1.4, 0.8)))
)


def turned_scan():
    """Two channels, axes out of order and flipped, spacing 0.8 x 1.0 x 1.5 mm."""
    affine = np.array([[0, -1.0, 0, 30], [0, 0, 1.5, -8], [-0.8, 0, 0, 12], [0, 0, 0, 1]])
    return Volume(np.random.default_rng(2).normal(size=(23, 19, 21, 2)).astype(np.float32), affine)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("axis", range(3))
def test_planes_in_pieces_of_any_size_are_those_of_the_whole_resampled(grid, axis):
    volume = turned_scan()
    whole = resample(reorient(volume, grid.orientation or volume.orientation), grid.spacing).data
    scan = grid.scan(volume)
    assert whole.shape == (*scan.shape, 2)
    for piece in PIECES:
        cuts = [*range(0, scan.shape[axis], piece), scan.shape[axis]]
        parts = [scan.planes(axis, start, stop) for start, stop in itertools.pairwise(cuts)]
        assert np.abs(torch.cat(parts, dim=axis + 1).numpy() - np.moveaxis(whole, -1, 0)).max() < 1e-6


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("regions", [(), (1, 5, 2)])
def test_labels_restored_in_pieces_are_those_of_the_whole_interpolated(grid, axis, regions):
    volume = turned_scan()
    scan = grid.scan(volume)
    probabilities = torch.rand(3, *scan.shape)
    whole = probabilities
    for other, (target, step, source) in enumerate(zip(scan.shape, scan.steps, scan.source_shape, strict=True)):
        whole = interpolate(whole, other + 1, coordinates(target, 1 / step, source))
    expected = paint(whole, regions).numpy()
    for piece in PIECES:
        restorer = Restorer(volume, scan, axis, regions)
        for start in range(0, scan.shape[axis], piece):
            part = probabilities.narrow(axis + 1, start, min(piece, scan.shape[axis] - start))
            restorer.add(start, part)
        assert restorer.prediction.mask.data.shape == volume.data.shape[:3]
        assert np.array_equal(reorient(restorer.prediction.mask, scan.orientation).data, expected)


def test_intensity():
    seen = []

    class Spy(Threshold):
        def forward(self, x):
            seen.append(x.clone())
            return super().forward(x)

    data = np.random.default_rng(0).normal(300, 40, (10, 10, 10)).astype(np.float32)
    data[:3] = 0

    def network_input(**intensity):
        seen.clear()
        card = Card(preprocessing=Preprocessing(intensity=Intensity(**intensity)))
        Predictor(Spy(), card=card, windows=window(10)).segment(data)
        return seen[-1][0, 0].numpy()

    assert np.array_equal(network_input(kind="none"), data)
    assert np.allclose(network_input(kind="zscore"), (data - data.mean()) / data.std(), atol=1e-5)
    inside = data[data != 0]
    assert np.allclose(
        network_input(kind="zscore", nonzero=True), (data - inside.mean()) / inside.std(), rtol=1e-4, atol=1e-5
    )
    assert np.allclose(network_input(kind="window", low=250, high=330), np.clip((data - 250) / 80, 0, 1), atol=1e-6)


def test_channels_and_regions():
    class Nested(nn.Module):
        def forward(self, x):
            return torch.cat([x[:, :1] + x[:, 1:], x[:, :1], x[:, 1:] - 0.5], dim=1) * 100 - 50

    card = Card(classes=("whole", "core", "enhancing"), regions=(1, 2, 3))
    data = np.zeros((8, 8, 8, 2), dtype=np.float32)
    data[1:7, 1:7, 1:7, 1] = 0.7
    data[2:6, 2:6, 2:6, 0] = 1
    data[3:5, 3:5, 3:5, 1] = 1.5
    mask = Predictor(Nested(), card=card, windows=window(8)).segment(data)
    expected = np.zeros((8, 8, 8), dtype=np.uint8)
    expected[1:7, 1:7, 1:7], expected[2:6, 2:6, 2:6], expected[3:5, 3:5, 3:5] = 1, 2, 3
    assert np.array_equal(mask, expected)


def test_paint():
    probabilities = torch.tensor([[0.5, 0.2, 0.4], [0.5, 0.8, 0.4], [0.0, 0.0, 0.2]]).view(3, 3, 1, 1)
    assert paint(probabilities).flatten().tolist() == [0, 1, 0]
    assert paint(probabilities, (7, 8, 9)).flatten().tolist() == [0, 8, 0]


def brute_force_largest(labels):
    kept = np.zeros_like(labels)
    for value in np.unique(labels[labels > 0]):
        left, best = {tuple(at) for at in np.argwhere(labels == value)}, []
        while left:
            part, edge = [], [min(left)]
            left.discard(edge[0])
            while edge:
                at = edge.pop()
                part.append(at)
                for step in itertools.product((-1, 0, 1), repeat=3):
                    other = tuple(a + b for a, b in zip(at, step, strict=True))
                    if other in left:
                        left.discard(other)
                        edge.append(other)
            best = max(best, part, key=len)
        kept[tuple(np.array(best).T)] = value
    return kept


def test_largest_component_per_class_equals_a_flood_fill():
    rng = np.random.default_rng(0)
    for _ in range(30):
        labels = rng.choice(4, size=(9, 8, 7), p=[0.8, 0.08, 0.07, 0.05]).astype(np.uint8)
        expected = brute_force_largest(labels)
        sizes = {value: (expected == value).sum() for value in (1, 2, 3)}
        keep_largest(labels)
        assert {value: (labels == value).sum() for value in (1, 2, 3)} == sizes
        assert np.array_equal(brute_force_largest(labels), labels)
    empty = np.zeros((4, 4, 4), dtype=np.uint8)
    keep_largest(empty)
    assert not empty.any()
    diagonal = np.zeros((4, 4, 4), dtype=np.uint8)
    diagonal[0, 0, 0] = diagonal[1, 1, 1] = 2
    keep_largest(diagonal)
    assert diagonal.sum() == 4


@pytest.mark.parametrize("values", [(1, 2, 3), (7, 2, 5)])
def test_the_largest_component_of_nested_regions(values):
    """Each region counts together with what lies inside it; what an inner one loses falls to the one around it."""
    outer, core, inner = values
    labels = np.zeros((30, 9, 9), dtype=np.uint8)
    labels[2:20, 1:8, 1:8] = outer
    labels[6:12] = np.where(labels[6:12] > 0, core, 0)  # cuts the outer region's own voxels in two
    labels[7:10, 3:6, 3:6] = inner
    kept = labels.copy()
    keep_largest(labels, values)
    assert np.array_equal(labels, kept)
    labels[11, 6, 6] = inner  # an island of the innermost, in the core
    labels[15:17, 3:5, 3:5] = core  # an island of the core with its own inner part
    labels[15, 3, 3] = inner
    labels[24:27, 2:5, 2:5] = core  # a second tumour, larger than any island
    labels[25, 3, 3] = inner
    keep_largest(labels, values)
    assert np.array_equal(labels, kept)


@pytest.mark.parametrize(
    ("card", "classes", "labels"),
    [
        (
            Card(classes=("WT", "TC", "ET"), regions=(1, 2, 3)),
            {"WT": (1, 2, 3), "TC": (2, 3), "ET": (3,)},
            ("WT without TC", "TC without ET", "ET"),
        ),
        (
            Card(classes=("WT", "TC", "ET"), regions=(2, 1, 4)),
            {"WT": (2, 1, 4), "TC": (1, 4), "ET": (4,)},
            ("TC without ET", "WT without TC", "label 3", "ET"),
        ),
        (Card(regions=(3, 1)), {"label 3": (3, 1), "label 1": (1,)}, ("label 1", "label 2", "label 3 without label 1")),
        (Card(classes=("background", "liver", "tumour")), {"liver": (1,), "tumour": (2,)}, ("liver", "tumour")),
        (Card(), {}, ()),
    ],
)
def test_classes_and_the_names_of_label_values(card, classes, labels):
    predictor = Predictor(Threshold(), card=card, windows=window())
    assert predictor.classes == classes
    assert predictor.labels == labels


def test_a_model_folder_is_all_it_needs(tmp_path):
    torch.manual_seed(0)
    model = create_model("fheat_seg", patch_size=(32, 32, 32))
    gates_of(model)["enc1"].delta.data.fill_(-1)
    card = Card(
        classes=("background", "chamber"),
        preprocessing=Preprocessing(intensity=Intensity(kind="zscore")),
        window=Window(size=(32, 32, 32), stride=(16, 16, 16)),
    )
    save(model, tmp_path / "model", card)
    predictor = Predictor(tmp_path / "model", largest_component=True)
    assert predictor.windows == Windows((32, 32, 32), (16, 16, 16))
    assert gates_of(predictor.network)["enc1"].retired
    data = np.random.default_rng(0).normal(size=(40, 36, 33)).astype(np.float32)
    mask = predictor.segment(data)
    with torch.no_grad():
        plain = Predictor(model.eval(), card=card).segment(data)
    assert not gates_of(model)["enc1"].retired  # what was given is not changed
    keep_largest(plain)
    assert mask.sum() > 0
    assert np.array_equal(mask, plain)
    assert np.array_equal(predictor.segment(torch.from_numpy(data)), mask)


def test_default_window_is_the_patch_with_half_overlap():
    assert Predictor(create_model("fheat_seg", patch_size=(32, 48, 32))).windows == Windows((32, 48, 32), (16, 24, 16))


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match="states a window"):
        Predictor(Threshold())
    predictor = Predictor(create_model("fheat_seg", patch_size=(32, 32, 32)))
    with pytest.raises(ValueError, match="3 channels and the network takes 1"):
        predictor.segment(np.zeros((8, 8, 8, 3)))
    with pytest.raises(ValueError, match="NaN, infinity or numbers beyond float32"):
        predictor.segment(np.full((8, 8, 8), np.inf))
    with pytest.raises(ValueError, match="orientation='XYZ'"):
        Preprocessing(orientation="XYZ")
    for bad in ({"kind": "window"}, {"kind": "window", "low": 2, "high": 1}, {"low": 1}, {"nonzero": True}):
        with pytest.raises(ValueError):
            Intensity(**bad)


def test_a_network_with_one_output_needs_a_region():
    """As a class it would be the background everywhere, without a word."""
    network, data = nn.Conv3d(1, 1, 1), np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32)
    options = {"windows": Windows((8, 8, 8), (8, 8, 8)), "device": "cpu", "runtime": "torch"}
    with pytest.raises(ValueError, match="one output channel, which is the background: give a card with regions"):
        Predictor(network, **options).segment(data)
    mask = Predictor(network, **options, card=Card(regions=(1,))).segment(data)
    assert np.array_equal(mask, (network(torch.from_numpy(data)[None, None])[0, 0] > 0).numpy())


@pytest.mark.parametrize("runtime", ["torch", "openvino"])
def test_batches_of_torch_on_a_cpu_choose_their_threads(runtime):
    """A compiled network has threads of its own."""
    if runtime != "torch":
        pytest.importorskip("openvino")
    torch.manual_seed(0)
    network = create_model("miniature", patch_size=(16, 16, 16))
    predictor, units = Predictor(network, device="cpu", runtime=runtime, flips=True), []
    run = predictor._pace.unit
    predictor._pace.unit = lambda amount: (units.append(amount), run(amount))[1]
    predictor.segment(np.random.default_rng(0).normal(size=(24, 16, 16)).astype(np.float32))
    assert sum(units) == (2 if runtime == "torch" else 0)

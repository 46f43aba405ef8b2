"""Phantoms: the same from the same seed, one anatomy under every geometry, hard by measure, a complete dataset."""

import json

import cc3d
import numpy as np
import pytest
from scipy import ndimage
from scipy.ndimage import binary_opening, map_coordinates

from fheat import BadInput
from fheat.data.phantom import VEIN_REACH, phantom, write_phantoms
from fheat.data.phantom_anatomy import draw_body
from fheat.data.phantom_shapes import Ellipsoid, SamplingGrid, Tube, Waves, doubled, paint
from fheat.io import read_nifti

SEEDS = range(6)
SMALL = (56, 48, 36)


@pytest.fixture(scope="module")
def cases():
    return [phantom(seed) for seed in SEEDS]


def positions(affine, shape):
    return np.moveaxis(np.indices(shape), 0, -1) @ affine[:3, :3].T + affine[:3, 3]


def skew_grid(shape=(17, 12, 15)):
    """A tilted grid with unequal spacing, and a box in it that starts at even indices."""
    turn, _ = np.linalg.qr(np.array([[1.0, 0.4, -0.3], [-0.2, 1.1, 0.5], [0.3, -0.6, 0.9]]))
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn * (0.8, 1.1, 1.7), (-9.0, 4.0, -13.0)
    whole = SamplingGrid(affine, tuple(slice(0, length) for length in shape))
    part = SamplingGrid(affine, tuple(slice(2, length - 1) for length in shape))
    return part, positions(affine, shape)[part.within(whole)]


def test_the_same_seed_gives_the_same_voxels(cases):
    again = phantom(3)
    assert np.array_equal(again.image.data, cases[3].image.data)
    assert np.array_equal(again.label.data, cases[3].label.data)
    assert np.array_equal(again.image.affine, cases[3].image.affine)
    assert not np.array_equal(phantom(4).image.data, cases[3].image.data)


def test_contrast_changes_the_brightness_of_tissues_and_nothing_else():
    """The power is drawn anew for each scan, lies between 1 / contrast and contrast, and 1 gives the same voxels."""
    plain = [phantom(seed, SMALL) for seed in range(20)]
    changed = [phantom(seed, SMALL, contrast=3.0) for seed in range(20)]
    assert np.array_equal(phantom(0, SMALL, contrast=1.0).image.data, plain[0].image.data)
    powers = []
    for one, other in zip(plain, changed, strict=True):
        assert np.array_equal(one.label.data, other.label.data)
        assert np.array_equal(one.image.affine, other.image.affine)
        dark = np.percentile(one.image.data, 20) / np.percentile(one.image.data, 95)
        darker = np.percentile(other.image.data, 20) / np.percentile(other.image.data, 95)
        powers.append(np.log(darker) / np.log(dark))  # about the power; noise lifts what is nearly black
    assert 0.3 < min(powers) < 0.7
    assert 1.4 < max(powers) < 3.0
    with pytest.raises(ValueError, match=r"contrast 0\.5 is below 1"):
        phantom(0, SMALL, contrast=0.5)


def test_a_seed_sequence_is_left_as_it_was():
    sequence = np.random.SeedSequence(5)
    assert np.array_equal(phantom(sequence, SMALL).image.data, phantom(sequence, SMALL).image.data)
    assert sequence.n_children_spawned == 0


def test_types_and_geometry(cases):
    for made in cases:
        assert made.image.data.dtype == np.int16
        assert made.label.data.dtype == np.uint8
        assert made.image.data.shape == made.label.data.shape == (112, 96, 72)
        assert np.array_equal(made.image.affine, made.label.affine)
        assert set(np.unique(made.label.data)) == {0, 1}
        x, y, z = made.image.spacing
        assert x == pytest.approx(y)
        assert 0.6 < x < 1.2
        assert 1.0 < z < 2.0
        assert made.image.data.min() >= 0
    assert len({made.image.orientation for made in cases}) >= 4
    tilted = [np.abs(made.image.affine[:3, :3] / made.image.spacing).max(axis=0).min() < 0.999 for made in cases]
    assert 0 < sum(tilted) < len(tilted)


@pytest.mark.parametrize("seed", range(12))
def test_geometry_changes_the_sampling_and_not_the_anatomy(seed):
    """The upright label, looked up where the voxels of the other scan lie, is that scan's label."""
    varied, upright = phantom(seed, SMALL), phantom(seed, (100, 100, 100), geometry="canonical")
    assert upright.image.orientation == "RAS"
    places = positions(np.linalg.inv(upright.label.affine) @ varied.label.affine, SMALL)
    expected = map_coordinates(upright.label.data.astype(np.float32), np.moveaxis(places, -1, 0), order=1) > 0.5
    found = varied.label.data > 0
    assert 2 * (expected & found).sum() / (expected.sum() + found.sum()) > 0.95


def test_a_smaller_field_of_view_samples_the_same_anatomy_more_finely():
    for geometry in ("varied", "canonical"):
        whole, near = (phantom(5, SMALL, geometry=geometry, field_of_view=view) for view in (100.0, 70.0))
        assert np.allclose(near.image.spacing, 0.7 * np.array(whole.image.spacing))
        volumes = [scan.label.data.sum() * np.prod(scan.label.spacing) for scan in (whole, near)]
        assert volumes[1] == pytest.approx(volumes[0], rel=0.1)


def test_a_dataset_takes_geometry_and_field_of_view(tmp_path):
    write_phantoms(tmp_path / "scans", 1, test=0, shape=(26, 25, 24), geometry="canonical", field_of_view=50.0)
    scan = read_nifti(tmp_path / "scans" / "imagesTr" / "phantom_0000_0000.nii.gz")
    assert scan.orientation == "RAS"
    assert np.allclose(scan.spacing, 50.0 / np.array([26, 25, 24]))


@pytest.mark.parametrize("seed", range(12))
def test_the_atrium_lies_at_the_back_of_the_body_whatever_the_orientation(seed):
    made = phantom(seed, SMALL)
    where = positions(made.image.affine, SMALL)
    centre = where[made.label.data > 0].mean(axis=0)
    assert np.linalg.norm(centre - (-3, -6, 4)) < 7
    # The brightest of the rest are its neighbours in the heart, most of which lie in front of it.
    bright = (made.image.data > np.percentile(made.image.data[made.label.data > 0], 30)) & (made.label.data == 0)
    near = bright & (np.linalg.norm(where - centre, axis=-1) < 45) & (np.abs(where[..., 2] - centre[2]) < 25)
    assert where[near].mean(axis=0)[1] > centre[1]


def test_no_threshold_finds_the_label(cases):
    best = []
    for made in cases:
        image, label = made.image.data, made.label.data > 0
        total = np.bincount(image.ravel())[::-1].cumsum()
        inside = np.bincount(image[label], minlength=total.size)[::-1].cumsum()
        best.append((2 * inside / (total + label.sum())).max())
    assert np.mean(best) < 0.45
    assert max(best) < 0.6


def test_unlabelled_neighbours_are_as_bright_as_the_atrium(cases):
    """Of the voxels whose brightness is within the middle of the atrium's, smoothed, fewer than half are its own."""
    for made in cases:
        smooth = ndimage.uniform_filter(made.image.data.astype(np.float32), 3)
        low, high = np.percentile(smooth[made.label.data > 0], (10, 90))
        alike = (smooth >= low) & (smooth <= high)
        assert alike[made.label.data > 0].sum() < 0.5 * alike.sum()


def test_the_label_is_one_piece_of_a_chamber_and_thin_tubes(cases):
    ball = np.linalg.norm(np.indices((7, 7, 7)) - 3, axis=0) <= 3
    lost = []
    for made in cases:
        label = made.label.data
        assert cc3d.connected_components(label, connectivity=26).max() == 1
        assert 0.02 < label.mean() < 0.12
        lost.append(1 - binary_opening(label, ball).sum() / label.sum())
    assert np.mean(lost) > 0.03


def test_veins_go_on_where_the_label_ends():
    for seed in SEEDS:
        body = draw_body(np.random.default_rng(seed))
        chamber, veins = body.atrium.chamber, body.atrium.veins
        assert 2 <= len(veins) <= 4
        for vein in veins:
            end = vein.start + vein.turn @ np.array([vein.length, vein.bow, 0.0])
            affine = np.eye(4)
            for point, inside in ((vein.start, True), (end, False)):
                affine[:3, 3] = point
                here = chamber.distance(SamplingGrid(affine, (slice(0, 1),) * 3)).item()
                assert here < 0 if inside else here > VEIN_REACH


@pytest.mark.parametrize("bend", [0.0, 0.6])
def test_ellipsoid_distance_is_zero_on_the_surface_and_has_slope_one(bend):
    grid, where = skew_grid()
    turn, _ = np.linalg.qr(np.array([[1.0, 0.2, 0.1], [-0.3, 1.0, 0.2], [0.1, 0.2, 1.0]]))
    shape = Ellipsoid(where.mean(axis=(0, 1, 2)), np.array([6.0, 4.0, 9.0]), turn, bend)
    u, v, w = np.moveaxis((where - shape.centre) @ turn / shape.radii, -1, 0)
    v = v + bend * (u**2 - 0.5)
    level = np.sqrt(u**2 + v**2 + w**2)
    slope = np.sqrt((u / 6) ** 2 + (v / 4) ** 2 + (w / 9) ** 2)
    assert np.abs(shape.distance(grid) - level * (level - 1) / slope).max() < 1e-4
    if not bend:  # against the distance to the nearest of many surface points
        angles = np.random.default_rng(0).standard_normal((200_000, 3))
        surface = shape.centre + (angles / np.linalg.norm(angles, axis=1, keepdims=True) * shape.radii) @ turn.T
        near = np.abs(level - 1) < 0.05
        exact = [np.linalg.norm(surface - point, axis=1).min() for point in where[near]]
        assert np.abs(np.abs(shape.distance(grid)[near]) - exact).max() < 0.1


def test_tube_distance_without_bow_is_that_to_a_segment():
    grid, where = skew_grid()
    turn, _ = np.linalg.qr(np.array([[1.0, 0.2, 0.1], [-0.3, 1.0, 0.2], [0.1, 0.2, 1.0]]))
    shape = Tube(where[3, 2, 4], turn, length=9.0, radius=2.0)
    along = np.clip((where - shape.start) @ turn[:, 0], 0, 9)
    exact = np.linalg.norm(where - shape.start - along[..., None] * turn[:, 0], axis=-1) - 2
    assert np.abs(shape.distance(grid) - exact).max() < 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_everything_nearer_than_the_margin(seed):
    body = draw_body(np.random.default_rng(seed))
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    affine[:3, 3] = -80
    grid = SamplingGrid(affine, (slice(0, 80),) * 3)
    where = positions(affine, grid.shape)
    atrium = body.atrium
    for shape in (atrium.chamber, atrium.appendage, *atrium.veins, *(organ.shape for organ in body.heart)):
        low, high = shape.bounds(3.0)
        outside = ((where < low) | (where > high)).any(axis=-1)
        assert shape.distance(grid)[outside].min() > 2.0


def test_waves_are_their_sum_of_cosines_and_have_their_deviation():
    grid, where = skew_grid()
    waves = Waves.draw(np.random.default_rng(0), 0.5, 8, 30, 5) + Waves.draw(np.random.default_rng(1), 0.1, 90, 200, 3)
    slow = (np.cos(where @ waves.vectors.T + waves.phases) * waves.amplitudes).sum(axis=-1)
    assert np.abs(waves.on(grid) - slow).max() < 1e-5
    wide = SamplingGrid(np.eye(4), (slice(0, 128),) * 3)
    assert Waves.draw(np.random.default_rng(2), 0.5, 8, 30, 12).on(wide).std() == pytest.approx(0.5, rel=0.1)


def test_doubling_is_exact_for_linear_fields_of_any_length():
    for shape in ((6, 7, 9), (8, 4, 5)):
        whole = SamplingGrid(np.eye(4), tuple(slice(2, 2 + length) for length in shape))
        slope = np.array([1.0, -2.0, 0.5])
        half = whole.halved()
        coarse = np.indices(half.shape).T @ (2 * slope)
        fine = np.indices(shape).T @ slope
        assert np.allclose(doubled(coarse.T.astype(np.float32), shape), fine.T)


def test_paint_is_half_on_the_edge_and_leaves_the_rest():
    image = np.full((1, 1, 5), 2.0, dtype=np.float32)
    paint(image, np.array([[[-3, -0.5, 0, 0.5, 3]]], dtype=np.float32), 10.0, edge=1.0)
    assert image.ravel().tolist() == [10.0, 10.0, 6.0, 2.0, 2.0]


def test_too_coarse_a_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \(64, 16, 64\) is too coarse"):
        phantom(0, (64, 16, 64))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_written_dataset_is_complete_and_the_same_again(tmp_path):
    seen = []
    write_phantoms(tmp_path / "a", 12, seed=7, shape=(28, 26, 24), test=2, progress=lambda *now: seen.append(now))
    assert seen == [(i, 14) for i in range(1, 15)]
    files = contents(tmp_path / "a")
    names = [f"phantom_{i:04d}" for i in range(12)]
    held_out = ["phantom_t0000", "phantom_t0001"]
    assert set(files) == {
        "dataset.json",
        "splits.json",
        *(f"imagesTr/{name}_0000.nii.gz" for name in names),
        *(f"labelsTr/{name}.nii.gz" for name in names),
        *(f"imagesTs/{name}_0000.nii.gz" for name in held_out),
        *(f"labelsTs/{name}.nii.gz" for name in held_out),
    }
    described = json.loads(files["dataset.json"])
    assert described["numTraining"] == 12
    assert described["labels"] == {"background": 0, "left_atrium": 1}
    assert described["channel_names"] == {"0": "LGE-MRI"}
    assert described["file_ending"] == ".nii.gz"
    assert "version 1, seed 7" in described["description"]
    assert json.loads(files["splits.json"]) == {
        "order": names,
        "labelled_4": names[:4],
        "labelled_8": names[:8],
        "validation": names[11:],
        "unlabelled_4": names[4:11],
        "unlabelled_8": names[8:11],
    }
    write_phantoms(tmp_path / "b", 12, seed=7, shape=(28, 26, 24), test=2)
    assert contents(tmp_path / "b") == files


def test_a_case_does_not_depend_on_how_many_there_are(tmp_path):
    write_phantoms(tmp_path / "few", 2, shape=(26, 24, 24), test=1)
    write_phantoms(tmp_path / "many", 4, shape=(26, 24, 24), test=2)
    few, many = contents(tmp_path / "few"), contents(tmp_path / "many")
    scans = [name for name in few if name.endswith(".nii.gz")]
    assert len(scans) == 6
    assert all(few[name] == many[name] for name in scans)
    assert len(set(many.values())) == len(many)
    made = phantom(np.random.SeedSequence(0, spawn_key=(0, 1)), (26, 24, 24))
    assert np.array_equal(read_nifti(tmp_path / "few/imagesTr/phantom_0001_0000.nii.gz").data, made.image.data)
    assert np.array_equal(read_nifti(tmp_path / "few/labelsTr/phantom_0001.nii.gz").data, made.label.data)


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="exists already; give a new or empty folder"):
        write_phantoms(tmp_path, 1, shape=(24, 24, 24))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(BadInput, match="is a file; give a folder to write to"):
        write_phantoms(tmp_path / "notes.txt", 1, shape=(24, 24, 24))
    (tmp_path / "empty").mkdir()
    write_phantoms(tmp_path / "empty", 1, shape=(24, 24, 24), test=0)
    assert (tmp_path / "empty" / "dataset.json").exists()


def test_slabs_leave_no_trace(monkeypatch):
    whole = phantom(1, (57, 48, 37))
    monkeypatch.setattr("fheat.data.phantom._SLAB", 4 * 48 * 37)
    pieces = phantom(1, (57, 48, 37))
    assert np.array_equal(whole.label.data, pieces.label.data)
    assert np.abs(whole.image.data - pieces.image.data).max() <= 1


def test_noise_is_rician():
    """In air the magnitude has Rayleigh's ratio of mean to deviation; the far corner of an upright scan is air."""
    ratios = []
    for seed in SEEDS:
        corner = phantom(seed, (100, 100, 100), geometry="canonical").image.data[:6, -6:].astype(np.float64)
        ratios.append(corner.mean() / corner.std())
    assert np.median(ratios) == pytest.approx(np.sqrt(np.pi / (4 - np.pi)), rel=0.1)

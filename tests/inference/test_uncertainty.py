"""Probabilities and uncertainty: the same mask, on the scan's voxels, equal to what a slow obvious way computes."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from fheat import BadInput, Card, Predictor, create_model, save
from fheat.cli.main import main
from fheat.data.phantom import phantom
from fheat.inference.uncertainty import disagreement, entropy
from fheat.inference.windows import Windows
from fheat.io import Volume, read_nifti, write_nifti
from fheat.models.card import Window
from fheat.models.ensemble import Ensemble

SIZE = (16, 16, 16)
FLIPS = [axes for count in range(4) for axes in itertools.combinations((2, 3, 4), count)]
GRID = Card(
    classes=("background", "one", "two"),
    preprocessing={"orientation": "RAS", "spacing": (1.0, 1.2, 0.8), "intensity": {"kind": "zscore"}},
)
OPTIONS = {"card": GRID, "windows": Windows((12, 12, 12), (6, 6, 6)), "device": "cpu", "runtime": "torch"}


def network(seed, classes=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, classes, 3, padding=1)).eval()


class Flipped(nn.Module):
    """A network on a mirror image of its input, its output mirrored back."""

    def __init__(self, inner, axes):
        super().__init__()
        self.inner, self.axes = inner, axes

    def forward(self, x):
        return self.inner(x.flip(self.axes)).flip(self.axes)


@pytest.fixture(scope="module")
def scan():
    data = np.random.default_rng(0).normal(100, 20, (17, 14, 19)).astype(np.float32)
    return Volume(data, np.diag([-0.7, 1.5, 1.0, 1.0]))


def labels_of(probabilities, regions=()):
    """Return labels voxel by voxel, as the docstring of `paint` says it."""
    labels = np.zeros(probabilities.shape[:3], np.uint8)
    for place in np.ndindex(labels.shape):
        values = probabilities[place]
        if not regions:
            labels[place] = int(values.argmax())
        for value, probability in zip(regions, values, strict=False):
            if probability > 0.5:
                labels[place] = value
    return labels


def test_probabilities_of_one_window_are_the_softmax_of_the_network_at_the_voxels_of_the_scan():
    """The scan is stored with two axes swapped and one turned round; the network sees it as RAS."""
    data = np.random.default_rng(1).normal(size=(10, 12, 11)).astype(np.float32)
    affine = np.array([[0, -1.0, 0, 5], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    net = network(0)
    card = Card(preprocessing={"orientation": "RAS"})
    predictor = Predictor(net, card=card, windows=Windows((12, 12, 12), (12, 12, 12)), probabilities=True)
    found = predictor.predict(Volume(data, affine))
    seen = np.zeros((12, 12, 12), np.float32)  # padded by one plane of zeros behind along y, and in front along none
    turned = data.transpose(1, 0, 2)[::-1]
    seen[:, 1:11, :11] = turned
    with torch.no_grad():
        expected = net(torch.from_numpy(seen.copy())[None, None]).softmax(dim=1)[0, :, :, 1:11, :11].numpy()
    back = expected[:, ::-1].transpose(2, 1, 3, 0)
    assert found.probabilities.data.shape == (10, 12, 11, 3)
    assert found.probabilities.data.dtype == np.float32
    assert np.abs(found.probabilities.data - back).max() < 1e-6
    assert np.array_equal(found.probabilities.affine, affine)
    assert np.array_equal(found.probabilities.data.argmax(axis=-1), found.mask.data)
    assert found.uncertainty is None


@pytest.mark.parametrize("options", [{}, {"flips": True}], ids=["plain", "flips"])
@pytest.mark.parametrize("networks", [1, 3])
def test_disagreement_and_entropy_equal_those_of_the_members_one_by_one(scan, networks, options):
    """Every member, a network on a mirror image, segments the whole scan alone; the rest is counted voxel by voxel."""
    nets = [network(seed) for seed in range(networks)]
    whole = Ensemble(nets) if networks > 1 else nets[0]
    mask = Predictor(whole, **OPTIONS, **options).segment(scan).data
    flips = FLIPS if options else [()]
    members = [Predictor(Flipped(net, axes), **OPTIONS, probabilities=True) for net in nets for axes in flips]
    alone = [member.predict(scan).probabilities.data.astype(np.float64) for member in members]
    mean = np.mean(alone, axis=0)
    found = Predictor(whole, **OPTIONS, **options, probabilities=True, uncertainty="entropy").predict(scan)
    assert np.array_equal(found.mask.data, mask)
    assert np.abs(found.probabilities.data - mean).max() < 1e-5
    surprise = -np.sum([mean[..., k] * np.log(mean[..., k]) for k in range(3)], axis=0) / math.log(3)
    assert np.abs(found.uncertainty.data - surprise).max() < 1e-4
    assert 0 <= found.uncertainty.data.min() < found.uncertainty.data.max() <= 1
    if len(alone) == 1:
        return
    voted = Predictor(whole, **OPTIONS, **options, probabilities=True, uncertainty="disagreement").predict(scan)
    assert np.array_equal(voted.mask.data, mask)
    assert np.array_equal(voted.probabilities.data, found.probabilities.data)
    differing = np.mean([labels_of(one) != mask for one in alone], axis=0)
    ties = np.any([np.sort(one, axis=-1)[..., -1] - np.sort(one, axis=-1)[..., -2] < 1e-5 for one in alone], axis=0)
    assert ties.mean() < 0.01
    assert np.abs(voted.uncertainty.data - differing)[~ties].max() < 1e-6
    assert voted.uncertainty.data.max() > 0


def test_regions_are_judged_one_by_one(scan):
    card = GRID.model_copy(update={"classes": ("whole", "core"), "regions": (1, 2)})
    nets = [network(seed, 2) for seed in range(2)]
    options = OPTIONS | {"card": card, "probabilities": True}
    found = Predictor(Ensemble(nets, regions=True), **options, uncertainty="disagreement").predict(scan)
    alone = [Predictor(net, **options).predict(scan) for net in nets]
    mean = np.mean([one.probabilities.data for one in alone], axis=0)
    assert np.abs(found.probabilities.data - mean).max() < 1e-5
    differing = np.mean([one.mask.data != found.mask.data for one in alone], axis=0)
    assert (np.abs(found.uncertainty.data - differing) > 1e-6).mean() < 0.001
    unsure = Predictor(Ensemble(nets, regions=True), **options, uncertainty="entropy").predict(scan).uncertainty.data
    binary = -(mean * np.log2(mean) + (1 - mean) * np.log2(1 - mean))
    assert np.abs(unsure - binary.max(axis=-1)).max() < 1e-4


def test_the_ends_of_the_scale():
    certain, even = torch.zeros(4, 1, 1, 1), torch.full((4, 1, 1, 1), 0.25)
    certain[2] = 1
    assert entropy(certain).item() == 0
    assert entropy(even).item() == pytest.approx(1, abs=1e-6)
    assert entropy(torch.ones(1, 1, 1, 1)).item() == 0
    assert entropy(certain, (1, 2, 3, 4)).item() == 0
    assert entropy(torch.full((2, 1, 1, 1), 0.5), (1, 2)).item() == 1
    members = torch.stack([certain, certain.roll(1, 0), certain, certain.roll(1, 0).roll(1, 0)])
    assert disagreement(members, certain).item() == 0.5
    assert disagreement(members[:1], certain).item() == 0


def test_what_cannot_be_measured_is_refused_in_one_line():
    with pytest.raises(ValueError, match="disagreement needs members that can disagree: add --flips, or give several"):
        Predictor(network(0), **OPTIONS, uncertainty="disagreement")
    with pytest.raises(ValueError, match="uncertainty='doubt' is unknown: use entropy or disagreement"):
        Predictor(network(0), **OPTIONS, uncertainty="doubt")


def test_the_memory_bound_counts_maps_and_members(scan):
    plain = Predictor(network(0), **OPTIONS, flips=True).memory(scan)
    more = Predictor(network(0), **OPTIONS, flips=True, probabilities=True, uncertainty="disagreement").memory(scan)
    voxels = scan.data.size
    assert (plain.maps, more.maps) == (0, (3 + 1) * 4 * voxels)
    assert more.slab / plain.slab == pytest.approx((1 + 3 * 9 + 2) / (1 + 3 + 2))


@pytest.fixture
def models(tmp_path):
    card = Card(
        classes=("background", "chamber"),
        preprocessing={"orientation": "RAS", "intensity": {"kind": "zscore"}},
        window=Window(size=SIZE, stride=SIZE),
    )
    folders = []
    for seed in range(2):
        torch.manual_seed(seed)
        folders.append(str(save(create_model("miniature", patch_size=SIZE), tmp_path / f"model{seed}", card)))
    write_nifti(phantom(0, (34, 34, 34)).image, tmp_path / "scans" / "a.nii.gz")
    return folders


def test_the_verb_writes_maps_that_decide_whether_a_mask_is_kept(models, tmp_path, capsys):
    scans, out = str(tmp_path / "scans"), tmp_path / "out"
    words = ["predict", *models, scans, str(out), "--no-preview", "--device", "cpu"]
    maps = ["--probabilities", "--uncertainty", "disagreement"]

    def kept(*more):
        assert main([*words, "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["kept"]

    assert kept(*maps) == []
    names = ["a.nii.gz", "a_probabilities.nii.gz", "a_uncertainty.nii.gz", "run.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    record = json.loads((out / "run.json").read_text())
    assert (record["settings"]["probabilities"], record["settings"]["uncertainty"]) == (True, "disagreement")
    assert list(record["cases"][0]["maps_sha256"]) == names[1:3]
    mask, chances, doubt = (read_nifti(out / name) for name in names[:3])
    assert chances.data.shape == (*mask.data.shape, 2)
    assert chances.data.dtype == np.float32
    assert np.array_equal(chances.data.argmax(axis=-1), mask.data)
    assert set(np.unique(doubt.data)) <= {0, 0.5, 1}
    assert np.array_equal(doubt.affine, mask.affine)
    assert kept(*maps) == ["a"]
    (out / "a_uncertainty.nii.gz").unlink()
    assert kept(*maps) == []  # a map is missing
    assert (out / "a_uncertainty.nii.gz").exists()
    assert kept("--probabilities", "--uncertainty", "entropy") == []  # another setting
    assert read_nifti(out / "a_uncertainty.nii.gz").data.max() > 0
    assert kept() == []
    write_nifti(doubt, out / "a_probabilities.nii.gz")
    assert main([*words, *maps]) == 3
    assert "a_probabilities.nii.gz: exists already, and is no map of this program" in capsys.readouterr().err
    assert main([*words[:2], *words[3:], "--uncertainty", "disagreement"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "add --flips, or give several models" in complaint


def test_names_that_would_collide_are_refused_before_the_first_scan(models, tmp_path):
    write_nifti(phantom(1, (34, 34, 34)).image, tmp_path / "scans" / "a_probabilities.nii.gz")
    predictor = Predictor(models[0], device="cpu", probabilities=True)
    with pytest.raises(BadInput, match="which would both write a_probabilities"):
        predictor.segment_folder(tmp_path / "scans", tmp_path / "out")


def test_the_network_of_a_predictor_that_looks_at_members_can_be_used_again(scan):
    """Its ensemble returns every member behind the mean, which are no classes to a predictor that asks for none."""
    ensemble = Ensemble([network(seed) for seed in range(3)])
    expected = Predictor(ensemble, **OPTIONS).segment(scan).data
    looking = Predictor(ensemble, **OPTIONS, uncertainty="disagreement")
    for again in (Predictor(looking.network, **OPTIONS), Predictor(looking.network, **OPTIONS, uncertainty="entropy")):
        assert np.array_equal(again.segment(scan).data, expected)
    assert np.array_equal(looking.segment(scan).data, expected)

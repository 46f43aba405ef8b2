"""How like its input the output of a site is, against sums written out; networks without the most similar sites."""

import math

import pytest
import torch
from torch import nn

from fheat import FractionalHeat, instrument, load, save
from fheat.gates.similarity import Similarity, bypass_similar, bypass_sites, measured_similarity
from fheat.networks.registry import create_model
from fheat.nn.fnet import FNet3D
from fheat.ops.gates import operators_of


class Sites(nn.Module):
    """Three sites in a row, the first one called twice."""

    def __init__(self):
        super().__init__()
        self.weak = FractionalHeat(initial_strength=1e-4)
        self.closed = FractionalHeat(initial_strength=0.0)
        self.fixed = FNet3D()

    def forward(self, x):
        return self.fixed(self.closed(self.weak(self.weak(x))))


def test_similarity_is_what_its_formula_says():
    model, batches = Sites(), [torch.randn(2, 3, 4, 5, 6), torch.randn(3, 3, 4, 5, 6)]
    with measured_similarity(model) as record, torch.no_grad():
        for x in batches:
            model(x)
        found = record.results()
        pairs = []
        for x in batches:
            once = model.weak(x)
            pairs += [(x, once), (once, model.weak(once))]
    assert not any(module._forward_hooks for module in model.modules())
    cosines = [
        float(torch.dot(a.flatten(), b.flatten()) / a.norm() / b.norm())
        for x, y in pairs
        for a, b in zip(x, y, strict=True)
    ]
    changed = sum(float((y - x).square().sum()) for x, y in pairs)
    size = sum(float(x.square().sum()) for x, _ in pairs)
    assert list(found) == ["weak", "closed", "fixed"]
    assert found["weak"].cosine == pytest.approx(sum(cosines) / 10, abs=1e-6)
    assert found["weak"].distance == pytest.approx(math.sqrt(changed / size), rel=1e-4)
    assert (found["weak"].samples, found["closed"].samples) == (10, 5)
    assert found["closed"] == Similarity(pytest.approx(1.0, abs=1e-12), 0.0, unchanged=True, samples=5)
    assert not found["weak"].unchanged
    assert found["fixed"].distance > 0.5
    assert found["closed"].angle == pytest.approx(0.0, abs=1e-6)


def test_zeros_are_alike_and_scale_does_not_count():
    class Twice(FNet3D):
        def mix(self, x):
            return 2 * x

    model = nn.Sequential(Twice())
    with measured_similarity(model) as record:
        model(torch.zeros(1, 1, 2, 2, 2))
        model(torch.ones(1, 1, 2, 2, 2))
    (one,) = record.results().values()
    assert one.cosine == pytest.approx(1.0)
    assert one.distance == pytest.approx(1.0)
    assert not one.unchanged


def test_sites_above_the_threshold_are_left_out():
    model, x = Sites(), torch.randn(2, 3, 4, 5, 6)
    with measured_similarity(model) as record, torch.no_grad():
        model(x)
    smaller, sites = bypass_similar(model, record.results(), 0.99)
    assert sites == ["weak", "closed"]
    assert [one.retired for one in operators_of(smaller).values()] == [True, True, False]
    assert torch.equal(smaller(x), model.fixed(x))
    assert not any(one.retired for one in operators_of(model).values())
    again, sites = bypass_similar(smaller, record.results(), 0.99)
    assert sites == []
    assert torch.equal(again(x), smaller(x))
    assert bypass_similar(model, record.results(), 1e-9)[1][:2] == ["weak", "closed"]
    for wrong in (0.0, 1.1, -1.0):
        with pytest.raises(ValueError, match="no cosine"):
            bypass_similar(model, {}, wrong)
    with pytest.raises(ValueError, match="no site 'other': it has weak, closed, fixed"):
        bypass_sites(model, {"other"})


def test_a_site_of_an_instrumented_network_loses_its_hook():
    plain = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(inplace=True)).eval()
    model, x = instrument(plain, initial_strength=0.5), torch.randn(1, 1, 5, 4, 3)
    assert not torch.equal(model(x), plain(x))
    assert torch.equal(bypass_sites(model, {"0"})(x), plain(x))


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["fnet", "gfnet", "afno", "heat"])
def test_bypassed_sites_survive_saving(operator, tmp_path):
    model = create_model("fheat_seg", patch_size=(32, 32, 32), operator=operator).eval()
    smaller, x = bypass_sites(model, {"enc1", "dec2"}), torch.randn(1, 1, 32, 32, 32)
    restored = load(save(smaller, tmp_path / "model"))
    with torch.no_grad():
        assert torch.equal(restored(x), smaller(x))
        assert not torch.equal(restored(x), model(x))
    assert [site for site, one in operators_of(restored).items() if one.retired] == ["enc1", "dec2"]

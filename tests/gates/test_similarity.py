"""How like its input the output of a site is, against sums written out; networks without the most similar sites."""

import copy
import math

import pytest
import torch
from torch import nn

from fheat import FractionalHeat, cost, instrument, load, save
from fheat.gates.similarity import Similarity, bypass_similar, bypass_sites, measured_similarity
from fheat.networks.registry import create_model
from fheat.nn.fnet import FNet3D
from fheat.ops.gates import operators_of
from fheat.ops.mixing_block import branches_of
from tests.gates.test_cka import dense_cka


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
    one = pytest.approx(1.0, abs=1e-12)
    assert found["closed"] == Similarity(one, 0.0, unchanged=True, samples=5, cka=one)
    assert found["weak"].cka == pytest.approx(dense_cka(pairs), abs=1e-6)
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
    with pytest.raises(ValueError, match="use one of cosine, cka"):
        bypass_similar(model, {}, 0.5, by="angle")
    with pytest.raises(ValueError, match="use one of sites, blocks"), measured_similarity(model, "layers"):
        pass
    with pytest.raises(ValueError, match="no site 'other': it has weak, closed, fixed"):
        bypass_sites(model, {"other"})


class Turn(FNet3D):
    """Swaps two channels: no channel is what it was, and together they are the same."""

    def mix(self, x):
        return x.flip(1)


def test_cka_sees_through_a_rotation_of_channels():
    model, x = nn.Sequential(Turn()), torch.randn(1, 2, 6, 6, 6)
    with measured_similarity(model) as record:
        model(x)
    (one,) = record.results().values()
    assert abs(one.cosine) < 0.5
    assert one.cka == pytest.approx(1.0)
    assert bypass_similar(model, record.results(), 0.99)[1] == []
    assert bypass_similar(model, record.results(), 0.99, by="cka")[1] == ["0"]


def test_a_gate_may_be_called_with_several_widths():
    gate = FractionalHeat(initial_strength=0.3)
    pairs = []
    with measured_similarity(gate) as record, torch.no_grad():
        for channels in (2, 3):
            x = torch.randn(1, channels, 4, 4, 4)
            pairs.append((x, gate(x)))
    (one,) = record.results().values()
    assert one.cka == pytest.approx(sum(dense_cka([pair]) for pair in pairs) / 2, abs=1e-6)


def block_pairs(model, paths, x):
    """Return what enters and leaves each of these blocks."""
    pairs = {path: [] for path in paths}
    hooks = [
        model.get_submodule(path).register_forward_hook(
            lambda module, inputs, output, path=path: pairs[path].append(
                (inputs[0], output[0] if isinstance(output, tuple) else output)
            )
        )
        for path in paths
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return pairs


def test_blocks_of_a_shared_gate_count_for_its_site():
    torch.manual_seed(0)
    model, x = create_model("fheat_seg", patch_size=(32, 32, 32)).eval(), torch.randn(2, 1, 32, 32, 32)
    with measured_similarity(model, "blocks") as record, torch.no_grad():
        model(x)
    found = record.results()
    assert list(found) == list(operators_of(model))
    pairs = block_pairs(model, [f"enc2.blocks.{block}.{half}" for block in (0, 1) for half in ("first", "second")], x)
    every = [pair for path in pairs.values() for pair in path]
    assert found["enc2"].samples == 8
    assert found["enc2"].cka == pytest.approx(dense_cka(every), abs=1e-6)
    changed, size = (
        sum(float(part.double().square().sum()) for part in parts)
        for parts in ([y - x for x, y in every], [x for x, _ in every])
    )
    assert found["enc2"].distance == pytest.approx(math.sqrt(changed / size), rel=1e-5)
    assert torch.equal(every[0][1], every[1][0])  # a block takes what the block before it returned
    threshold = sorted(one.cka for one in found.values())[-3]
    smaller, sites = bypass_similar(model, found, threshold, by="cka")
    assert len(sites) == 3
    assert [site for site, one in operators_of(smaller).items() if one.retired] == sites


@pytest.mark.parametrize("name", ["segformer3d", "amber_afno"])
def test_mixers_of_blocks_are_sites(name, tmp_path):
    torch.manual_seed(0)
    model, x = create_model(name, patch_size=(64, 64, 64)).eval(), torch.randn(1, 1, 64, 64, 64)
    with measured_similarity(model, "blocks") as record, torch.no_grad():
        model(x)
    found = record.results()
    assert list(found) == [f"enc{level}.blocks.{block}.mixer" for level in (1, 2, 3, 4) for block in (0, 1)]
    (pair,) = block_pairs(model, ["enc1.blocks.1"], x)["enc1.blocks.1"]
    assert found["enc1.blocks.1.mixer"].cka == pytest.approx(dense_cka([pair]), abs=1e-6)
    threshold = sorted(one.cka for one in found.values())[-2]
    smaller, sites = bypass_similar(model, found, threshold, by="cka")
    assert len(sites) == 2
    assert cost(smaller).macs < cost(model).macs
    block = smaller.get_submodule(sites[0].removesuffix(".mixer"))
    features = torch.randn(1, block.ffn[0].in_channels, 3, 2, 2)
    with torch.no_grad():
        assert torch.equal(block(features), features + block.ffn(block.ffn_norm(features)))
        restored = load(save(smaller, tmp_path / "model"))
        assert torch.equal(restored(x), smaller(x))
        assert not torch.equal(restored(x), model(x))
    assert bypass_similar(restored, found, threshold, by="cka")[1] == []


PARTS = ("mixer", "ffn")
BRANCHES = {
    "segformer3d": [f"enc{level}.blocks.{block}.{name}" for level in range(1, 5) for block in (0, 1) for name in PARTS],
    "fheat_seg": ["enc1.blocks.0.first.mixer", "enc1.blocks.0.second.mixer"],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_mixing_of_channels_is_left_out_like_that_of_voxels(name, tmp_path):
    """Each residual branch is compared by itself, x with x + branch(x), and a block without it adds nothing."""
    torch.manual_seed(0)
    sides = (64, 64, 64) if name == "segformer3d" else (32, 32, 32)
    model, x = create_model(name, patch_size=sides).eval(), torch.randn(1, 1, *sides)
    seen = []
    path = BRANCHES[name][1]
    branch = branches_of(model)[path]
    first, last = branch.ends
    first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    last.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with measured_similarity(model, "branches") as record, torch.no_grad():
        before = model(x)
    first._forward_pre_hooks.clear()
    last._forward_hooks.clear()
    found = record.results()
    assert list(found)[: len(BRANCHES[name])] == BRANCHES[name]
    assert list(found) == list(branches_of(model))
    assert found[path].cka == pytest.approx(dense_cka([(seen[0], seen[0] + seen[1])]), abs=1e-6)
    assert found[path].distance == pytest.approx(float(seen[1].norm() / seen[0].norm()), rel=1e-4)
    threshold = sorted(one.cosine for one in found.values())[-2]
    smaller, sites = bypass_similar(model, found, threshold)
    assert sites == [site for site, one in found.items() if one.cosine >= threshold]
    assert (len(sites), cost(smaller).macs < cost(model).macs) == (2, True)
    assert not any(branches_of(smaller)[site].present for site in sites)
    with torch.no_grad():
        zeroed = copy.deepcopy(model)  # the slow way: the branch ends in zeros
        for site in sites:
            last_of = branches_of(zeroed)[site].ends[1]
            for value in (last_of[-1] if isinstance(last_of, nn.Sequential) else last_of).parameters():
                value.zero_()
        assert torch.equal(smaller(x), zeroed(x))
        assert not torch.equal(smaller(x), before)
        restored = load(save(smaller, tmp_path / "model"))
        assert torch.equal(restored(x), smaller(x))
    assert bypass_similar(restored, found, threshold)[1] == []


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

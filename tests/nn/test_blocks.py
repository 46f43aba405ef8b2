"""Blocks against their formulas, written out."""

import pytest
import torch
import torch.nn.functional as F

from fheat import FractionalHeat
from fheat.nn import FHEAT, KAN3D, FHEATBlock, FHEATStage, GELUMixer, LightBlock
from fheat.nn.fheat import mixer
from fheat.nn.fnet import FNet3D
from fheat.nn.fused import fusable
from fheat.nn.layers import Down, SqueezeExcitation, Stem, Up, crop_to, pad_to_even
from fheat.ops import rational_function
from fheat.ops.hard_concrete import HardConcreteHeat
from fheat.ops.resolvent import TikhonovResolvent
from fheat.ops.stochastic_depth import StochasticDepthHeat


def one_group(x, norm):
    flat = x.flatten(1)
    x = (x - flat.mean(1).reshape(-1, 1, 1, 1, 1)) / (flat.var(1, unbiased=False) + 1e-5).sqrt().reshape(-1, 1, 1, 1, 1)
    return x * norm.weight.reshape(1, -1, 1, 1, 1) + norm.bias.reshape(1, -1, 1, 1, 1)


def pointwise(x, conv):
    return torch.einsum("oi,nixyz->noxyz", conv.weight.flatten(1), x) + conv.bias.reshape(1, -1, 1, 1, 1)


def shaken(module):
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return module


def test_fheat_formula():
    module, gate = shaken(FHEAT(6)), FractionalHeat(initial_strength=0.9)
    x = torch.randn(2, 6, 5, 4, 6)
    inner = F.conv3d(x, module.depthwise.weight, module.depthwise.bias, padding=1, groups=6)
    v, g = pointwise(inner, module.project).split(6, dim=1)
    expected = pointwise(g * g.sigmoid() * one_group(gate(v), module.norm), module.out)
    assert torch.allclose(module(x, gate), expected, atol=1e-5)


def test_kernels_run_stages_with_any_operator_that_nobody_watches():
    gates = {
        kind: kind() for kind in (FractionalHeat, TikhonovResolvent, HardConcreteHeat, StochasticDepthHeat, FNet3D)
    }
    x, stages = torch.empty(1, 8, 4, 4, 4), {kind: FHEATStage(8, 1, gate) for kind, gate in gates.items()}

    def fused():
        return [kind for kind, stage in stages.items() if fusable(x, stage.blocks, stage.gate)]

    assert fused() == list(gates)
    hooks = [gate.register_forward_hook(lambda *_: None) for gate in gates.values()]
    assert fused() == []
    for hook in hooks:
        hook.remove()
    for stage in stages.values():
        stage.eval()
    gates[FNet3D].bypass()
    assert fused() == list(gates)


def test_closed_gate_makes_fheat_the_affine_bypass_exactly():
    module, gate = FHEAT(6), FractionalHeat(initial_strength=0.0)
    x = torch.randn(2, 6, 5, 4, 6)
    v, g = module.project(module.depthwise(x)).chunk(2, dim=1)
    assert torch.equal(module(x, gate), module.out(F.silu(g) * module.norm(v)))


@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_kan_formula_and_size(ratio):
    module = shaken(KAN3D(16, ratio))
    norm, first, activation, second = module
    x = torch.randn(2, 16, 3, 4, 5)
    hidden = pointwise(one_group(x, norm), first)
    below = activation.denominator[activation.group].t().reshape(4, -1, 1, 1, 1)
    expected = pointwise(rational_function(hidden, activation.numerator, below), second)
    assert torch.allclose(module(x), expected, atol=1e-4)
    assert sum(p.numel() for p in module.parameters()) == 2 * 16 + 2 * 16 * 16 * ratio + 16 * ratio + 16 + 38


def test_gelu_mixer_has_the_capacity_of_kan_without_rational_and_norm():
    size = {kind: sum(p.numel() for p in mixer(kind, 24, 1).parameters()) for kind in ("kan", "gelu")}
    assert size["kan"] - size["gelu"] == 38 + 2 * 24
    module = shaken(GELUMixer(8))
    x = torch.randn(1, 8, 2, 3, 4)
    assert torch.allclose(module(x), pointwise(F.gelu(pointwise(x, module[0])), module[2]), atol=1e-5)


def test_block_formulas():
    gate = FractionalHeat()
    block = shaken(FHEATBlock(8))
    x = torch.randn(1, 8, 4, 4, 4)
    out, y = block(x, gate)
    first = x + one_group(block.fheat(x, gate), block.fheat_norm)
    assert torch.allclose(y, block.fheat(x, gate))
    assert torch.allclose(out, first + one_group(block.mixer(first), block.mixer_norm), atol=1e-4)
    light = shaken(LightBlock(8))
    start = x + F.conv3d(x, light.depthwise.weight, padding=1, groups=8)
    middle, _ = light.first(start, gate)
    assert torch.allclose(light(x, gate)[0], light.second(middle, gate)[0], atol=1e-5)
    assert light.depthwise.bias is None


def test_stage_shares_one_gate_and_reads_attention_off_its_last_fheat():
    stage = FHEATStage(8, 3, FractionalHeat())
    assert [name for name, _ in stage.named_parameters() if "gate" in name] == ["gate.theta", "gate.delta"]
    x = torch.randn(2, 8, 4, 6, 4)
    seen = []
    stage.blocks[-1].second.fheat.register_forward_hook(lambda module, inputs, output: seen.append(output))
    features, attention = stage.attend(x)
    assert torch.equal(features, stage(x))
    assert attention.shape == (2, 1, 4, 6, 4)
    assert not attention.requires_grad
    assert (attention >= 0).all()
    assert torch.allclose(attention[:, 0], seen[0].detach().abs().sum(dim=1) / 8)


@pytest.mark.parametrize("grid", [(32, 33, 34), (35, 36, 37), (40, 40, 41)])
def test_stem_gives_a_quarter_rounded_up(grid):
    assert Stem(2, 24)(torch.randn(1, 2, *grid)).shape == (1, 24, *[-(-n // 4) for n in grid])


def test_down_and_up_are_twins():
    x = torch.randn(1, 24, 6, 4, 8)
    small = Down(24, 48)(x)
    assert small.shape == (1, 48, 3, 2, 4)
    assert Up(48, 24)(small).shape == x.shape


def test_squeeze_excitation():
    module = SqueezeExcitation(32)
    x = torch.randn(2, 32, 3, 4, 5)
    weight = torch.sigmoid(F.relu(x.mean((2, 3, 4)) @ module.squeeze.weight.t()) @ module.excite.weight.t())
    assert torch.allclose(module(x), x * weight.reshape(2, 32, 1, 1, 1), atol=1e-6)
    assert sum(p.numel() for p in module.parameters()) == 2 * 32 * 2


@pytest.mark.parametrize("grid", [(4, 4, 4), (3, 4, 5), (7, 7, 5), (1, 1, 1)])
def test_padding_and_cropping_undo_each_other(grid):
    x = torch.randn(1, 2, *grid)
    padded = pad_to_even(x)
    assert all(n % 2 == 0 for n in padded.shape[2:])
    assert max(a - b for a, b in zip(padded.shape, x.shape, strict=True)) <= 1
    assert torch.equal(crop_to(padded, grid), x)
    assert padded.sum() == x.sum()


@pytest.mark.parametrize("ratio", [0, -1, 1.5])
def test_mixer_refuses_a_ratio(ratio):
    with pytest.raises(ValueError, match="ratio="):
        KAN3D(8, ratio)


def test_mixer_refuses_a_kind():
    with pytest.raises(ValueError, match="mixer='relu'"):
        mixer("relu", 8, 1)

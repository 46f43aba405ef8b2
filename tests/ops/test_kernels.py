"""Fused kernels in Triton's interpreter, small shapes, outputs poisoned: against float64 and their plain twins."""

import runpy

import cc3d
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.fft import dctn, idctn
from torch import nn

from fheat.nn.blocks import FHEATBlock, FHEATStage
from fheat.nn.layers import one_group
from fheat.ops import kernels
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels import launch
from fheat.ops.largest_component import largest_component
from fheat.ops.mixing_block import branches_of
from fheat.ops.rational import Rational
from tests.ops.compare import error, shaken

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU; see tests/gpu", allow_module_level=True)

SHAPES = [(1, 8, (3, 4, 5)), (2, 10, (5, 3, 4)), (2, 17, (3, 5, 9)), (1, 66, (3, 3, 2))]
"""Samples, channels and grids. The third has two programs per sample; the first walks two tiles, the second one and a
part; matrices of the last are read where they are used."""


@pytest.fixture(autouse=True)
def _few_programs(poisoned, monkeypatch):
    """Few programs, so that each walks several tiles."""
    monkeypatch.setattr(launch, "PROGRAMS", 4)


def twin(module, build):
    other = build().double()
    other.load_state_dict(module.state_dict())
    return other


def gate_at(delta):
    gate = FractionalHeat()
    if delta is None:
        gate.bypass(0.5)
    else:
        with torch.no_grad():
            gate.delta.fill_(delta)
    return gate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "delta", "mixer"),
    [
        pytest.param(0, 0.7, {}, id="small"),
        pytest.param(1, None, {}, id="retired"),
        pytest.param(1, -0.1, {}, id="closed"),
        pytest.param(2, 0.7, {}, id="large"),
        pytest.param(2, None, {}, id="large retired"),
        pytest.param(3, None, {}, id="wide"),
        pytest.param(0, 0.7, {"kind": "gelu"}, id="gelu"),
        pytest.param(0, None, {"ratio": 2}, id="ratio"),
    ],
)
def test_a_stage_and_all_its_gradients(shape, delta, mixer):
    samples, channels, grid = SHAPES[shape]
    gate = gate_at(delta)
    stage = shaken(FHEATStage(channels, 1, gate, **mixer), 0.3 if channels < 32 else 0.05)
    if gate.delta is not None:
        with torch.no_grad():
            gate.delta.fill_(delta)
    exact = twin(stage, lambda: FHEATStage(channels, 1, gate_at(delta), **mixer))
    x = torch.randn(samples, channels, *grid)
    weights = torch.randn(samples, channels, *grid)
    inputs = [x.clone().requires_grad_(), x.double().requires_grad_()]
    with kernels.use("always"):
        fused, attention = stage.attend(inputs[0])
        (fused * weights).sum().backward()
    expected, expected_attention = exact.attend(inputs[1])
    assert error(fused, expected) < 1e-6
    assert error(attention, expected_attention) < 1e-6
    (expected * weights).sum().backward()
    assert error(inputs[0].grad, inputs[1].grad) < 1e-5
    for (name, one), other in zip(stage.named_parameters(), exact.parameters(), strict=True):
        assert error(one.grad, other.grad) < 1e-4, name
        if delta is not None and delta < 0 and name.startswith("gate"):
            assert one.grad == 0


def test_a_number_of_groups_that_is_no_power_of_two():
    def build():
        stage = FHEATStage(8, 1, gate_at(None))
        for block in (stage.blocks[0].first, stage.blocks[0].second):
            block.mixer[2] = Rational(8, groups=3)
        return stage

    stage = shaken(build())
    exact, x = twin(stage, build), torch.randn(1, 8, 2, 3, 3)
    with kernels.use("always"):
        stage(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    for (name, one), other in zip(stage.named_parameters(), exact.parameters(), strict=True):
        assert error(one.grad, other.grad) < 1e-4, name


def test_a_stage_without_one_mixing_of_channels():
    def build():
        stage = FHEATStage(8, 1, gate_at(None))
        branches_of(stage)["blocks.0.first.mixer"].remove()
        return stage

    stage = shaken(build())
    exact, x = twin(stage, build), torch.randn(1, 8, 2, 3, 3)
    with kernels.use("always"):
        fused = stage(x)
        fused.square().sum().backward()
    expected = exact(x.double())
    expected.square().sum().backward()
    assert error(fused, expected) < 1e-6
    for (name, one), other in zip(stage.named_parameters(), exact.parameters(), strict=True):
        assert error(one.grad, other.grad) < 1e-4, name


@pytest.mark.parametrize(
    "grid", [(3, 4, 5), (1, 6, 2), (17, 1, 1), (2, 3, 33), (12, 6, 9), (9, 8, 10), (65, 2, 2)], ids=str
)
def test_the_transform_and_its_inverse(grid):
    from fheat.ops.kernels import transform

    torch.manual_seed(0)
    x, multiplier = torch.randn(2, *grid, 5), torch.rand(grid)
    expected = dctn(x.double().numpy(), axes=(1, 2, 3), norm="ortho")
    back = idctn(expected * multiplier.double().numpy()[..., None], axes=(1, 2, 3), norm="ortho")
    for closed in (None, torch.tensor(False)):
        found, spectrum = transform.filtered(x, multiplier, closed, keep_spectrum=True)
        assert error(spectrum, torch.from_numpy(expected)) < 1e-6
        assert error(found, torch.from_numpy(back)) < 1e-6
        assert torch.equal(transform.filtered(x, multiplier, closed, keep_spectrum=False)[0], found)
    assert torch.equal(transform.filtered(x, multiplier, torch.tensor(True), keep_spectrum=False)[0], x)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 40), (130, 7), (64, 33)])
def test_shares_are_added_up(rows, width):
    from fheat.ops.kernels.launch import add_rows

    partial = torch.randn(rows, width)
    assert error(add_rows(partial), partial.double().sum(dim=0)) < 1e-6
    at, few = width // 2, rows // 3
    partial[few:, at:] = float("nan")
    assert error(add_rows(partial, at, few), partial.double().nansum(dim=0)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("voxels", "channels"), [(256**3, 60), (112**3, 198), (8, 3)])
def test_the_grid_of_programs_fits_a_gpu(voxels, channels):
    grid, shape = launch.tile_each(2, voxels, channels)
    assert grid[0] * shape["BLOCK"] >= voxels
    assert grid[1] == 2 <= 65_535
    assert grid[0] < 2**31


def test_results_repeat_bit_by_bit():
    block = shaken(FHEATStage(9, 1, gate_at(0.4)))
    x = torch.randn(2, 9, 3, 4, 2)
    found = []
    for _ in range(2):
        block.zero_grad()
        with kernels.use("always"):
            block(x).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in block.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(("samples", "channels", "grid"), SHAPES)
def test_the_norm_and_its_gradients(samples, channels, grid):
    norm = shaken(one_group(channels))
    exact = twin(norm, lambda: nn.GroupNorm(1, channels))
    x = 3 + 2 * torch.randn(samples, channels, *grid)
    inputs = [x.clone().requires_grad_(), x.double().requires_grad_()]
    weights = torch.randn_like(x)
    with kernels.use("always"):
        found = norm(inputs[0])
        (found * weights).sum().backward()
    expected = exact(inputs[1])
    (expected * weights).sum().backward()
    assert error(found, expected) < 1e-6
    assert error(inputs[0].grad, inputs[1].grad) < 1e-5
    assert error(norm.weight.grad, exact.weight.grad) < 1e-5
    assert error(norm.bias.grad, exact.bias.grad) < 1e-5


def test_moments_survive_a_mean_far_from_zero():
    norm, x = one_group(8), 1000 + torch.randn(2, 8, 6, 5, 4)
    with kernels.use("always"):
        found = norm(x)
    assert error(found, F.group_norm(x.double(), 1)) < 2e-4  # float32 keeps the input itself to 6e-5 of its deviation


def smooth(seed, radius, cut):
    noise = torch.randn(1, 1, 12, 11, 9, generator=torch.Generator().manual_seed(seed))
    return F.avg_pool3d(noise, 2 * radius + 1, stride=1, padding=radius)[0, 0] > cut


@pytest.mark.parametrize(("radius", "cut"), [(0, 1.3), (1, 0.2), (2, 0.05)])
def test_the_largest_component_equals_its_twin_and_cc3d(radius, cut):
    masks = torch.stack([smooth(1, radius, cut), torch.zeros(12, 11, 9, dtype=torch.bool), smooth(2, radius, cut)])
    plain = largest_component(masks)
    with kernels.use("always"):
        found = largest_component(masks, rounds=4)  # enough for these masks, as the default of the twin
    assert torch.equal(found, plain)
    assert not found[1].any()
    numbered = cc3d.connected_components(masks[0].numpy(), connectivity=26)
    assert found[0].sum() == np.bincount(numbered.ravel())[1:].max()


def test_plain_code_runs_where_kernels_cannot():
    x = torch.randn(1, 8, 3, 3, 3)
    assert not kernels.usable(x)
    with kernels.use("always"):
        assert kernels.usable(x)
        with kernels.use("never"):
            assert not kernels.usable(x)
    stage = FHEATStage(8, 1, gate_at(0.2))
    seen = []
    stage.blocks[0].first.fheat.register_forward_hook(lambda *_: seen.append(1))
    with kernels.use("always"):
        stage(x)
    assert seen == [1], "a hook inside a stage is called, so the stage was not fused"
    assert isinstance(stage.blocks[0].first, FHEATBlock)


@pytest.mark.parametrize("word", ["trial", "always", ""])
def test_a_word_in_the_environment_that_is_unknown_is_refused(word, monkeypatch):
    monkeypatch.setenv("FHEAT_KERNELS", word)
    with pytest.raises(ValueError, match=r"use one of auto, never$"):
        runpy.run_path(kernels.__file__)


def hang_tanh(block):
    block.fheat.out = nn.Sequential(block.fheat.out, nn.Tanh())


def change_eps(block):
    block.fheat.norm.eps = 0.5


def parametrise(block):
    nn.utils.parametrizations.weight_norm(block.fheat.project)


def drop_bias(block):
    block.mixer[1] = nn.Conv3d(8, 8, 1, bias=False)


@pytest.mark.parametrize("change", [hang_tanh, change_eps, parametrise, drop_bias])
def test_a_stage_that_was_changed_inside_is_not_fused(change):
    stage, x = FHEATStage(8, 1, gate_at(0.2)), torch.randn(1, 8, 3, 3, 3)
    change(stage.blocks[0].second)
    with kernels.use("always"):
        found = stage(x)
    with kernels.use("never"):
        assert error(found, stage(x)) < 1e-6  # its norms, each by itself, still run as kernels


def test_a_gate_for_another_grid_is_refused_by_kernels_too():
    stage = FHEATStage(8, 1, FractionalHeat(size=8))
    with kernels.use("always"), pytest.raises(ValueError, match="size="):
        stage(torch.randn(1, 8, 4, 4, 4))

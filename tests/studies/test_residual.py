"""Spectra of residuals: Parseval, one mode in its bin, white noise, and hooks against the plain difference."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fheat import create_model, retire
from fheat.ops.dct import dct, idct
from fheat.studies.inside.residual import (
    bottleneck_blocks,
    mean_spectrum,
    normalised_radius,
    recorded_residuals,
    residual_spectrum,
)

GRIDS = [(4, 4, 3), (7, 5, 6), (1, 8, 8), (16, 16, 16)]


def slow_spectrum(residual, bins, cut):
    """Mode by mode, in plain Python."""
    grid = residual.shape[1:]
    modes = {}
    for place in np.ndindex(*grid):
        radius = math.sqrt(sum((math.pi * k / n) ** 2 for k, n in zip(place, grid, strict=True)))
        modes[place] = radius
    largest = max(modes.values())
    coefficients = dct(residual.double(), dims=len(grid))
    energy, above = [0.0] * bins, 0.0
    for place, radius in modes.items():
        rho = round(radius / largest, 12)
        inside = next(b for b in range(bins) if rho <= (b + 1) / bins + 1e-10)
        value = float((coefficients[(slice(None), *place)] ** 2).mean())
        energy[inside] += value
        above += value if rho > cut else 0
    return energy, above


@pytest.mark.parametrize("grid", GRIDS)
def test_energies_add_up_to_the_energy_of_a_map(grid):
    residual = torch.randn(5, *grid, dtype=torch.float64)
    found = residual_spectrum(residual, bins=7)
    assert found.total == pytest.approx(float(residual.square().sum()) / 5, rel=1e-12)
    assert sum(found.modes) == math.prod(grid)
    assert found.constant == pytest.approx(float(residual.mean((1, 2, 3)).square().mean()) * math.prod(grid))
    energy, above = slow_spectrum(residual, 7, 0.6)
    assert found.energy == pytest.approx(energy, rel=1e-10)
    assert found.above == pytest.approx(above, rel=1e-10)


@pytest.mark.parametrize(("mode", "rho"), [((0, 0, 0), 0.0), ((3, 0, 0), 3 / 7 / 3**0.5), ((7, 7, 7), 1.0)])
def test_a_pure_cosine_lands_in_its_bin(mode, rho):
    spectrum = torch.zeros(2, 8, 8, 8)
    spectrum[(slice(None), *mode)] = 3.0
    found = residual_spectrum(idct(spectrum), bins=10)
    place = min(int(rho * 10), 9)
    assert found.energy[place] == pytest.approx(9, rel=1e-5)
    assert sum(found.energy) - found.energy[place] == pytest.approx(0, abs=1e-9)
    assert found.radius[place] == pytest.approx(place / 10 + 0.05)
    assert found.share_above == pytest.approx(float(rho > 0.6), abs=1e-9)


def test_white_noise_has_the_share_of_the_modes():
    found = residual_spectrum(torch.randn(20_000, 4, 4, 3))
    assert found.modes == (1, 2, 2, 5, 4, 8, 12, 5, 8, 1)
    assert found.modes_above == 26 / 48
    assert found.share_above == pytest.approx(found.modes_above, abs=0.005)
    assert [energy / found.total for energy in found.energy] == pytest.approx(
        [count / 48 for count in found.modes], abs=0.005
    )


def test_the_constant_mode_is_counted_and_can_be_left_out():
    high = torch.zeros(1, 4, 4, 4)
    high[0, 3, 3, 3] = 1.0
    found = residual_spectrum(idct(high) + 1 / 8)  # a constant of 1/8 on 64 voxels has energy 1
    assert found.constant == pytest.approx(1, rel=1e-5)
    assert found.share_above == pytest.approx(0.5, rel=1e-5)
    assert found.share_above_without_constant == pytest.approx(1, rel=1e-5)


def test_edges_of_bins_belong_to_the_lower_one():
    radius = normalised_radius((5,))  # 0, 1/4, 2/4, 3/4, 1
    assert radius.tolist() == [0, 0.25, 0.5, 0.75, 1]
    flat = idct(torch.ones(1, 5, dtype=torch.float64), dims=1)
    found = residual_spectrum(flat, bins=4, cut=0.5, dims=1)
    assert found.energy == pytest.approx([2, 1, 1, 1])
    assert found.above == pytest.approx(sum(found.energy[2:])) == pytest.approx(2)


def test_nothing_added_has_no_share():
    found = residual_spectrum(torch.zeros(3, 4, 4, 4))
    assert found.total == 0
    assert found.share_above is None
    assert found.share_above_without_constant is None
    assert residual_spectrum(torch.ones(2, 1, 1, 1)).share_above == 0


@pytest.mark.parametrize(
    ("residual", "options", "says"),
    [
        (torch.zeros(1, 4, 4, 4), {"bins": 0}, "bins=0"),
        (torch.zeros(1, 4, 4, 4), {"cut": 1.0}, "cut=1.0"),
        (torch.zeros(0, 4, 4, 4), {}, "no map"),
        (torch.full((1, 4, 4, 4), math.nan), {}, "diverged"),
    ],
)
def test_what_has_no_spectrum_is_refused(residual, options, says):
    with pytest.raises(ValueError, match=says):
        residual_spectrum(residual, **options)


def test_means_are_over_energies():
    one, two = residual_spectrum(torch.randn(2, 4, 4, 4)), residual_spectrum(3 * torch.randn(2, 4, 4, 4))
    both = mean_spectrum([one, two])
    assert both.total == pytest.approx((one.total + two.total) / 2)
    assert both.share_above == pytest.approx((one.above + two.above) / (one.total + two.total))
    with pytest.raises(ValueError, match="do not average"):
        mean_spectrum([one, residual_spectrum(torch.randn(2, 4, 4, 3))])
    with pytest.raises(ValueError, match="no spectrum"):
        mean_spectrum([])


@pytest.mark.parametrize("name", ["fheat_seg", "light_unetr", "fheat_seg_l"])
def test_hooks_see_output_minus_input(name):
    model = retire(create_model(name, patch_size=(32, 32, 32))).eval()
    x = torch.randn(2, 1, 32, 32, 32)
    blocks = bottleneck_blocks(model)
    assert blocks == [f"{'bottom' if name.endswith('_l') else 'enc4'}.blocks.{index}" for index in range(2)]
    seen = {}
    block = model.get_submodule(blocks[1])
    handle = block.register_forward_hook(lambda _, given, out: seen.update(residual=out[0] - given[0]))
    with torch.no_grad(), recorded_residuals(model, blocks) as found:
        model(x)
    handle.remove()
    assert [len(found[block]) for block in blocks] == [2, 2]
    for sample in range(2):
        assert found[blocks[1]][sample] == residual_spectrum(seen["residual"][sample])
    assert not block._forward_hooks
    with torch.no_grad():
        model(x)
    assert len(found[blocks[0]]) == 2


class Doubling(nn.Module):
    """Any network: its residual is its input."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Conv2d(1, 1, 1, bias=False)
        self.wider = nn.Conv2d(1, 2, 1)
        nn.init.constant_(self.twice.weight, 2.0)

    def forward(self, x):
        return self.wider(self.twice(x))


def test_any_module_by_name_in_two_dimensions():
    model, x = Doubling(), torch.randn(3, 1, 6, 5)
    with torch.no_grad(), recorded_residuals(model, ["twice"]) as found:
        model(x)
    assert found["twice"][2].energy == pytest.approx(residual_spectrum(x[2], dims=2).energy)


def test_blocks_that_cannot_be_used_are_named():
    model = Doubling()
    with pytest.raises(ValueError, match="name the blocks by module path"):
        bottleneck_blocks(model)
    with (
        pytest.raises(ValueError, match=r"no block 'body\.3': it has twice, wider"),
        recorded_residuals(model, ["body.3"]),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"maps \(1, 1, 4, 4\) to \(1, 2, 4, 4\)"),
        recorded_residuals(model, ["wider"]),
    ):
        model(torch.zeros(1, 1, 4, 4))
    assert not model.wider._forward_hooks

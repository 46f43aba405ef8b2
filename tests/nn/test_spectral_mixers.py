"""FNet, GFNet and AFNO in 3D against explicit Fourier matrices, in float64."""

import itertools
import math

import pytest
import torch

from fheat.gates.cost import count_macs
from fheat.nn.afno import AFNO3D
from fheat.nn.fnet import FNet3D
from fheat.nn.gfnet import GFNet3D

GRIDS = [(4, 6, 8), (5, 3, 7), (1, 2, 1)]


def fourier(length):
    n = torch.arange(length, dtype=torch.float64)
    return torch.polar(
        torch.full((length, length), length**-0.5, dtype=torch.float64), -2 * math.pi * n[:, None] * n / length
    )


def along(matrix, x, axis):
    return torch.tensordot(matrix, x, dims=([1], [axis])).movedim(0, axis)


def spectrum(x, axes=(2, 3, 4)):
    x = x.to(torch.complex128)
    for axis in axes:
        x = along(fourier(x.shape[axis]), x, axis)
    return x


def real_values(half, grid):
    """Add up the modes of half a spectrum one by one: all but the first and, on an even axis, the last count twice."""
    lines = along(fourier(grid[1]).conj(), along(fourier(grid[0]).conj(), half, 2), 3)
    z = torch.arange(grid[2], dtype=torch.float64)
    total = torch.zeros(*half.shape[:2], *grid, dtype=torch.float64)
    for k in range(half.shape[-1]):
        wave = torch.polar(torch.ones_like(z), 2 * math.pi * k * z / grid[2]) * grid[2] ** -0.5
        total += (1 if k == 0 or 2 * k == grid[2] else 2) * (lines[..., k, None] * wave).real
    return total


@pytest.mark.parametrize("grid", GRIDS)
def test_fnet_is_the_real_part_over_grid_and_channels(grid):
    x = torch.randn(2, 6, *grid, dtype=torch.float64)
    mixer = FNet3D()
    assert torch.allclose(mixer(x), spectrum(x, (1, 2, 3, 4)).real, atol=1e-12)
    reflected = x
    for axis in (1, 2, 3, 4):
        reflected = reflected.flip(axis).roll(1, axis)
    assert torch.allclose(mixer(mixer(x)), (x + reflected) / 2, atol=1e-12)
    assert not list(mixer.parameters())


@pytest.mark.parametrize("grid", GRIDS)
def test_gfnet_is_a_filter_on_half_a_spectrum(grid):
    x = torch.randn(2, 6, *grid, dtype=torch.float64)
    mixer = GFNet3D(6, grid).double()
    torch.nn.init.normal_(mixer.weight)
    half = grid[2] // 2 + 1
    w = torch.complex(mixer.weight[..., 0], mixer.weight[..., 1])
    assert torch.allclose(mixer(x), real_values(w * spectrum(x)[..., :half], grid), atol=1e-12)
    assert sum(p.numel() for p in mixer.parameters()) == 2 * 6 * grid[0] * grid[1] * half


def test_gfnet_can_be_the_identity_only_up_to_rounding():
    mixer, x = GFNet3D(2, (4, 6, 8)), torch.randn(1, 2, 4, 6, 8)
    mixer.weight.data[..., 0], mixer.weight.data[..., 1] = 1.0, 0.0
    assert torch.allclose(mixer(x), x, atol=1e-6)
    mixer(x).square().sum().backward()
    assert mixer.weight.grad.abs().min() >= 0
    assert mixer.weight.grad.abs().max() > 0


def test_gfnet_interpolates_its_filter_in_frequency():
    mixer, grid = GFNet3D(1, (4, 6, 8)), (6, 5, 7)
    found = mixer.filter(grid)
    w = mixer.weight.detach()
    for k in itertools.product(range(6), range(5), range(4)):
        places = [k[0] * 4 / 6, k[1] * 6 / 5, k[2] * 8 / 7]
        expected = torch.zeros(2)
        for corner in itertools.product((0, 1), repeat=3):
            low = [int(place) for place in places]
            share = math.prod(
                (place - at) if side else 1 - (place - at) for place, at, side in zip(places, low, corner, strict=True)
            )
            index = [(low[0] + corner[0]) % 4, (low[1] + corner[1]) % 6, min(low[2] + corner[2], 4)]
            expected += share * w[0, index[0], index[1], index[2]]
        assert torch.allclose(found[(0, *k)], expected, atol=1e-6)
    assert mixer(torch.randn(1, 1, *grid)).shape == (1, 1, *grid)
    assert torch.equal(mixer.filter((4, 6, 8)), mixer.weight)


@pytest.mark.parametrize("grid", GRIDS)
def test_afno_is_a_small_complex_network_at_every_frequency(grid):
    x = torch.randn(2, 6, *grid, dtype=torch.float64)
    mixer = AFNO3D(6, blocks=3).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    modes = spectrum(x)[..., : grid[2] // 2 + 1]
    out = torch.zeros_like(modes)
    for block in range(3):
        part = slice(2 * block, 2 * block + 2)

        def layer(z, number, block=block):
            w, b = (getattr(mixer, f"{name}{number}").detach() for name in ("weight", "bias"))
            w, b = torch.complex(*w[:, block]), torch.complex(*b[:, block])
            return torch.einsum("oi,ni...->no...", w, z) + b.reshape(1, -1, 1, 1, 1)

        hidden = layer(modes[:, part], 1)
        hidden = torch.complex(hidden.real.clip(min=0), hidden.imag.clip(min=0))
        last = layer(hidden, 2)
        shrunk = [torch.sign(p) * (p.abs() - 0.01).clip(min=0) for p in (last.real, last.imag)]
        out[:, part] = torch.complex(*shrunk)
    assert torch.allclose(mixer(x), x + real_values(out, grid), atol=1e-12)


def test_afno_is_the_identity_where_nothing_survives_shrinkage_and_only_there():
    mixer, x = AFNO3D(24), torch.randn(1, 24, 4, 6, 8)
    assert mixer.blocks == 8
    assert AFNO3D(60).blocks == 6
    assert sum(p.numel() for p in mixer.parameters()) == 4 * 24**2 // 8 + 4 * 24
    for parameter in mixer.parameters():
        parameter.data *= 0.02
    assert torch.equal(mixer(0.01 * x), 0.01 * x)
    mixer(0.01 * x).sum().backward()
    assert not any(parameter.grad.any() for parameter in mixer.parameters())
    assert not torch.equal(mixer(1e6 * x), 1e6 * x)
    with pytest.raises(ValueError, match="does not divide"):
        AFNO3D(24, blocks=7)


@pytest.mark.parametrize("mixer", [FNet3D(), GFNet3D(24, (4, 6, 8)), AFNO3D(24)], ids=lambda one: type(one).__name__)
def test_every_mixer(mixer):
    x = torch.randn(2, 24, 4, 6, 8)
    y = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        half = mixer(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), y, atol=0.05)
    exported = torch.export.export(mixer, (x,)).module()
    assert torch.allclose(exported(x), y, atol=1e-5)
    with pytest.raises(ValueError, match=r"takes a floating tensor \(N, C, X, Y, Z\)"):
        mixer(x[0])
    mixer.bypass()
    assert mixer(x) is x
    assert not list(mixer.parameters())
    assert not mixer.state_dict()


def test_fourier_transforms_are_counted():
    x = torch.empty(2, 3, 4, 8, 16, device="meta")
    n = x.numel()
    assert count_macs(lambda: torch.fft.rfftn(x, dim=(2, 3, 4))) == 0
    whole = count_macs(lambda: torch.fft.fftn(x.to(torch.complex64), dim=(2, 3, 4)), fourier=True)
    assert whole == 2.5 * n * (2 + 3 + 4)
    real = count_macs(lambda: torch.fft.rfftn(x, dim=(2, 3, 4)), fourier=True)
    assert real == 1.25 * n * 4 + 2.5 * (n // 16 * 9) * (2 + 3)
    back = count_macs(lambda: torch.fft.irfft(x.to(torch.complex64)[..., :9], n=16), fourier=True)
    assert back == 1.25 * n * 4

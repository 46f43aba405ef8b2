"""Linear CKA of what passes in parts, against matrices between all voxels at once."""

import pytest
import torch

from fheat.gates.cka import RunningCKA


def dense_cka(pairs):
    """Return the CKA of voxels as examples by centred Gram matrices, (voxels, voxels), in float64."""

    def gram(features):
        voxels = torch.cat([one.double().movedim(1, -1).reshape(-1, one.shape[1]) for one in features])
        voxels = voxels - voxels.mean(dim=0)
        return voxels @ voxels.t()

    x, y = (gram(side) for side in zip(*pairs, strict=True))
    return float((x * y).sum() / x.norm() / y.norm())


def running(pairs):
    one = RunningCKA()
    for x, y in pairs:
        one.add(x, y)
    return one.result()


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_parts_give_what_everything_at_once_gives(offset):
    torch.manual_seed(0)
    pairs = []
    for samples, grid in ((2, (4, 3, 2)), (1, (5, 4, 3)), (3, (2, 2, 2))):
        x = torch.randn(samples, 3, *grid, dtype=torch.float64)
        pairs.append((x + offset, x.roll(1, 1) + 0.7 * torch.randn_like(x) - offset))
    assert 0.2 < running(pairs) < 0.9
    assert running(pairs) == pytest.approx(dense_cka(pairs), rel=1e-9)
    assert running(pairs[::-1]) == pytest.approx(running(pairs), rel=1e-9)


def test_rotation_shift_and_scale_do_not_count():
    x = torch.randn(2, 5, 4, 4, 4, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    turned = torch.einsum("ij,njxyz->nixyz", rotation, x)
    assert running([(x, x)]) == pytest.approx(1.0, abs=1e-12)
    assert running([(x, 3 * turned + 2)]) == pytest.approx(1.0, abs=1e-12)
    assert running([(x, torch.randn_like(x))]) < 0.2


def test_what_does_not_vary_is_like_what_does_not_vary():
    x, same = torch.randn(1, 2, 3, 3), torch.ones(1, 2, 3, 3)
    assert running([(same, 2 * same)]) == 1.0
    assert running([(x, same)]) == running([(same, x)]) == 0.0


def test_maps_of_any_number_of_axes():
    x, y = torch.randn(9, 3), torch.randn(9, 3)
    assert running([(x, y)]) == pytest.approx(running([(x[None].movedim(1, -1), y[None].movedim(1, -1))]))

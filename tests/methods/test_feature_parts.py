"""Parts of methods that work on features: the coarser grid, prototypes, heads on vectors, sharpening, linear Dice."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat.methods.feature_grid import at_centres, to_voxels, vectors
from fheat.methods.losses import linear_foreground_dice
from fheat.methods.probabilities import class_probabilities, entropy, sharpened
from fheat.methods.prototypes import class_prototypes, similarities
from fheat.methods.vector_heads import RowNorm, VectorHead
from fheat.ops.voxel_sums import voxel_sums


def test_cells_take_the_value_of_their_centre_voxel():
    maps = torch.arange(2 * 8 * 12 * 4.0).view(2, 8, 12, 4)
    found = at_centres(maps, (2, 3, 4))
    for i in range(2):
        for j in range(3):
            assert torch.equal(found[:, i, j], maps[:, 4 * i + 2, 4 * j + 2])
    assert at_centres(maps, maps.shape[1:]) is maps


def test_a_grid_that_was_padded_at_its_end():
    """Ten voxels are three cells of four, the last of which has only two of them."""
    assert at_centres(torch.arange(10).view(1, 1, 10), (1, 1, 3)).flatten().tolist() == [2, 6, 9]
    wide = to_voxels(torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1, 1).expand(1, 1, 3, 3, 3), (10, 12, 12))
    assert wide.shape == (1, 1, 10, 12, 12)
    assert wide[0, 0, :, 0, 0].tolist() == [1, 1, 1.125, 1.375, 1.625, 1.875, 2.125, 2.375, 2.625, 2.875]
    assert to_voxels(wide, (10, 12, 12)) is wide


def test_vectors_have_channels_last():
    features = torch.randn(2, 3, 4, 5, 6)
    rows = vectors(features)
    assert torch.equal(rows[1 * 120 + 2 * 30 + 3 * 6 + 4], features[1, :, 2, 3, 4])


def test_prototypes_are_mean_features_by_sample_and_class():
    features, labels = torch.randn(2, 4, 3, 3, 2, dtype=torch.float64), torch.randint(2, (2, 3, 3, 2))
    found = class_prototypes(features, labels, 3)
    similar = similarities(features, found)
    assert similar.shape == (2, 3, 3, 3, 2)
    for sample in range(2):
        for k in range(2):
            inside = [features[sample, :, x, y, z] for x, y, z in (labels[sample] == k).nonzero()]
            mean = sum(inside) / (len(inside) + 1e-6)
            expected = mean / mean.norm()
            assert (found[sample, k] - expected).abs().max() < 1e-12
            voxel = features[sample, :, 2, 1, 0]
            assert similar[sample, k, 2, 1, 0].item() == pytest.approx((voxel @ expected / voxel.norm()).item())
    assert torch.equal(found[:, 2], torch.zeros(2, 4, dtype=torch.float64))  # a class that is absent
    assert torch.equal(similar[:, 2], torch.zeros_like(similar[:, 2]))


def test_sharpening_is_the_published_formula_for_two_classes():
    logits = torch.randn(2, 2, 4, 4, 4, dtype=torch.float64)
    p = logits.softmax(1)
    assert torch.allclose(sharpened(logits, 0.1), p**10 / (p**10 + (1 - p) ** 10), rtol=1e-10)
    assert torch.equal(sharpened(logits, 1.0), class_probabilities(logits))
    three = sharpened(torch.tensor([0.4, 0.3, 0.3], dtype=torch.float64).log().view(1, 3, 1, 1, 1), 0.1)
    assert three.sum().item() == pytest.approx(1)
    assert three.flatten()[0].item() == pytest.approx(0.4**10 / (0.4**10 + 2 * 0.3**10))


def test_entropy_is_zero_where_certain_and_at_most_ln_k():
    assert entropy(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1, 1)).item() == pytest.approx(0, abs=1e-5)
    assert entropy(torch.full((1, 3, 1, 1, 1), 1 / 3)).item() == pytest.approx(math.log(3), abs=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_linear_dice_loss(classes):
    logits, labels = torch.randn(2, classes, 4, 3, 5, dtype=torch.float64), torch.randint(classes, (2, 4, 3, 5))
    p, expected = logits.softmax(1), []
    for k in range(1, classes):
        g = (labels == k).double()
        expected.append(1 - (2 * (p[:, k] * g).sum() + 1e-8) / (p[:, k].sum() + g.sum() + 1e-8))
    assert linear_foreground_dice(voxel_sums(logits, labels)).item() == pytest.approx(
        sum(expected).item() / len(expected), rel=1e-12
    )
    perfect = 50 * F.one_hot(labels, classes).movedim(-1, 1).float()
    assert linear_foreground_dice(voxel_sums(perfect, labels)).item() == pytest.approx(0, abs=1e-5)


def test_a_norm_of_all_vectors_is_the_batch_norm_of_torch():
    own, other = RowNorm(5, running=True).double(), nn.BatchNorm1d(5).double()
    for _ in range(3):
        x = (3 * torch.randn(40, 5, dtype=torch.float64) + 1).requires_grad_()
        counted = torch.ones(40, dtype=torch.bool)
        found, expected = own(x, counted), other(x)
        assert torch.allclose(found, expected, rtol=1e-10)
        gradients = [torch.autograd.grad((y**3).sum(), x)[0] for y in (found, expected)]
        assert torch.allclose(*gradients, rtol=1e-8)
    assert torch.allclose(own.mean, other.running_mean)
    assert torch.allclose(own.variance, other.running_var)
    before = own.mean.clone()
    assert torch.allclose(own(x, running=True), other.eval()(x), rtol=1e-10)
    assert torch.equal(own.mean, before)


def test_vectors_that_do_not_count_change_nothing_for_the_others():
    head, twin = (VectorHead(6, 4, 4, running=True).double() for _ in range(2))
    twin.load_state_dict(head.state_dict())
    x, counted = torch.randn(30, 6, dtype=torch.float64), torch.rand(30) > 0.4
    found = head(x, counted)[counted]
    expected = twin(x[counted], torch.ones(int(counted.sum()), dtype=torch.bool))
    assert torch.allclose(found, expected, rtol=1e-10)
    for one, other in zip(head.buffers(), twin.buffers(), strict=True):
        assert torch.allclose(one, other)
    assert torch.isfinite(head(x, torch.zeros(30, dtype=torch.bool))).all()  # nothing counts
    assert torch.allclose(head.norm.variance, twin.norm.variance)

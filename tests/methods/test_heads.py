"""Parts of methods that look at features: heads on voxels and on vectors, the memory of vectors, labels on a grid."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat import create_model
from fheat.methods.class_memory import ClassMemory
from fheat.methods.dense_head import DenseHead
from fheat.methods.feature_grid import at_centres, evaluating, example_features, vectors
from fheat.methods.vector_heads import RowNorm, VectorHead
from fheat.networks.base import Features
from fheat.networks.registry import NetworkSpec


@pytest.mark.parametrize(
    ("name", "kind", "kernel"),
    [("fheat_seg", nn.ConvTranspose3d, 4), ("fheat_seg_l", nn.Conv3d, 1)],
)
def test_the_dense_head_has_the_geometry_of_the_networks_head(name, kind, kernel):
    model = create_model(name, out_channels=3, patch_size=(32, 32, 32)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    head = DenseHead(model, 5)
    assert isinstance(head.convolution, kind)
    assert head.convolution.kernel_size == (kernel,) * 3
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    size = (33, 34, 32)  # features of padded grids
    with torch.no_grad():
        seen = model.forward_features(torch.randn(1, 1, *size))
        found = head(seen.penultimate, size)
    assert found.shape == (1, 5, *size)
    assert head.in_channels == seen.penultimate.shape[1]


def test_the_dense_head_makes_what_the_networks_head_makes_with_its_weights():
    model = create_model("fheat_seg", out_channels=2, patch_size=(32, 32, 32)).eval()
    head = DenseHead(model, 2)
    assert not torch.equal(head.convolution.weight, model.head.weight)
    head.convolution.load_state_dict(model.head.state_dict())
    with torch.no_grad():
        seen = model.forward_features(torch.randn(1, 1, 33, 32, 32))
        assert torch.equal(head(seen.penultimate, (33, 32, 32)), seen.logits)


class Odd(nn.Module):
    """A network whose head is no convolution, on half of the grid."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv3d(1, 6, 2, stride=2), nn.Linear(6, 2)
        self.spec = NetworkSpec("odd", 1, 2, (8, 8, 8))

    def forward_features(self, x):
        features = self.stem(x)
        logits = F.interpolate(self.head(features.movedim(1, -1)).movedim(-1, 1), size=x.shape[2:])
        return Features(logits, features[:, :1].detach(), features)


def test_a_head_of_unknown_geometry_is_one_convolution_and_an_interpolation():
    model = Odd()
    head = DenseHead(model, 3)
    assert (head.convolution.kernel_size, head.convolution.in_channels) == ((1, 1, 1), 6)
    features = torch.randn(2, 6, 4, 4, 4)
    expected = F.interpolate(head.convolution(features), size=(8, 7, 8), mode="trilinear")
    assert torch.equal(head(features, (8, 7, 8)), expected)
    assert DenseHead(model.double(), 1).convolution.weight.dtype == torch.float64


def test_examples_leave_modes_as_they_are():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False]
    assert example_features(Odd()).penultimate.shape == (1, 6, 4, 4, 4)


def test_labels_of_a_grid_are_those_in_the_centres_of_its_cells():
    labels = torch.arange(30 * 8 * 5).view(1, 30, 8, 5)
    found = at_centres(labels, (8, 4, 5))
    for i in range(8):
        for j in range(4):
            for k in range(5):
                assert found[0, i, j, k] == labels[0, min(4 * i + 2, 29), 2 * j + 1, k]
    assert torch.equal(at_centres(labels, (30, 8, 5)), labels)
    features = torch.randn(2, 3, 4, 5, 6)
    assert torch.equal(vectors(features).view(2, 4, 5, 6, 3)[1, 2, 3, 4], features[1, :, 2, 3, 4])


@pytest.mark.parametrize("counted", [None, 7])
def test_the_norm_of_rows_is_batch_norm_of_those_that_count(counted):
    norm, plain = RowNorm(4, running=True).double(), nn.BatchNorm1d(4).double()
    for _ in range(3):
        rows = (3 * torch.randn(20, 4, dtype=torch.float64) + 1).requires_grad_()
        chosen = torch.ones(20, dtype=torch.bool) if counted is None else torch.randperm(20) < counted
        weights = torch.randn(int(chosen.sum()), 4, dtype=torch.float64)
        found, expected = norm(rows, None if counted is None else chosen)[chosen], plain(rows[chosen])
        assert torch.allclose(found, expected, atol=1e-12)
        gradients = [torch.autograd.grad((y * weights).sum(), rows)[0] for y in (found, expected)]
        assert torch.allclose(*gradients, atol=1e-12)
    assert torch.allclose(norm.mean, plain.running_mean)
    assert torch.allclose(norm.variance, plain.running_var)
    plain.eval()
    assert torch.allclose(norm(rows, running=True), plain(rows))


def test_a_norm_of_no_rows_is_finite_and_remembers_nothing():
    norm, rows = RowNorm(4, running=True), torch.randn(5, 4, requires_grad=True)
    out = norm(rows, torch.zeros(5, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(out.sum(), rows)
    assert torch.isfinite(out).all()
    assert torch.isfinite(gradient).all()
    assert torch.equal(norm.mean, torch.zeros(4))
    assert torch.equal(norm.variance, torch.ones(4))
    with pytest.raises(ValueError, match="keeps no running statistics"):
        RowNorm(4)(rows, running=True)
    assert not list(RowNorm(4).buffers())


def test_a_head_on_vectors_is_its_layers():
    head = VectorHead(3, 8, 2, slope=0.2).eval()
    rows = torch.randn(10, 3)
    expected = F.leaky_relu(F.batch_norm(head.first(rows), None, None, training=True), 0.2)
    assert torch.allclose(head(rows), head.last(expected), atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(rows).dtype == torch.float32


def test_the_memory_holds_the_best_candidates_and_keeps_them_when_there_are_none():
    memory = ClassMemory(2, 3, 4)
    vectors, scores = torch.randn(6, 4), torch.tensor([5.0, 1.0, 4.0, 9.0, 3.0, 2.0])
    candidates = torch.tensor([True, True, True, False, True, True])
    memory.replace(1, vectors, scores, candidates)
    assert torch.equal(memory.vectors[1], vectors[[0, 2, 4]])
    assert memory.filled.tolist() == [[False] * 3, [True] * 3]
    memory.replace(1, vectors, scores, torch.zeros(6, dtype=torch.bool))
    assert torch.equal(memory.vectors[1], vectors[[0, 2, 4]])
    memory.replace(1, torch.cat([vectors[:2], torch.full((1, 4), torch.nan)]), scores[:3], candidates[1:4])
    assert memory.filled[1].tolist() == [True, True, False]
    assert torch.equal(memory.vectors[1], torch.cat([vectors[:2], torch.zeros(1, 4)]))

"""Sums over voxels and readings of a weak view on a GPU, at the shapes of a CSE step: against float64 and the twin."""

import pytest
import torch

from fheat.methods.cse import WeakView, learned_targets, read_weak
from fheat.ops import kernels
from fheat.ops.voxel_sums import voxel_sums
from tests.methods.predictions import cse

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PATCH = (112, 112, 80)


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def sums_and_gradient(logits, target, region):
    logits = logits.detach().requires_grad_()
    sums = voxel_sums(logits, target, region, 1 if region is None else 2)
    generator = torch.Generator().manual_seed(1)
    total = sum((field * torch.randn(field.shape, generator=generator).cuda()).sum() for field in sums[:4])
    return [*(field.detach() for field in sums), torch.autograd.grad(total, logits)[0]]


@pytest.mark.parametrize("last", [False, True], ids=["classes first", "classes last"])
@pytest.mark.parametrize("masked", [False, True], ids=["all voxels", "two regions"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 5])
def test_sums_and_gradient(classes, dtype, masked, last):
    logits = (3 * torch.randn(6, classes, *PATCH, device="cuda")).to(dtype)
    logits = logits.contiguous(memory_format=torch.channels_last_3d) if last else logits
    target = torch.randint(classes, (6, *PATCH), device="cuda")
    region = None
    if masked:
        target, region = target.byte(), torch.tensor([0, 1, 255], device="cuda").byte()[torch.randint_like(target, 3)]
    with kernels.use("never"):
        expected = sums_and_gradient(logits.double(), target, region)
    half = torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16)
    with half:
        assert kernels.usable(logits)
        found, again = (sums_and_gradient(logits, target, region) for _ in range(2))
    for one, other, wanted in zip(found, again, expected, strict=True):
        assert torch.equal(one, other)
        assert error(one, wanted) < (1e-5 if one.dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("last", [False, True], ids=["classes first", "classes last"])
@pytest.mark.parametrize("classes", [2, 5])
def test_a_weak_view(classes, last):
    logits = 2 * torch.randn(2, classes, *PATCH, device="cuda")
    threshold = 0.5 + 0.4 * torch.rand(2, 1, 7, 7, 5, device="cuda")
    with kernels.use("never"):
        plain = read_weak(logits, threshold)
    found = read_weak(logits.contiguous(memory_format=torch.channels_last_3d) if last else logits, threshold)
    assert torch.equal(found.label, plain.label)
    assert torch.equal(found.foreground, plain.foreground)
    for one, other in ((found.accepted, plain.accepted), (found.inside, plain.inside)):
        assert (one != other).sum() < 10  # exponentials are rounded differently
    assert error(found.confidence, plain.confidence) < 1e-5


@pytest.mark.parametrize("last", [False, True], ids=["classes first", "classes last"])
def test_targets_terms_and_gradients_of_cse(last):
    label, pseudo, known = (torch.randint(2, (2, *PATCH), device="cuda").byte() for _ in range(3))
    view = WeakView(label, torch.rand(label.shape, device="cuda") < 0.7, pseudo > 0, pseudo, torch.zeros(0))
    drawing = known.long(), view, pseudo, torch.rand(PATCH, device="cuda") < 0.4
    with kernels.use("never"):
        expected = learned_targets(*drawing)
    targets = learned_targets(*drawing)
    assert all(torch.equal(one, other) for one, other in zip(targets, expected, strict=True))
    views, method = 3 * torch.randn(6, 2, *PATCH, device="cuda"), cse(PATCH).cuda()
    if last:
        views = views.contiguous(memory_format=torch.channels_last_3d)
    terms, gradients = [], []
    for mode, kind in (("never", torch.float64), ("auto", torch.float32)):
        logits = views.detach().to(kind).requires_grad_()
        with kernels.use(mode):
            found = method._terms(logits, *targets)
            found[0].backward()
        terms.append(torch.stack(found).detach())
        gradients.append(logits.grad)
    assert (terms[1] / terms[0] - 1).abs().max() < 1e-5
    assert error(gradients[1], gradients[0]) < 1e-5

"""The loss of CSE in a few kernels: targets, regions, terms and gradients are those of the plain twins."""

import pytest
import torch

from fheat.methods.cse import WeakView, learned_targets
from fheat.ops import kernels
from tests.methods.predictions import cse


@pytest.fixture
def _interpreted(poisoned, monkeypatch):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU; see tests/gpu")
    from fheat.ops.kernels import losses

    monkeypatch.setattr(losses, "PROGRAMS", 4)
    monkeypatch.setattr(losses, "PAIR_PROGRAMS", 7)


def drawn(count, grid, classes=2):
    """Draw labels, a weak view, its pseudo-labels and a mask."""
    shape = (count, *grid)
    label, pseudo = (torch.randint(classes, shape).byte() for _ in range(2))
    view = WeakView(label, torch.rand(shape) < 0.7, pseudo > 0, pseudo, torch.zeros(0))
    return torch.randint(classes, shape), view, pseudo, torch.rand(grid) < 0.4


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize(("count", "grid"), [(2, (9, 11, 16)), (1, (1, 1, 1)), (3, (3, 5, 7))])
def test_targets_and_regions(count, grid):
    drawing = drawn(count, grid, classes=5)
    with kernels.use("never"):
        expected = learned_targets(*drawing)
    with kernels.use("always"):
        found = learned_targets(*drawing)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("last", [False, True], ids=["classes first", "classes last"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_terms_and_gradients(count, last):
    grid = (5, 8, 9)
    targets, regions = learned_targets(*drawn(count, grid))
    views = 3 * torch.randn(3 * count, 2, *grid)
    if last:
        views = views.contiguous(memory_format=torch.channels_last_3d)
    method = cse((16, 16, 16), batch=count, consistency=0.7, mix=3.0)
    terms, gradients = [], []
    for mode, kind in (("never", torch.float64), ("never", torch.float32), ("always", torch.float32)):
        logits = views.detach().to(kind).requires_grad_()
        with kernels.use(mode):
            found = method._terms(logits, targets, regions)
            (1.5 * found[0]).backward()
        assert not any(term.requires_grad for term in found[1:]) or mode == "never"
        terms.append(torch.stack(found).detach())
        gradients.append(logits.grad)
    assert (terms[2] / terms[0] - 1).abs().max() < 2e-6
    off = [(gradient - gradients[0]).norm() / gradients[0].norm() for gradient in gradients]
    assert off[2] < max(1e-6, 2 * off[1])


@pytest.mark.usefixtures("_interpreted")
def test_a_region_without_voxels_and_a_view_of_which_nothing_is_accepted():
    labels, view, pseudo, mask = drawn(2, (4, 4, 4))
    rejecting = view._replace(accepted=torch.zeros_like(view.accepted))
    targets, regions = learned_targets(labels, rejecting, pseudo, torch.ones_like(mask))
    views, method = torch.randn(6, 2, 4, 4, 4), cse((16, 16, 16))
    found = []
    for mode in ("never", "always"):
        logits = views.clone().requires_grad_()
        with kernels.use(mode):
            terms = method._terms(logits, targets, regions)
            terms[0].backward()
        found.append((torch.stack(terms).detach(), logits.grad))
    assert (found[1][0] - found[0][0]).abs().max() < 1e-6
    assert found[1][0][2] == found[1][0][4] == 0
    assert (found[1][1] - found[0][1]).abs().max() < 1e-8
    assert (found[1][1][2:4] == 0).all()

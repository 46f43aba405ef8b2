"""Sums over voxels and readings of a weak view: the plain twins against loops, the kernels against the twins."""

import math

import pytest
import torch
import torch.nn.functional as F

from fheat.methods.cse import read_weak
from fheat.ops import kernels
from fheat.ops import largest_component as components
from fheat.ops.voxel_sums import NOWHERE, VoxelSums, voxel_sums
from tests.methods.predictions import Given, batch_of, cse
from tests.ops.compare import error

SHAPES = [(2, 2, (9, 6, 11)), (3, 3, (5, 3, 7)), (1, 5, (3, 4, 7)), (2, 2, (1, 1, 1)), (1, 16, (2, 4, 3))]


def drawn(samples, classes, grid, regions):
    """Draw logits, targets and, for some regions, in which of them voxels count, every one of them or none."""
    logits, target = 3 * torch.randn(samples, classes, *grid), torch.randint(classes, (samples, *grid))
    if regions is None:
        return logits, target, None
    return logits, target, torch.tensor([*range(regions), NOWHERE]).byte()[torch.randint(regions + 1, target.shape)]


def sums_and_gradients(logits, target, region, regions):
    """Return the sums, and the gradients to logits of a weighted total of each, one by one and of all together."""
    logits = logits.detach().requires_grad_()
    sums = voxel_sums(logits, target, region, regions or 1)
    generator = torch.Generator().manual_seed(1)
    totals = [(field * torch.randn(field.shape, generator=generator)).sum() for field in sums[:4]]
    gradients = [torch.autograd.grad(total, logits, retain_graph=True)[0] for total in (*totals, sum(totals))]
    return sums, gradients


@pytest.mark.parametrize("regions", [None, 1, 3])
def test_the_plain_sums_equal_a_loop(regions):
    samples, classes, grid = 2, 3, (3, 2, 4)
    logits, target, region = drawn(samples, classes, grid, regions)
    found = voxel_sums(logits.double(), target, region, regions or 1)
    expected = VoxelSums(*(torch.zeros_like(field) for field in found))
    for b in range(samples):
        for i, j, k in torch.cartesian_prod(*map(torch.arange, grid)).tolist():
            p = [math.exp(value) for value in logits[b, :, i, j, k]]
            p = [value / sum(p) for value in p]
            own, r = int(target[b, i, j, k]), 0 if region is None else int(region[b, i, j, k])
            if r == NOWHERE:
                continue
            expected.entropy[b, r] -= math.log(p[own])
            expected.overlap[b, r, own] += p[own]
            expected.voxels[b, r, own] += 1
            for c in range(classes):
                expected.mass[b, r, c] += p[c]
                expected.squares[b, r, c] += p[c] ** 2
    assert all(error(one, other) < 1e-6 for one, other in zip(found, expected, strict=True))
    assert not found.voxels.requires_grad


def test_plain_sums_of_many_runs_are_the_cross_entropy_of_all_voxels():
    logits, target = torch.randn(2, 4, 40, 41, 43, requires_grad=True), torch.randint(4, (2, 40, 41, 43))
    sums = voxel_sums(logits, target.byte())
    expected = F.cross_entropy(logits, target)
    assert (sums.entropy.sum() / target.numel()).item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.equal(sums.voxels[:, 0], F.one_hot(target.flatten(1), 4).sum(1).float())
    found, wanted = (torch.autograd.grad(loss, logits)[0] for loss in (sums.entropy.sum() / target.numel(), expected))
    assert error(found, wanted) < 1e-6


def test_a_class_that_is_not_there_is_refused():
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        voxel_sums(torch.randn(1, 2, 3, 3, 3), torch.full((1, 3, 3, 3), 2))


def test_splitting_gives_the_sums_of_each_part():
    logits, target, region = drawn(5, 2, (3, 4, 2), 2)
    parts = voxel_sums(logits, target, region, 2).split([2, 3])
    for part, rows in zip(parts, (slice(0, 2), slice(2, 5)), strict=True):
        alone = voxel_sums(logits[rows], target[rows], region[rows], 2)
        assert all(torch.allclose(one, other) for one, other in zip(part, alone, strict=True))


def test_a_grid_without_whole_blocks_is_read_without_kernels():
    """The last block has four planes: its confidence is their mean, and its threshold counts for them alone."""
    logits, threshold = torch.randn(1, 2, 16, 16, 20), torch.tensor([0.0, 1.1]).view(1, 1, 1, 1, 2)
    with kernels.use("always"):
        view = read_weak(logits, threshold)
    p = logits.softmax(dim=1).amax(dim=1)
    assert view.accepted[..., :16].all()
    assert not view.accepted[..., 16:].any()
    means = [p[..., :16].mean().item(), p[..., 16:].mean().item()]
    assert view.confidence.flatten().tolist() == pytest.approx(means, rel=1e-5)


@pytest.fixture
def _interpreted(monkeypatch):
    """Memory that a kernel should fill holds what it must not leave; few programs, so that each walks several tiles."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without a GPU; see tests/gpu")
    from fheat.ops.kernels import losses

    def poisoned(make):
        def fill(*args, **options):
            made = make(*args, **options)
            return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(77)

        return fill

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(losses, "PROGRAMS", 4)
    monkeypatch.setattr(losses, "PAIR_PROGRAMS", 3)
    monkeypatch.setattr(losses, "_TILE", 256)


def fewer_steps(monkeypatch):
    """Take tiles as large as the interpreter likes them; blocks are still walked in several."""
    from fheat.ops.kernels import losses

    monkeypatch.setattr(losses, "_TILE", 4096)


@pytest.mark.slow
@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("last", [False, True], ids=["classes first", "classes last"])
@pytest.mark.parametrize("regions", [None, 2])
@pytest.mark.parametrize(("samples", "classes", "grid"), SHAPES)
def test_fused_sums_and_every_gradient(samples, classes, grid, regions, last):
    logits, target, region = drawn(samples, classes, grid, regions)
    expected = sums_and_gradients(logits.double(), target, region, regions)
    logits = logits.contiguous(memory_format=torch.channels_last_3d) if last else logits
    with kernels.use("always"):
        found = sums_and_gradients(logits, target.byte() if regions else target, region, regions)
    for one, other in zip(found[0], expected[0], strict=True):
        assert error(one, other) < 1e-5
    for one, other in zip(found[1], expected[1], strict=True):
        assert one.dtype == torch.float32
        assert (one.double() - other).norm() < 1e-5 * (1 + other.norm())
    assert not found[0].voxels.requires_grad


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("last", [False, True], ids=["classes first", "classes last"])
@pytest.mark.parametrize("regions", [None, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grid", [(9, 6, 11), (1, 1, 1)])
def test_sums_of_two_classes_and_every_gradient(grid, dtype, regions, last):
    logits, target, region = drawn(2, 2, grid, regions)
    logits = (10 * logits).to(dtype)
    logits[:, :, 0, 0, 0] = 0.25  # a tie
    expected = sums_and_gradients(logits.double(), target, region, regions)
    logits = logits.contiguous(memory_format=torch.channels_last_3d) if last else logits
    with kernels.use("always"):
        found, again = (sums_and_gradients(logits, target.byte(), region, regions) for _ in range(2))
    plain = sums_and_gradients(logits, target, region, regions)
    for one, two, three, other in zip(found[0], again[0], plain[0], expected[0], strict=True):
        assert torch.equal(one, two)
        assert error(one, other) < max(2e-6, 2 * error(three, other))
    rounding = 2e-6 if dtype == torch.float32 else 8e-3  # the interpreter cuts bf16 off
    for one, two, other in zip(found[1], again[1], expected[1], strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, two)
        assert (one.double() - other).norm() < rounding * (1e-3 + other.norm())
    assert not found[0].voxels.requires_grad


@pytest.mark.usefixtures("_interpreted")
def test_a_label_that_is_no_class_is_seen_among_two():
    logits, target, _ = drawn(1, 2, (3, 4, 5), None)
    target[0, 1, 2, 3] = 2
    with kernels.use("always"):
        assert voxel_sums(logits, target).entropy.isnan().all()


@pytest.mark.usefixtures("_interpreted")
def test_fused_sums_of_a_slice_and_of_large_logits():
    logits, target, region = drawn(3, 3, (5, 4, 7), 2)
    cut = (30 * logits)[:, :, :4, :, 1:6]
    target, region = target[:, :4, :, 1:6], region[:, :4, :, 1:6]
    expected = sums_and_gradients(cut.double(), target, region, 2)
    with kernels.use("always"):
        found = sums_and_gradients(cut, target, region, 2)
    assert all(error(one, other) < 1e-5 for one, other in zip(found[0], expected[0], strict=True))
    assert all(error(one, other) < 1e-5 for one, other in zip(found[1], expected[1], strict=True))


@pytest.mark.usefixtures("_interpreted")
def test_fused_sums_of_bf16_are_computed_in_float32():
    logits, target, region = drawn(2, 3, (5, 4, 7), 2)
    logits = logits.bfloat16()
    expected = sums_and_gradients(logits.double(), target, region, 2)
    with kernels.use("always"):
        found = sums_and_gradients(logits, target, region, 2)
    assert all(one.dtype == torch.float32 for one in found[0])
    assert all(error(one, other) < 1e-5 for one, other in zip(found[0], expected[0], strict=True))
    for one, other in zip(found[1], expected[1], strict=True):
        assert one.dtype == torch.bfloat16
        assert error(one, other) < 4e-3


@pytest.mark.usefixtures("_interpreted")
def test_fused_sums_repeat_bit_by_bit():
    drawing = drawn(2, 3, (6, 5, 9), 2)
    with kernels.use("always"):
        first, again = (sums_and_gradients(*drawing, 2) for _ in range(2))
    for one, other in zip((*first[0], *first[1]), (*again[0], *again[1]), strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("_interpreted")
def test_more_classes_or_regions_than_a_kernel_takes_are_summed_by_the_twin():
    for classes, regions in ((17, 1), (2, 5), (1, 1)):
        logits, target, region = drawn(1, classes, (3, 2, 4), regions)
        with kernels.use("always"):
            found = voxel_sums(logits, target, region, regions)
        plain = voxel_sums(logits, target, region, regions)
        assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("last", [False, True], ids=["classes first", "classes last"])
@pytest.mark.parametrize("classes", [2, 5])
def test_a_weak_view_read_by_a_kernel(classes, last, monkeypatch):
    fewer_steps(monkeypatch)
    logits = torch.randn(2, classes, 16, 32, 16)
    logits[0, :, 1] = 0.25  # ties: the first class wins, and one half is still inside
    threshold = 0.3 + 0.5 * torch.rand(2, 1, 1, 2, 1)
    plain = read_weak(logits, threshold)
    with kernels.use("always"):
        found = read_weak(logits.contiguous(memory_format=torch.channels_last_3d) if last else logits, threshold)
    for name in ("label", "accepted", "inside", "foreground"):
        one, other = getattr(found, name), getattr(plain, name)
        assert one.dtype == other.dtype
        assert torch.equal(one, other), name
        assert len(other.unique()) > 1 or (name, classes) == ("foreground", 2)
    assert found.confidence.shape == plain.confidence.shape
    assert error(found.confidence, plain.confidence) < 1e-5
    expected = [logits.double().softmax(1).amax(1)[b, :, 16 * j : 16 * j + 16].mean() for b in (0, 1) for j in (0, 1)]
    assert error(found.confidence.flatten(), torch.stack(expected)) < 1e-6


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("classes", [2, 3])
def test_a_step_of_cse_is_the_plain_one(classes, monkeypatch):
    fewer_steps(monkeypatch)
    plain = kernels.use("never")(components.largest_component)  # its kernels have their own test
    monkeypatch.setattr("fheat.methods.cse.largest_component", plain)
    grid = (16, 16, 32)
    weak, views = 2 * torch.randn(2, classes, *grid), torch.randn(6, classes, *grid)
    labels, images = torch.randint(classes, (2, *grid)), torch.randn(2, 1, *grid)
    losses, gradients, thresholds = [], [], []
    for mode in ("never", "always"):
        torch.manual_seed(2)
        method, logits = cse(grid), views.clone().requires_grad_()
        with kernels.use(mode):
            found = method.losses(Given(weak, logits), batch_of(images, labels, images))
            found["total"].backward()
        losses.append(torch.stack([found[name] for name in method.names]).detach())
        gradients.append(logits.grad)
        thresholds.append(method.threshold)
    assert 0.1 < losses[0][-1] < 0.9
    assert (losses[1] / losses[0] - 1).abs().max() < 1e-5
    assert error(gradients[1], gradients[0]) < 1e-5
    assert error(thresholds[1], thresholds[0]) < 1e-6

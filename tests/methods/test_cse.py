"""CSE against a literal transcription of its protocol, loop by loop, and the numbers the protocol states."""

import copy

import cc3d
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat import create_model
from fheat.methods.cse import CSESettings, box_and_step, box_at, box_scores, draw_place, spread
from fheat.methods.losses import masked_dice_loss, supervised_loss
from fheat.methods.views import gamma, noise, soft_mask
from fheat.networks.base import Features
from fheat.ops.largest_component import largest_component
from fheat.ops.voxel_sums import voxel_sums
from tests.methods import literal
from tests.methods.predictions import batch_of, consistency, cse

LA, CUBE = torch.Size((112, 112, 80)), torch.Size((96, 96, 96))


def literal_thresholds(threshold, confidence):
    """Patch by patch, as the released code walks: accept by the old threshold, then move it."""
    accepted, moved = torch.zeros_like(confidence), threshold.clone()
    for slot in range(threshold.shape[0]):
        for i in range(threshold.shape[2]):
            for j in range(threshold.shape[3]):
                for k in range(threshold.shape[4]):
                    box = (slot, *(slice(16 * at, 16 * at + 16) for at in (i, j, k)))
                    accepted[box] = (confidence[box] >= threshold[slot, 0, i, j, k]).to(accepted.dtype)
                    moved[slot, 0, i, j, k] = 0.99 * threshold[slot, 0, i, j, k] + 0.01 * confidence[box].mean()
    return accepted, moved


def literal_scores(attention, patch):
    full = F.interpolate(attention, size=patch, mode="trilinear", align_corners=True).sum(dim=0)[0]
    sums = torch.zeros(3, 3, 3)
    for i in range(3):
        for j in range(3):
            for k in range(3):
                box = tuple(
                    slice(at * box_and_step(n)[1], at * box_and_step(n)[1] + box_and_step(n)[0])
                    for at, n in zip((i, j, k), patch, strict=True)
                )
                sums[i, j, k] = full[box].double().sum()
    return (sums - sums.min()) / (sums.max() - sums.min())


def literal_box(attention, patch):
    """Return the mask that is 1 inside the drawn box: by the largest of the chances over exponential numbers."""
    chance = literal_scores(attention, patch).flatten().softmax(0)
    choice = int((chance / torch.empty(27).exponential_()).argmax())
    mask, places = torch.zeros(patch), (choice // 9, choice // 3 % 3, choice % 3)
    sizes = [(int(2 / 3 * length), int((length - int(2 / 3 * length)) / 2)) for length in patch]
    mask[tuple(slice(at * step, at * step + box) for at, (box, step) in zip(places, sizes, strict=True))] = 1
    return mask


def literal_losses(model, batch, threshold, inside):
    """Return losses, moved thresholds and pseudo-labels of an iteration; numbers are those of the spec, section 3.4."""
    x_l, x_u, y_l, patch = batch.images, batch.unlabelled, batch.labels, batch.labels.shape[1:]
    strong = literal.changed(x_u, batch.low, batch.high)
    z_w = model(torch.cat([x_l, x_u]))  # 1
    confidence, label = z_w[2:].detach().softmax(1).max(1)
    with torch.no_grad():  # 6
        seen = model.forward_features(x_u)
    p, pseudo = seen.logits.softmax(1), torch.zeros_like(y_l)
    for sample in range(2):
        component = literal.largest_component(p[sample, 1:].sum(0) >= 0.5)
        pseudo[sample][component] = 1 + p[sample, 1:].argmax(0)[component]
    mask = literal_box(seen.attention, patch)  # 7
    mask = mask if inside == "labelled" else 1 - mask  # 1 where the mixture is labelled
    z_s = model(torch.cat([torch.zeros_like(x_l), literal.dimmed(strong)]))[2:]  # 2
    supervised = literal.supervised(z_w[:2], y_l)  # 3
    accepted, moved = literal_thresholds(threshold, confidence)  # 4
    consistency = (F.cross_entropy(z_s, label, reduction="none") * accepted).sum() / label.numel()  # 5
    z_m = model(x_l * mask + x_u * (1 - mask))  # 8
    mix = 0.0  # 9
    for target, region, weight in ((y_l, mask, 1.0), (pseudo, 1 - mask, 0.5)):
        terms = literal.masked_dice(z_m, target, region) + literal.cross_entropy(z_m, target, region)
        mix = mix + weight * terms / 2
    total = supervised + 1.0 * consistency + 4.0 * mix  # 10
    return (total, supervised, consistency, mix, accepted.mean()), moved, pseudo


@pytest.mark.parametrize(
    ("classes", "inside", "passes", "patch"),
    [
        (2, "unlabelled", "joint", (32, 16, 16)),
        (2, "labelled", "joint", (32, 16, 16)),
        (2, "labelled", "released", (32, 16, 16)),
        (3, "unlabelled", "joint", (32, 16, 16)),
        (2, "unlabelled", "joint", (20, 18, 33)),
    ],
)
def test_twenty_steps_are_those_of_the_transcription(classes, inside, passes, patch):
    model = literal.network(classes, patch=patch)
    with torch.no_grad():
        model.head.weight.mul_(2)  # so that some voxels are accepted
        model.head.bias[0] += 2 * (classes - 2)  # and some are background
    plain, method = copy.deepcopy(model), cse(patch, box=inside, passes=passes).double()
    threshold, shares = torch.full((2, 1, *(-(-length // 16) for length in patch)), 0.8).double(), []
    assert torch.equal(method.threshold, threshold)
    for t, batch in enumerate(literal.batches(20, classes=classes, patch=patch)):
        torch.manual_seed(t)
        losses, gradients = literal.advance(method, model, batch, t, rate=0.001)
        torch.manual_seed(t)
        expected, threshold, pseudo = literal_losses(plain, batch, threshold, inside)
        assert list(losses.values()) == pytest.approx([value.item() for value in expected], rel=1e-6)
        descended = literal.descend(list(plain.parameters()), expected[0], rate=0.001)
        assert literal.relative_difference(gradients, descended) < 1e-6
        assert (method.threshold - threshold).abs().max() < 1e-6
        shares.append((losses["accepted"], (pseudo > 0).double().mean().item()))
    assert all(sum(0 < share < 1 for share in kind) >= 5 for kind in zip(*shares, strict=True))


def test_the_consistency_loss_halves_when_half_of_the_voxels_are_rejected():
    strong = torch.randn(2, 2, 16, 16, 16)
    strong[:, :, 1::2] = strong[:, :, ::2]
    sure = torch.zeros(2, 2, 16, 16, 16)
    sure[:, 0] = 9.0
    unsure = sure.clone()
    unsure[:, 0, ::2] = 0.1
    (full, all_of_them), (half, share) = (consistency(cse((16, 16, 16)), weak, strong) for weak in (sure, unsure))
    assert (all_of_them, share) == (1, 0.5)
    assert half.item() == pytest.approx(full.item() / 2, rel=1e-5)


def test_boxes_are_those_of_the_protocol():
    assert [box_and_step(length) for length in LA] == [(74, 19), (74, 19), (53, 13)]
    assert box_and_step(96) == (64, 16)


def draw_box(attention, patch):
    return box_at(draw_place(attention, patch), patch)


@pytest.mark.parametrize(
    ("patch", "grid"), [(LA, (28, 28, 20)), (CUBE, (24, 24, 24)), (LA, (7, 7, 5)), (LA, (1, 1, 1))]
)
def test_scores_equal_the_loop_over_27_boxes(patch, grid):
    attention = torch.rand(2, 1, *grid)
    if max(grid) > 1:
        assert (box_scores(attention, patch) - literal_scores(attention, patch)).abs().max() < 1e-4
    else:
        assert torch.equal(box_scores(attention, patch), torch.zeros(3, 3, 3))


def test_autocast_rounds_no_scores():
    attention = torch.rand(2, 1, 7, 7, 5)
    expected = box_scores(attention, LA)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(box_scores(attention, LA), expected)
        assert torch.equal(box_scores(attention.bfloat16(), LA), box_scores(attention.bfloat16().float(), LA))


def test_draws_follow_the_softmax_of_the_scores():
    attention = torch.rand(2, 1, 7, 7, 5) ** 3
    patch = torch.Size((24, 24, 24))
    chance = box_scores(attention, patch).flatten().softmax(0)
    box, step = box_and_step(24)
    seen = torch.zeros(27)
    for _ in range(4000):
        mask = draw_box(attention, patch).float()
        starts = [int(mask.amax(dim=tuple(a for a in range(3) if a != axis)).argmax()) // step for axis in range(3)]
        seen[9 * starts[0] + 3 * starts[1] + starts[2]] += 1
        assert mask.sum() == box**3
    assert chance.max() / chance.min() == pytest.approx(np.e, rel=1e-4)
    assert (seen / 4000 - chance).abs().max() < 0.02


def test_constant_attention_draws_without_a_crash():
    mask = draw_box(torch.ones(2, 1, 7, 7, 5), LA)
    assert mask.float().mean().item() == pytest.approx(0.289, abs=1e-3)
    assert draw_box(torch.ones(2, 1, 6, 6, 6), CUBE).float().mean().item() == pytest.approx(0.296, abs=1e-3)


def smooth(shape, seed, radius):
    noise = torch.randn(1, 1, *shape, generator=torch.Generator().manual_seed(seed))
    return F.avg_pool3d(noise, 2 * radius + 1, stride=1, padding=radius)[0, 0]


def test_largest_component_equals_cc3d():
    masks = [
        smooth((40, 36, 28), seed, radius) > cut for seed in range(4) for radius, cut in ((0, 1.3), (1, 0.2), (2, 0.05))
    ]
    masks.append(torch.zeros(40, 36, 28, dtype=torch.bool))
    snake = torch.zeros(40, 36, 28, dtype=torch.bool)
    for row in range(0, 40, 2):
        snake[row, :, 0] = True
        snake[min(row + 1, 39), 0 if row // 2 % 2 else 35, 0] = True
    found = largest_component(torch.stack([*masks, snake]))
    for mask, kept in zip([*masks, snake], found, strict=True):
        components = cc3d.connected_components(mask.numpy(), connectivity=26)
        sizes = np.bincount(components.ravel())[1:]
        assert kept.sum().item() == (sizes.max() if sizes.size else 0)
        assert not (kept & ~mask).any()
        assert len(set(components[kept.numpy()].tolist())) <= 1
    assert torch.equal(found[-1], snake)
    assert not found[-2].any()


def test_spread_repeats_every_block():
    blocks = torch.rand(2, 1, 3, 2, 1)
    wide = spread(blocks)
    assert wide.shape == (2, 1, 48, 32, 16)
    assert torch.equal(wide[:, :, ::16, ::16, ::16], blocks)
    assert torch.equal(wide[:, :, 15::16, 15::16, 15::16], blocks)


def test_dice_losses():
    labels = torch.randint(3, (2, 6, 5, 4))
    target = F.one_hot(labels, 3).movedim(-1, 1).float()
    perfect = 50 * target
    assert supervised_loss(perfect, labels)[1].item() == pytest.approx(0, abs=1e-6)
    assert masked_dice_loss(voxel_sums(perfect, labels)).item() == pytest.approx(0, abs=1e-5)
    logits = torch.randn(2, 3, 6, 5, 4)
    p = logits.softmax(1)
    expected = np.mean(
        [1 - 2 * (p[:, k] * target[:, k]).sum() / ((p[:, k] ** 2).sum() + (target[:, k] ** 2).sum()) for k in range(3)]
    )
    entropy, dice = supervised_loss(logits, labels)
    assert dice.item() == pytest.approx(expected, rel=1e-5)
    assert entropy.item() == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


def test_soft_mask_statistics_are_those_of_the_protocol():
    weights = soft_mask(torch.ones(8, 1, *LA))
    assert weights.mean().item() == pytest.approx(0.5, abs=0.03)
    assert (weights == 0).float().mean().item() == pytest.approx(0.04, abs=0.02)
    assert (weights == 1).float().mean().item() == pytest.approx(0.04, abs=0.02)
    assert ((weights > 0.05) & (weights < 0.95)).float().mean().item() == pytest.approx(0.82, abs=0.03)


def test_gamma_and_noise():
    x = torch.randn(64, 1, 4, 4, 4)
    low, high = torch.full((64, 1), -6.0), torch.full((64, 1), 6.0)
    y = gamma(x, low, high)
    power = (y.log() / ((x + 6) / (12 + 1e-7)).log()).mean(dim=(1, 2, 3, 4))
    assert (y >= 0).all()
    assert (y <= 1).all()
    assert power.min() >= 0.7
    assert power.max() <= 1.5
    assert power.std() > 0.1
    amount = (noise(torch.zeros(400, 1, 8, 8, 8))).std(dim=(1, 2, 3, 4))
    assert (amount == 0).float().mean().item() == pytest.approx(0.5, abs=0.08)
    assert amount.max() < 0.11
    assert amount[amount > 0].mean().item() == pytest.approx(0.05, abs=0.01)


class Constant(nn.Module):
    """Gives fixed logits, and uniform attention, whatever it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.bias = nn.Parameter(torch.tensor([2.0, -1.0]))

    def forward(self, x):
        return self.forward_features(x).logits

    def forward_features(self, x):
        self.seen.append(x.detach().clone())
        logits = self.bias.view(1, 2, 1, 1, 1).expand(len(x), 2, *x.shape[2:])
        return Features(logits, torch.ones(len(x), 1, 2, 2, 2), x)


@pytest.mark.parametrize("box", ["unlabelled", "labelled"])
def test_what_lies_inside_the_box(box):
    method, model = cse((48, 48, 48), box=box), Constant()
    images, weak = torch.full((2, 1, 48, 48, 48), 5.0), torch.full((2, 1, 48, 48, 48), -5.0)
    batch = batch_of(images, torch.zeros(2, 48, 48, 48, dtype=torch.int64), weak)
    method.losses(model, batch)
    once, views = model.seen
    assert torch.equal(once, weak)
    assert views.shape[0] == 6
    assert torch.equal(views[:2], images)
    mixture = views[4:]
    share = (mixture == 5.0).float().mean().item()
    inside = (32 / 48) ** 3
    assert share == pytest.approx(inside if box == "labelled" else 1 - inside)
    assert set(mixture.unique().tolist()) == {5.0, -5.0}


def test_losses_of_a_real_network_are_finite_and_reach_every_parameter():
    model = create_model("fheat_seg", patch_size=(32, 32, 32)).train()
    method = cse((32, 32, 32))
    batch = batch_of(torch.randn(2, 1, 32, 32, 32), torch.randint(2, (2, 32, 32, 32)), torch.randn(2, 1, 32, 32, 32))
    losses = method.losses(model, batch)
    assert tuple(losses) == method.names
    expected = losses["supervised"] + losses["consistency"] + 4 * losses["mix"]
    assert losses["total"].item() == pytest.approx(expected.item())
    losses["total"].backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_a_ramp_lets_the_unsupervised_terms_rise():
    model, images = Constant(), torch.zeros(2, 1, 32, 32, 32)
    method = cse((32, 32, 32), ramp=4)
    batch = batch_of(images, torch.ones(2, 32, 32, 32, dtype=torch.int64), images)
    for step in range(6):
        losses = method.losses(model, batch)
        share = np.exp(-5 * (1 - min(step, 4) / 4) ** 2)
        expected = losses["supervised"] + share * (losses["consistency"] + 4 * losses["mix"])
        assert losses["total"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert method.steps == 6


class Recorder(nn.Module):
    """A network with a batch norm that keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.GELU(), nn.Conv3d(4, 2, 1))
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return self.layers(x)

    def forward_features(self, x):
        return Features(self(x), x.abs(), x)


def test_released_passes_are_those_of_the_released_code():
    """Labelled and unlabelled crops; the latter again; blank volumes and strong views; mixed crops, in this order."""
    model, method = Recorder(), cse((32, 32, 32), passes="released")
    images, weak = torch.randn(2, 1, 32, 32, 32), 3 + torch.randn(2, 1, 32, 32, 32)
    losses = method.losses(model, batch_of(images, (images[:, 0] > 1).long(), weak))
    first, again, strong, mixed = model.seen
    assert torch.equal(first, torch.cat([images, weak]))
    assert torch.equal(again, weak)
    assert not strong[:2].any()
    assert strong[2:].min() > -1  # raised intensities are in [0, 1], weak ones are not
    assert strong[2:].max() < 2
    assert ((mixed == images) | (mixed == weak)).all()
    losses["total"].backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("box", ["unlabelled", "labelled"])
def test_without_batch_norms_both_ways_to_pass_crops_agree(box):
    torch.manual_seed(3)
    model = create_model("unet", patch_size=(32, 32, 32), channels=(4, 4, 8, 8, 8), units=1).double().train()
    images, weak = torch.randn(2, 2, 1, 32, 32, 32, dtype=torch.float64)
    batch, found = batch_of(images, (images[:, 0] > 1).long(), weak), []
    for passes in ("joint", "released"):
        torch.manual_seed(4)
        model.zero_grad()
        losses = cse((32, 32, 32), passes=passes, box=box).double().losses(model, batch)
        losses["total"].backward()
        found.append([*losses.values(), *(parameter.grad.clone() for parameter in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() <= 1e-10 * one.abs().max().clamp(min=1e-3)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="passes"):
        CSESettings(passes="both")
    with pytest.raises(ValueError, match="box"):
        CSESettings(box="both")

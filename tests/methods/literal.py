"""What the literal transcriptions of methods share: loops instead of sums over tensors, one training run of each."""

import cc3d
import numpy as np
import torch
import torch.nn.functional as F

from fheat import create_model
from fheat.methods.base import Batch

PATCH = (16, 16, 16)


def network(classes=2, seed=0, dropout=0.0, patch=PATCH):
    """Return the miniature network in float64, without dropout unless it is asked for."""
    torch.manual_seed(seed)
    return create_model("miniature", out_channels=classes, patch_size=patch, dropout=dropout).double().train()


def batches(count, crops=2, classes=2, patch=PATCH):
    """Yield batches of smooth images in float64 whose labels follow the intensities."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        coarse = torch.rand(2 * crops, 1, 4, 4, 4, generator=generator, dtype=torch.float64)
        images = F.interpolate(coarse, size=patch, mode="trilinear")
        labels = (images[:crops, 0] * classes).long().clamp(max=classes - 1)
        unlabelled = images[crops:]
        low, high = unlabelled.amin(dim=(2, 3, 4)), unlabelled.amax(dim=(2, 3, 4))
        yield Batch(images[:crops], labels, unlabelled, low, high)


def advance(method, model, batch, iteration, rate=0.02):
    """Do with a method what training does in an iteration, by plain gradient descent; return losses and gradients."""
    stage = method.stage(iteration)
    if stage > method.current_stage:
        method.current_stage = stage
        method.begin_stage(model, stage)
    losses = method.losses(model, batch)
    gradients = descend([*model.parameters(), *method.trained()], losses[method.names[0]], rate)
    method.after_update(model, torch.tensor(iteration))
    return {name: value.item() for name, value in losses.items()}, gradients


def descend(parameters, loss, rate=0.02):
    """Take a step of gradient descent and return the gradients, which are 0 where the loss does not depend."""
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= rate * gradient
    return gradients


def largest_difference(one, other):
    """Return the largest difference between the numbers of two lists of tensors."""
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


def relative_difference(found, expected):
    """Return the largest difference between the numbers of two lists of tensors, over the largest expected number."""
    found, expected = list(found), list(expected)
    return largest_difference(found, expected) / max(tensor.abs().max().item() for tensor in expected)


def largest_component(mask):
    """Return the largest 26-connected component; of several, the one whose last voxel comes first."""
    components = cc3d.connected_components(mask.numpy(), connectivity=26)
    best, kept = (0, 0), np.zeros(components.shape, dtype=bool)
    for number in range(1, components.max() + 1):
        inside = components == number
        rank = inside.sum(), -np.flatnonzero(inside)[-1]
        if not kept.any() or rank > best:
            best, kept = rank, inside
    return torch.from_numpy(kept)


def changed(images, low, high):
    """Apply gamma and noise, crop by crop; numbers are drawn in the order in which the methods draw them."""
    count = len(images)
    powers = torch.empty(count).uniform_(0.7, 1.5)
    deviations, chances = torch.rand(count) * 0.1, torch.rand(count)
    white = torch.empty(1, count, *images.shape[2:], dtype=images.dtype).normal_()[0]
    strong = torch.zeros_like(images)
    for crop in range(count):
        scaled = (images[crop, 0] - low[crop, 0]) / (high[crop, 0] - low[crop, 0] + 1e-7)
        strong[crop, 0] = scaled.clamp(min=0) ** powers[crop]
        if chances[crop] < 0.5:
            strong[crop, 0] += deviations[crop] * white[crop]
    return strong


def dimmed(images):
    """Multiply each crop by random blocks of 16 voxels a side, interpolated trilinearly, corners not aligned."""
    kept = torch.rand(len(images), 1, *(length // 16 for length in images.shape[2:])) > 0.5
    return images * F.interpolate(kept.to(images.dtype), size=images.shape[2:], mode="trilinear")


def cross_entropy(logits, target, mask):
    """Return the sum over samples and voxels inside the mask of -log p of the target, over their number."""
    total, count = 0.0, 0.0
    for sample in range(len(logits)):
        log_p = logits[sample].log_softmax(dim=0)
        for k in range(logits.shape[1]):
            total = total - (log_p[k] * (target[sample] == k) * mask).sum()
        count += mask.sum()
    return total / (count + 1e-16)


def masked_dice(logits, target, mask):
    """Return 1 - mean over samples and classes of (2 sum M p g + e) / (sum M (p + g) + e), e = 1e-5 (DMASK)."""
    score, count = 0.0, 0
    for sample in range(len(logits)):
        p = logits[sample].softmax(dim=0)
        for k in range(logits.shape[1]):
            g = (target[sample] == k).double()
            score = score + (2 * (mask * p[k] * g).sum() + 1e-5) / ((mask * (p[k] + g)).sum() + 1e-5)
            count += 1
    return 1 - score / count


def supervised(logits, labels):
    """Return CE + Dice with squares over the whole batch, mean over all classes (DSQ2)."""
    p, dice = logits.softmax(dim=1), 0.0
    for k in range(logits.shape[1]):
        g = (labels == k).double()
        dice = dice + 1 - (2 * (p[:, k] * g).sum() + 1e-10) / ((p[:, k] ** 2).sum() + (g**2).sum() + 1e-10)
    return cross_entropy(logits, labels, torch.ones(labels.shape[1:])) + dice / logits.shape[1]

"""SASSNet against a literal transcription of its protocol, and its parts."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fheat import create_model
from fheat.methods.base import Task
from fheat.methods.discriminator import Discriminator, drop_channels
from fheat.methods.own_adam import OwnAdam
from fheat.methods.sassnet import SASSNet, SASSNetSettings
from tests.methods import literal
from tests.methods.captured import Plain, advance_as_captured
from tests.methods.predictions import batch_of
from tests.methods.test_signed_distance import literal_map

GRID = (16, 16, 16)
WIDTH = 3


def build(model, classes, **settings):
    settings = SASSNetSettings(**({"discriminator_width": WIDTH} | settings))
    method = SASSNet(settings, Task(GRID, 2, classes))
    method.prepare(model, lambda: model)
    return method


def miniature(classes, dropout=0.0):
    return create_model("miniature", 1, classes, GRID, dropout=dropout).double().train()


def batch(classes, dtype=torch.float64):
    images, unlabelled = torch.randn(2, 1, *GRID, dtype=dtype), torch.randn(2, 1, *GRID, dtype=dtype)
    smooth = F.avg_pool3d(images, 5, stride=1, padding=2)[:, 0]
    cuts = torch.quantile(smooth, torch.linspace(0.5, 0.9, classes - 1, dtype=dtype))
    return batch_of(images, torch.bucketize(smooth, cuts), unlabelled)


def literal_verdict(judge, maps, images, masks=()):
    """The discriminator layer by layer; masks say which channels are kept."""
    x = judge.of_maps(maps) + judge.of_image(images)
    for place, layer in enumerate(judge.deeper):
        x = F.leaky_relu(x, 0.2)
        if masks:
            x = x * masks[place] * 2
        x = layer(x)
    return judge.decide(F.leaky_relu(x, 0.2).flatten(2).mean(dim=2))


def literal_maps(head, model, images):
    features = model.forward_features(images).penultimate
    return torch.tanh(F.interpolate(head.convolution(features), size=GRID, mode="trilinear"))


def literal_loss(head, model, judge, given, step, classes):
    """Spec, section 6: DSQ1 + 0.3 MSE + w CE towards the class of labelled crops."""
    p, dice = model(given.images).softmax(1), 0.0
    for k in range(1, classes):
        g = (given.labels == k).double()
        dice += 1 - (2 * (p[:, k] * g).sum() + 1e-5) / ((p[:, k] ** 2).sum() + (g**2).sum() + 1e-5)
    maps, error = literal_maps(head, model, given.images), 0.0
    for crop in range(2):
        for k in range(1, classes):
            target = torch.from_numpy(literal_map((given.labels[crop] == k).numpy()))
            error += ((maps[crop, k - 1] - target) ** 2).mean() / (2 * (classes - 1))
    verdict = literal_verdict(judge, literal_maps(head, model, given.unlabelled), given.unlabelled)
    entropy = F.cross_entropy(verdict, torch.ones(2, dtype=torch.int64))
    weight = 0.015 * math.exp(-5 * (1 - min(step, 4) / 4) ** 2)
    return dice / (classes - 1) + 0.3 * error + weight * entropy


def literal_judgement(head, model, judge, given, adam):
    """Spec, section 6: the discriminator learns from the maps of the updated network in evaluation mode."""
    masks = [(torch.rand(4, times * WIDTH, 1, 1, 1) >= 0.5).double() for times in (1, 2, 4)]
    pairs = torch.stack([given.images, given.unlabelled], 1).flatten(0, 1)
    model.eval()
    maps = literal_maps(head, model, pairs).detach()
    model.train()
    loss = F.cross_entropy(literal_verdict(judge, maps, pairs, masks), torch.tensor([1, 0, 1, 0]))
    adam.zero_grad()
    loss.backward()
    adam.step()
    return loss


@pytest.mark.parametrize("classes", [2, 3])
def test_twenty_steps_equal_the_transcription(classes):
    model = miniature(classes)
    method = build(model, classes, ramp=4)
    twin, head, judge = copy.deepcopy((model, method.head, method.discriminator))
    adam = torch.optim.Adam(judge.requires_grad_().parameters(), lr=1e-4, betas=(0.9, 0.99))
    assert len(method.trained()) == 2  # weight and bias of the head, nothing of the discriminator
    for step in range(20):
        given = batch(classes)
        torch.manual_seed(step)
        losses, gradients = literal.advance(method, model, given, step, rate=0.05)
        expected = literal_loss(head, twin, judge, given, step, classes)
        assert losses["total"] == pytest.approx(expected.item(), rel=1e-6)
        descended = literal.descend([*twin.parameters(), *head.parameters()], expected, rate=0.05)
        assert literal.relative_difference(gradients, descended) < 1e-6
        torch.manual_seed(step)
        judged = literal_judgement(head, twin, judge, given, adam)
        assert method.judged.item() == pytest.approx(judged.item(), rel=1e-6)
        assert literal.relative_difference(method.discriminator.parameters(), judge.parameters()) < 1e-6
    assert losses["adversarial"] != pytest.approx(math.log(2), abs=1e-6)


def test_the_discriminator_learns_to_tell_the_crops_apart():
    """Labelled crops are bright, unlabelled ones dark; the network stands still."""
    model = miniature(2).float()
    method = build(model, 2, discriminator_rate=3e-3, discriminator_width=8)
    labels = torch.zeros(2, *GRID, dtype=torch.int64)
    seen = []
    for step in range(40):
        given = batch_of(1 + torch.randn(2, 1, *GRID) / 5, labels, -1 + torch.randn(2, 1, *GRID) / 5)
        losses = method.losses(model, given)
        method.after_update(model, torch.tensor(step))
        seen.append(losses["discriminator_loss"].item())
    assert seen[0] == pytest.approx(math.log(2), abs=0.05)
    assert sum(seen[-10:]) / 10 < math.log(2) / 2  # one half of what guessing gives, with half of the channels left out
    assert losses["adversarial"] > 2 * math.log(2)  # the network would have to make maps that look labelled


def test_the_update_of_the_discriminator_leaves_the_network_alone():
    model = Plain()
    method = build(model, 2)
    given = batch(2, torch.float32)
    method.losses(model, given)["total"].backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    assert all(parameter.grad is None for parameter in method.discriminator.parameters())
    judge = [parameter.clone() for parameter in method.discriminator.parameters()]
    method.after_update(model, torch.tensor(0))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(parameter.grad, old) for parameter, old in zip(model.parameters(), gradients, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(method.discriminator.parameters(), judge, strict=True))
    assert all(module.training for module in model.modules())


def test_adam_is_that_of_torch_and_skips_what_is_not_finite():
    parameters = [torch.randn(3, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    others = [nn.Parameter(parameter.clone()) for parameter in parameters]
    own, adam = OwnAdam(parameters, 1e-2, (0.9, 0.99)), torch.optim.Adam(others, lr=1e-2, betas=(0.9, 0.99))
    for step in range(30):
        gradients = [torch.randn_like(parameter) for parameter in parameters]
        if step == 10:
            state = [value.clone() for value in (*parameters, *own.buffers())]
            own.step(parameters, [torch.full_like(parameters[0], torch.nan), gradients[1]])
            assert all(torch.equal(a, b) for a, b in zip(state, (*parameters, *own.buffers()), strict=True))
        own.step(parameters, gradients)
        for other, gradient in zip(others, gradients, strict=True):
            other.grad = gradient
        adam.step()
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(parameters, others, strict=True))


def test_the_discriminator_of_the_protocol():
    judge = Discriminator(1, 1)
    assert [layer.out_channels for layer in judge.deeper] == [128, 256, 512]
    assert all(layer.kernel_size == (4, 4, 4) and layer.stride == (2, 2, 2) for layer in judge.deeper)
    small = Discriminator(2, 3, 2)
    for size in ((16, 16, 16), (33, 17, 20)):
        maps, images = torch.randn(2, 2, *size), torch.randn(2, 3, *size)
        assert small(maps, images, dropout=True).shape == (2, 2)
        assert torch.allclose(small(maps, images, dropout=False), literal_verdict(small, maps, images), atol=1e-6)


def test_dropout_leaves_out_whole_channels():
    dropped = drop_channels(torch.ones(50, 40, 2, 2, 2))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped.amin(dim=(2, 3, 4)), dropped.amax(dim=(2, 3, 4)))
    assert dropped.mean().item() == pytest.approx(1, abs=0.1)
    x = torch.randn(2, 3, 2, 2, 2)
    assert torch.equal(drop_channels(x, 0.0), x)


def test_nothing_in_an_iteration_asks_the_host():
    model = Plain(3)
    losses = advance_as_captured(build(model, 3), model, batch(3, torch.float32))
    assert tuple(losses) == SASSNet.names


def test_crops_that_the_discriminator_cannot_halve_four_times_are_refused():
    with pytest.raises(ValueError, match=r"data\.patch_size: method sassnet needs at least 16 voxels per axis"):
        SASSNet.check(SASSNetSettings(), Task((32, 32, 8), 2))
    SASSNet.check(SASSNetSettings(), Task((16, 16, 16), 2))

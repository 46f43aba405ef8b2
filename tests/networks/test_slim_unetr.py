"""Slim-UNETR: its block is the published sum of parts, and its attention that of a loop over tokens."""

import pytest
import torch
import torch.nn.functional as F

from fheat import create_model
from fheat.networks.registry import learning_rate_of
from fheat.networks.slim_unetr import SlimBlock, SparseAttention

CHANNELS, HEADS = 12, 3


@pytest.fixture
def x():
    return torch.randn(2, CHANNELS, 6, 4, 5)


def slow_attention(module, x):
    """Head by head and token by token, on every second voxel: softmax(q k) v without a scale."""
    tokens = x[:, :, ::2, ::2, ::2].flatten(2)
    weight = module.qkv.weight[:, :, 0, 0, 0]
    width = CHANNELS // HEADS
    out, received = torch.zeros_like(tokens), torch.zeros(len(x), tokens.shape[2])
    for sample, values in enumerate(tokens):
        for head in range(HEADS):
            three = (weight[3 * head * width : 3 * (head + 1) * width] @ values).reshape(3, width, -1)
            query, key, value = three
            for token in range(values.shape[1]):
                share = (query[:, token] @ key).softmax(dim=0)
                out[sample, head * width : (head + 1) * width, token] = value @ share
                received[sample] += share / (HEADS * values.shape[1])
    grid = 3, 2, 3
    return out.reshape(*out.shape[:2], *grid), received.reshape(-1, 1, *grid)


def test_attention_is_that_of_a_loop(x):
    module = SparseAttention(CHANNELS, 2, HEADS)
    mixed, received = slow_attention(module, x)
    transposed, norm, last = module.recover
    wide = F.conv_transpose3d(mixed, transposed.weight, transposed.bias, stride=2, groups=CHANNELS)
    expected = F.conv3d(F.group_norm(wide, 1, norm.weight, norm.bias), last.weight)[..., :5]  # 6 of an axis of 5
    out, attention = module(x)
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(attention, received, atol=1e-6)
    assert torch.allclose(attention.sum(dim=(2, 3, 4)), torch.ones(2, 1))
    assert module(x, want_map=False)[1] is None


def test_a_block_is_the_sum_of_its_parts(x):
    block = SlimBlock(CHANNELS, 2, HEADS).eval()
    norm1, narrow, middle, norm2, widen = block.local
    for norm in (norm1, norm2):
        for values in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
            values.uniform_(0.5, 2)

    def depthwise(y, layer):
        return F.conv3d(y, layer.weight, padding=1, groups=CHANNELS)

    def batch_norm(y, norm):
        return F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias)

    def mix(y, mixer):
        return F.conv3d(F.gelu(F.conv3d(y, mixer[0].weight)), mixer[2].weight)

    y = x + depthwise(x, block.before_local)
    inside = depthwise(F.conv3d(batch_norm(y, norm1), narrow.weight), middle)
    y = y + F.conv3d(batch_norm(inside, norm2), widen.weight)
    y = y + mix(y, block.local_mixer)
    y = y + depthwise(y, block.before_attention)
    mixed, attention = block.attention(y)
    y = y + mixed
    y = y + mix(y, block.mixer)
    out, received = block(x)
    assert torch.allclose(out, y, atol=1e-5)
    assert torch.equal(received, attention)
    assert [name for name, layer in block.named_modules() if getattr(layer, "bias", None) is not None] == [
        "local.0", "local.3", "attention.recover.0", "attention.recover.1",
    ]  # fmt: skip


def test_all_logits_are_normalised_together():
    model = create_model("slim_unetr", patch_size=(48, 32, 32)).eval()
    with torch.no_grad():
        logits = model(torch.randn(2, 1, 48, 32, 32))
    assert torch.allclose(logits.mean(dim=(1, 2, 3, 4)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(logits.var(dim=(1, 2, 3, 4), correction=0), torch.ones(2), atol=1e-2)
    assert len(logits.mean(dim=(2, 3, 4)).unique()) == 4  # and no class by itself


def test_scrambling_changes_the_order_of_tokens_only():
    plain, scrambled = (create_model("slim_unetr", patch_size=(96, 64, 32), scramble=value) for value in (False, True))
    bottom = torch.randn(1, 96, 3, 2, 1)
    with torch.no_grad():
        kept, moved = plain.eval()._bottom(bottom), scrambled.eval()._bottom(bottom)
    assert torch.equal(kept, bottom)
    assert torch.equal(moved, bottom.flatten(2).movedim(1, 2).reshape(bottom.shape))
    assert not torch.equal(moved, bottom)
    assert torch.equal(moved.flatten().sort().values, bottom.flatten().sort().values)


def test_it_trains_with_the_published_rate():
    assert learning_rate_of("slim_unetr") == 0.001

"""Cross-sample attention against a literal transformer layer, and how it enters a network."""

import copy
import math

import pytest
import torch

from fheat import create_model
from fheat.methods.cross_sample import CrossSampleAttention


def literal_layer(layer, tokens):
    """Post-norm encoder layer on one sequence (L, C), head by head and query by query."""
    attention, width = layer.self_attn, tokens.shape[1]
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    query, key, value = (tokens @ weight.T + bias for weight, bias in zip(weights, biases, strict=True))
    size = width // attention.num_heads
    mixed = torch.zeros_like(tokens)
    for head in range(attention.num_heads):
        own = slice(head * size, (head + 1) * size)
        for place in range(len(tokens)):
            share = (key[:, own] @ query[place, own] / math.sqrt(size)).softmax(0)
            mixed[place, own] = share @ value[:, own]
    x = literal_norm(layer.norm1, tokens + mixed @ attention.out_proj.weight.T + attention.out_proj.bias)
    inside = (x @ layer.linear1.weight.T + layer.linear1.bias).clamp(min=0)
    return literal_norm(layer.norm2, x + inside @ layer.linear2.weight.T + layer.linear2.bias)


def literal_norm(norm, x):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def literal_attention(attention, x):
    """First across the voxels of each sample, then across the samples at each voxel."""
    within = torch.stack([literal_layer(attention.within, one.flatten(1).T) for one in x])  # (N, V, C)
    across = torch.stack([literal_layer(attention.across, within[:, place]) for place in range(within.shape[1])])
    return across.permute(1, 2, 0).reshape(x.shape)


@pytest.mark.parametrize(("channels", "heads"), [(8, 4), (6, 3), (10, 2), (7, 1), (150, 3)])
def test_it_is_two_transformer_layers(channels, heads):
    attention = CrossSampleAttention(channels, dropout=0.0).double()
    x = torch.randn(3, channels, 2, 1, 3, dtype=torch.float64)
    assert attention.within.self_attn.num_heads == heads
    assert attention.within.linear1.out_features == 4 * channels
    assert (attention(x) - literal_attention(attention, x)).abs().max() < 1e-10
    assert attention.eval()(x) is x


def test_it_drops_by_default_and_learns():
    attention = CrossSampleAttention(8)
    x = torch.randn(2, 8, 2, 2, 2)
    assert not torch.equal(attention(x), attention(x))
    attention(x).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for name, parameter in attention.named_parameters() if "weight" in name)


def test_it_replaces_the_output_of_a_stage_in_training_only():
    network = create_model("miniature", dropout=0.0).double()
    attention = CrossSampleAttention(8, dropout=0.0).double()
    x = torch.randn(2, 1, 16, 16, 16, dtype=torch.float64)
    plain = network(x)
    attention.follow(network.enc1)
    found = network(x)
    assert torch.equal(network.eval()(x), plain)
    changed = copy.deepcopy(network.train())
    changed.enc1._forward_hooks.clear()
    forward = changed.enc1.forward
    changed.enc1.forward = lambda x: literal_attention(attention, forward(x))
    assert (found - changed(x)).abs().max() < 1e-10
    assert (found - plain).abs().max() > 1e-3


def test_a_deep_copy_of_both_refers_to_its_own_attention():
    both = torch.nn.ModuleDict(
        {"network": create_model("miniature", dropout=0.0), "attention": CrossSampleAttention(8, 0.0)}
    )
    both["attention"].follow(both["network"].enc1)
    twin = copy.deepcopy(both)
    x = torch.randn(2, 1, 16, 16, 16)
    before = both["network"](x)
    assert torch.equal(twin["network"](x), before)
    with torch.no_grad():
        for parameter in twin["attention"].parameters():
            parameter.add_(1)
    assert torch.equal(both["network"](x), before)
    assert not torch.equal(twin["network"](x), before)

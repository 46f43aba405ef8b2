"""Gates in somebody else's network: nothing changes while they are closed, and they act where they are put."""

import contextlib
import copy
import random
import warnings
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.networks.nets import AttentionUnet, DynUNet, SegResNet, UNet
from torch import nn

from fheat import FractionalHeat, allocation, cost, instrument, merge, retire
from fheat.gates.hook import GateHook
from fheat.ops.gates import gates_of

DIMS = {
    1: (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d),
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d),
}
GRIDS = {1: (18,), 2: (14, 11), 3: (8, 7, 6)}


class Residual(nn.Module):
    """Convolutions, batch norm, in-place activation, a shortcut, a transposed convolution, dropout."""

    def __init__(self, dims=2):
        super().__init__()
        conv, transposed, norm = DIMS[dims]
        self.stem = conv(2, 6, 3, padding=1)
        self.body = nn.Sequential(conv(6, 6, 3, padding=1), norm(6), nn.ReLU(inplace=True), conv(6, 6, 3, padding=1))
        self.shortcut = conv(6, 6, 1)
        self.act = nn.ReLU(inplace=True)
        self.up = transposed(6, 3, 2, stride=2)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = self.stem(x)
        return self.up(self.drop(self.act(self.body(x) + self.shortcut(x))))


class Attending(nn.Module):
    """Patches to tokens with a class token, two transformer layers, and back to a grid through view()."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=batch_first)
        self.blocks = nn.ModuleList([layer, copy.deepcopy(layer)])
        self.batch_first = batch_first

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = x if self.batch_first else x.transpose(0, 1)
        for block in self.blocks:
            x = block(x)
        x = x if self.batch_first else x.transpose(0, 1)
        return x.contiguous().view(len(x), -1)


@contextlib.contextmanager
def without_fast_path():
    """PyTorch leaves its fused inference path of transformer layers, which rounds otherwise, where there are hooks."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def loss_and_gradients(model, *inputs):
    torch.manual_seed(5)  # dropout
    model.zero_grad()
    y = model(*inputs)
    (y.square().sum() + y.sum()).backward()
    return y.detach(), {name: value.grad for name, value in model.named_parameters()}


def assert_same_function(gated, model, *inputs):
    """Outputs and gradients bit for bit, training and evaluation, and batch statistics afterwards."""
    for training in (True, False):
        expected, gradients = loss_and_gradients(model.train(training), *inputs)
        got, own = loss_and_gradients(gated.train(training), *inputs)
        assert torch.equal(got, expected)
        for name, gradient in gradients.items():
            assert gradient is None if own[name] is None else torch.equal(own[name], gradient), name
        added = [name for name in own if name not in gradients]
        assert all(name.endswith((".theta", ".delta")) for name in added)
        assert not any(own[name].any() for name in added if own[name] is not None)
    state = gated.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value), name
    with torch.no_grad():
        assert torch.equal(retire(gated)(*inputs), model(*inputs))
        with without_fast_path():
            assert torch.equal(gated(*inputs), model(*inputs))


def by_hand(model, path, gate, *inputs, to_grid=lambda y: y, back=lambda y, x: y):
    """The slow obvious way: replace what the module returns, nothing else."""

    def hook(module, inputs, output):
        value = output[0] if isinstance(output, tuple) else output
        result = back(gate(to_grid(value)), value)
        return (result, *output[1:]) if isinstance(output, tuple) else result

    handle = model.get_submodule(path).register_forward_hook(hook)
    y = model(*inputs)
    handle.remove()
    return y


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_closed_gates_change_nothing_in_a_convolutional_network(dims):
    model = Residual(dims)
    before = copy.deepcopy(model.state_dict())
    gated = instrument(model)
    assert list(gates_of(gated)) == ["stem", "body.0", "body.3", "up"]
    assert all(gate.dims == dims for gate in gates_of(gated).values())
    assert_same_function(gated, model, torch.randn(3, 2, *GRIDS[dims]))
    assert list(before) == list(Residual(dims).state_dict()) == list(model.state_dict())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_closed_gates_change_nothing_in_other_precisions(dtype):
    model = Residual().to(dtype)
    assert_same_function(instrument(model), model, torch.randn(2, 2, 9, 8, dtype=dtype))


def test_closed_gates_change_nothing_in_channels_last_memory():
    model = Residual().to(memory_format=torch.channels_last)
    x = torch.randn(2, 2, 9, 8).to(memory_format=torch.channels_last)
    gated = instrument(model, initial_strength=0.03)
    seen = []
    gated.body[3].register_forward_hook(lambda module, inputs, output: seen.append(output.stride()))
    gated(x)
    assert seen == [model.body[3](model.stem(x)).stride()]
    assert_same_function(instrument(model), model, x)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("site", ["blocks.*", "blocks.*.self_attn"])
def test_closed_gates_change_nothing_in_a_transformer(batch_first, site):
    model = Attending(batch_first)
    gated = instrument(model, site, grid=(4, 3), prefix_tokens=1)
    assert list(gates_of(gated)) == [site.replace("*", "0"), site.replace("*", "1")]
    assert_same_function(gated, model, torch.randn(2, 1, 16, 12))


@pytest.mark.parametrize("layer", ["linear1", "linear2", "norm1", "dropout2"])
def test_closed_gates_change_nothing_inside_transformer_layers(layer):
    model = Attending()
    gated = instrument(model, {f"blocks.*.{layer}": (4, 3), "patches": None}, prefix_tokens=1)
    assert len(gates_of(gated)) == 3
    assert_same_function(gated, model, torch.randn(2, 1, 16, 12))


@pytest.mark.parametrize("dims", [2, 3])
def test_closed_gates_change_nothing_in_a_monai_network(dims):
    model = UNet(dims, 1, 2, channels=(4, 8, 12), strides=(2, 2), num_res_units=2)
    x = torch.randn(2, 1, *(16, 12, 8)[:dims])
    gated = instrument(model, example=x)
    weights = [(name, value) for name, value in model.named_parameters() if value.ndim == dims + 2]
    wide = [name.removesuffix(".weight") for name, value in weights if max(value.shape[2:]) > 1]
    assert len(wide) > 8
    assert list(gates_of(gated)) == wide
    assert_same_function(gated, model, x)
    assert [row.grid for row in allocation(gated, x)][-1] == (16, 12, 8)[:dims]


@pytest.mark.parametrize(
    ("model", "sites"),
    [
        (lambda: SegResNet(3, 8, 1, 2, blocks_down=(1, 1), blocks_up=(1,)), 8),
        (lambda: DynUNet(3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 8]), 12),
        (lambda: AttentionUnet(3, 1, 2, (4, 8, 8), (2, 2)), 10),
    ],
    ids=["SegResNet", "DynUNet", "AttentionUnet"],
)
def test_closed_gates_change_nothing_in_other_networks_of_monai(model, sites):
    model, x = model(), torch.randn(1, 1, 16, 16, 8)
    gated = instrument(model, example=x)
    assert len(gates_of(gated)) == sites
    assert_same_function(gated, model, x)


def test_closed_gates_change_nothing_under_autocast():
    model, x = Residual(), torch.randn(2, 2, 9, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_function(instrument(model), model, x)


PATHS = [path for path, part in Residual().named_modules() if path]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(PATHS), min_size=1, unique=True), st.integers(0, 10**6))
def test_any_choice_of_sites_changes_nothing(paths, seed):
    torch.manual_seed(seed)
    model = Residual()
    gated = instrument(model, random.Random(seed).sample(paths, len(paths)), dims=2)
    expected = {"body.3" if path == "body" else path for path in paths}
    assert list(gates_of(gated)) == [path for path in PATHS if path in expected]
    assert_same_function(gated, model, torch.randn(2, 2, 6, 5))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("path", ["stem", "body.0", "body.3", "act", "up", "drop", "body"])
def test_an_open_gate_acts_on_the_output_of_its_module(dims, path):
    model, x = Residual(dims).eval(), torch.randn(2, 2, *GRIDS[dims])
    gated = instrument(model, path, dims=dims, initial_strength=0.5, initial_theta=1.0)
    gate = FractionalHeat(dims=dims, initial_strength=0.5, initial_theta=1.0)
    expected = by_hand(model, path, gate, x)
    assert torch.equal(gated(x), expected)
    assert not torch.allclose(expected, model(x), atol=1e-3)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("path", ["blocks.0", "blocks.1.self_attn"])
@pytest.mark.parametrize("grid", [(4, 3), lambda tokens: (tokens // 3, 3)], ids=["grid", "function"])
def test_an_open_gate_acts_on_tokens_as_on_a_picture(batch_first, path, grid):
    model, x = Attending(batch_first).eval(), torch.randn(2, 1, 16, 12)
    gated = instrument(model, path, grid=grid, prefix_tokens=1, initial_strength=0.5, example=x)
    gate = FractionalHeat(dims=2, initial_strength=0.5)

    def to_grid(tokens):
        tokens = tokens if batch_first else tokens.permute(1, 0, 2)
        return torch.stack([tokens[:, 1 + 3 * row : 4 + 3 * row] for row in range(4)], dim=1).permute(0, 3, 1, 2)

    def back(picture, tokens):
        rows = [picture[:, :, row].permute(0, 2, 1) for row in range(4)]
        first = tokens[:, :1] if batch_first else tokens[:1].permute(1, 0, 2)
        whole = torch.cat([first, *rows], dim=1)
        return whole if batch_first else whole.permute(1, 0, 2)

    expected = by_hand(model, path, gate, x, to_grid=to_grid, back=back)
    assert torch.allclose(gated(x), expected, atol=1e-6)
    assert not torch.allclose(expected, model(x), atol=1e-3)
    row = allocation(gated, x)[path]
    assert (row.grid, row.channels) == ((4, 3), 16)


def test_channels_last_outputs():
    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = nn.Linear(3, 8), nn.Linear(8, 8)

        def forward(self, x):  # (N, H, W, C)
            return self.mix(self.embed(x).view(len(x), -1)[:, : 9 * 7 * 8].view(-1, 9, 7, 8))

    model, x = Windows(), torch.randn(2, 9, 7, 3)
    assert_same_function(instrument(model, "embed", dims=2, layout="channels_last"), model, x)
    gate = FractionalHeat(dims=2, initial_strength=0.5)
    expected = by_hand(
        model, "mix", gate, x, to_grid=lambda y: y.permute(0, 3, 1, 2), back=lambda y, _: y.permute(0, 2, 3, 1)
    )
    for options in ({"dims": 2, "layout": "channels_last"}, {"example": x}):
        gated = instrument(model, "mix", initial_strength=0.5, **options)
        assert torch.allclose(gated(x), expected, atol=1e-6)
        assert allocation(gated, x)["mix"].grid == (9, 7)
    line = instrument(model, "mix", initial_strength=0.5, dims=1, layout="channels_last")
    with pytest.raises(ValueError, match=r"'mix' gives 4 axes, shape \(2, 9, 7, 8\): layout 'channels_last'"):
        line(x)


def test_unbatched_inputs():
    x = torch.randn(2, 9, 8)
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 1, 3))
    assert torch.equal(instrument(plain)(x), plain(x))
    attention = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    tokens = torch.randn(12, 8)
    gated = instrument(attention, "self_attn", grid=(3, 4), initial_strength=0.3)
    assert torch.allclose(gated(tokens), gated(tokens[None])[0], atol=1e-6)


def test_names_stay_and_the_state_travels(tmp_path):
    model = Residual()
    gated = instrument(model, nn.Conv2d, initial_strength=0.03)
    keys, own = list(model.state_dict()), list(gated.state_dict())
    added = [f"{site}.gate.{name}" for site in gates_of(gated) for name in ("theta", "delta")]
    assert [key for key in own if key not in added] == keys
    assert sorted(own) == sorted(keys + added)
    gates_of(gated)["stem"].set_strength(0.7)
    torch.save(gated.state_dict(), tmp_path / "state.pt")
    again = instrument(Residual(), nn.Conv2d)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    x = torch.randn(1, 2, 8, 8)
    assert torch.equal(again.eval()(x), gated.eval()(x))
    answer = again.load_state_dict(model.state_dict(), strict=False)
    assert sorted(answer.missing_keys) == sorted(added)
    assert answer.unexpected_keys == []


def test_copies_use_their_own_gates():
    gated = instrument(Residual().eval(), "stem", initial_strength=0.5)
    other, x = copy.deepcopy(gated), torch.randn(1, 2, 8, 8)
    expected = gated(x)
    gates_of(other)["stem"].set_strength(0.0)
    assert torch.equal(gated(x), expected)
    assert not torch.equal(other(x), expected)
    assert gates_of(other)["stem"] is not gates_of(gated)["stem"]
    twice = instrument(gated, "up", initial_strength=0.1)
    assert list(gates_of(twice)) == ["stem", "up"]
    assert list(gates_of(gated)) == ["stem"]


def test_retired_gates_are_gone_and_open_ones_stay():
    gated = instrument(Residual().eval(), initial_strength=0.2)
    for site in ("stem", "up"):
        gates_of(gated)[site].set_strength(0.0)
    x = torch.randn(2, 2, 8, 6)
    small = retire(gated)
    assert torch.equal(small(x), gated(x))
    assert [row.state for row in allocation(small, x)] == ["retired", "open", "open", "retired"]
    hooks = [hook for module in small.modules() for hook in module._forward_hooks.values()]
    assert [hook.site for hook in hooks if isinstance(hook, GateHook)] == ["body.0", "body.3"]
    assert all(
        part.inplace for part in small.modules() if isinstance(part, nn.ReLU)
    )  # as in the network it was put into
    assert cost(small, x.shape).transform == cost(gated, x.shape).transform > 0
    assert torch.equal(merge(gated)(x), gated(x))


def test_in_place_layers_keep_their_meaning():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.act = nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.conv(x)
            self.act(y)
            return y

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Writes()

        def forward(self, x):
            return self.block(x)

    model, x = Outer(), torch.randn(1, 1, 6, 6)
    gated = instrument(model, ["block", "block.conv"], dims=2)
    assert (model(x) == 0).any()
    assert_same_function(gated, model, x)


class Pair(NamedTuple):
    features: torch.Tensor
    size: int


class Odd(nn.Module):
    """A shared convolution, one called twice, one never, one with a grid of one cell, tuples and counts as outputs."""

    class Counts(nn.Module):
        def forward(self, x):
            return (x > 0).sum(1)

    class Pairs(nn.Module):
        def forward(self, x):
            return Pair(x + 1, x.shape[-1])

    class Named(nn.Module):
        def forward(self, x):
            return {"x": x}

    def __init__(self):
        super().__init__()
        self.twice = nn.Conv2d(3, 3, 3, padding=1)
        self.alias = self.twice
        self.never = nn.Conv2d(3, 3, 3)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 3, 1))
        self.counts, self.pairs, self.named = self.Counts(), self.Pairs(), self.Named()
        self.layers = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1)])
        self.gate = nn.Conv2d(3, 3, 1)
        self.last = FractionalHeat(dims=2)

    def forward(self, x):
        x = self.alias(self.twice(x))
        x = x * torch.sigmoid(self.squeeze(x)) + self.layers[0](x)
        pair = self.pairs(x)
        x = self.named(pair.features)["x"] * pair.size
        return self.last(self.gate(x)) + self.counts(x)[:, None]


def test_odd_modules():
    model, x = Odd(), torch.randn(2, 3, 8, 6)
    for sites in ("alias", "twice", ["twice", "alias"]):
        gated = instrument(model, sites, example=x, initial_strength=0.2)
        assert list(gates_of(gated)) == ["twice", "last"]
        assert (
            allocation(gated, x)["twice"].macs
            == 2 * allocation(instrument(model, "gate", example=x, strength=0.2), x)["gate"].macs
        )  # two calls of one gate
    assert_same_function(instrument(model, ["twice", "pairs", "layers.0", "gate"], example=x), model, x)
    pairs = instrument(model, "pairs", dims=2, strength=0.5).pairs(x)
    assert isinstance(pairs, Pair)
    assert torch.equal(pairs.features, FractionalHeat(dims=2, strength=0.5)(x + 1))
    assert pairs.size == 6
    assert list(gates_of(instrument(model, example=x))) == ["twice", "layers.0", "last"]
    assert list(gates_of(instrument(model, nn.Conv2d, example=x))) == ["twice", "layers.0", "gate", "last"]
    assert list(gates_of(instrument(model, "**", example=x))) == ["twice", "pairs", "layers.0", "gate", "last"]
    one_cell = instrument(model, "squeeze", initial_strength=0.5)
    model.last.set_strength(0.0)
    gates_of(one_cell)["last"].set_strength(0.0)
    assert torch.equal(one_cell(x), model(x))


def test_a_taken_name_is_left_alone():
    class Taken(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.heat_gate = nn.Linear(1, 1), None

        def forward(self, x):
            return self.gate(x)

    model, x = nn.Sequential(Taken()), torch.randn(2, 1, 4, 1)
    gated = instrument(model, "0", dims=2)
    assert list(gates_of(gated)) == ["0.heat_gate_2"]
    assert_same_function(gated, model, x)


@pytest.mark.parametrize(
    ("sites", "options", "message"),
    [
        ("twise", {}, r"Odd has no module 'twise': close ones are twice"),
        ("xyz.1", {}, r"Odd has no module 'xyz.1': there are twice, alias, never"),
        ("layer.*", {}, r"Odd has no module that fits 'layer.\*': close ones are layers"),
        (nn.Conv3d, {}, "Odd has no module that fits Conv3d"),
        (lambda path, module: False, {}, "Odd has no module that fits <lambda>"),
        ([], {}, r"sites=\[\] leaves no module of Odd"),
        (3, {}, "sites has 3: give module paths"),
        ("layers", {}, "'layers' is a ModuleList, which is never called: name a layer inside it"),
        ("last", {}, "'last' is a gate already"),
        ("never", {"example": (1, 3, 8, 6)}, "'never' is never called in a forward pass on this example"),
        ("squeeze", {"example": (1, 3, 8, 6)}, r"'squeeze.1' gives a grid of one cell"),
        ("counts", {"example": (1, 3, 8, 6), "dims": 2}, "'counts' gives torch.int64 and a gate needs a floating"),
        ("named", {"example": (1, 3, 8, 6), "dims": 2}, "'named' gives a dict and a gate needs a tensor"),
        ("pairs", {"example": (1, 3, 8, 6), "dims": 1}, r"'pairs' gives 4 axes, shape \(1, 3, 8, 6\)"),
        ("pairs", {}, "'pairs' is a Pairs, whose grid is not known: give dims=, grid= or example="),
        ("pairs", {"layout": "tokens"}, "'pairs' gives tokens: give grid="),
        ("pairs", {"layout": "nchw"}, "layout='nchw' is unknown: use channels_first"),
        ("pairs", {"grid": (8, 6), "dims": 3}, r"'pairs' has the grid \(8, 6\) and dims=3: leave dims out"),
        ("pairs", {"prefix_tokens": -1}, "prefix_tokens=-1 is negative"),
        ("pairs", {"dims": 4}, "dims=4 is not supported: use 1, 2 or 3"),
        ("pairs", {"grid": 14}, "grid=14 of 'pairs' is no grid: give whole numbers"),
        ("pairs", {"grid": (4.0, 3)}, r"grid=\(4.0, 3\) of 'pairs' is no grid"),
        ("pairs", {"grid": (4, 0)}, r"grid of 'pairs' is \(4, 0\): give one to three"),
        ("pairs", {"grid": (1, 1, 1, 1)}, r"grid of 'pairs' is \(1, 1, 1, 1\): give one to three"),
        ({"twice": (8, 6)}, {}, "'twice' is a Conv2d and has a grid already"),
        ({"never": None}, {"example": (1, 2, 8, 6)}, "Odd does not run on an input of shape"),
        ("squeeze.*", {"example": (1, 3, 8, 6)}, "none of the 2 chosen modules can take a gate: 'squeeze.0'"),
        ("twice", {"strength": "softplus"}, "a strength of 0.0 cannot be reached with strength='softplus'"),
    ],
)
def test_trouble_is_named_in_one_line(sites, options, message):
    model = Odd()
    with pytest.raises(ValueError, match=message) as caught:
        instrument(model, sites, **options)
    assert "\n" not in str(caught.value)
    assert not any(module._forward_hooks for module in model.modules())


def test_trouble_with_tokens_is_named():
    model, x = Attending(), torch.randn(1, 1, 16, 12)
    with pytest.raises(ValueError, match=r"gives 13 tokens, grid \(4, 3\) has 12 cells: prefix_tokens=1 would leave"):
        instrument(model, "blocks.0", grid=(4, 3), example=x)
    with pytest.raises(ValueError, match=r"'blocks.0' gives 13 tokens, grid \(4, 4\) has 16 cells"):
        instrument(model, "blocks.0", grid=(4, 4))(x)
    with pytest.raises(ValueError, match=r"'blocks.0' gives 13 tokens and prefix_tokens=13 leaves none"):
        instrument(model, "blocks.0", grid=(4, 3), prefix_tokens=13)(x)
    with pytest.raises(ValueError, match=r"'blocks.0.linear1' gives tokens: give grid="):
        instrument(model, "blocks.0.linear1")
    with pytest.raises(ValueError, match=r"grid of 'blocks.0' fails for 13 tokens: not a square"):
        instrument(model, "blocks.0", grid=not_a_square, example=x)
    with pytest.raises(ValueError, match=r"'blocks.1' has a gate already"):
        instrument(instrument(model, "blocks.1", grid=(4, 3)), "blocks.1", grid=(4, 3))
    with pytest.raises(ValueError, match=r"'blocks.0.self_attn.out_proj' is never called"):
        instrument(model, "blocks.0.self_attn.out_proj", grid=(4, 3), example=x)
    flat = nn.Sequential(nn.Flatten(2))
    with pytest.raises(ValueError, match=r"gives shape \(2, 3, 12\), with or without a grid"):
        instrument(flat, "0", example=(2, 3, 4, 3))


def test_a_padding_mask_works_without_nested_tensors():
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    x, mask = torch.randn(2, 6, 8), torch.arange(6) > torch.tensor([[3], [5]])
    for nested in (True, False):
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
        gated = instrument(model, "layers.*", grid=(2, 3))
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # nested tensors are called a prototype
            if nested:
                with pytest.raises(ValueError, match=r"'layers.0' gives a nested tensor"):
                    gated(x, src_key_padding_mask=mask)
                continue
            fast, own = model(x, src_key_padding_mask=mask), gated(x, src_key_padding_mask=mask)
            assert torch.allclose(own, fast, atol=1e-6)
            assert torch.equal(retire(gated)(x, src_key_padding_mask=mask), fast)
            with without_fast_path():
                assert torch.equal(own, model(x, src_key_padding_mask=mask))


def not_a_square(tokens):
    raise RuntimeError("not a square")


def test_a_norm_that_may_have_no_grid_is_asked_about():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    with pytest.raises(ValueError, match=r"'1' is a BatchNorm1d, whose grid is not known"):
        instrument(model, nn.BatchNorm1d)
    with pytest.raises(ValueError, match=r"'1' is a BatchNorm1d and gives shape \(5, 6\), with or without a grid"):
        instrument(model, "1", example=(5, 4))


def test_a_network_without_wide_convolutions_needs_sites():
    with pytest.raises(ValueError, match="Sequential has no convolution with a kernel larger than one: name its sites"):
        instrument(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(4, 4)))
    assert list(gates_of(instrument(nn.Conv2d(1, 1, 3)))) == ["gate"]


def test_attention_is_chosen_by_default_where_a_grid_is_given():
    gated = instrument(Attending(), grid=(4, 3), prefix_tokens=1)
    assert list(gates_of(gated)) == ["patches", "blocks.0.self_attn", "blocks.1.self_attn"]
    assert list(gates_of(instrument(Attending()))) == ["patches"]


def test_patterns_predicates_and_types():
    model = Residual()

    def chosen(sites):
        return list(gates_of(instrument(model, sites, dims=2)))

    assert chosen("*") == ["stem", "body.3", "shortcut", "act", "up", "drop"]
    assert chosen("body.*") == ["body.0", "body.1", "body.2", "body.3"]
    assert chosen("**.0") == ["body.0"]
    assert chosen(["s*", nn.ConvTranspose2d]) == ["stem", "shortcut", "up"]
    assert chosen((nn.Conv2d, nn.BatchNorm2d)) == ["stem", "body.0", "body.1", "body.3", "shortcut"]
    assert chosen(lambda path, module: "body" in path and isinstance(module, nn.Conv2d)) == ["body.0", "body.3"]


def test_containers_with_a_forward_of_their_own_are_refused():
    class Dense(nn.ModuleDict):
        def forward(self, x):
            for layer in self.values():
                x = torch.cat([x, layer(x)], dim=1)
            return x

    model = nn.Sequential(Dense({"a": nn.Conv2d(1, 1, 1)}))
    with pytest.raises(ValueError, match="'0' is a Dense, which may run whatever is added to it as a layer"):
        instrument(model, "0", dims=2)
    x = torch.randn(1, 1, 4, 4)
    assert_same_function(instrument(model, "0.a"), model, x)


def test_parametrised_and_hooked_modules_keep_working():
    model = Residual()
    nn.utils.parametrizations.weight_norm(model.stem)
    model.body[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    model.up.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    x = torch.randn(2, 2, 8, 6)
    gated = instrument(model)
    assert_same_function(gated, model, x)
    assert "stem.parametrizations.weight.original0" in gated.state_dict()
    open_gate = instrument(model.eval(), "body.0", initial_strength=0.5)
    assert torch.equal(open_gate(x), by_hand(model, "body.0", FractionalHeat(dims=2, initial_strength=0.5), x))


def test_training_moves_open_gates_and_leaves_closed_ones():
    x, y = torch.randn(2, 2, 8, 6), torch.randn(2, 3, 16, 12)
    for start, moves in ((0.03, True), (0.0, False)):
        gated = instrument(Residual(), "body.3", initial_strength=start)
        optimiser = torch.optim.AdamW(gated.parameters(), lr=0.01)
        for _ in range(3):
            optimiser.zero_grad()
            F.mse_loss(gated(x), y).backward()
            optimiser.step()
        assert (gates_of(gated)["body.3"].strength.item() != pytest.approx(start)) is moves


def test_gates_lie_where_their_module_lies_and_share_its_mode():
    gated = instrument(Residual().to("meta").eval(), "stem")
    assert gates_of(gated)["stem"].delta.is_meta
    assert not gates_of(gated)["stem"].training


def test_export_and_tracing_see_the_gate():
    model, x = Attending().eval(), torch.randn(1, 1, 16, 12)
    gated = instrument(model, "blocks.0.self_attn", grid=(4, 3), prefix_tokens=1, initial_strength=0.4)
    with without_fast_path():
        expected = gated(x)
        program = torch.export.export(gated, (x,))
    assert torch.allclose(program.module()(x), expected, atol=1e-6)
    assert any("gate_delta" in node.name for node in program.graph.nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(
            instrument(Residual().eval(), strength=0.3), torch.randn(1, 2, 8, 8), check_trace=False
        )
    assert traced(torch.randn(1, 2, 8, 8)).shape == (1, 3, 16, 16)
    with pytest.raises(ValueError, match=r"compiled by torch.jit"):
        instrument(traced, "stem", dims=2)


def test_a_compiled_network_has_its_gates():
    gated = instrument(Residual().eval(), ["stem", "body.3"], initial_strength=0.4)
    x = torch.randn(1, 2, 8, 8)
    compiled = torch.compile(gated, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), gated(x), atol=1e-6)
    small = torch.compile(retire(instrument(Residual().eval())), backend="eager", fullgraph=True)
    assert small(x).shape == (1, 3, 16, 16)

"""Reading, retiring and costing the gates of our networks and of anybody's."""

import copy
import json
from collections import Counter

import pytest
import torch
from torch import nn

from fheat import FractionalHeat, allocation, cost, create_model, retire
from fheat.gates.cost import count_macs
from fheat.gates.dry_run import gate_calls
from fheat.ops.gates import gates_of
from fheat.testing import assert_retirement_is_exact
from tests.networks.test_contract import narrowed

PATCH = (48, 40, 32)


class Anybodys(nn.Module):
    """A 2D network that knows nothing of fheat but the gate, with one gate called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.shared = FractionalHeat(dims=2)
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 1), FractionalHeat(dims=2), nn.ReLU())
        self.unused = FractionalHeat(dims=1)

    def forward(self, x):
        x = self.shared(self.first(x))
        return self.branch(self.shared(x.relu()))


def with_closed(model, *sites):
    for site, gate in gates_of(model).items():
        if site in sites:
            gate.delta.data.fill_(-0.1)
    return model.eval()


def test_table_of_the_small_network():
    model = with_closed(create_model("fheat_seg"), "enc1", "dec4")
    table = allocation(model)
    assert [(row.site, row.grid, row.channels) for row in table] == [
        ("enc1", (28, 28, 20), 24),
        ("enc2", (14, 14, 10), 48),
        ("enc3", (8, 8, 6), 60),
        ("enc4", (4, 4, 3), 96),
        ("dec4", (4, 4, 3), 96),
        ("dec3", (8, 8, 6), 60),
        ("dec2", (14, 14, 10), 48),
        ("dec1", (28, 28, 20), 24),
    ]
    assert table.open == ["enc2", "enc3", "enc4", "dec3", "dec2", "dec1"]
    assert table["dec4"].state == "closed"
    assert (table["enc1"].D, table["enc1"].tau, table["enc1"].macs) == (0.0, 0.0, 0)
    # one light block, two FHEAT blocks, a forward and an inverse transform each
    assert table["dec1"].macs == 2 * 2 * 24 * 28 * 28 * 20 * (28 + 28 + 20)
    assert table["dec1"].tau == pytest.approx(0.03 ** table["dec1"].alpha, rel=1e-5)
    assert sum(row.macs for row in table) == cost(model).transform
    lines = str(table).split("\n")
    assert len(lines) == 9
    assert lines[0].split() == ["site", "grid", "channels", "D", "alpha", "tau", "state", "macs"]
    assert json.loads(json.dumps(table.to_json()))[0]["state"] == "closed"
    with pytest.raises(KeyError, match="no gate at 'dec9'"):
        table["dec9"]


def test_any_network():
    model = Anybodys()
    table = allocation(model, (2, 3, 12, 10))
    assert [row.site for row in table] == ["shared", "branch.1", "unused"]
    assert table["shared"].grid == (12, 10)
    assert table["shared"].channels == 8
    assert table["shared"].macs == 2 * 2 * (2 * 8) * 120 * 22  # two calls, a batch of two
    assert table["branch.1"].macs == 2 * (2 * 8) * 120 * 22
    assert table["unused"].grid is None
    assert table["unused"].macs == 0
    unknown = allocation(model)
    assert unknown["shared"].grid is None
    assert unknown["shared"].macs is None
    assert "?" in str(unknown)


def test_cost_of_any_network_by_hand():
    model = Anybodys()
    counted = cost(model, (1, 3, 12, 10))
    assert counted.rest == 120 * (3 * 8 * 9 + 8 * 8)
    assert counted.transform == 3 * 2 * 8 * 120 * 22
    assert counted.parameters == 3 * 8 * 9 + 8 + 64 + 8 + 6
    assert "0.000 G" in str(counted)
    assert "fvcore rules" in counted.counter
    with pytest.raises(ValueError, match="shape is needed: Anybodys does not say which input"):
        cost(model)
    for wrong in ((1, 3, 0, 10), 5, (), (torch.ones(2), 3), "abc", (10**12,) * 4):
        with pytest.raises(ValueError, match="shape") as caught:
            cost(model, wrong)
        assert "\n" not in str(caught.value)


def test_a_tensor_is_an_example_input_and_unbatched_inputs_count_their_channels():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), FractionalHeat(dims=2))
    for given in (torch.ones(1, 3, 8, 6), (torch.ones(1, 3, 8, 6),), (1, 3, 8, 6), (3, 8, 6)):
        row = allocation(model, given)["1"]
        assert (row.grid, row.channels) == ((8, 6), 8)
        assert row.macs == cost(model, given).transform == 2 * 8 * 48 * 14


def test_gates_called_by_keyword_are_seen():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = FractionalHeat(dims=2)

        def forward(self, x):
            return self.gate(x=x)

    assert allocation(Keyword(), (1, 2, 8, 6))["gate"].grid == (8, 6)


@pytest.mark.parametrize("real", [False, True], ids=["without values", "for real"])
def test_counting_is_in_evaluation_mode_and_leaves_statistics_alone(real):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.gate = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), FractionalHeat(dims=2)
            self.modes = []

        def forward(self, x):
            self.modes.append((self.training, torch.is_grad_enabled()))
            x = self.norm(self.conv(x))
            return self.gate(x + torch.arange(x.shape[-1])) if real else self.gate(x)

    model = Normed()
    before = model.norm.running_mean.clone()
    assert cost(model, (2, 3, 8, 6)).rest == 2 * 48 * (3 * 4 + 2 * 4)
    assert torch.equal(model.norm.running_mean, before)
    assert model.training
    assert model.modes == []


def test_cost_equals_what_a_real_run_executes():
    """The formula for the transforms against the operations themselves, for each algorithm that is products."""
    for transform in ("product", "split"):
        model = create_model("fheat_seg", patch_size=PATCH).eval()
        for gate in gates_of(model).values():
            gate.transform = transform
        with torch.no_grad():
            executed = count_macs(lambda model=model: model(torch.zeros(1, 1, *PATCH)))
        assert cost(model).macs == executed


def test_nothing_is_changed_by_looking():
    model = Anybodys()
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(1, 3, 12, 10)
    expected = model(x)
    allocation(model, x.shape)
    cost(model, x.shape)
    retire(model)
    assert torch.equal(model(x), expected)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert not model._forward_pre_hooks


@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("fheat_seg", ()),
        ("fheat_seg", ("enc1", "enc3", "dec2")),
        ("fheat_seg", ("enc1", "enc2", "enc3", "enc4", "dec4", "dec3", "dec2")),
        ("fheat_seg", ("enc1", "enc2", "enc3", "enc4", "dec4", "dec3", "dec2", "dec1")),
        pytest.param("fheat_seg_l", ("enc3", "bottom"), marks=pytest.mark.slow),
        pytest.param("fheat_seg_l", ("enc3", "enc4", "bottom", "dec4", "dec3"), marks=pytest.mark.slow),
    ],
)
def test_retirement_is_exact(name, sites):
    with narrowed():
        model = with_closed(create_model(name, patch_size=PATCH), *sites)
    assert_retirement_is_exact(model, torch.randn(2, 1, *PATCH))
    small = retire(model)
    assert {row.site for row in allocation(small) if row.retired} == set(sites)
    assert sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in small.parameters()) == 2 * len(sites)
    x = torch.randn(1, 1, 37, 45, 33)
    with torch.no_grad():
        assert torch.equal(small(x), model(x))
        whole, part = model.forward_features(x), small.forward_features(x)
    assert all(torch.equal(a, b) for a, b in zip(whole, part, strict=True))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_retirement_is_exact_in_other_precisions(kind):
    model = with_closed(create_model("fheat_seg", patch_size=PATCH).to(kind), "enc1", "enc2", "dec1")
    assert_retirement_is_exact(model, torch.randn(1, 1, *PATCH).to(kind))


def test_retirement_is_exact_in_training_gradients():
    model = with_closed(create_model("fheat_seg", patch_size=PATCH), "enc1", "dec1")
    small = retire(model)
    x = torch.randn(1, 1, *PATCH)
    for network in (model, small):
        network(x).square().sum().backward()
    gradients = dict(model.named_parameters())
    for key, parameter in small.named_parameters():
        assert torch.equal(parameter.grad, gradients[key].grad), key


def test_retirement_leaves_softplus_alone():
    model = nn.Sequential(FractionalHeat(strength="softplus"), FractionalHeat(strength=0.0), FractionalHeat())
    model[0].delta.data.fill_(-200.0)
    assert [row.retired for row in allocation(retire(model))] == [False, True, False]


def exported_targets(model, x):
    with torch.no_grad():
        program = torch.export.export(model.eval(), (x,))
    inputs = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function"), inputs


@pytest.fixture
def _one_block_per_stage(monkeypatch):
    """Tracing takes time for every block, and all blocks of a stage are alike."""
    monkeypatch.setattr("fheat.networks.fheat_seg.DEPTHS", (1, 1, 1, 1))


def few_stages():
    """FHEAT-Seg with one block in the first, the deepest and the last stage, and nothing in the others."""
    model = create_model("fheat_seg", patch_size=PATCH)
    for site in ("enc2", "enc3", "dec4", "dec3", "dec2"):
        setattr(model, site, nn.Identity())
    return model


@pytest.mark.slow
@pytest.mark.usefixtures("_one_block_per_stage")
def test_exported_graph_of_a_retired_network_has_no_trace_of_the_transform():
    """Node for node the network in which every gate is replaced by nn.Identity."""
    x = torch.randn(1, 1, *PATCH)
    model = with_closed(few_stages(), "enc1", "enc4", "dec1")
    full, _ = exported_targets(model, x)
    small, inputs = exported_targets(retire(model), x)
    without = copy.deepcopy(model)
    for site in gates_of(model):
        without.get_submodule(site).gate = nn.Identity()
    bare, _ = exported_targets(without, x)
    assert small == bare
    transform_nodes = {
        "aten.bmm.default",
        "aten.exp.default",
        "aten.log.default",
        "aten.le.Scalar",
        "aten.clamp.default",
    }
    axes = [
        length for calls in gate_calls(model, (x,)).values() for call in calls for length in call.grid if length > 1
    ]
    assert len(axes) == 6 * 3 - 2  # 6 FHEAT blocks on three axes; the bottom grid 2x2x1 has two calls with two
    assert full["aten.matmul.default"] + full["aten.bmm.default"] == 2 * len(axes)  # a product out and one back
    assert sum(full[target] for target in transform_nodes) > 40
    assert sum(small[target] for target in transform_nodes) == 0
    assert sum(full.values()) - sum(small.values()) > 180
    assert not [name for name in inputs if "gate" in name or "lifted" in name]


@pytest.mark.usefixtures("_one_block_per_stage")
def test_one_survivor_leaves_only_its_own_transform():
    x = torch.randn(1, 1, *PATCH)
    small, inputs = exported_targets(retire(with_closed(few_stages(), "enc1", "enc4")), x)
    assert small["aten.bmm.default"] == 2 * 4  # two FHEATs; two of three axes are batched, out and back
    assert [name for name in inputs if name.startswith("p_") and "gate" in name] == [
        "p_dec1_gate_theta",
        "p_dec1_gate_delta",
    ]


@pytest.mark.parametrize("look", [allocation, retire, cost])
def test_nan_is_named(look):
    model = create_model("fheat_seg", patch_size=PATCH)
    gates_of(model)["enc2"].delta.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="delta of this FractionalHeat is NaN"):
        look(model)


@pytest.mark.slow
@pytest.mark.usefixtures("_one_block_per_stage")
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
def test_networks_in_other_precisions_are_read_and_costed(kind):
    model = create_model("fheat_seg", patch_size=PATCH)
    expected = cost(model).macs
    assert cost(model.to(kind)).macs == expected
    assert allocation(model)["enc1"].grid == (12, 10, 8)


class Awkward(nn.Module):
    """Makes its own tensors, looks at values, takes two inputs: cannot run without values."""

    def __init__(self):
        super().__init__()
        self.gate = FractionalHeat(dims=2)
        self.conv = nn.Conv2d(3, 3, 1)
        self.weight = torch.ones(3, 1, 1)  # neither parameter nor buffer

    def forward(self, x, y):
        x = self.conv(x) * self.weight + torch.arange(x.shape[-1])
        return self.gate(x + y) if (x > -1e9).all() else y


def test_networks_that_need_values_run_once_for_real():
    inputs = (torch.randn(2, 3, 8, 6), torch.randn(2, 3, 8, 6))
    table = allocation(Awkward(), inputs)
    assert [(row.site, row.grid, row.channels) for row in table] == [("gate", (8, 6), 3)]
    counted = cost(Awkward(), inputs)
    assert counted.rest == 2 * 48 * 9
    assert counted.transform == 2 * (2 * 3) * 48 * 14
    with pytest.raises(ValueError, match=r"Awkward does not run on an input of shape \(2, 3, 8, 6\)") as caught:
        allocation(Awkward(), (2, 3, 8, 6))
    assert "\n" not in str(caught.value)


def test_patch_size_of_a_stranger_is_not_taken_for_a_grid():
    model = Anybodys()
    model.in_channels, model.patch_size = 3, 16
    assert allocation(model)["shared"].grid is None


def test_network_without_values_is_refused():
    model = create_model("fheat_seg", patch_size=PATCH).to("meta")
    for look in (allocation, cost, retire):
        with pytest.raises(ValueError, match="meta device"):
            look(model)


def test_sites_keep_similar_names_apart():
    model = nn.Module()
    for name in ("x", "xgate", "out_gate", "gate"):
        model.add_module(name, FractionalHeat(initial_strength=0.0))
    model.inner = nn.Module()
    model.inner.gate = FractionalHeat()
    model.y = FractionalHeat()
    model.y.gate = FractionalHeat()
    assert list(gates_of(model)) == ["x", "xgate", "out_gate", "gate", "inner", "y", "y.gate"]
    assert sum(gate.retired for gate in gates_of(retire(model)).values()) == 4


def test_retirement_is_exact_behind_in_place_activations():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.act = FractionalHeat(dims=2, initial_strength=0.0), nn.ReLU(inplace=True)

        def forward(self, x):
            return x + self.act(self.gate(x))

    model, x = InPlace(), torch.randn(1, 2, 8, 8)
    kept = x.clone()
    assert torch.equal(retire(model)(x), model(x))
    assert torch.equal(x, kept)
    assert model.act.inplace


def test_retirement_leaves_in_place_layers_away_from_closed_gates_alone():
    class Elsewhere(nn.Module):
        def __init__(self, strength):
            super().__init__()
            self.gate, self.act = FractionalHeat(dims=2, strength=strength), nn.ReLU(inplace=True)

        def forward(self, x):
            y = 2 * self.gate(x)
            return y + self.act(y)  # means what it does: the sum sees the activated y

    for model in (Elsewhere("relu"), Elsewhere(0.0)):
        x = torch.randn(1, 2, 8, 8)
        assert torch.equal(retire(model)(x), model(x))
        assert retire(model).act.inplace


def test_a_strength_that_underflows_is_not_called_closed():
    gate = FractionalHeat(strength="softplus")
    gate.delta.data.fill_(-200.0)
    row = allocation(nn.Sequential(gate), (1, 1, 4, 4, 4))["0"]
    assert row.D == 0
    assert row.state == "open"
    assert row.macs > 0


def test_retired_gate_leaves_the_grid_free_in_an_export():
    model = nn.Sequential(
        nn.Conv3d(1, 2, 3, padding=1), FractionalHeat(strength=0.0), FractionalHeat(initial_strength=0.0)
    )
    small = retire(model)
    free = {"input": {2: torch.export.Dim("x", min=4, max=64)}}
    program = torch.export.export(small, (torch.randn(1, 1, 8, 8, 8),), dynamic_shapes=free)
    x = torch.randn(1, 1, 13, 8, 8)
    assert torch.allclose(program.module()(x), small(x), atol=1e-6)


def test_deepcopy_and_state_dict_keep_retirement():
    small = retire(with_closed(create_model("fheat_seg", patch_size=PATCH), "enc1"))
    again = copy.deepcopy(small)
    assert allocation(again)["enc1"].retired
    again.load_state_dict(small.state_dict())

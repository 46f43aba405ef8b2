"""Networks with gates of `fheat.instrument` in model folders: they come back with their gates, retired ones retired."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from fheat import BadInput, allocation, create_model, instrument, load, retire, save
from fheat.gates.hook import gate_hooks
from fheat.models.folder import MANIFEST, _canonical, _sha256
from fheat.ops.gates import gates_of
from tests.networks.test_contract import NARROWER, narrowed

PATCH = (32, 16, 16)
SITES = ["stem", "dec1.project"]
OWN = ["enc1", "enc2", "dec1"]
"""Gates that the network is built with."""


@pytest.fixture(scope="module")
def x():
    return torch.randn(1, 1, *PATCH, generator=torch.Generator().manual_seed(1))


def gated(**options):
    return instrument(create_model("miniature", patch_size=PATCH).eval(), SITES, **options)


def logits(model, x):
    with torch.no_grad():
        return model(x)


@pytest.mark.parametrize(
    "options",
    [
        {"initial_strength": 0.3},
        {"initial_strength": 0.3, "alpha": "softplus", "transform": "fft"},
        {"strength": 0.2, "alpha": 0.75},
        {"strength": "exp", "initial_strength": 0.1, "initial_theta": 0.5},
    ],
)
def test_gates_come_back(tmp_path, x, options):
    model = gated(**options)
    restored = load(save(model, tmp_path / "model"))
    assert torch.equal(logits(restored, x), logits(model, x))
    assert allocation(restored).rows == allocation(model).rows
    assert set(gates_of(restored)) == {*OWN, *SITES}
    assert restored.spec == model.spec
    for gate in gates_of(restored).values():
        gate.bypass(alpha=0.5)
    assert not torch.equal(logits(restored, x), logits(model, x))  # the gates did something


def test_a_retired_gate_behind_a_mixer_leaves_the_mixer(tmp_path):
    """The gate and the mixer that similarity could leave out have one name."""
    patch, site = (32, 32, 32), "enc1.blocks.0.mixer"
    model = instrument(create_model("segformer3d", patch_size=patch).eval(), [site], initial_strength=0.3)
    gates_of(model)[site].set_strength(0.0)
    x = torch.randn(1, 1, *patch, generator=torch.Generator().manual_seed(2))
    restored = load(save(retire(model), tmp_path / "model"))
    assert gates_of(restored)[site].retired
    assert torch.equal(logits(restored, x), logits(model, x))


def test_retired_gates_stay_retired_and_have_no_hook(tmp_path, x):
    model = gated(initial_strength=0.3)
    gates_of(model)[SITES[0]].set_strength(0.0)
    smaller = retire(model)
    restored = load(save(smaller, tmp_path / "model"))
    assert torch.equal(logits(restored, x), logits(model, x))
    assert [row.site for row in allocation(restored) if row.retired] == SITES[:1]
    assert [bool(gate_hooks(restored.get_submodule(site))) for site in SITES] == [False, True]
    assert torch.equal(logits(load(save(restored, tmp_path / "again")), x), logits(model, x))


STUDY = tomllib.loads((Path(__file__).parents[2] / "studies" / "gates" / "la.toml").read_text())["run"]
WELL_KNOWN = {run["network"]["name"]: run["network"]["instrument"] for run in STUDY if "instrument" in run["network"]}
"""The networks of the study of gates in well-known networks, with the sites that it gives them."""
GATES = {"unet": 8, "segformer3d": 8, "segresnet": 7, "swin_unetr": 14}
"""Number of gates that these sites are."""


def test_the_study_has_these_networks():
    assert WELL_KNOWN.keys() == GATES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", GATES)
def test_gates_of_the_study_come_back_and_retire(tmp_path, name):
    """Bit for bit: a loaded network is the saved one, a retired one is the one with closed gates, also when loaded."""
    patch = (48, 32, 32)
    with narrowed():
        plain = create_model(name, patch_size=patch, **NARROWER.get(name, {})).eval()
        model = instrument(plain, WELL_KNOWN[name], initial_strength=0.3)
        x = torch.randn(1, 1, *patch)
        before = logits(model, x)
        assert len(gates_of(model)) == GATES[name]
        restored = load(save(model, tmp_path / "open"))
        assert torch.equal(logits(restored, x), before)
        assert allocation(restored).rows == allocation(model).rows
        closed = list(gates_of(model))[::2]
        for site in closed:
            gates_of(model)[site].set_strength(0.0)
        expected = logits(model, x)
        smaller = retire(model)
        again = load(save(smaller, tmp_path / "retired"))
    for one in (smaller, again):
        assert torch.equal(logits(one, x), expected)
        assert [row.site for row in allocation(one) if row.retired] == closed
    assert not torch.equal(before, expected)  # the gates that are closed now did something
    assert not torch.equal(expected, logits(plain, x))  # and so do the others


def test_tokens_keep_their_grid(tmp_path):
    import fheat.networks.registry as registry

    class Tokens(nn.Module):
        def __init__(self, *, in_channels=1, out_channels=2, patch_size=(4, 4, 4)):
            super().__init__()
            self.project = nn.Linear(in_channels, out_channels)

        def forward(self, x):
            return self.project(x)

    registry.register_model("tokens", Tokens)
    try:
        model = create_model("tokens")
        tokens = torch.randn(2, 13, 1)
        inside = instrument(model, "project", grid=(3, 4), prefix_tokens=1, initial_strength=1.0, example=(2, 13, 1))
        restored = load(save(inside, tmp_path / "model"))
        assert torch.equal(logits(restored, tokens), logits(inside, tokens))
        by_function = instrument(model, "project", grid=lambda count: (3, 4), prefix_tokens=1, example=(2, 13, 1))
        with pytest.raises(ValueError, match=r"the gate at 'project' has a function as its grid: give instrument"):
            save(by_function, tmp_path / "function")
        assert not (tmp_path / "function").exists()
    finally:
        del registry._NETWORKS["tokens"]


def test_folders_without_such_gates_are_as_before(tmp_path):
    folder = save(create_model("miniature", patch_size=PATCH), tmp_path / "model")
    assert "instrumented" not in json.loads((folder / MANIFEST).read_text())


def edited(folder, **values):
    content = json.loads((folder / MANIFEST).read_text())
    content["instrumented"][0] |= values
    content["sha256"][MANIFEST] = ""
    content["sha256"][MANIFEST] = _sha256(_canonical(content))
    (folder / MANIFEST).write_bytes(_canonical(content))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"site": "enc9"}, "no gate can be placed at 'enc9'"),
        ({"child": "blocks"}, "instrumented.0.child"),
        ({"child": "gate.x"}, "instrumented.0.child"),
        ({"options": {"size": 3}}, "instrumented.0.options.size"),
        ({"options": {"alpha": "odd"}}, "no gate can be placed at 'stem' (alpha="),
        ({"dims": 4}, "instrumented.0.dims"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, values, says):
    folder = save(gated(initial_strength=0.3), tmp_path / "model")
    edited(folder, **values)
    with pytest.raises(BadInput) as caught:
        load(folder)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)

"""Networks of other installed packages: listed, built, trained, saved and loaded; broken ones harm nobody."""

import importlib
import json
import sys

import pytest
import torch
from torch import nn

from fheat import create_model, list_models, load, save
from fheat.cli.main import main
from fheat.data.phantom import write_phantoms
from fheat.networks import registry
from fheat.networks.registry import model_options, provides
from fheat.system.plugins import PluginGroup, plugins

BUILT_IN = tuple(registry._NETWORKS)
TOY = """
from torch import nn
from fheat import FractionalHeat

class Toy(nn.Module):
    def __init__(self, *, in_channels, out_channels, patch_size, width=4):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(in_channels, width, 3, padding=1), FractionalHeat(), nn.Conv3d(width, out_channels, 1)
        )

    def forward(self, x):
        return self.net(x)

def build(*, in_channels, out_channels, patch_size, width=4):
    return Toy(in_channels=in_channels, out_channels=out_channels, patch_size=patch_size, width=width)

def narrow(*, in_channels, out_channels):
    return None

def stubborn(*, in_channels, out_channels, patch_size):
    raise RuntimeError("no licence")
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package with entry points, as pip would, and forgets what was discovered."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(registry, "_NETWORKS", {name: registry._NETWORKS[name] for name in BUILT_IN})
    modules = []

    def put(distribution, entries, source=TOY):
        module = distribution.replace("-", "_")
        modules.append(module)
        (site / f"{module}.py").write_text(source)
        information = site / f"{module}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("[fheat.networks]\n" + entries)
        importlib.invalidate_caches()
        monkeypatch.setattr(registry, "_plugins", PluginGroup(registry.GROUP, registry._register_plugin))
        return site

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def test_a_network_of_another_package_is_like_one_of_ours(install, tmp_path):
    install("toy-nets", "toy = toy_nets:build\ntoy_class = toy_nets:Toy\n")
    assert list(plugins("fheat.networks")) == ["toy", "toy_class"]
    assert list_models() == [*BUILT_IN, "toy", "toy_class"]
    assert model_options("toy") == {"width": 4}
    model = create_model("toy", patch_size=(9, 8, 7), width=6)
    restored = load(save(model, tmp_path / "model"))
    x = torch.randn(1, 1, 9, 8, 7)
    assert torch.equal(restored(x), model(x))
    assert restored.spec.name == "toy"
    assert json.loads((tmp_path / "model/model.json").read_text())["network"]["options"] == {"width": 6}


def test_the_verb_trains_it(install, tmp_path, without_report):
    install("toy-nets", "toy = toy_nets:build\n")
    write_phantoms(tmp_path / "data", 3, shape=(32, 32, 32), test=0)
    words = "--method supervised --network toy --iterations 2 --patch-size 32 32 32 --device cpu"
    assert main(["train", str(tmp_path / "data"), *words.split(), "--out", str(tmp_path / "run")]) == 0
    model = load(tmp_path / "run/final")
    assert type(model).__name__ == "Toy"
    assert model.spec.patch_size == (32, 32, 32)


def test_models_lists_it_with_its_distribution(install, capsys, monkeypatch):
    install("toy-nets", "toy = toy_nets:build\nstubborn = toy_nets:stubborn\n")
    monkeypatch.setattr("fheat.cli.models.list_models", lambda: ["fheat_seg", "toy", "stubborn"])
    assert main(["models", "--json", "--patch-size", "32", "32", "32"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in result["networks"]] == ["fheat_seg", "toy"]
    assert result["networks"][1]["distribution"] == "toy-nets"
    assert result["networks"][1]["parameters"] == 1 * 4 * 27 + 4 + 4 * 2 + 2 + 2
    assert result["not_available"] == ["stubborn is not available: distribution toy-nets: RuntimeError: no licence"]
    assert main(["models", "--patch-size", "32", "32", "32"]) == 0
    assert "toy takes width=4 (distribution toy-nets)\n" in capsys.readouterr().out


BROKEN = [
    ("bad = toy_nets:build", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("bad = toy_nets:build", "raise SystemExit('stop')", "SystemExit: stop"),
    ("bad = toy_nets:build", "def build(:", "SyntaxError: invalid syntax (toy_nets.py, line 1)"),
    ("bad = toy_nets:absent", TOY, "AttributeError: module 'toy_nets' has no attribute 'absent'"),
    ("bad = toy_nets:narrow", TOY, "TypeError: build of 'bad' does not take patch_size: add them as keyword arguments"),
    ("bad = toy_nets", TOY, "TypeError: <module 'toy_nets' from"),
]


@pytest.mark.parametrize(("entry", "source", "reason"), BROKEN, ids=lambda value: str(value)[:20])
def test_a_broken_one_is_skipped_and_says_why(install, entry, source, reason):
    install("toy-nets", f"{entry}\n", source)
    with pytest.warns(RuntimeWarning, match="plug-in 'bad' of distribution toy-nets: ") as caught:
        assert list_models() == list(BUILT_IN)
    assert len(caught) == 1
    assert reason in str(caught[0].message)
    assert isinstance(create_model("fheat_seg", patch_size=(32, 32, 32)), nn.Module)
    with pytest.raises(ValueError, match=r"^network 'bad' cannot be used \(distribution toy-nets: ") as refused:
        create_model("bad")
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_is_taken_stays_where_it_is(install):
    ours = registry._NETWORKS["fheat_seg"]
    install("toy-nets", "fheat_seg = toy_nets:build\ntoy = toy_nets:build\n")
    install("other-nets", "toy = other_nets:build\n")
    with pytest.warns(RuntimeWarning) as caught:
        assert list_models() == [*BUILT_IN, "toy"]
    assert [str(warning.message) for warning in caught] == [
        "the plug-in 'toy' of distribution toy-nets: other-nets has that name already; it is skipped",
        "the plug-in 'fheat_seg' of distribution toy-nets: ValueError: network 'fheat_seg' exists already: "
        "choose another name; it is skipped",
    ]
    assert registry._NETWORKS["fheat_seg"] is ours
    assert registry._plugins.registered == {"toy": "other-nets"}


def test_a_file_that_cannot_be_read_is_named(install):
    install("toy-nets", "this is no entry point\n")
    with pytest.warns(RuntimeWarning, match=r"of distribution toy-nets: entry_points\.txt is unreadable"):
        assert plugins("fheat.networks") == {}
    with pytest.warns(RuntimeWarning, match="of distribution toy-nets"):
        assert list_models() == list(BUILT_IN)


def test_a_module_that_registers_itself_is_not_refused(install):
    source = TOY + "\nimport fheat\nfheat.list_models()\nfheat.register_model('toy', build)\n"
    install("toy-nets", "toy = toy_nets:build\n", source)
    assert list_models() == [*BUILT_IN, "toy"]


def test_nothing_is_imported_before_it_is_needed(install):
    install("toy-nets", "toy = toy_nets:build\n", "raise RuntimeError('imported')")
    create_model("fheat_seg", patch_size=(32, 32, 32))
    assert "toy_nets" not in sys.modules
    assert not registry._plugins.refused


def test_what_a_network_provides(install):
    both = frozenset({"attention", "features"})
    source = TOY + (
        "\nclass Deep(Toy):\n    provides = ('features',)\n"
        "    def forward_features(self, x): ...\n"
        "\nclass Open(Toy):\n    def forward_features(self, x): ...\n"
        "\ndef deep(*, in_channels, out_channels, patch_size):\n"
        "    return Deep(in_channels=in_channels, out_channels=out_channels, patch_size=patch_size)\n"
    )
    entries = "toy = toy_nets:build\nopen = toy_nets:Open\ndeep = toy_nets:deep\nstubborn = toy_nets:stubborn\n"
    install("toy-nets", entries, source)
    assert all(provides(name) == both for name in BUILT_IN)
    assert provides(create_model("light_unetr", patch_size=(32, 32, 32))) == both
    state = torch.random.get_rng_state()
    assert provides("toy") == frozenset()
    assert provides("deep") == frozenset({"features"})
    assert provides("open") == both
    assert provides("stubborn") == frozenset()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert provides(nn.Conv3d(1, 2, 1)) == frozenset()
    with pytest.raises(ValueError, match="network 'unknown' is unknown"):
        provides("unknown")

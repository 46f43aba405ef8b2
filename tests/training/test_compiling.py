"""Whether `torch.compile` runs a network: the choice follows from the setting, measurements and the length of a run."""

import random
import subprocess
import sys

import pytest
from pydantic import ValidationError

from fheat.networks.padded import PaddedNetwork
from fheat.networks.registry import create_model, list_models
from fheat.training import compiling
from fheat.training.compiling import SMALLEST_GAIN, Compiling, choose, choose_for, compiling_of, measured_gain
from fheat.training.estimate import DEVICES, Gain, Speed, forward_passes, speeds
from fheat.training.settings import OptimiserSettings
from fheat.training.settings_sources import read_settings, to_toml
from tests.training.helpers import settings_of

LARGE = Gain(eager=30.0, compiled=10.0, seconds=60.0)
"""A gain that is worth a compiler from 3,000 forward passes on."""


def gains(count=200):
    draw = random.Random(0)
    for _ in range(count):
        eager = draw.uniform(0.1, 100)
        yield Gain(eager=eager, compiled=eager * draw.uniform(0.2, 1.5), seconds=draw.uniform(0, 300))


@pytest.fixture
def measured(monkeypatch):
    """Let a table have a gain for every network, on every kind of device and in every precision."""

    def measure(gain=LARGE, networks=None):
        known = dict.fromkeys(networks or list_models(), gain)
        tables = {
            device: Speed(**{**dict(speed), "compiled": {"bf16": known, "fp32": known}})
            for device, speed in speeds().items()
        }
        monkeypatch.setattr(compiling, "speeds", lambda: tables)

    return measure


def wanted(network="segresnet", **others):
    return settings_of(data="scans", network=network, **others)


def test_more_iterations_never_turn_compiling_off():
    for gain in gains():
        chosen = [choose("auto", gain, passes).compiled for passes in (0, 1, 10, 1e3, 1e5, 1e7, 1e9)]
        assert chosen == sorted(chosen)
        assert not chosen[0]
        assert chosen[-1] == (gain.eager / gain.compiled >= SMALLEST_GAIN)


def test_what_is_saved_is_more_than_what_compiling_costs():
    assert not choose("auto", LARGE, 3000).compiled
    assert choose("auto", LARGE, 3001).compiled
    assert choose("auto", LARGE, 2000).reason == "the run would save 40 s, and compiling takes 60 s"
    assert choose("auto", LARGE, 1e6).shown() == "yes: an iteration was measured to be 3.00 times as fast"


def test_a_small_gain_is_not_worth_it_in_a_run_of_any_length():
    for ratio, expected in ((1.09, False), (1.11, True), (0.5, False)):
        assert choose("auto", Gain(eager=10 * ratio, compiled=10, seconds=0.0), 1e12).compiled == expected


def test_the_setting_wins_over_what_was_measured():
    for gain in (None, *gains(20)):
        for passes in (0, 1e9):
            assert choose("yes", gain, passes) == Compiling(True, "optimiser.compile is yes")
            assert choose("no", gain, passes) == Compiling(False, "optimiser.compile is no")
    assert not choose("auto", None, 1e12).compiled


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [name for name in list_models() if name != "swin_unetr"])
def test_only_measured_networks_of_a_body_and_a_head_are_compiled(measured, name, device):
    """Networks with kernels of their own are not, even if somebody puts them into the table."""
    model, settings = create_model(name, patch_size=(32, 32, 32)), wanted(name)
    compilable = isinstance(model, PaddedNetwork)
    assert name.startswith(("fheat", "light", "slim", "segformer", "amber", "miniature")) != compilable
    measured(networks=[other for other in list_models() if other != name])
    assert not choose_for(settings, model, device).compiled
    measured()
    assert choose_for(settings, model, device).compiled == compilable


def test_only_what_is_run_was_measured(measured):
    """Other precisions, gates that are put in, and algorithms that repeat were not part of a measurement."""
    model, tables = create_model("segresnet", patch_size=(32, 32, 32)), speeds()
    measured()
    assert measured_gain(wanted(), model, "cuda") == LARGE
    assert measured_gain(wanted(**{"network.instrument": ("body.**.conv",)}), model, "cuda") is None
    assert measured_gain(wanted(**{"optimiser.deterministic": True}), model, "cuda") is None
    only = {"cuda": Speed(**{**dict(tables["cuda"]), "compiled": {"bf16": {"segresnet": LARGE}}}), "cpu": tables["cpu"]}
    compiling.speeds = lambda: only  # the fixture puts it back
    assert measured_gain(wanted(), model, "cuda") == LARGE
    assert measured_gain(wanted(**{"optimiser.precision": "fp32"}), model, "cuda") is None
    assert measured_gain(wanted(), model, "cpu") is None


def test_the_length_of_a_run_counts_in_passes_of_the_crop_that_was_timed(measured):
    measured()
    model, patch = create_model("segresnet", patch_size=(32, 32, 32)), (112, 112, 80)
    each = forward_passes("cse", patch, 2, "cuda")
    assert each == 20
    enough = 3000 // each + 1
    assert choose_for(wanted(method="cse", iterations=enough), model, "cuda").compiled
    assert not choose_for(wanted(method="cse", iterations=enough - 1), model, "cuda").compiled
    smaller = wanted(method="cse", iterations=enough, patch_size=(112, 112, 40))
    assert not choose_for(smaller, model, "cuda").compiled


def test_choosing_imports_no_compiler():
    program = (
        "import sys; from fheat.training.train import begin; from fheat.training.compiling import choose_for\n"
        "from fheat.networks.registry import create_model; from fheat.training.settings_sources import make_settings\n"
        "settings = make_settings({'data': 'scans', 'network': 'segresnet'})\n"
        "print(choose_for(settings, create_model('segresnet'), 'cuda').compiled, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


def test_settings_of_earlier_versions_are_read(tmp_path):
    assert wanted().optimiser.compile == "auto"
    for before, now in (("true", "yes"), ("false", "no"), ('"auto"', "auto"), ('"yes"', "yes")):
        path = tmp_path / "config.toml"
        path.write_text(f'[data]\nfolder = "scans"\n[optimiser]\ncompile = {before}\n')
        settings = read_settings(path)
        assert settings.optimiser.compile == now
        path.write_text(to_toml(settings))
        assert read_settings(path) == settings
    for other in ("always", 1, None):
        with pytest.raises(ValidationError):
            OptimiserSettings(compile=other)


def test_a_checkpoint_knows_how_the_run_was_begun():
    told = {"compiled": True, "reason": "an iteration was measured to be 1.50 times as fast"}
    assert compiling_of({"compiled": told}) == Compiling(**told)
    assert not compiling_of({}).compiled
    assert not compiling_of({"settings": {"optimiser": {}}}).compiled
    assert not compiling_of({"settings": {"optimiser": {"compile": False}}}).compiled
    assert compiling_of({"settings": {"optimiser": {"compile": True}}}) is None  # the settings say yes

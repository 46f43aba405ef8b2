"""The model folder: exact round trip, and refusal of anything that changed, by name."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from fheat import BadInput, Card, FractionalHeat, allocation, create_model, load, register_model, retire, save
from fheat.data.appearance import Appearance
from fheat.data.preprocessing import Preprocessing
from fheat.models.folder import _canonical, _sha256
from fheat.models.zoo import ZOO
from fheat.networks.registry import _NETWORKS
from fheat.ops.gates import gates_of

PATCH = (32, 32, 32)


def half_closed():
    model = create_model("fheat_seg", patch_size=PATCH).eval()
    for site in ("enc1", "dec3"):
        gates_of(model)[site].delta.data.fill_(-0.2)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    card = Card(title="t", classes=("background", "atrium"))
    return save(half_closed(), tmp_path_factory.mktemp("saved") / "model", card)


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def reseal(folder, edit=lambda content: None, weights=None):
    """Change the folder and make its hashes right again, as a different writer would."""
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
    content = json.loads((folder / "model.json").read_text())
    edit(content)
    content["sha256"] = {
        "model.safetensors": _sha256((folder / "model.safetensors").read_bytes()),
        "model.json": "",
    }
    content["sha256"]["model.json"] = _sha256(_canonical(content))
    (folder / "model.json").write_bytes(_canonical(content))


def refusal(folder):
    with pytest.raises(BadInput) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.remedy
    return message


def test_round_trip_keeps_weights_gates_and_card(tmp_path):
    card = Card(
        title="LA",
        classes=("background", "atrium"),
        preprocessing={"orientation": "LPS", "spacing": (0.625, 0.625, 0.625), "intensity": {"kind": "zscore"}},
        window={"size": (112, 112, 80), "stride": (18, 18, 4)},
        training={"labels": 4},
        metrics={"dice": 0.9},
    )
    model = half_closed()
    small = retire(model)
    restored = load(save(small, tmp_path / "a" / "b" / "model", card))
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        assert torch.equal(restored(x), model(x))
    assert restored.card == card
    assert [(row.site, row.state, row.alpha) for row in allocation(restored)] == [
        (row.site, row.state, row.alpha) for row in allocation(small)
    ]
    assert sum(row.retired for row in allocation(restored)) == 2


def test_options_travel(tmp_path):
    model = create_model("fheat_seg", 4, 3, PATCH, mixer="gelu", gates=["dec1", "enc2"], alpha=0.5, kan_ratio=2)
    restored = load(save(model, tmp_path / "m"))
    assert {site for site, gate in gates_of(restored).items() if gate.delta is not None} == {"dec1", "enc2"}
    assert restored.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_every_changed_byte_is_refused(folder, name):
    path = folder / name
    original = path.read_bytes()
    rng = np.random.default_rng(0)
    places = range(len(original)) if name == "model.json" else rng.integers(0, len(original), 60)
    for place in places:
        changed = bytearray(original)
        changed[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(changed)
        message = refusal(folder)
        assert name in message
    path.write_bytes(original)
    load(folder)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("keep", [0, 1, 100])
def test_truncation_is_refused(folder, name, keep):
    path = folder / name
    path.write_bytes(path.read_bytes()[:keep])
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert f"{name}: is missing" in refusal(folder)


def test_missing_folder(tmp_path):
    assert "no such model folder" in refusal(tmp_path / "nowhere")


def test_missing_key_is_named(folder):
    state = load_file(folder / "model.safetensors")
    del state["head.bias"]
    reseal(folder, weights=to_bytes(state))
    assert "key 'head.bias' of FHEATSeg is missing" in refusal(folder)


def test_superfluous_key_is_named(folder):
    state = load_file(folder / "model.safetensors") | {"extra.weight": torch.ones(3)}
    reseal(folder, weights=to_bytes(state))
    assert "key 'extra.weight' does not belong to FHEATSeg" in refusal(folder)


def test_other_shape_is_named(folder):
    def three_classes(content):
        content["network"]["out_channels"] = 3

    reseal(folder, three_classes)
    assert "key 'head.bias' has shape (2,) where FHEATSeg has (3,)" in refusal(folder)


def test_other_architecture_is_named(folder):
    def other(content):
        content["network"]["name"] = "light_unetr"
        content["retired"] = {}

    reseal(folder, other)
    message = refusal(folder)
    assert "LightUNETR" in message
    assert "key '" in message


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c["network"].update(name="resnet"), "network 'resnet' is unknown"),
        (lambda c: c["network"].update(options={"mixr": 1}), "no option 'mixr'"),
        (lambda c: c["network"].update(in_channels="many"), "field network.in_channels"),
        (lambda c: c["network"].update(patch_size=[8, 8, 8]), "patch_size"),
        (lambda c: c["retired"].update(enc9=0.5), "no gate 'enc9'"),
        (lambda c: c["frozen"].update(enc2=0.5), "the gate 'enc2' of fheat_seg is not frozen"),
        (lambda c: c["frozen"].update(enc2=-1.0), "field frozen.enc2"),
        (lambda c: c.update(format=3), "field format"),
        (lambda c: c.update(surprise=1), "field surprise"),
        (lambda c: c["card"].update(colour="red"), "field card.colour"),
        (lambda c: c.pop("network"), "field network"),
    ],
)
def test_bad_field_is_named(folder, edit, says):
    reseal(folder, edit)
    message = refusal(folder)
    assert says in message
    assert "model.json" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_are_refused_by_key(folder, value):
    state = load_file(folder / "model.safetensors")
    state["position"][0, 5] = value
    reseal(folder, weights=to_bytes(state))
    assert "key 'position' holds NaN or infinity" in refusal(folder)


def test_infinities_of_both_signs_are_refused_and_numbers_that_add_up_to_infinity_are_not(folder):
    state = load_file(folder / "model.safetensors")
    state["position"][0, 5], state["position"][0, 6] = float("inf"), -float("inf")
    reseal(folder, weights=to_bytes(state))
    assert "key 'position' holds NaN or infinity" in refusal(folder)
    state["position"][:] = 3e38
    reseal(folder, weights=to_bytes(state))
    assert torch.equal(load(folder).position, state["position"])


def test_pickle_is_not_opened(folder):
    torch.save({"a": torch.ones(2)}, folder / "model.safetensors")
    reseal(folder)
    assert "is not a safetensors file" in refusal(folder)


def test_nothing_is_overwritten_unasked(folder, tmp_path):
    before = (folder / "model.json").read_bytes()
    with pytest.raises(BadInput, match="exists already"):
        save(half_closed(), folder)
    assert (folder / "model.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(BadInput, match="is not a model folder"):
        save(half_closed(), tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_overwrite_replaces_and_leaves_nothing_behind(folder):
    other = create_model("fheat_seg", patch_size=PATCH, mixer="gelu")
    save(other, folder, overwrite=True)
    assert load(folder).spec.options == {"mixer": "gelu"}
    assert os.listdir(folder.parent) == [folder.name]


def test_failed_write_keeps_the_old_folder(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(half_closed(), folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert os.listdir(folder.parent) == [folder.name]


def test_save_refuses_what_it_could_not_build_again(tmp_path):
    with pytest.raises(TypeError, match="Linear has no spec"):
        save(torch.nn.Linear(2, 2), tmp_path / "m")
    model = half_closed()
    gates_of(model)["dec1"].theta.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="theta of this FractionalHeat is NaN"):
        save(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
def test_precision_is_kept(tmp_path, kind):
    model = half_closed().to(kind)
    restored = load(save(model, tmp_path / "m")).state_dict()
    for key, value in model.state_dict().items():
        assert restored[key].dtype == value.dtype
        assert torch.equal(restored[key], value), key


def test_frozen_strengths_are_kept(tmp_path):
    model = create_model("fheat_seg", patch_size=PATCH, gates="closed").eval()
    gates_of(model)["dec1"].set_strength(0.8)
    restored = load(save(model, tmp_path / "m"))
    assert gates_of(restored)["dec1"].strength.item() == 0.8
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        assert torch.equal(restored(x), model(x))


class Tied(torch.nn.Module):
    """Two layers of one weight, a mask of infinities, and an in-place activation beside a gate."""

    def __init__(self, in_channels, out_channels, patch_size):
        super().__init__()
        self.first = torch.nn.Conv3d(1, 1, 1)
        self.second = torch.nn.Conv3d(1, 1, 1)
        self.second.weight = self.first.weight
        self.gate, self.act = FractionalHeat(), torch.nn.ReLU(inplace=True)
        self.register_buffer("mask", torch.tensor([0.0, -float("inf")]))
        self.card = "not a model card"

    def forward(self, x):
        x = self.second(self.first(x))
        return x + self.act(self.gate(x))


def test_unusual_networks_come_back_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("fheat.networks.registry._NETWORKS", dict(_NETWORKS))
    register_model("tied", Tied)
    model = create_model("tied").eval()
    model.gate.delta.data.fill_(-1.0)
    small = retire(model)
    restored = load(save(small, tmp_path / "m"))
    assert restored.first.weight is restored.second.weight
    x = torch.randn(1, 1, 5, 5, 5)
    with torch.no_grad():
        assert torch.equal(restored(x), model(x))
        assert torch.equal(small(x), model(x))


def test_tuples_in_options_are_stored(tmp_path):
    model = create_model("fheat_seg", patch_size=PATCH, gates=("dec1", "enc1"))
    assert load(save(model, tmp_path / "m")).spec == model.spec


def test_card_stays_with_the_network(folder, tmp_path):
    card = load(folder).card
    assert load(save(retire(load(folder)), tmp_path / "again")).card == card


def test_compiled_network_is_saved_as_itself(tmp_path):
    model = half_closed()
    restored = load(save(torch.compile(model), tmp_path / "m"))
    assert restored.state_dict().keys() == model.state_dict().keys()


def test_broken_weights_never_replace_a_good_folder(folder):
    model = half_closed()
    model.position.data[0, 0] = float("inf")
    with pytest.raises(ValueError, match="key 'position' holds NaN or infinity"):
        save(model, folder, overwrite=True)
    load(folder)


def test_card_is_checked(tmp_path):
    with pytest.raises(ValueError, match=r"metrics\.hd95"):
        Card(metrics={"hd95": float("nan")})
    with pytest.raises(ValueError, match="training"):
        Card(training={"when": object()})
    with pytest.raises(ValueError, match=r"card\.classes has 3 names for 2 output channels"):
        save(half_closed(), tmp_path / "m", Card(classes=("a", "b", "c")))


def test_other_files_in_a_model_folder_are_never_deleted(folder):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"holds 'notes.txt'"):
        save(half_closed(), folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"


def test_links_are_followed(folder, tmp_path, monkeypatch):
    link = tmp_path / "latest"
    link.symlink_to(folder)
    save(create_model("fheat_seg", patch_size=PATCH, mixer="gelu"), link, overwrite=True)
    assert link.is_symlink()
    assert load(folder).spec.options == {"mixer": "gelu"}
    monkeypatch.chdir(folder)
    save(half_closed(), ".", overwrite=True)
    assert load(folder).spec.options == {}
    assert sorted(os.listdir(tmp_path)) == ["latest", "model"]


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_interrupted_swap_brings_the_old_folder_back(folder, monkeypatch, failing, error):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(target)
        if len(calls) == failing:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(type(error)):
        save(half_closed(), folder, overwrite=True)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert os.listdir(folder.parent) == [folder.name]


def test_many_writers_at_once_leave_one_whole_folder(tmp_path):
    models = [create_model("fheat_seg", patch_size=PATCH, kan_ratio=ratio) for ratio in (1, 2)]

    def write(index):
        try:
            save(models[index % 2], tmp_path / "m", overwrite=True)
        except (OSError, BadInput):  # another writer was faster; what it wrote stands
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(12)))
    load(tmp_path / "m")
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["m"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[]", "is not a model description"),
        (b"{}", "is not a model description"),
        (b'{"sha256": {"model.json": ""}}', "field sha256 must name both files"),
        (b"[" * 100_000, "is not a model description"),
        (b"\xff\xfe", "is not a model description"),
    ],
)
def test_crafted_descriptions_are_refused(folder, content, says):
    (folder / "model.json").write_bytes(content)
    assert says in refusal(folder)


def test_a_network_too_large_to_build_is_refused(folder):
    reseal(folder, lambda content: content["network"].update(in_channels=10**15))
    assert "field network" in refusal(folder)


def test_wrong_places_are_named(folder, tmp_path):
    assert "is a file, not a model folder" in refusal(folder / "model.json")
    assert f"did you mean {folder}?" in refusal(tmp_path)
    assert "is not a folder name" in refusal("")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    assert "is a folder where a file should be" in refusal(folder)


def test_batch_norm_buffers_are_stored(tmp_path):
    model = create_model("light_unetr", patch_size=PATCH)
    model(torch.randn(2, 1, *PATCH))
    model.eval()
    restored = load(save(model, tmp_path / "m"))
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        assert torch.equal(restored(x), model(x))


def test_loads_in_a_fresh_process_without_pickle(folder):
    code = (
        "import sys, pickle, fheat\n"
        "def forbid(*a, **k): raise SystemExit('pickle was used')\n"
        "pickle.load = pickle.loads = pickle.Unpickler = forbid\n"
        f"print(fheat.load({str(folder)!r}).card.title)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "t"


def as_format_1(content, **stated):
    """Turn a description into what format 1 wrote: orientation, spacing and intensity in the card, no tolerance."""
    content["format"] = 1
    content["card"].pop("preprocessing", None)
    content["card"].update({"orientation": None, "spacing": None, "intensity": None} | stated)


def test_format_1_is_read_with_the_tolerance_its_predictions_had(folder):
    intensity = {"kind": "window", "low": -100.0, "high": 240.0, "nonzero": False}
    reseal(folder, lambda c: as_format_1(c, orientation="RAS", spacing=[0.5, 0.5, 2.0], intensity=intensity))
    value = load(folder).card.preprocessing
    assert value == Preprocessing(orientation="RAS", spacing=(0.5, 0.5, 2.0), tolerance=0.001, intensity=intensity)
    reseal(folder, as_format_1)
    assert load(folder).card.preprocessing == Preprocessing()
    again = load(save(load(folder), folder.parent / "again"))
    assert again.card == load(folder).card
    assert json.loads((folder.parent / "again" / "model.json").read_text())["format"] == 2


def test_format_1_is_verified_before_it_is_converted(folder):
    reseal(folder, lambda c: as_format_1(c, orientation="RAS"))
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"RAS"', '"LPS"'))
    assert "sha256 differs" in refusal(folder)
    reseal(folder, lambda c: c["card"].update(orientation="XYZ"))
    assert "field card.preprocessing.orientation" in refusal(folder)


def test_the_zoo_model_of_format_1_was_changed_in_nothing_but_its_form_and_what_was_added():
    """Written in format 1, without what it now says of its scans, la-4 has the hash that its first file stated."""
    value = load("la-4").card.preprocessing
    assert (value.orientation, value.spacing, value.tolerance) == ("RAS", (0.625, 0.625, 0.625), 0.001)
    content = json.loads((ZOO / "la-4" / "model.json").read_text())
    for later in ("appearance", "codes", "intended_use", "limits"):
        content["card"].pop(later, None)
    as_format_1(content, orientation="RAS", spacing=[0.625] * 3, intensity=value.intensity.model_dump())
    content["sha256"]["model.json"] = ""
    assert _sha256(_canonical(content)) == "7404bb4ae47ed38b787b9c355e1d3685690482a7baa32f7394b0ca181285ac6b"


def test_folders_from_before_there_was_an_appearance_load_and_know_nothing(folder):
    reseal(folder, lambda c: c["card"].pop("appearance"))
    assert load(folder).card.appearance == Appearance()
    reseal(folder, lambda c: c["card"].update(appearance={"ranges": {"extent x (mm)": {"least": 1.0}}}))
    assert "field card.appearance.ranges.extent x (mm).greatest: Field required" in refusal(folder)


def test_an_unknown_format_says_what_to_do(folder):
    reseal(folder, lambda c: c.update(format=3))
    assert refusal(folder).endswith(
        "field format is 3, this version of fheat reads 1 and 2; install a newer fheat, "
        "or write the folder again with this one"
    )

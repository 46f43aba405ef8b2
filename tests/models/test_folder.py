"""The model folder: exact round trip, and refusal of anything that changed, by name."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from fheat import BadInput, Card, allocation, create_model, load, retire, save
from fheat.models.folder import _canonical, _sha256
from fheat.ops.gates import gates_of

PATCH = (32, 32, 32)


def half_closed():
    model = create_model("fheat_seg", patch_size=PATCH).eval()
    for site in ("enc1", "dec3"):
        gates_of(model)[site].delta.data.fill_(-0.2)
    return model


@pytest.fixture
def folder(tmp_path):
    return save(half_closed(), tmp_path / "model", Card(title="t", classes=("background", "atrium")))


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
        spacing=(0.625, 0.625, 0.625),
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
        (lambda c: c.update(format=2), "field format"),
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
    assert load(folder).recipe.options == {"mixer": "gelu"}
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
    with pytest.raises(TypeError, match="Linear has no recipe"):
        save(torch.nn.Linear(2, 2), tmp_path / "m")
    model = half_closed()
    gates_of(model)["dec1"].theta.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="theta of this FractionalHeat is NaN"):
        save(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


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

"""Starting from a trained model: what a network takes over, what it makes of other sizes, and what does not fit."""

import pytest
import torch
import torch.nn.functional as F

from fheat import create_model, load, retire, save
from fheat.models.folder import read_manifest
from fheat.models.start import network_of_start, start_folder, start_from, take_over
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput

SIDE = (16, 16, 16)


def network(seed=0, **options):
    torch.manual_seed(seed)
    model = create_model(**({"name": "miniature", "patch_size": SIDE, "dropout": 0.0} | options)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def folder(tmp_path):
    """A model with one channel and two classes."""
    return str(save(network(), tmp_path / "model"))


def test_a_network_of_the_same_sizes_becomes_the_model(folder):
    own = network(seed=1)
    torch.manual_seed(7)
    start = start_from(own, folder)
    drawn = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(1))  # the random state is as before
    assert (list(start.fresh), start.changed, start.note()) == ([], {}, "")
    assert start.sha256 == read_manifest(start_folder(folder)).sha256["model.safetensors"]
    x = torch.randn(2, 1, *SIDE)
    assert torch.equal(own(x), load(folder)(x))


def test_a_network_with_other_classes_keeps_its_head(folder):
    own = network(seed=1, out_channels=4)
    head = own.head.weight.clone()
    start = start_from(own, folder)
    assert list(start.fresh) == ["head.weight", "head.bias"]
    assert start.note() == f"from {folder}: head.weight, head.bias begin with fresh weights"
    assert torch.equal(own.head.weight, head)
    features = [model.forward_features(torch.ones(1, 1, *SIDE)).penultimate for model in (own, load(folder))]
    assert torch.equal(*features)


def test_one_channel_is_shared_by_several(folder):
    own = network(seed=1, in_channels=4)
    start = start_from(own, folder)
    assert list(start.fresh) == []
    assert start.changed == {"stem.weight": "has the weights for one channel, shared by 4"}
    x = torch.randn(1, 1, *SIDE)
    assert (own(x.expand(1, 4, *SIDE)) - load(folder)(x)).abs().max() < 1e-4


def test_several_channels_cannot_be_told_apart_and_the_stem_stays_fresh(tmp_path):
    several = str(save(network(in_channels=3), tmp_path / "several"))
    for channels in (1, 2):
        own = network(seed=1, in_channels=channels)
        stem = own.stem.weight.clone()
        assert list(start_from(own, several).fresh) == ["stem.weight"]
        assert torch.equal(own.stem.weight, stem)


def test_position_embeddings_of_another_patch_are_interpolated(folder):
    own = network(seed=1, patch_size=(32, 48, 16))
    start = start_from(own, folder)
    assert start.changed == {"position": "is interpolated from 1 x 1 x 1 to 2 x 3 x 1"}
    model = load(folder)
    assert torch.equal(own.position, F.interpolate(model.position, size=(2, 3, 1), mode="trilinear"))
    x = torch.randn(1, 1, 32, 48, 16)
    assert torch.equal(own(x), model(x))  # which interpolates them itself


def test_all_sizes_may_differ_at_once(folder):
    start = start_from(network(seed=1, patch_size=(32, 32, 32), in_channels=2, out_channels=3), folder)
    assert list(start.fresh) == ["head.weight", "head.bias"]
    assert start.changed.keys() == {"stem.weight", "position"}


def test_gates_that_were_retired_stay_closed(tmp_path):
    trained = network()
    gates_of(trained)["enc1"].set_strength(0.0)
    x = torch.randn(1, 1, *SIDE)
    expected = trained(x)
    retired = str(save(retire(trained), tmp_path / "retired"))
    own = network(seed=1)
    start = start_from(own, retired)
    assert start.changed == {"enc1.gate": "stays closed, as in the model"}
    assert gates_of(own)["enc1"].closed
    assert not gates_of(own)["dec1"].closed
    assert (own(x) - expected).abs().max() < 1e-5


def test_gates_that_only_one_has(tmp_path, folder):
    closed = str(save(network(gates="closed"), tmp_path / "closed"))
    own = network(seed=1)
    start = start_from(own, closed)
    assert sorted(start.fresh) == sorted(f"{site}.gate.{name}" for site in gates_of(own) for name in ("theta", "delta"))
    other = network(seed=1, gates="closed")
    assert start_from(other, folder).note() == ""
    assert all(gate.closed for gate in gates_of(other).values())


def test_a_constant_strength_is_taken_over(tmp_path):
    trained = network(gates="final_only")
    gates_of(trained)["enc1"].set_strength(0.7)
    own = network(seed=1, gates="final_only")
    take_over(own, trained)
    assert gates_of(own)["enc1"].strength.item() == pytest.approx(0.7)


def test_a_model_that_does_not_fit_is_one_line(tmp_path, folder):
    with pytest.raises(BadInput, match=r"does not fit fheat_seg: the model has no .*; leave out the name") as raised:
        start_from(create_model("fheat_seg", patch_size=(32, 32, 32)), folder)
    assert "\n" not in str(raised.value)
    wider = create_model("fheat_seg", patch_size=(32, 32, 32), kan_ratio=2)
    narrow = create_model("fheat_seg", patch_size=(32, 32, 32))
    with pytest.raises(ValueError, match=r"does not fit fheat_seg: .* there and .* here"):
        take_over(wider, narrow)


def test_names_of_models(folder, finished, tmp_path):
    assert start_folder("la-4").name == "la-4"
    assert start_folder(str(finished)) == finished / "best"
    assert network_of_start("la-4") == {"name": "fheat_seg"}
    assert network_of_start(folder) == {"name": "miniature", "dropout": 0.0}
    (tmp_path / "run" / "best").mkdir(parents=True)
    for nothing in (tmp_path, tmp_path / "run"):
        with pytest.raises(BadInput, match="is no model folder, and no run that has saved a network"):
            start_folder(str(nothing))
    with pytest.raises(BadInput, match="no such model folder or zoo model; did you mean la-full"):
        start_folder("la-ful")


def test_the_zoo_starts_a_network_for_other_data():
    own = create_model("fheat_seg", in_channels=2, out_channels=3, patch_size=(64, 48, 32))
    start = start_from(own, "la-4")
    assert list(start.fresh) == ["head.weight", "head.bias"]
    closed = [path for path, how in start.changed.items() if how.startswith("stays closed")]
    assert closed == [f"{site}.gate" for site in ("enc2", "enc3", "enc4", "dec4", "dec3", "dec2")]
    assert start.changed["position"] == "is interpolated from 4 x 4 x 3 to 2 x 2 x 1"
    assert start.changed["stem.0.weight"] == "has the weights for one channel, shared by 2"


@pytest.mark.slow
def test_filters_that_are_bound_to_the_patch_begin_afresh():
    torch.manual_seed(0)
    trained, own = (create_model("fheat_seg", patch_size=(32, y, 32), operator="gfnet") for y in (32, 48))
    before = own.enc1.gate.weight.detach().clone()
    fresh, changed = take_over(own, trained)
    assert {name for name in fresh if name.startswith(("enc1", "dec1"))} == {"enc1.gate.weight", "dec1.gate.weight"}
    assert list(changed) == ["position"]
    assert torch.equal(own.enc1.gate.weight, before)


@pytest.mark.slow
def test_a_switch_that_was_retired_stays_off():
    trained, own = (create_model("fheat_seg", patch_size=(32, 32, 32), operator="l0") for _ in range(2))
    gates_of(trained)["enc1"].set_strength(0.0)
    fresh, changed = take_over(own, retire(trained))
    assert fresh == []
    assert changed == {"enc1.gate": "stays closed, as in the model"}
    assert [gate.closed for gate in gates_of(own).values()] == [True, *[False] * 7]

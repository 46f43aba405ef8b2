"""Half precision on disk: half the size, gates untouched, refused where it would hurt."""

import pytest
import torch
from safetensors.torch import load_file

from fheat import allocation, create_model, list_models, load, register_model, retire, save
from fheat.models.folder import FULL_BELOW, halve
from fheat.networks.registry import _NETWORKS
from fheat.ops import Rational
from fheat.ops.gates import gates_of
from fheat.ops.heat import FractionalHeat
from tests.models.test_folder import PATCH, Tied, half_closed


def stirred(**options):
    """A network whose parameters are all off their initial values, four gates of it closed."""
    model = create_model("fheat_seg", **options).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        scale = 0.05 * (parameter.detach().abs().mean() + 0.1)
        parameter.data += scale * torch.randn(parameter.shape, generator=generator)
    for site in ("enc1", "enc2", "enc3", "dec4"):
        gates_of(model)[site].delta.data.fill_(-1e-9)  # float16 would make it -0
    gates_of(model)["dec2"].delta.data.fill_(1e-9)  # float16 would close it
    gates_of(model)["dec1"].delta.data.fill_(1.1817)
    return model


def test_the_file_has_half_the_size(tmp_path):
    model = stirred()
    whole, half = (save(model, tmp_path / str(kind), dtype=kind) / "model.safetensors" for kind in (None, "float16"))
    assert 1.95e6 < half.stat().st_size < 2.15e6
    assert whole.stat().st_size > 3.9e6
    stored = load_file(half)
    large = {key for key, value in stored.items() if value.numel() >= FULL_BELOW}
    assert {key for key, value in stored.items() if value.dtype == torch.float16} == large
    assert sum(stored[key].numel() for key in large) > 0.96 * 974_632


def test_it_comes_back_as_float32_within_rounding(tmp_path):
    model = stirred(patch_size=PATCH)
    restored = load(save(model, tmp_path / "m", dtype="float16"))
    before, after = model.state_dict(), restored.state_dict()
    for key, value in after.items():
        assert value.dtype == torch.float32
        if value.numel() < FULL_BELOW:
            assert torch.equal(value, before[key]), key
        else:
            assert torch.equal(value, before[key].half().float()), key
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        wanted, found = model(x), restored(x)
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 2e-3 * wanted.norm()


def test_gates_are_exactly_what_they_were(tmp_path):
    model = stirred(patch_size=PATCH)
    restored = load(save(model, tmp_path / "whole", dtype="float16"))
    small = load(save(retire(model), tmp_path / "retired", dtype="float16"))
    rows, again = (
        [(row.site, row.D, row.alpha, row.state) for row in allocation(network)] for network in (model, restored)
    )
    assert again == rows
    assert [state for *_, state in again].count("closed") == 4
    assert restored.get_submodule("dec2.gate").strength.item() == pytest.approx(1e-9)
    assert [row.D for row in allocation(small)] == [D for _, D, *_ in rows]
    x = torch.randn(1, 1, *PATCH)
    with torch.no_grad():
        assert torch.equal(small(x), restored(x))
        assert torch.equal(retire(restored)(x), restored(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_every_network_keeps_its_small_numbers(name):
    model = create_model(name)
    state = {key: value.detach() for key, value in model.state_dict().items()}
    halved = halve(model, state)
    for path, module in model.named_modules():
        if isinstance(module, FractionalHeat | Rational | torch.nn.GroupNorm | torch.nn.BatchNorm3d):
            for key in module.state_dict():
                assert torch.equal(halved[f"{path}.{key}"], state[f"{path}.{key}"])
                assert halved[f"{path}.{key}"].dtype == state[f"{path}.{key}"].dtype
    size = sum(value.numel() * value.element_size() for value in halved.values())
    assert size < 0.54 * sum(value.numel() * value.element_size() for value in state.values())


@pytest.mark.parametrize(
    ("value", "says"),
    [(7e4, "key 'position' holds 7e+04, beyond float16"), (1e-7, "key 'position' holds numbers too small for float16")],
)
def test_what_float16_cannot_hold_is_refused(tmp_path, value, says):
    model = create_model("fheat_seg", patch_size=(96, 96, 64)).eval()
    model.position.data.fill_(value)
    with pytest.raises(ValueError) as caught:
        save(model, tmp_path / "m", dtype="float16")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m").exists()
    save(model, tmp_path / "m")


def test_zeros_and_a_few_tiny_numbers_are_no_loss(tmp_path):
    model = create_model("fheat_seg", patch_size=(96, 96, 64)).eval()
    model.position.data[0, 0] = 0.5
    model.position.data[0, 1] = 1e-9
    save(model, tmp_path / "m", dtype="float16")


def test_other_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="only float32 networks are stored as float16"):
        save(half_closed().double(), tmp_path / "m", dtype="float16")
    with pytest.raises(ValueError, match="dtype='int8' is unknown"):
        save(half_closed(), tmp_path / "m", dtype="int8")
    assert not (tmp_path / "m").exists()


def test_tied_weights_and_infinite_buffers(tmp_path, monkeypatch):
    monkeypatch.setattr("fheat.networks.registry._NETWORKS", dict(_NETWORKS))
    monkeypatch.setattr("fheat.models.folder.FULL_BELOW", 1)
    register_model("tied", Tied)
    model = create_model("tied").eval()
    restored = load(save(model, tmp_path / "m", dtype="float16"))
    assert restored.first.weight is restored.second.weight
    assert torch.equal(restored.first.weight, model.first.weight.half().float())
    assert torch.equal(restored.mask, model.mask)


def test_a_loaded_one_is_saved_whole_again(tmp_path):
    once = load(save(half_closed(), tmp_path / "half", dtype="float16"))
    again = load(save(once, tmp_path / "whole")).state_dict()
    for key, value in once.state_dict().items():
        assert torch.equal(again[key], value), key

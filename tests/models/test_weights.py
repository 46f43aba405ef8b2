"""Weight files are looked at before memory is spent: sizes, types and the network they claim to be for."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from fheat import Predictor, create_model, load, save
from fheat.io import Volume
from fheat.models.folder import BUILT_BESIDE
from fheat.models.weights import LARGEST_HEADER, Budget
from tests.models.test_folder import folder, refusal, reseal, saved  # noqa: F401 - fixtures


def test_a_description_of_a_huge_network_is_refused_before_it_is_built(folder, monkeypatch):  # noqa: F811
    """Its tensors would have taken gigabytes; the first ones that exceed what the weights allow are never made."""
    budgets = []

    class Seen(Budget):
        def __enter__(self):
            budgets.append(self)
            return super().__enter__()

    monkeypatch.setattr("fheat.models.folder.Budget", Seen)
    reseal(folder, lambda content: content["network"].update(name="segresnet", options={"init_filters": 512}))
    assert "model.json: field network: it would take more than" in refusal(folder)
    (budget,) = budgets
    assert budget.limit < BUILT_BESIDE + 40 * 2**20 < budget.spent


def test_a_budget_counts_what_is_created_and_lets_networks_be_what_they_are():
    torch.manual_seed(3)
    plain = create_model("fheat_seg", patch_size=(32, 32, 32)).state_dict()
    torch.manual_seed(3)
    with Budget(64 * 2**20) as budget:
        counted = create_model("fheat_seg", patch_size=(32, 32, 32)).state_dict()
    assert all(torch.equal(plain[key], counted[key]) for key in plain)
    assert 0 < budget.spent < 8 * 2**20
    with pytest.raises(MemoryError, match="more than 1 MiB"), Budget(2**20):
        torch.zeros(10**15)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(1000),
        lambda: torch.arange(10, dtype=torch.uint8),
        lambda: torch.arange(2, 5.0, 0.5),
        lambda: torch.eye(3),
    ],
)
def test_a_budget_counts_what_a_constructor_makes(make):
    with Budget(2**20) as budget:
        made = make()
    assert budget.spent == made.numel() * made.element_size()
    assert torch.equal(made, make())


def test_a_budget_refuses_a_range_before_it_is_made():
    with pytest.raises(MemoryError, match="more than 1 MiB"), Budget(2**20):
        torch.arange(2**40)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_networks_of_other_precisions_predict_what_the_float32_network_does(kind, tmp_path):
    torch.manual_seed(0)
    model = create_model("fheat_seg", patch_size=(32, 32, 32)).to(kind).eval()
    other = save(model, tmp_path / "other")
    same = save(load(other).float(), tmp_path / "float32")
    assert next(load(other).parameters()).dtype == kind
    scan = Volume(np.random.default_rng(0).normal(size=(32, 32, 32)).astype(np.float32), np.eye(4))
    one, two = (Predictor(path, device="cpu", runtime="torch").segment(scan) for path in (other, same))
    assert np.array_equal(one.data, two.data)


def test_float8_is_refused_in_one_line(folder):  # noqa: F811
    weights = load_file(folder / "model.safetensors")
    name = next(key for key, value in weights.items() if value.is_floating_point())
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    reseal(folder, weights=to_bytes(weights))
    assert f"key {name!r} is F8_E4M3, which no network here computes with; convert the network to" in refusal(folder)


def rewritten(folder, edit):  # noqa: F811
    """Change the header of a weight file and make its hashes right again."""
    content = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    reseal(folder, weights=struct.pack("<Q", len(text)) + text + content[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [10**15]},
        {"shape": [-1]},
        {"dtype": "F64"},
        {"data_offsets": [0, 10**15]},
        {"data_offsets": ["a", "b"]},
        {"shape": None},
    ],
)
def test_a_header_that_contradicts_itself_is_refused(folder, change):  # noqa: F811
    rewritten(folder, lambda header: header[min(set(header) - {"__metadata__"})].update(change))
    message = refusal(folder)
    assert "contradict each other" in message or "is not a safetensors file" in message


@pytest.mark.parametrize("start", [b"", b"\x01\x02", struct.pack("<Q", 2**62), struct.pack("<Q", LARGEST_HEADER + 1)])
def test_a_header_without_an_end_is_refused(folder, start):  # noqa: F811
    reseal(folder, weights=start)
    assert "is not a safetensors file (a header of" in refusal(folder)

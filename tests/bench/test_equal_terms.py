"""The benchmark on equal terms: rows beside FHEAT-Seg, reasons for what did not run, rows that are added later."""

import importlib
import json
import re

import pytest
import torch
import torch._dynamo
from results import ROOT, write_result
from torch import nn

from fheat.networks.registry import list_models

MACHINE = {"device": "cpu", "name": "some processor", "threads": 2, "torch": "2.13.0"}
SETTINGS = {"window": [112, 112, 80], "rounds": 5}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("equal_terms")


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def test_a_network_is_timed_beside_the_first_and_what_fails_has_a_reason(benchmark, monkeypatch):
    def compiled(network, how, x):
        if how == "refuses":
            raise ValueError("Check 'false' failed at ops.cpp:151:\nNot converted.\n-- No rule for softshrink")
        return Scaled(network.factor + (how == "wrong"))

    monkeypatch.setattr(benchmark, "compiled", compiled)
    x, found = torch.randn(1, 1, 4, 4, 4), benchmark.empty()
    found["not_run"]["double / torch"] = "what an earlier run says"
    first = dict.fromkeys(("torch", "refuses", "wrong"), lambda: None)
    benchmark.measure("double", Scaled(2.0), first, x, "cpu", 3, found)
    assert list(found["window_ms"]["double"]) == list(found["beside"]["double"]) == ["torch"]
    assert found["rounds"] == {"double": 3}
    assert found["error"] == {"double": {"torch": 0.0}}
    assert found["not_run"] == {
        "double / refuses": "ValueError: Not converted. -- No rule for softshrink",
        "double / wrong": "RuntimeError: its output is off by 0.5 of the largest value",
    }
    monkeypatch.setattr(benchmark, "SLOW_SECONDS", 0.0)
    benchmark.measure("double", Scaled(2.0), first, x, "cpu", 3, found)
    assert found["rounds"] == {"double": benchmark.SLOW_ROUNDS}


def test_what_fails_costs_nothing_else(benchmark, monkeypatch, tmp_path):
    """FHEAT-Seg in one runtime, one network in all of them, another while it is timed: the rest is stored."""
    monkeypatch.setattr(benchmark, "SIZE", (4, 4, 4))
    monkeypatch.setattr(benchmark, "RUNTIMES", {"cpu": ("torch", "refuses")})
    monkeypatch.setattr(benchmark, "load", lambda name: Scaled(1.0))
    monkeypatch.setattr(benchmark, "retire", lambda network: network)
    factors = {"unet": 0.0, "mednext": None, "segresnet": 2.0}
    monkeypatch.setattr(benchmark, "built", lambda name, device: (name, Scaled(factors[name])))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setenv("FHEAT_CACHE", "")  # which the script sets

    def compiled(network, how, x):
        if how == "refuses":
            raise RuntimeError("no compiler")
        return network

    monkeypatch.setattr(benchmark, "compiled", compiled)
    out = tmp_path / "equal-terms-cpu.json"
    words = ["equal_terms.py", "--networks", "unet,mednext,segresnet", "--rounds", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    limit = torch._dynamo.config.recompile_limit
    with torch._dynamo.config.patch(recompile_limit=limit, fail_on_recompile_limit_hit=False):  # which it sets, too
        benchmark.main()
    assert torch._dynamo.config.recompile_limit == limit
    results = json.loads(out.read_text())["results"]
    assert list(results["window_ms"]["segresnet"]) == list(results["window_ms"][benchmark.FIRST]) == ["torch"]
    assert set(results["not_run"]) == {f"{benchmark.FIRST} / refuses", "unet / torch", "mednext / any runtime"}
    assert results["not_run"]["unet / torch"].startswith("RuntimeError: its output is off by nan")
    assert results["not_run"]["mednext / any runtime"].startswith("TypeError")


def test_ratios_are_to_the_first_in_the_same_turns(benchmark):
    found = benchmark.empty()
    found["window_ms"] = {"a": {"torch": 6.0, "openvino": 3.0}, "b": {"torch": 8.0}}
    found["beside"] = {"a": {"torch": 2.0, "openvino": 1.0}, "b": {"torch": 4.0}}
    results = benchmark.summary(found, ("torch", "openvino", "nobody"))
    assert results["window_ms"][benchmark.FIRST] == {"torch": 3.0, "openvino": 1.0}
    assert results["ratio"] == {
        benchmark.FIRST: {"torch": 1.0, "openvino": 1.0},
        "a": {"torch": 3.0, "openvino": 3.0},
        "b": {"torch": 2.0},
    }


def test_rows_are_added_to_those_of_the_same_machine_only(benchmark, tmp_path):
    path, found = tmp_path / "equal-terms-cpu.json", benchmark.empty()
    assert benchmark.stored_rows(path, MACHINE, SETTINGS) == found
    found |= {"window_ms": {"a": {"torch": 6.0}}, "beside": {"a": {"torch": 2.0}}, "rounds": {"a": 5}}
    results = benchmark.summary(found, ("torch",))
    words = {"title": "Windows of two networks", "command": "none", "seed": 0}
    write_result("equal-terms-cpu", machine=MACHINE, settings=SETTINGS, results=results, out=path, **words)
    assert json.loads(path.read_text())["results"] == results
    assert benchmark.stored_rows(path, MACHINE, SETTINGS) == found
    for other in ((MACHINE | {"torch": "2.14.0"}, SETTINGS), (MACHINE, SETTINGS | {"rounds": 1})):
        with pytest.raises(SystemExit, match="would not be on equal terms"):
            benchmark.stored_rows(path, *other)


@pytest.mark.slow
def test_networks_have_the_options_of_the_published_sizes(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "SIZE", (32, 32, 32))
    labels = [benchmark.built(name, "cpu")[0] for name in list_models()]
    assert [re.sub(r" \(.*", "", label) for label in labels] == list_models()
    assert [label for label in labels if "(" in label] == [
        "segresnet (init_filters=24)",
        "mednext (response_norm=True)",
    ]

"""Every part measured once, at sizes that take a moment: the numbers agree with each other and with the networks."""

import json
from contextlib import contextmanager

import pytest
import torch

from fheat import cost, create_model
from fheat.bench.forward import gate_grids
from fheat.bench.picture import picture
from fheat.bench.plan import Plan
from fheat.bench.run import run_plan
from fheat.bench.scan import part_shape
from fheat.bench.show import RECORD, tables, titled, write_record
from fheat.bench.step import build_step
from fheat.bench.timing import Timer
from fheat.inference.windows import Windows
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput
from fheat.system.files import check_new_file

TINY = (32, 32, 32)
PAIR = ("fheat_seg/retired", "light_unetr")


@contextmanager
def quiet(what):
    yield lambda done, total: None


def record(**options):
    return run_plan(Plan(**{"patch": TINY, "rounds": 1, "models": PAIR} | options), "fheat bench", quiet)


@pytest.fixture(scope="module")
def window():
    return record(what="window")


@pytest.mark.slow
def test_schema(window):
    assert window["format"] == 1
    fields = "format command unit seed machine load precision rounds results not_available notes"
    assert list(window) == fields.split()
    assert window["rounds"] == {"window": 1}
    assert window["precision"] == {"window": "float32"}
    assert json.loads(json.dumps(window)) == window


@pytest.mark.slow
def test_window(window):
    found = window["results"]["window"]
    times = found["milliseconds"]
    assert list(times) == list(PAIR)
    assert found["ratio"] == {name: time / times[PAIR[0]] for name, time in times.items()}
    light = create_model("light_unetr", patch_size=TINY)
    assert found["macs"]["light_unetr"] == cost(light).macs
    assert found["parameters"]["light_unetr"] == sum(p.numel() for p in light.parameters())
    assert found["macs"][PAIR[0]] == cost(create_model("fheat_seg", patch_size=TINY)).rest


def test_growth():
    found = record(
        what="window",
        models=("fheat_seg/retired",),
        sizes=((32, 32, 32), (48, 48, 48)),
        batches=(1, 2),
        channels=(4, 16),
    )["results"]
    assert set(found) == {"sizes", "channels", "batches"}
    assert found["sizes"]["voxels"] == [32**3, 48**3]
    network = create_model("fheat_seg", patch_size=TINY)
    assert found["sizes"]["macs"] == {
        "fheat_seg/retired": [cost(network, (1, 1, side, side, side)).rest for side in (32, 48)]
    }
    for part, key in (("sizes", "exponent"), ("batches", "doubling")):
        assert all(len(times) == 2 and min(times) > 0 for times in found[part]["milliseconds"].values())
        assert set(found[part][key]) == {"fheat_seg/retired"}
    first, second = found["batches"]["milliseconds"]["fheat_seg/retired"]
    assert found["batches"]["doubling"]["fheat_seg/retired"] == {"1 to 2": second / first}
    assert found["channels"]["channels"] == [4, 16]


@pytest.mark.slow
def test_operator():
    found = record(what="operator")["results"]["operator"]
    gates = {(row["channels"], row["grid"]): row for row in found["gates"]}
    assert set(gates) >= {(24, "8x8x8"), (48, "4x4x4"), (96, "8x8x8"), (198, "2x2x2")}
    for row in found["gates"]:
        for name in ("forward", "with_backward"):
            times = row[name]["milliseconds"]
            assert row[name]["ratio"] == {method: time / times["product"] for method, time in times.items()}


def test_gate_grids_are_those_of_the_networks():
    found = gate_grids(((112, 112, 80),))
    assert found[24, (28, 28, 20)] == ["fheat_seg 112x112x80 enc1", "fheat_seg 112x112x80 dec1"]
    assert found[198, (8, 8, 6)] == ["fheat_seg_l 112x112x80 bottom"]
    assert len(found) == 7


def test_step():
    rows = record(what="step", models=("fheat_seg",), batch=1)["results"]["step"]
    assert [row["method"] for row in rows] == ["cse", "supervised"]
    for row in rows:
        assert row["per_second"]["fheat_seg"] == pytest.approx(1e3 / row["milliseconds"]["fheat_seg"])


def test_steps_do_the_same_work_every_time():
    """Losses are finite, the iteration counts on, and no gate moves."""
    model = create_model("fheat_seg", patch_size=TINY)
    step = build_step(Timer(), model, "cse", TINY, 1, iterations=3)
    for _ in range(3):
        step()
    assert int(step.iteration) == 3
    assert torch.isfinite(step.history).all()
    assert (step.history[:, 0] > 0).all()
    assert all(gate.strength.item() == pytest.approx(0.03, abs=1e-5) for gate in gates_of(model).values())


def test_scan_whole_and_in_part(monkeypatch):
    """Every run takes 10 ms on this clock: two of six windows stand for 30 ms."""
    monkeypatch.setattr(Timer, "times", lambda timer, runs, **how: dict.fromkeys(runs, 10.0))
    options = {"what": "scan", "scan": (48, 40, 32), "stride": (8, 8, 8), "batch": 2}
    whole = record(**options)["results"]["scan"]
    assert whole["windows"] == 3 * 2 * 1
    assert whole["scaled"] == {}
    assert whole["seconds"] == pytest.approx(dict.fromkeys(PAIR, 0.01))
    monkeypatch.setattr(Plan, "longest_scan", lambda plan: 0.0)
    cut = record(**options)
    part = cut["results"]["scan"]
    assert part["scaled"] == dict.fromkeys(PAIR, 2)
    assert part["seconds"] == pytest.approx(dict.fromkeys(PAIR, 0.03))
    assert "scaled from 2 windows" in tables(cut)


def test_the_part_of_a_scan_has_two_windows():
    windows = Windows((112, 112, 80), (18, 18, 4))
    assert part_shape((192, 142, 88), windows) == (130, 112, 80)
    assert part_shape((100, 142, 20), windows) == (100, 112, 20)


def test_bfloat16_is_what_the_network_sees():
    timer = Timer(precision="bfloat16")
    layer = torch.nn.Linear(4, 4)
    assert timer.forward(layer, torch.zeros(1, 4))().dtype == torch.bfloat16
    assert Timer().forward(layer, torch.zeros(1, 4))().dtype == torch.float32


def test_files(window, tmp_path):
    check_new_file(tmp_path / "new", RECORD)
    written = write_record(tmp_path / "new", window)
    assert [path.name for path in written] == ["bench.json", "bench.png"]
    assert json.loads(written[0].read_text()) == window
    assert written[1].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BadInput, match="exists already"):
        check_new_file(tmp_path / "new", RECORD)
    with pytest.raises(BadInput, match="is a file"):
        check_new_file(written[0], RECORD)


def test_without_matplotlib_there_is_no_picture(window, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert picture(window) is None
    assert [path.name for path in write_record(tmp_path / "bare", window)] == ["bench.json"]


def test_tables(window):
    text = tables(window | {"not_available": {"mednext": "no MONAI"}, "notes": ["a note"]})
    assert "window: 32x32x32, batch 1" in text
    assert f"{window['results']['window']['ratio']['light_unetr']:.2f} x" in text
    assert "mednext: not available (no MONAI)" in text
    assert "a note" in text
    assert "1 thread(s): ratios only" in text
    assert titled("t", ["a", "b"], [["long", "1"]]) == "t\n  a     b\n  long  1\n"


def test_a_method_is_timed_in_the_stage_that_a_run_ends_in():
    """The pre-training of BCP has no teacher, so its iterations take less time than those of the rest of a run."""
    step = build_step(Timer(), create_model("fheat_seg", patch_size=TINY), "bcp", TINY, 2, iterations=40)
    for _ in range(2):
        step()
    assert step.method.current_stage == 1
    assert (step.history[:2, [step.columns.index(name) for name in ("inward", "outward")]] > 0).all()

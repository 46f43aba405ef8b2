"""The numbers of the pages are rendered from stored results, and a page that differs is noticed."""

import re
import sys

import pytest
import render
from pages import TEXTS, study, timing
from pages.common import formatted, span, table
from results import ROOT, read_result

from fheat.studies.pairing import agreement
from fheat.training.runs import read_history


def test_pages_are_up_to_date(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["render.py", "--check"])
    assert render.main() == 0, str(capsys.readouterr())


def write(folder, text):
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_a_wrong_number_is_replaced_and_the_rest_stays(tmp_path):
    mark = "<!--value step-cuda: per_second: plain: .1f-->"
    page = write(tmp_path, f"It runs at {mark}99.9<!--/--> iterations per second.\n")
    speed = read_result("step-cuda").results["per_second"]["plain"]
    assert render.rendered(page) == f"It runs at {mark}{speed:.1f}<!--/--> iterations per second.\n"


def test_a_block_keeps_empty_lines_around_it(tmp_path):
    page = write(tmp_path, "Before\n\n<!--command simulation-cpu-->\n<!--/-->\n\nAfter\n")
    text = render.rendered(page)
    assert text == "Before\n\n<!--command simulation-cpu-->\n\n    fheat simulate\n\n<!--/-->\n\nAfter\n"
    assert render.rendered(write(tmp_path, text)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x <!--value nothing: a: .1f-->1<!--/-->", "there is no stored result nothing"),
        ("x <!--value step-cuda: per_hour: .1f-->1<!--/-->", "per_hour"),
        ("x\ny <!--text nonsense-->1<!--/-->", "line 2: nonsense"),
        ("<!--value step-cuda: per_second: plain: .1f-->1<!--/-->", "first word of a line"),
        ("x <!--value step-cuda: per_second: plain: .1f-->1", "no closing"),
    ],
)
def test_a_mark_that_cannot_be_rendered_is_named(tmp_path, text, says):
    with pytest.raises(render.MarkError, match=re.escape(says)):
        render.rendered(write(tmp_path, text))


def test_results_used_by_a_page(tmp_path):
    page = write(tmp_path, "x <!--text plain_minutes-->1<!--/--> [link](../benchmarks/results/sizes.json)")
    assert render.used_results(page) == {"step-cuda", "sizes"}


def test_equal_terms_show_whatever_networks_and_runtimes_are_stored(monkeypatch):
    own = "graph, fheat's kernels"
    results = {
        "window_ms": {
            "fheat_seg (la-4)": {"torch": 12.0, own: 2.0, "graph": 8.0},
            "segresnet (init_filters=24)": {"torch": 1200.0, own: 900.0, "graph": 1000.0},
            "light_unetr": {"torch": 6.0, own: 5.0},
        },
        "ratio": {
            "fheat_seg (la-4)": {"torch": 1.0, own: 1.0, "graph": 1.0},
            "segresnet (init_filters=24)": {"torch": 100.0, own: 450.0, "graph": 125.0},
            "light_unetr": {"torch": 0.5, own: 2.5},
        },
        "beside": {
            "segresnet (init_filters=24)": {"torch": 12.0, own: 2.0, "graph": 8.0},
            "light_unetr": {"torch": 12.0, own: 2.0},
        },
        "error": {"light_unetr": {"torch": 2e-3, own: 1e-3, "graph, bfloat16": 0.1}},
        "not_run": {"light_unetr / graph": "RuntimeError: no memory"},
    }
    head = read_result("equal-terms-cpu").model_copy(update={"results": results, "note": None})
    read = timing.stored_head
    monkeypatch.setattr(timing, "stored_head", lambda name: head if name == "equal-terms-cuda" else read(name))
    monkeypatch.setattr(timing, "stored", lambda name: timing.stored_head(name).results)
    table, own_words, error, not_run = timing.equal_terms("cuda").split("\n\n")
    assert table.splitlines() == [
        "| network | parameters | PyTorch | captured graph | captured graph, fheat's kernels |",
        "|---|---|---|---|---|",
        "| `fheat_seg` (la-4) | 974,632 | 1.00 (12 ms) | 1.00 (8.0 ms) | 1.00 (2.0 ms) |",
        "| `light_unetr` | 1,351,896 | 0.50 (6.0 against 12 ms) | not run | 2.50 (5.0 against 2.0 ms) |",
        "| `segresnet` (init_filters=24) | 10,574,186 | 100.0 (1,200 against 12 ms) | 125.0 (1,000 against 8.0 ms) "
        "| 450.0 (900 against 2.0 ms) |",
    ]
    assert "not on equal terms" in own_words
    assert error == "`light_unetr` by PyTorch is off by 0.002 of its largest output."
    assert not_run == "`light_unetr` was not run by captured graph: `RuntimeError: no memory`"
    assert timing.equal_terms_ratio("cuda", "segresnet (init_filters=24)", ".0f") == "100 to 125"
    assert timing.equal_terms("cuda", "segresnet").splitlines() == [
        "| network | parameters | PyTorch | captured graph |",
        "|---|---|---|---|",
        "| `fheat_seg` (la-4) | 974,632 | 1.00 (12 ms) | 1.00 (8.0 ms) |",
        "| `segresnet` (init_filters=24) | 10,574,186 | 100.0 | 125.0 |",
    ]
    assert timing.timed_networks("cuda") == f"3 of the {len(read_result('sizes').results['networks'])}"


def test_every_text_is_used_by_a_page():
    marks = "".join(page.read_text() for page in render.pages())
    used = set(re.findall(r"<!--text (\w+)", marks))
    inner = {"sign_counts", "white_noise", "probe_agreement"}  # used by other texts too
    assert set(TEXTS) - inner <= used


def test_formats():
    assert formatted(0.0357, ".1%") == "3.6"
    assert formatted(974632, ",") == "974,632"
    assert formatted(899_829_468, "giga") == "0.900"
    assert formatted(55_746_027_622, "giga") == "55.75"
    assert formatted(1_793_736_704, "GB") == "1.8"
    assert formatted(1_793_736_704, "MiB") == "1,711"
    assert span([0.25001, 0.25004], ".4f") == "0.2500"
    assert span([0.1, 0.2], ".1f") == "0.1 to 0.2"
    assert table(["a", "b"], [["1", ""]]) == "| a | b |\n|---|---|\n| 1 | |"


@pytest.mark.parametrize("errors", [0.0, 2.0])
def test_signs_are_counted_as_the_report_counts_them(errors):
    history = read_history(ROOT / "studies" / "runs" / "la-4-base")
    assert study.sign_counts("base", errors) == agreement(history, errors)

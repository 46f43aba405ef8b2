"""The page in a browser: it draws everything, asks for nothing, and fits a laptop and a phone, by day and by night."""

import shutil
from itertools import pairwise

import pytest

from fheat.report.write import write_report
from tests.report.browser import CHROMIUM, chromium
from tests.report.test_report import logged, probe, write_lines

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")

LAPTOP, PHONE = 1280, 390
FIGURES = """[...document.querySelectorAll("figure")].map(figure => ({
    caption: figure.querySelectorAll("figcaption").length === 1 && figure.querySelector("figcaption").innerText.length,
    plots: [...figure.querySelectorAll("svg")].map(plot => {
        const box = plot.getBoundingClientRect();
        const inside = [...plot.querySelectorAll("path, text")].filter(one => one.getBoundingClientRect().width > 0);
        return [box.width, box.height, inside.length, plot.getAttribute("aria-label").length];
    }),
    images: [...figure.querySelectorAll("img")].map(image =>
        [image.naturalWidth, image.getBoundingClientRect().width, image.getBoundingClientRect().height]),
}))"""
OUTSIDE = """[...document.querySelectorAll("body *:not(svg *)")].filter(one => !one.closest(".scroll > *")
    && one.getBoundingClientRect().right > %d.5).map(one => one.outerHTML.slice(0, 80))"""
# Lightness of a colour, 0 to 255, of the page's background, of text in plots, and of the lines.
LIGHTNESS = """(() => {
    const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).reduce((sum, one) => sum + +one, 0) / 3;
    const style = (selector, what) => [...document.querySelectorAll(selector)].map(one => getComputedStyle(one)[what]);
    return {
        paper: light(style("body", "backgroundColor")[0]),
        text: style("svg text", "fill").map(light),
        lines: style("#D path", "stroke").filter(one => one !== "none").map(light),
    };
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def report(finished, tmp_path_factory):
    """With all sections: the log of the finished run, probes put in, a mark."""
    lines = logged(finished)
    sites = [name[2:] for name in lines[0] if name.startswith("D.")]
    seen = {site: probe(site, pairing=(-1) ** n * 10.0**-n)["probe"][site] for n, site in enumerate(sites)}
    root = tmp_path_factory.mktemp("out")
    run = shutil.copytree(finished, root / "run")
    write_lines(run, {"iteration": 0, "probe": seen}, *lines, {"iteration": 6, "probe": seen})
    with open(run / "config.toml", "a") as settings:
        settings.write("noise_at = 3\n")
    return write_report(run, root / "page.html")


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
def test_everything_is_drawn_and_nothing_is_asked_for(browser, report, width):
    browser.open(report, width)
    assert browser.value("innerWidth") == width
    figures = browser.value(FIGURES)
    assert sum(len(one["plots"]) for one in figures) == 7
    assert sum(len(one["images"]) for one in figures) == 3
    for one in figures:
        assert one["caption"] > 20
        assert one["plots"] or one["images"]
        for across, high, inside, words in one["plots"]:
            assert across > 250
            assert high > 150
            assert inside > 20
            assert words > 20
        for natural, across, high in one["images"]:
            assert natural > 100
            assert min(across, high) > 100
    requests = [
        event["params"]["request"]["url"] for event in browser.events if event["method"].startswith("Network.requestW")
    ]
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]
    heard = {event["method"] for event in browser.events}
    assert "Page.loadEventFired" in heard
    assert not heard & {
        "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed",
    }  # fmt: skip


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
def test_nothing_is_wider_than_the_screen(browser, report, width):
    browser.open(report, width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(OUTSIDE % width) == []
    tables = browser.value('[...document.querySelectorAll(".scroll")].map(one => [one.clientWidth, one.scrollWidth])')
    assert tables
    assert all(own <= width for own, _ in tables)


def test_headings_are_in_order_and_pictures_have_words(browser, report):
    browser.open(report, LAPTOP)
    levels = browser.value('[...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map(one => +one.tagName[1])')
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.value("[...document.images].every(one => one.alt.length > 10)")
    assert browser.value("document.title") == "miniature, cse, seed 0"
    assert browser.value("document.documentElement.lang") == "en"


@pytest.mark.parametrize("dark", [False, True])
def test_plots_can_be_read_by_day_and_by_night(browser, report, dark):
    browser.open(report, LAPTOP, dark=dark)
    found = browser.value(LIGHTNESS)
    assert (found["paper"] < 60) == dark
    assert min(abs(one - found["paper"]) for one in found["text"]) > 150
    assert min(abs(one - found["paper"]) for one in found["lines"]) > 90


@pytest.fixture(scope="module")
def many_gates(finished, tmp_path_factory):
    """A page of a run with 14 gates whose names are paths of modules, twelve of them open."""
    sites = [f"body.decoder{stage}.conv_block.conv{place}.conv" for stage in range(7) for place in (1, 2)]
    run = shutil.copytree(finished, tmp_path_factory.mktemp("many") / "run")
    for part in ("best", "final"):
        shutil.rmtree(run / part)
    others = [
        {key: value for key, value in line.items() if key[:2] != "D." and key[:6] != "alpha."} for line in logged(run)
    ]
    values = {f"D.{site}": 0.0 if site in sites[:2] else 0.1 * n for n, site in enumerate(sites)}
    gates = values | {f"alpha.{site}": 0.4 for site in sites}
    seen = {site: probe(site, pairing=(-1) ** n * 10.0**-n)["probe"][site] for n, site in enumerate(sites)}
    steps = [line | gates if "total" in line else line for line in others]
    write_lines(run, {"iteration": 0, "probe": seen}, *steps, {"iteration": 6, "probe": seen})
    return write_report(run, scans=0)


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
def test_many_gates_with_long_names_fit(browser, many_gates, width):
    """Legends lie within their plots, and no list in a sentence goes on and on."""
    browser.open(many_gates, width)
    assert browser.value(OUTSIDE % width) == []
    cut = browser.value(
        """[...document.querySelectorAll("svg")].flatMap(plot => [...plot.querySelectorAll("text")].filter(one =>
        one.getBoundingClientRect().right > plot.getBoundingClientRect().right + 1).map(one => one.textContent))"""
    )
    assert cut == []
    longest = 'Math.max(...[...document.querySelectorAll("p, figcaption")].map(one => one.innerText.length))'
    assert browser.value(longest) < 900
    assert browser.value('document.querySelector(".summary").innerText').startswith(
        "2 of 14 gates closed for good; 12 kept D from 0.2000 to 1.3000;"
    )


def test_what_does_not_fit_or_is_asked_for_would_be_seen(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        '<!DOCTYPE html><meta name="viewport" content="width=device-width"><img src="gone.png">'
        '<p style="width: 900px">wide</p><script>console.error("no")</script>'
    )
    browser.open(page, PHONE)
    heard = {event["method"] for event in browser.events}
    assert {"Runtime.consoleAPICalled", "Network.loadingFailed"} <= heard
    assert len(browser.value(OUTSIDE % PHONE)) == 1
    assert browser.value("document.documentElement.scrollWidth") == 8 + 900

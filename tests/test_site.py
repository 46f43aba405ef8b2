"""The documentation site: it builds without a warning, repeats the code truly, and needs no network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reference
import site_files
from results import ROOT

import fheat
from fheat.cli import data
from fheat.cli.main import VERBS
from fheat.methods.registry import method_class
from fheat.networks.registry import model_options
from fheat.training.settings import TrainSettings

PROSE = re.search(r"^PROSE := (.+)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|prefetch|preconnect|icon|modulepreload|dns-prefetch))"""
    r"""[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
)


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_pages_are_up_to_date(name):
    assert (reference.FOLDER / name).read_text() == reference.PAGES[name](), "run make docs"


def reference_page(name):
    return (ROOT / "docs" / "reference" / name).read_text()


def test_every_public_name_has_a_section():
    headings = re.findall(r"^## `fheat\.(\w+)`$", reference_page("api.md"), re.M)
    assert headings == sorted(fheat.__all__)


def test_every_verb_has_a_section_with_its_options():
    page = reference_page("verbs.md")
    verbs = [verb for verb in VERBS if verb != "data"] + [f"data {verb}" for verb in data.VERBS]
    for verb in verbs:
        section = page.split(f"# `fheat {verb}`\n")[1].split("\n#")[0]
        assert "\n| option | default | meaning |\n" in section, verb
        assert f"\nfheat {verb}" in section or verb == "bench", f"{verb} has no example"
    assert "| `--plan-only` | |" in page
    assert "| `MODEL` | required |" in page


def test_every_setting_stands_in_the_table_with_its_default():
    page = reference_page("settings.md")
    for section, field in TrainSettings.model_fields.items():
        if section == "method":
            continue
        for name, one in field.annotation.model_fields.items():
            option = "DATA" if (section, name) == ("data", "folder") else f"--{section}.{name.replace('_', '-')}"
            row = re.search(rf"^\| `{re.escape(option)}` \|.*$", page, re.M)
            assert row, option
            assert one.description.split()[0] in row[0]
    for method in reference.own_methods():
        section = page.split(f"### Method {method}\n")[1].split("\n###")[0]
        for name in set(method_class(method).Settings.model_fields) - {"name"}:
            assert f"| `--method.{name.replace('_', '-')}` |" in section
    for network in reference.own_networks():
        section = page.split(f"### Network {network}\n")[1].split("\n###")[0]
        for name in model_options(network):
            assert f"| `--network.{name.replace('_', '-')}` |" in section
    assert "| `--optimiser.learning-rate` | `--learning-rate` | `0.01` |" in page


def test_spelling():
    command = [sys.executable, "-m", "codespell_lib"]
    done = subprocess.run([*command, *PROSE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    mistaken = subprocess.run([*command, "-"], cwd=ROOT, capture_output=True, text=True, input="a wrong speling\n")
    assert mistaken.returncode != 0


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site, built strictly into a folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_every_file_that_pages_lead_to(built):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (built / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page
    assert (built / "repository" / "benchmarks" / "results" / "blind.json").is_file()
    assert "onnxruntime" in (built / "repository" / "examples" / "segment_onnx.py.html").read_text()
    for page in built.rglob("*.html"):
        assert "<!--value" not in page.read_text()


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(built):
    pages = list(built.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert not LOADED.findall(page.read_text()), page
    for sheet in built.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", sheet.read_text()), sheet


def test_what_would_be_loaded_from_elsewhere_is_noticed():
    assert LOADED.search('<script async src="https://cdn.example.org/a.js">')
    assert LOADED.search('<link href="//fonts.example.org/a.css" rel="stylesheet">')
    assert not LOADED.search('<a href="https://example.org">a link that a reader may follow</a><script src="a.js">')


@pytest.mark.slow
def test_search_works_from_the_disk_and_asks_no_server(built, browser):
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((built / "index.html").as_uri())
    field = page.locator("input.md-search__input")
    page.wait_for_load_state()
    field.click()  # the index is read when somebody begins to search
    page.get_by_text("Type to start searching").wait_for(state="attached", timeout=60_000)
    field.press_sequentially("absorbing")
    page.locator(".md-search-result__link").first.wait_for(state="attached", timeout=60_000)
    assert "absorb" in page.locator(".md-search-result").text_content().lower()
    assert asked
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
    page.close()


def test_places_of_files_in_the_site():
    assert site_files.site_path(ROOT / "docs" / "how-to" / "ct.md") == "how-to/ct.md"
    assert site_files.site_path(ROOT / "examples" / "segment_onnx.py") == "repository/examples/segment_onnx.py.md"
    assert site_files.site_path(ROOT / "studies" / "claims") == "repository/studies/claims/index.md"
    text = "[a](../../examples/segment_onnx.py) [b](ct.md#intensities) [c](https://example.org) [d](missing.md)"
    moved = site_files.with_links_of_the_site(ROOT / "docs" / "how-to" / "index.md", text)
    assert moved == text.replace("../../examples/segment_onnx.py", "../repository/examples/segment_onnx.py.md")


def test_home_answers_the_questions_of_readers():
    """Each answer is one click away from the home page, and says what it must."""
    home = (ROOT / "docs" / "index.md").read_text()
    for link, says in {
        "how-to/ct.md": "## Does it fit my CT?",
        "concepts/operator.md#what-d-means": "## What D means",
        "how-to/add-a-method.md#a-loss-of-your-own": "## A loss of your own",
        "evidence/nnu-net.md": "nnU-Net itself has not been run here",
        "evidence/evidence.md#the-claims-that-do-not-hold-here": "## The claims that do not hold here",
    }.items():
        assert f"]({link})" in home
        assert says in (ROOT / "docs" / Path(link.partition("#")[0])).read_text()

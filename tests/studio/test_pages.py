"""The pages as files: nothing inline, nothing from elsewhere, nothing missing, and the viewer that was locked."""

import hashlib
import json
import re
from pathlib import Path

import pytest

import fheat

STATIC = Path(fheat.__file__).parent / "studio" / "static"
LOCK = Path(__file__).parents[2] / "tools" / "studio" / "package-lock.json"
PAGES = sorted(STATIC.glob("*.html"))
SCRIPTS = sorted(STATIC.glob("*.js"))
OURS = [*PAGES, *SCRIPTS, *sorted(STATIC.glob("*.css"))]
NIIVUE = "47b896b77ec4a5be3ef1949c33ad393b6f45629921f326c279000bcf51bdb4af"
"""sha256 of niivue.umd.js of @niivue/niivue 0.69.0."""


def names(paths):
    return [path.name for path in paths]


def test_there_are_four_pages():
    assert names(PAGES) == ["allocation.html", "dataset.html", "index.html", "runs.html"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_content_security_policy_finds_nothing_inline(page):
    text = page.read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    assert '<html lang="en">' in text
    assert 'name="viewport"' in text
    assert re.search(r'id="messages" role="alert" aria-live="assertive"', text)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path):
    text = path.read_text()
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses - {"http://www.w3.org/1999/xhtml"} == set()
    assert not re.search(r"\beval\(|new Function|innerHTML|insertAdjacentHTML|document\.write", text)


@pytest.mark.parametrize("path", [*PAGES, *SCRIPTS], ids=lambda path: path.name)
def test_every_file_that_is_named_is_there(path):
    text = path.read_text()
    named = [STATIC / name for name in re.findall(r'"/assets/([\w./-]+)"', text)]
    named += [path.parent / name for name in re.findall(r'from "(\./[\w.-]+)"', text)]
    assert [str(file) for file in named if not file.is_file()] == []


@pytest.mark.parametrize("script", ["segment", "runs", "allocation", "dataset"])
def test_every_element_that_a_script_finds_is_in_its_page(script):
    """`find` throws for an id that the page lacks; shared parts are built by stage.js and page.js."""
    page = (STATIC / f"{'index' if script == 'segment' else script}.html").read_text()
    built = (STATIC / "stage.js").read_text() if "stage.js" in (STATIC / f"{script}.js").read_text() else ""
    here = set(re.findall(r'\bid="([\w-]+)"', page)) | set(re.findall(r'(?:id: |button\(|slider\()"([\w-]+)"', built))
    wanted = set(re.findall(r'\bfind\("([\w-]+)"\)', (STATIC / f"{script}.js").read_text()))
    assert wanted
    assert wanted <= here


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_file_is_read_in_one_sitting(path):
    assert path.read_text().count("\n") <= 290


def test_the_viewer_is_the_locked_one():
    assert hashlib.sha256((STATIC / "vendor" / "niivue.umd.js").read_bytes()).hexdigest() == NIIVUE
    packages = json.loads(LOCK.read_text())["packages"]
    assert packages["node_modules/@niivue/niivue"]["version"] == "0.69.0"
    licences = (STATIC / "vendor" / "LICENCES.txt").read_text()
    for place, package in packages.items():
        if place and not package.get("optional"):
            assert f"\n{place.rpartition('node_modules/')[2]} {package['version']}\n" in licences
    assert "Copyright (c) 2021, Niivue" in licences

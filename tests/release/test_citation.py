"""CITATION.cff is valid by the rules of the Citation File Format 1.2.0, and states this version and this paper."""

import datetime
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from fheat import __version__

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
PAPER = CITATION["preferred-citation"]
TOP = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
    "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "title", "type", "url", "version",
}  # fmt: skip
"""Fields that the format allows at the top."""
PERSON = {
    "address", "affiliation", "alias", "city", "country", "email", "family-names", "fax", "given-names",
    "name-particle", "name-suffix", "orcid", "post-code", "region", "tel", "website",
}  # fmt: skip
ENTITY = {
    "address", "alias", "city", "country", "date-end", "date-start", "email", "fax", "location", "name", "orcid",
    "post-code", "region", "tel", "website",
}  # fmt: skip


def is_author(entry):
    """Return whether an entry is a person with a name, or an entity with a name, and has no other fields."""
    person = "family-names" in entry and entry.keys() <= PERSON
    entity = "name" in entry and entry.keys() <= ENTITY
    return (person or entity) and all(isinstance(value, str) and value.strip() for value in entry.values())


def test_required_fields_are_there_and_no_others():
    assert {"authors", "cff-version", "message", "title"} <= CITATION.keys() <= TOP
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    assert CITATION["authors"]
    assert all(map(is_author, CITATION["authors"]))
    assert len(set(CITATION["keywords"])) == len(CITATION["keywords"])


def test_version_date_and_licence_are_those_of_the_release():
    assert CITATION["version"] == __version__
    released = datetime.date.fromisoformat(CITATION["date-released"])
    assert f"## {__version__} ({released})\n" in (ROOT / "CHANGELOG.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert CITATION["license"] == project["license"]


def test_the_paper_is_the_one_that_the_readme_names():
    assert {"authors", "title", "type"} <= PAPER.keys()
    assert PAPER["type"] == "article"
    assert all(map(is_author, PAPER["authors"]))
    readme = " ".join((ROOT / "README.md").read_text().split())
    title, names = re.search(r"fheat implements \*(.*?)\* \((.*?)\)", readme).groups()
    assert PAPER["title"] == title
    assert " and ".join(f"{one['given-names']} {one['family-names']}" for one in PAPER["authors"]) == names


@pytest.mark.parametrize("entry", [{}, {"given-names": "A"}, {"family-names": ""}, {"name": "A", "given-names": "B"}])
def test_what_is_no_author_is_seen(entry):
    assert not is_author(entry)

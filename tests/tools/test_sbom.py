"""The bill of materials: its form, that nothing is missing, and that it is the same twice."""

import json
import re
from importlib.metadata import distribution, distributions

import pytest
import sbom
from lock import BUILD, RUN, Pin, read_pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sbom import bill, licences


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("sbom") / "dist" / "sbom.json"
    assert sbom.main(path) == 0
    return json.loads(path.read_text())


def test_it_has_the_form_of_cyclonedx(content):
    assert (content["bomFormat"], content["specVersion"], content["version"]) == ("CycloneDX", "1.6", 1)
    root = content["metadata"]["component"]
    version = distribution("fheat").version
    assert (root["type"], root["name"], root["purl"]) == ("application", "fheat", f"pkg:pypi/fheat@{version}")
    assert root["licenses"] == [{"expression": "Apache-2.0"}]
    references = [entry["bom-ref"] for entry in (root, *content["components"])]
    assert len(set(references)) == len(references)
    for entry in content["components"]:
        assert {"type", "bom-ref", "name", "version", "scope", "purl"} <= set(entry)
        assert (entry["type"], entry["bom-ref"]) == ("library", entry["purl"])
        assert re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.%]+", entry["purl"])
        assert entry["scope"] in ("required", "optional", "excluded")
        for reference in entry.get("externalReferences", ()):
            assert {"type", "url"} <= set(reference)
            assert all(re.fullmatch(r"[0-9a-f]{64}", one["content"]) for one in reference["hashes"])


def test_every_requirement_is_in_it_and_the_graph_has_no_loose_ends(content):
    by_name = {entry["name"]: entry for entry in content["components"]}
    for line in distribution("fheat").requires:
        requirement = Requirement(line)
        if requirement.marker is None:
            assert by_name[canonicalize_name(requirement.name)]["scope"] == "required", line
    known = {entry["bom-ref"] for entry in (content["metadata"]["component"], *content["components"])}
    assert {entry["ref"] for entry in content["dependencies"]} == known
    graph = {entry["ref"]: set(entry["dependsOn"]) for entry in content["dependencies"]}
    assert set().union(*graph.values()) <= known
    assert by_name["numpy"]["bom-ref"] in graph[content["metadata"]["component"]["bom-ref"]]
    assert by_name["numpy"]["bom-ref"] in graph[by_name["scipy"]["bom-ref"]]
    assert by_name["pytest"]["scope"] == "excluded"


def test_hashes_are_those_of_the_lock(content):
    locks = {**read_pins(BUILD), **read_pins(RUN)}
    for entry in content["components"]:
        if entry["name"] in locks:
            (reference,) = entry["externalReferences"]
            assert tuple(one["content"] for one in reference["hashes"]) == locks[entry["name"]].hashes
    (torch,) = (entry for entry in content["components"] if entry["name"] == "torch")
    assert "externalReferences" not in torch
    assert torch["properties"][0]["name"] == "fheat:held-by-version-only"


def test_the_order_of_the_packages_does_not_matter():
    packages = list(distributions())
    locks = {"numpy": Pin("1", "", ("a" * 64,))}
    assert json.dumps(bill(packages, locks)) == json.dumps(bill(packages[::-1], locks))


def test_extras_that_a_package_asks_for_count_as_its_requirements():
    packages = [
        Described(name="fheat", requires=["torch"]),
        Described(name="torch", requires=["cuda[blas]==7"]),
        Described(name="cuda", requires=["nv-blas==3.*; extra == 'blas'", "nv-fft; extra == 'fft'"]),
        Described(name="nv-blas"),
        Described(name="nv-fft"),
    ]
    scopes = {entry["name"]: entry["scope"] for entry in bill(packages, {})["components"]}
    assert scopes == {"torch": "required", "cuda": "required", "nv-blas": "required", "nv-fft": "excluded"}


class Described:
    version = "1.0"

    def __init__(self, name="", requires=(), **fields):
        self.name, self.requires, self.fields = name, requires, fields

    @property
    def metadata(self):
        return self

    def get(self, name):
        return self.fields.get(name)

    def __getitem__(self, name):
        return self.fields[name]

    def get_all(self, name):
        return self.fields.get(name)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License-Expression": "MIT", "License": "other"}, [{"expression": "MIT"}]),
        ({"Classifier": ["License :: OSI Approved :: MIT License"]}, [{"license": {"name": "MIT License"}}]),
        ({"License": "BSD"}, [{"license": {"name": "BSD"}}]),
        ({"License": "Copyright\nand so on"}, []),
        ({}, []),
    ],
)
def test_licences_are_what_a_package_says(fields, expected):
    assert licences(Described(**fields)) == expected

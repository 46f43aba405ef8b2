"""Nothing is lost: training, resuming, masks, allocation, cost and probe repeat what an earlier version computed."""

import json

import pytest

from tests.references.measure import STORED, machine, measure

ELSEWHERE = 2e-2
"""Relative difference that other processors may make after thirty iterations; each rounds its sums in its own way."""
NORM_ELSEWHERE = 0.5
"""The same for norms of gradients, which a batch of noise at the end of these short runs changes by a third."""


def numbers(tree, path=""):
    """Yield every number with its path. What has a name is found by it: a new network moves the places of others."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from numbers(value, f"{path}/{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            name = value.get("name", index) if isinstance(value, dict) else index
            yield from numbers(value, f"{path}/{name}")
    else:
        yield path, tree


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_results_are_those_of_the_version_before(tmp_path):
    stored = json.loads(STORED.read_text())
    before = {path: value for path, value in numbers(stored["values"]) if "/versions/" not in path}
    now = dict(numbers(json.loads(json.dumps(measure(tmp_path)))))
    missing = before.keys() - now.keys()
    assert not missing
    if machine() == stored["machine"]:
        assert {path: now[path] for path in before} == before
        return
    for path, value in before.items():
        if path.startswith(("/cse", "/resumed", "/supervised", "/cost")) and isinstance(value, float):
            room = NORM_ELSEWHERE if path.endswith("/norm") else ELSEWHERE
            assert now[path] == pytest.approx(value, rel=room, abs=1e-3), path
        elif path.startswith("/masks") and isinstance(value, int):
            assert now[path] == pytest.approx(value, rel=1e-3), path

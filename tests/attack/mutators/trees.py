"""Mutations of nested tables and lists, for JSON and TOML: other values, lost, renamed and doubled entries, depth."""

import copy
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**12, -(10**9), 2**63, 2**70, 10**30, 1.5, -0.0, 1e308, "inf", "nan", "", " ",
    "none", "../../outside", "/etc/hostname", "a\0b", "\x1b[31mred", "naïve ☃", "x" * 5000, [], [[]], {}, [1, 2, 3],
    ["a"], {"a": 1}, "1", "fheat_seg", [1e9], "\ud800", [0] * 300,
)  # fmt: skip
"""Values that are unusual somewhere. The texts `inf` and `nan` become such numbers half of the time."""
STEPS = ("value", "delete", "rename", "extra", "deep", "list", "double")


def draw_tree(random: Random) -> list[list[Any]]:
    """Return one or two steps for `apply_tree`; a place is a list of numbers, each taken modulo the entries there."""
    return [_step(random) for _ in range(random.choice((1, 1, 2)))]


def _step(random: Random) -> list[Any]:
    name = random.choice((*STEPS, "value", "value", "value"))
    place = [random.randrange(1000) for _ in range(random.choice((1, 2, 2, 3, 4, 5)))]
    number = random.choice((400, 20_000)) if name == "deep" else random.randrange(len(ODD))
    return [name, place, number, random.random() < 0.5]


def apply_tree(tree: Any, steps: list[list[Any]]) -> Any:
    """Return a mutated copy; steps that are not known here are passed over."""
    tree = copy.deepcopy(tree)
    for name, *arguments in steps:
        if name in STEPS:
            tree = _apply(tree, name, *arguments)
    return tree


def _apply(tree: Any, name: str, place: list[int], number: int, special: bool) -> Any:
    parent, key = _find(tree, place)
    if parent is None:
        return tree
    value = nested(number) if name == "deep" else copy.deepcopy(ODD[number % len(ODD)])
    if special and value in ("inf", "nan") and isinstance(value, str):
        value = float(value)
    match name:
        case "value" | "deep":
            parent[key] = value
        case "delete":
            del parent[key]
        case "rename" if isinstance(parent, dict):
            parent[f"{key}x" if special else str(key).upper()] = parent.pop(key)
        case "extra" if isinstance(parent, dict):
            parent["extra"] = value
        case "list":
            parent[key] = [parent[key], value]
        case "double" if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        case _:
            parent[key] = value
    return tree


def nested(depth: int) -> Any:
    """Return a marker for `depth` brackets in each other; Python itself could neither build nor write such a tree."""
    return f"@@deep{depth}@@"


def with_depth(text: str, opening: str = "[", closing: str = "]") -> str:
    """Return the text with the markers of `nested` replaced by brackets."""
    for depth in (400, 20_000):
        text = text.replace(f'"@@deep{depth}@@"', opening * depth + closing * depth)
    return text


def _find(tree: Any, place: list[int]) -> tuple[Any, Any]:
    """Return a container and the key in it that a place means, or None twice where there is none."""
    parent, key = None, None
    for number in place:
        if not isinstance(tree, dict | list) or not tree:
            break
        parent = tree
        key = sorted(tree, key=str)[number % len(tree)] if isinstance(tree, dict) else number % len(tree)
        tree = tree[key]
    return parent, key

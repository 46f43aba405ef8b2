"""Model folders: weights and descriptions with changed bytes, and with changes that their checksums agree to."""

import hashlib
import json
import struct
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import fheat
from tests import miniature
from tests.attack.kinds import Kind, Made, Recipe, Verdict, contradiction, doubtful, healthy
from tests.attack.mutators.raw import apply_raw, draw_raw
from tests.attack.mutators.trees import apply_tree, draw_tree, with_depth

WEIGHTS, MANIFEST = "model.safetensors", "model.json"
TYPES = ("F8_E4M3", "F8_E5M2", "BF16", "F16", "F64", "I64", "BOOL", "U8", "X99", "F32")
HEADER_STEPS = ("dtype", "shape", "offsets", "name", "metadata", "length")
BIG = (
    {"init_filters": 256}, {"init_filters": 10**6}, {"depth": 10**9}, {"width": 10**9}, {"kan_ratio": 10**7},
    {"dropout": 7},
)  # fmt: skip


def _know_network() -> None:
    """Register the network of the model, unless the process knows it."""
    if miniature.NAME not in fheat.list_models():
        miniature.register()


@cache
def base() -> tuple[bytes, dict[str, Any]]:
    """Return weights and description of a small healthy model."""
    _know_network()
    with tempfile.TemporaryDirectory() as scratch:
        folder = fheat.save(fheat.create_model("miniature", patch_size=(16, 16, 16)), Path(scratch) / "model")
        return (folder / WEIGHTS).read_bytes(), json.loads((folder / MANIFEST).read_bytes())


def sign(weights: bytes, description: Any) -> bytes:
    """Return the description as its file, with checksums that agree with everything."""
    try:
        description["sha256"] = {WEIGHTS: hashlib.sha256(weights).hexdigest(), MANIFEST: ""}
        description["sha256"][MANIFEST] = hashlib.sha256(_text(description)).hexdigest()
    except (TypeError, KeyError, ValueError):
        pass
    return _text(description)


def _text(description: Any) -> bytes:
    text = json.dumps(description, indent=1, sort_keys=True) + "\n"
    return with_depth(text).encode(errors="surrogatepass")


def _draw_weights(random: Random) -> Recipe:
    chance = random.random()
    if chance < 0.04:
        return {"base": {}, "steps": []}
    if chance < 0.4:
        return {"base": {}, "steps": draw_raw(random)}
    if chance < 0.6:
        return {"base": {"signed": True}, "steps": draw_raw(random)}
    entry = random.randrange(1000)
    step = random.choice(
        (
            ["dtype", entry, random.choice(TYPES)],
            ["shape", entry, random.choice(([], [0], [1], [2**40], [-1], [2**62, 4], ["a"], [1.5], 3))],
            ["offsets", entry, random.choice(([0, 0], [0, 2**60], [-4, 0], [8, 4], [0], "x", [0, 4]))],
            ["name", entry, random.choice(("", "stem", "../x", "\x1b[31m", "__metadata__"))],
            ["length", 0, random.choice((0, 1, 8, 2**31, 2**63, 2**64 - 1))],
            ["metadata", 0, random.choice(({"a": 1}, {"a": "b"}, [], "x"))],
        )
    )
    return {"base": {"signed": True}, "steps": [step]}


def _draw_description(random: Random) -> Recipe:
    chance = random.random()
    if chance < 0.3:
        return {"base": {}, "steps": draw_raw(random)}
    if chance < 0.36:
        step = ["network", random.choice(("fheat_seg", "light_unetr", "swin_unetr", "unetr", "vnet", "nonsense"))]
        return {"base": {"signed": True}, "steps": [[*step, random.randrange(len(BIG))]]}
    return {"base": {"signed": True}, "steps": draw_tree(random)}


def _with_header(weights: bytes, step: list[Any]) -> bytes:
    name, entry, value = step
    (length,) = struct.unpack_from("<Q", weights)
    header, data = json.loads(weights[8 : 8 + length]), weights[8 + length :]
    key = sorted(header)[entry % len(header)]
    if name in ("dtype", "shape"):
        header[key][name] = value
    elif name == "offsets":
        header[key]["data_offsets"] = value
    elif name == "name":
        header[value] = header.pop(key)
    elif name == "metadata":
        header["__metadata__"] = value
    text = json.dumps(header).encode()
    return struct.pack("<Q", value if name == "length" else len(text)) + text + data


def _make_weights(recipe: Recipe, folder: Path) -> Made:
    weights, description = base()
    structured = [step for step in recipe["steps"] if step[0] in HEADER_STEPS]
    changed = _with_header(weights, structured[0]) if structured else apply_raw(weights, recipe["steps"])
    text = _text(description)
    verdict: Verdict = healthy(True)
    if changed != weights:
        verdict = doubtful("the file is another one, and its checksum says so too")
        if not recipe["base"].get("signed"):
            verdict = contradiction("the checksum differs")
    if recipe["base"].get("signed"):
        text = sign(changed, json.loads(json.dumps(description)))
    return Made({f"model/{WEIGHTS}": changed, f"model/{MANIFEST}": text}, verdict)


def _make_description(recipe: Recipe, folder: Path) -> Made:
    weights, description = base()
    text = _text(description)
    steps = recipe["steps"]
    if not recipe["base"].get("signed"):
        changed = apply_raw(text, steps)
        verdict = healthy(True) if changed == text else contradiction("the checksum differs")
        return Made({f"model/{WEIGHTS}": weights, f"model/{MANIFEST}": changed}, verdict)
    tree = apply_tree(description, steps)
    verdict = doubtful("the description is another one, and its checksum says so too")
    if steps[0][0] == "network":
        tree["network"] |= {"name": steps[0][1], "options": BIG[steps[0][2]]}
        verdict = contradiction("the weights belong to another network")
    return Made({f"model/{WEIGHTS}": weights, f"model/{MANIFEST}": sign(weights, tree)}, verdict)


def _load(folder: Path) -> Any:
    _know_network()
    return fheat.load(folder / "model")


def _agrees(found: Any, expected: Any) -> bool:
    """Return whether the network has the stored weights."""
    (length,) = struct.unpack_from("<Q", base()[0])
    stored = json.loads(base()[0][8 : 8 + length])
    return set(found.state_dict()) == set(stored) - {"__metadata__"}


KINDS = (
    Kind("weights", _draw_weights, _make_weights, _load, _agrees, weight=2),
    Kind("model.json", _draw_description, _make_description, _load, _agrees, weight=3),
)

"""Splits as data: the official lists in their order, or this project's rule where the paper names none."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

TEST, VALIDATION, TRAIN = "test", "validation", "train"


@dataclass(frozen=True)
class Split:
    """Ids in the order that defines the labelled subsets. Validation is part of `order`; an official one is not."""

    order: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    labelled: tuple[int, ...]
    """Sizes of the labelled subsets: the first N of `order`."""
    origin: str
    validation_origin: str
    official: bool

    @property
    def ids(self) -> tuple[str, ...]:
        """Every id once, in order."""
        return tuple(dict.fromkeys((*self.order, *self.validation, *self.test)))

    def to_json(self, available: Sequence[str], unlabelled: Sequence[str]) -> dict[str, Any]:
        """Return `splits.json` of the cases that are there; the subsets are cut before what is missing drops out.

        `labelled_N` are the first N, `unlabelled_N` the rest of `order` without the validation cases, `unlabelled` the
        cases that have no label at all.
        """
        there = set(available)

        def kept(ids: Sequence[str]) -> list[str]:
            return [name for name in ids if name in there]

        held_out = set(self.validation)
        result: dict[str, Any] = {"origin": self.origin, "validation_origin": self.validation_origin}
        result |= {"order": kept(self.order), "validation": kept(self.validation), "test": kept(self.test)}
        for count in self.labelled:
            result[f"labelled_{count}"] = kept(self.order[:count])
            result[f"unlabelled_{count}"] = kept([name for name in self.order[count:] if name not in held_out])
        if unlabelled:
            result["unlabelled"] = list(unlabelled)
        return result


def split_of(name: str, ids: Sequence[str]) -> Split:
    """Return the split of a recipe: the official one whatever `ids`, or this project's rule applied to each of them."""
    facts = json.loads((files("fheat.data.recipes") / "splits" / f"{name}.json").read_text())
    if "train" not in facts:
        return _by_rule(facts, sorted(ids))
    train = tuple(facts["train"])
    last = facts.get("validation_last", 0)
    return Split(
        order=train,
        validation=tuple(facts.get("validation", train[len(train) - last :])),
        test=tuple(facts["test"]),
        labelled=tuple(facts["labelled"]),
        origin=facts["source"],
        validation_origin=facts["validation_rule"],
        official=True,
    )


def _by_rule(facts: dict[str, Any], ids: Sequence[str]) -> Split:
    """Place each id by its own hash, so that a case never changes sides when others are added or refused."""
    place = {name: _unit(facts["name"], name) for name in ids}
    test, held_out = facts["test_below"], facts["validation_below"]
    return Split(
        order=tuple(name for name in ids if place[name] >= test),
        validation=tuple(name for name in ids if test <= place[name] < held_out),
        test=tuple(name for name in ids if place[name] < test),
        labelled=(),
        origin=facts["source"],
        validation_origin=facts["source"],
        official=False,
    )


def _unit(name: str, case: str) -> float:
    digest = hashlib.sha256(f"{name}/{case}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32

"""Splits of a dataset: the official lists in their order, or a rule of this project if there is no official split."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

TEST, VALIDATION, TRAIN = "test", "validation", "train"


@dataclass(frozen=True)
class Split:
    """A split; `order` defines the labelled subsets and contains the validation ids, unless those are official too."""

    order: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    labelled: tuple[int, ...]
    """Sizes N of the labelled subsets, which are the first N of `order`."""
    origin: str
    validation_origin: str
    official: bool

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, each once, in order."""
        return tuple(dict.fromkeys((*self.order, *self.validation, *self.test)))

    def to_json(self, available: Sequence[str], unlabelled: Sequence[str]) -> dict[str, Any]:
        """Return the content of `splits.json`, with the available cases only.

        `labelled_N` are the first N of `order`, `unlabelled_N` the others without the validation cases, and
        `unlabelled` the cases that have no label at all. N counts missing cases too, which are removed last.
        """
        present = set(available)

        def kept(ids: Sequence[str]) -> list[str]:
            return [name for name in ids if name in present]

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
    """Return the split of a recipe: the official one, whatever `ids` are, or the split of `ids` by our rule."""
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
    """Assign each id by its own hash, so that it stays in its split when other cases are added or refused."""
    position = {name: _unit(facts["name"], name) for name in ids}
    test, held_out = facts["test_below"], facts["validation_below"]
    return Split(
        order=tuple(name for name in ids if position[name] >= test),
        validation=tuple(name for name in ids if test <= position[name] < held_out),
        test=tuple(name for name in ids if position[name] < test),
        labelled=(),
        origin=facts["source"],
        validation_origin=facts["source"],
        official=False,
    )


def _unit(name: str, case: str) -> float:
    digest = hashlib.sha256(f"{name}/{case}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32

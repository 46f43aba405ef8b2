"""The claims of the paper as data: `studies/claims/*.toml`, one file per part of the paper, in the order of the names.

Each claim says what the paper asserts and prints, which command tests it, what was found here, and a verdict. A number
in braces, `{sizes: networks: fheat_seg: 112x112x80: parameters: ,}`, is read from a stored result; so is the left side
of every check. The verdict stands as long as all of its checks are true, so a stored result that changes breaks it.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from results import ROOT

from pages.common import formatted, stored_value

CLAIMS = ROOT / "studies" / "claims"
Verdict = Literal[
    "holds", "holds with a difference", "does not hold here", "not testable without the data", "not run yet"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
OPEN: tuple[Verdict, ...] = ("not testable without the data", "not run yet")
"""Verdicts that judge nothing yet."""
Basis = Literal["measured", "printed", "read"]
"""What a verdict rests on: a measurement, arithmetic with the paper's own numbers, or reading its text and sources."""
PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
Lookup = Callable[[str], Any]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Check(_Data):
    """A statement about one stored value: it equals something (within a tolerance), or lies within bounds."""

    value: str
    """Name of a stored result and the keys that lead to the value, separated by colons."""
    equals: Any = None
    tolerance: float = Field(default=0.0, ge=0)
    within: tuple[float, float] | None = None
    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if len(self._said()) != 1:
            raise ValueError(f"{self.value}: give one of equals, within, at_most and at_least")
        if self.tolerance and self.equals is None:
            raise ValueError(f"{self.value}: a tolerance belongs to equals")
        return self

    def _said(self) -> dict[str, Any]:
        kinds = {"equals": self.equals, "within": self.within, "at_most": self.at_most, "at_least": self.at_least}
        return {kind: wanted for kind, wanted in kinds.items() if wanted is not None}

    def is_true_of(self, found: Any) -> bool:
        """Return whether the statement is true of a value."""
        ((kind, wanted),) = self._said().items()
        if kind == "within":
            return bool(wanted[0] <= found <= wanted[1])
        if kind == "at_most":
            return bool(found <= wanted)
        if kind == "at_least":
            return bool(found >= wanted)
        return bool(found == wanted if not self.tolerance else abs(found - wanted) <= self.tolerance)

    def __str__(self) -> str:
        ((kind, wanted),) = self._said().items()
        return f"{self.value} {kind} {wanted}" + (f" +- {self.tolerance}" if self.tolerance else "")


class Claim(_Data):
    """One claim of the paper and what became of it."""

    id: str = Field(pattern=r"^C\d\d$")
    section: str
    claim: str = Field(pattern=r"\.$")
    """What the paper asserts, in one sentence of our own."""
    published: str = ""
    """The numbers that the paper prints for it."""
    command: str = ""
    """The command that tests it; empty where only reading does."""
    measured: str = ""
    """What was found here, with stored values in braces."""
    verdict: Verdict
    basis: Basis | None = None
    reason: str = Field(pattern=r"\.$")
    """Why the verdict is what it is."""
    remark: str = ""
    """What is unclear or contradictory in the claim itself."""
    checks: tuple[Check, ...] = ()

    @model_validator(mode="after")
    def _verdict_rests_on_something(self) -> Self:
        if self.verdict in OPEN:
            if self.basis is not None:
                raise ValueError(f"{self.id}: {self.verdict} rests on nothing yet")
        elif self.basis is None:
            raise ValueError(f"{self.id}: say what the verdict rests on")
        elif self.basis != "read" and not (self.checks and PLACEHOLDER.search(self.measured)):
            raise ValueError(f"{self.id}: a verdict about numbers needs stored numbers and checks")
        if bare := re.search(r"\d\.\d", PLACEHOLDER.sub("", self.measured)):
            raise ValueError(f"{self.id}: {bare[0]} in `measured` is not read from a stored result")
        return self

    def results(self) -> list[str]:
        """Return the names of the stored results that the claim uses."""
        texts = " ".join((self.measured, self.reason, self.remark))
        used = [*PLACEHOLDER.findall(texts), *(check.value for check in self.checks)]
        return list(dict.fromkeys(name.split(": ")[0] for name in used))


class Part(_Data):
    """A part of the paper with its claims."""

    title: str
    text: str = ""
    """What a newcomer should know before reading the claims."""
    claims: tuple[Claim, ...]


def read_parts() -> dict[str, Part]:
    """Return the parts of the paper in order, by the name of their file."""
    paths = sorted(CLAIMS.glob("*.toml"))
    parts = {path.stem: Part.model_validate(tomllib.loads(path.read_text())) for path in paths}
    ids = Counter(claim.id for part in parts.values() for claim in part.claims)
    if twice := [name for name, count in ids.items() if count > 1]:
        raise ValueError(f"claims that are there twice: {', '.join(twice)}")
    return parts


def read_claims() -> list[Claim]:
    """Return all claims in the order of the paper."""
    return [claim for part in read_parts().values() for claim in part.claims]


def filled(text: str) -> str:
    """Return a text with every stored value in its place."""

    def value(found: re.Match[str]) -> str:
        path, spec = found[1].rsplit(": ", 1)
        return formatted(stored_value(path), spec.strip())

    return PLACEHOLDER.sub(value, text)


def contradictions(claims: list[Claim], lookup: Lookup = stored_value) -> list[str]:
    """Return one line for every check that is not true of the stored results."""
    lines = []
    for claim in claims:
        for check in claim.checks:
            try:
                found = lookup(check.value)
            except (KeyError, IndexError, OSError) as error:
                lines.append(f"{claim.id}: {check.value} is not stored ({error})")
                continue
            if not check.is_true_of(found):
                lines.append(f"{claim.id} is said to be '{claim.verdict}', but {check} is not true of {found}")
    return lines

"""How an item becomes tables and figures, one file for each kind of item."""

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from fheat.experiments.items.presented import Presented
from fheat.experiments.plan import Plan
from fheat.experiments.records import Item
from fheat.experiments.results import RowResult


class _Presenter(Protocol):
    """What each file of this folder defines."""

    def present(self, item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
        """Return the tables and figures of an item; rows that are not done are shown without numbers of ours."""


def present(item: Item, results: Sequence[RowResult], plan: Plan) -> Presented:
    """Return the tables and figures of an item of any kind."""
    file = import_module(f"fheat.experiments.items.{item.kind.replace(' ', '_')}")
    return cast(_Presenter, file).present(item, results, plan)

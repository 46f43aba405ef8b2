"""The paper as data: every table and figure is an item with rows, and every row says what to train and what came out.

    item("table2").row("la-4/fheat-seg").published["dice"]    Published(mean=90.47, sd=0.21)

The files lie in `experiments/paper`: one per item, and three that items share. `datasets.toml` has the datasets with
their windows, `settings.toml` pairs a dataset with a number of labels, and `systems.toml` says which network is trained
with which method and options. A row is a system in a setting.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from fheat.inference.windows import PRESETS
from fheat.system.settings import Section, Triple, nearest

ITEMS: Final = (
    *(f"table{number}" for number in range(1, 7)),
    *(f"fig{number}" for number in range(1, 10)),
    "section5",
    "methods",
)
"""Names of all items, in the order in which they are shown."""
DEFAULT_METHOD: Final = "cse"
"""Method of a system that names none: the protocol of the paper."""
Kind = Literal[
    "scores", "allocation", "tradeoff", "diagram", "simulation", "port", "dynamics", "attention", "contrast", "planes",
    "open points",
]  # fmt: skip
"""Kind of content that an item shows; `fheat.experiments.items` says how each is shown."""


class Published(NamedTuple):
    """A number that the paper prints, with its standard deviation where it prints one."""

    mean: float
    sd: float | None = None


def _as_published(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value, None)


Value = Annotated[Published, BeforeValidator(_as_published)]


class PaperDataset(Section):
    """A dataset of the paper: its recipe, how it is prepared, and the windows of training and scoring."""

    title: str
    recipe: str
    """Name in `fheat.data.recipes`, which has its channels and classes."""
    prepare: str
    """Command that prepares it."""
    preset: str | None = None
    """Name of published windows; without one, `patch_size` and `stride` are given."""
    patch_size: Triple | None = None
    stride: Triple | None = None
    largest_component: bool = False
    """Whether only the largest component of each class is scored."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every run on it, by dotted name."""
    few_labels: dict[str, Any] = Field(default_factory=dict)
    """Settings besides, of every run with few labels by a method other than CSE."""
    note: str = ""

    @model_validator(mode="after")
    def _has_windows(self) -> Self:
        if (self.preset is None) == (self.patch_size is None) or (self.patch_size is None) != (self.stride is None):
            raise ValueError("give either a preset, or patch_size and stride")
        return self

    @property
    def windows(self) -> tuple[Triple, Triple]:
        """Size and stride of the sliding window."""
        if self.patch_size is not None and self.stride is not None:
            return self.patch_size, self.stride
        preset = PRESETS[str(self.preset)]
        return preset.size, preset.stride


class System(Section):
    """The subject of a row of the paper: a network of this package, or a program that somebody else makes."""

    system: str
    title: str
    network: str = ""
    through: str = ""
    """The verb that runs a program of somebody else, and the page about it; empty for a network."""
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if bool(self.network) == bool(self.through):
            raise ValueError("give either a network, or through")
        return self

    @property
    def outside(self) -> str:
        """Why a program of somebody else is neither trained nor counted here; empty for a network."""
        return f"a program of your own: {self.through}" if self.through else ""


class Row(System):
    """One row of an item: what is trained on what, and the published numbers by column.

    A column is a metric, averaged over the classes, or `metric.class`. Dice, Jaccard and shares are in per cent,
    distances in voxels. Options are settings by dotted name; their iterations are those of a run of full length.
    """

    setting: str
    dataset: str
    labels: PositiveInt | None = None
    """Number of training scans whose labels are used; all of them if None."""
    method: str = DEFAULT_METHOD
    seeds: tuple[int, ...] = (0,)
    published: dict[str, Value] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name within the item, such as la-4/fheat-seg."""
        return f"{self.setting}/{self.system}"

    @property
    def network_options(self) -> dict[str, Any]:
        """Those of its options that are the network's, by the names that `create_model` takes."""
        return _network_options(self.options)


class CostRow(System):
    """A network whose parameters (M) and multiply-adds (G) are counted; `macs_open` is with all gates open.

    Options are those of the network, by the names that `create_model` takes.
    """

    patch_size: Triple
    published: dict[Literal["macs", "macs_open", "parameters"], float]
    reason: str = ""
    """Why our counts differ from the published ones, in one line; empty where they agree within 2 %."""


class Item(Section):
    """A table or figure of the paper."""

    name: str
    title: str
    kind: Kind
    note: str = ""
    columns: tuple[str, ...] = ()
    """Metrics that are shown; rows of several classes show those of their published numbers."""
    reference: str | None = None
    """System that the others of its setting are compared with, scan by scan."""
    rows: tuple[Row, ...] = ()
    costs: tuple[CostRow, ...] = ()
    dataset: str | None = None
    """Dataset that is measured without training."""
    published: dict[str, Value] = Field(default_factory=dict)
    """Published numbers that belong to no row."""

    def row(self, name: str) -> Row:
        """Return the row of a name such as la-4/fheat-seg."""
        for row in self.rows:
            if row.name == name:
                return row
        known = [row.name for row in self.rows]
        raise KeyError(f"{self.name} has no row {name!r}{nearest(name, known)}")


@cache
def items() -> dict[str, Item]:
    """Return all items of the paper by name."""
    systems, settings = _read("systems"), _read("settings")
    read: dict[str, Item] = {}
    for name in ITEMS:
        read[name] = make_item(name, _read(name), systems, settings, read)
    return read


@cache
def datasets() -> dict[str, PaperDataset]:
    """Return all datasets of the paper by name."""
    return {name: PaperDataset.model_validate(content) for name, content in _read("datasets").items()}


def item(name: str) -> Item:
    """Return one item, or raise `ValueError` that names the nearest one."""
    if name not in ITEMS:
        raise ValueError(f"no item {name!r}{nearest(name, ITEMS)}: use {', '.join(ITEMS)}")
    return items()[name]


def make_item(
    name: str,
    content: Mapping[str, Any],
    systems: Mapping[str, Any],
    settings: Mapping[str, Any],
    earlier: Mapping[str, Item],
) -> Item:
    """Return the item that a file describes, its rows complete.

    Args:
        name: name of the item.
        content: content of its file. `rows` has the published numbers by setting and system; `uses` takes rows of
            an earlier item instead; `method` and `seeds` are those of all rows.
        systems: what is trained, by name.
        settings: datasets with their number of labels, by name.
        earlier: the items that `uses` may name.
    """
    values = dict(content)
    common = {field: values.pop(field) for field in ("method", "seeds") if field in values}
    rows: list[Any] = [
        {**systems[system], **settings[setting], **common, "setting": setting, "system": system, "published": numbers}
        for setting, by_system in values.pop("rows", {}).items()
        for system, numbers in by_system.items()
    ]
    if "uses" in values:
        uses = values.pop("uses")
        rows += [row for row in earlier[uses["item"]].rows if row.setting in uses["settings"]]
        values.setdefault("columns", earlier[uses["item"]].columns)
    costs = values.pop("costs", {"rows": {}})
    counted = [
        _cost_row(systems[system], system, numbers, costs["patch_size"])
        | {"reason": costs.get("reasons", {}).get(system, "")}
        for system, numbers in costs["rows"].items()
    ]
    return Item.model_validate({**values, "name": name, "rows": rows, "costs": counted})


def _cost_row(system: Mapping[str, Any], name: str, numbers: Mapping[str, float], patch_size: Any) -> dict[str, Any]:
    """Return the fields of a cost row: of the options only those of the network count."""
    named = {field: value for field, value in system.items() if field in ("title", "network", "through")}
    options = _network_options(system.get("options", {}))
    return {**named, "options": options, "system": name, "patch_size": patch_size, "published": numbers}


def _network_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("network."): value for name, value in options.items() if name.startswith("network.")}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("fheat.experiments") / "paper" / f"{name}.toml").read_text("utf-8"))

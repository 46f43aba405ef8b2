"""Plan of a reproduction: where the datasets of the paper lie, where results go, and which runs are wanted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from fheat.data.layouts import open_dataset
from fheat.experiments.phantoms import paper_phantoms
from fheat.experiments.records import PaperDataset, Row, datasets
from fheat.methods.registry import method_class
from fheat.system.errors import BadInput
from fheat.system.files import check_folder
from fheat.system.progress import Progress, silent
from fheat.system.settings import nearest
from fheat.training.settings import ScheduleSettings

ITERATIONS: Final = "schedule.iterations"
FULL: Final = ScheduleSettings().iterations
"""Number of iterations of a run of full length, that of the paper."""
PHANTOMS: Final = "phantoms"
"""Word that is given as data, instead of folders, for synthetic scans."""
Scale = Literal["full", "tiny"]
_SMALLEST: Final[dict[str, dict[str, Any]]] = {
    "dynunet": {"network.filters": [8, 8, 8, 8, 8]},
    "segresnet": {"network.init_filters": 8},
    "swin_unetr": {"network.feature_size": 12},
}
"""Options that make a network of other packages as small as it can be."""
_ONE_VOXEL = ("light_unetr", "light_unetr_l", "segformer3d", "fheat_segformer3d", "amber_afno")
"""Networks with a batch norm over a single voxel of each tiny crop, which needs two crops to be trained."""


@dataclass(frozen=True)
class Tiny:
    """Sizes with which every row runs in about a second on a CPU, on scans of one patch; the numbers mean nothing."""

    patch_size: tuple[int, int, int] = (32, 32, 32)
    iterations: int = 2
    labels: int = 2

    def options(self, network: str, method: str) -> dict[str, Any]:
        """Return a batch that network and method can be trained with, few batches to probe, and small options."""
        batch = max(2 if network in _ONE_VOXEL else 1, method_class(method).smallest_batch)
        return {"data.batch": batch, "research.probe_batches": 2, **_SMALLEST.get(network, {})}


@dataclass(frozen=True)
class Plan:
    """Plan of a reproduction: its data, its folder for results, and its runs; made by `make_plan`."""

    data: Mapping[str, Path]
    """Folder of each dataset that is given."""
    out: Path
    seeds: tuple[int, ...] | None = None
    """Seeds of every row; those of the record if None."""
    iterations: int | None = None
    """Number of iterations of a run of the paper's length; a method with a length of its own has as large a share."""
    tiny: Tiny | None = None
    device: str | None = None

    @property
    def runs(self) -> Path:
        """Folder of all runs."""
        return self.out / "runs"

    @property
    def length(self) -> int:
        """Number of iterations of a run of the paper's length."""
        return self.iterations or (FULL if self.tiny is None else self.tiny.iterations)

    def length_of(self, row: Row) -> int:
        """Return the number of iterations of a row's runs: of a method with a number of its own, as large a share."""
        return max(round(full_length(row) * self.length / FULL), min(self.length, 2))

    def seeds_of(self, row: Row) -> tuple[int, ...]:
        """Return the seeds with which a row is trained."""
        if self.seeds is not None:
            return self.seeds
        return row.seeds if self.tiny is None else row.seeds[:1]

    def patch_and_stride(self, dataset: PaperDataset) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return the windows of a dataset, or the tiny ones."""
        return dataset.windows if self.tiny is None else (self.tiny.patch_size, self.tiny.patch_size)


def full_length(row: Row) -> int:
    """Return the number of iterations of a row's runs where they are not shortened."""
    return int(row.options.get(ITERATIONS, FULL))


def make_plan(
    data: Sequence[str] | Mapping[str, str | Path] = (),
    out: str | Path = "reproduced",
    *,
    seeds: Sequence[int] | None = None,
    iterations: int | None = None,
    scale: Scale = "full",
    device: str | None = None,
    progress: Progress = silent,
) -> Plan:
    """Return a plan for all items, or raise `BadInput`.

    Args:
        data: datasets as `NAME=FOLDER`, a folder that holds them, or a mapping from name to folder; `["phantoms"]`
            makes synthetic scans, which `scale="tiny"` needs.
        out: folder for runs and results.
        seeds: seeds of every row instead of those of its record.
        iterations: length of runs instead of the paper's; a method with a length of its own has as large a share.
        scale: `tiny` runs every row in about a second on synthetic scans, to see that everything works.
        device: `cpu` or `cuda`; a GPU where there is one.
        progress: called after each synthetic dataset.
    """
    folder = Path(out)
    check_folder(folder, writable=False)
    given = [f"{name}={path}" for name, path in data.items()] if isinstance(data, Mapping) else list(data)
    if (given == [PHANTOMS]) != (scale == "tiny"):
        raise BadInput("--data phantoms", "and --scale tiny belong together", "give both, or neither")
    if iterations is not None and iterations < 2:
        raise BadInput("--iterations", f"is {iterations}", "give 2 or more")
    chosen = None if seeds is None else tuple(dict.fromkeys(seeds))
    if scale == "tiny":
        found = paper_phantoms(folder / PHANTOMS, progress)
        return Plan(found, folder, chosen, iterations, Tiny(), device)
    return Plan(locate(given), folder, chosen, iterations, None, device)


def locate(given: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each dataset that is given, or raise `BadInput`; an empty one is no folder.

    Each entry is `NAME=FOLDER`, where the name is that of a dataset of the paper or of its recipe in any spelling
    (la, LA, brats, BRATS2019), or a folder that holds folders with such names.
    """
    found: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not (folder if equals else name):
            raise BadInput(f"--data {text}".rstrip(), "names no folder", "give NAME=FOLDER")
        named = {_dataset(name): Path(folder)} if equals and not Path(text).is_dir() else _inside(Path(text))
        for dataset, path in named.items():
            if found.get(dataset, path) != path:
                raise BadInput(path, f"is {dataset}, and so is {found[dataset]}", "give each dataset once")
            open_dataset(path)  # refuses what is no dataset before anything is trained
            found[dataset] = path
    return found


def _dataset(name: str) -> str:
    known = _names()
    if name.lower() not in known:
        remedy = f"use one of {', '.join(datasets())}"
        raise BadInput(f"--data {name}", f"is no dataset of the paper{nearest(name.lower(), known)}", remedy)
    return known[name.lower()]


def _inside(folder: Path) -> dict[str, Path]:
    """Return the datasets in a folder, by the names of its folders."""
    if not folder.is_dir():
        raise BadInput(folder, "is not a folder", "give NAME=FOLDER, or a folder that holds la/, brats/ or others")
    known = _names()
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.lower() in known:
            other = found.setdefault(known[path.name.lower()], path)
            if other != path:
                reason = f"holds {other.name} and {path.name}, which are one dataset of the paper"
                raise BadInput(folder, reason, f"name one, such as --data {known[other.name.lower()]}={other}")
    if not found:
        remedy = f"name the dataset, such as --data la={folder}"
        raise BadInput(folder, f"holds none of the folders {', '.join(datasets())}", remedy)
    return found


def _names() -> dict[str, str]:
    """Return the dataset that each name means: its own, and that of its recipe."""
    own = {name: name for name in datasets()}
    recipes = {known.recipe: name for name, known in datasets().items() if not name.endswith("-original")}
    return {"pancreas-b": "pancreas", **recipes, **own}


def remedy(dataset: str) -> str:
    """Return what to do to have a dataset, in words."""
    known = datasets()[dataset]
    made = known.prepare.startswith("fheat ")
    how = f"prepare {known.title} with '{known.prepare}'" if made else known.prepare
    return f"{how} and give --data {dataset}=FOLDER; it has a licence of its own, so this program does not ship it"

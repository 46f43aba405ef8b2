"""Running a recipe on a download. A case that is refused is listed, and the others are still prepared."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from fheat.data.layouts.nnunet import RawWriter, dataset_json
from fheat.data.recipes import RECIPES
from fheat.data.recipes.base import Download, Recipe, RecipeOptions, Source
from fheat.data.recipes.split import Split, split_of
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, silent
from fheat.system.signals import obey_parent


@dataclass(frozen=True)
class Preparation:
    """The result of a preparation: the ids of the cases by split, and the refused cases with their reasons."""

    name: str
    target: Path
    kind: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    unlabelled: tuple[str, ...]
    refused: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """Ids that are in the official split but not in the download."""
    left_out: tuple[str, ...] = ()
    """Ids that are in the download but not in the official split."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values, for `--json`."""
        return asdict(self) | {"target": str(self.target)}


def prepare(
    name: str,
    source: Path,
    target: Path,
    *,
    options: RecipeOptions | None = None,
    version: str = "",
    workers: int = 1,
    progress: Progress = silent,
) -> Preparation:
    """Prepare a dataset into a new or empty folder in the nnU-Net raw layout, or raise `BadInput`.

    Args:
        name: one of `RECIPES`.
        source: the folder as downloaded and unpacked.
        target: folder to write; `dataset.json` is written last.
        options: options of the recipe; an option that it does not have raises `ValueError`.
        version: version of this program, for `dataset.json`.
        workers: number of processes; with 1 no other process is started. The files do not depend on it.
        progress: called with the number of cases done and their total.

    The result lists the refused cases. If all cases are refused, `BadInput` is raised and nothing is written.
    """
    recipe, options = RECIPES[name], options or RecipeOptions()
    unknown = sorted(set(options.chosen()) - recipe.options)
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(unknown)}")
    if not source.is_dir():
        raise BadInput(source, "is not a folder", "give the folder as downloaded and unpacked")
    if target.resolve().is_relative_to(source.resolve()):
        raise BadInput(target, f"lies inside {source}", "write to a folder outside the download")
    download = recipe.find(source, options)
    split = split_of(name, [case.id for case in download.cases if not case.unlabelled])
    wanted = [case for case in download.cases if not split.official or case.id in split.ids]
    if not wanted:
        raise BadInput(
            source, f"holds {len(download.cases)} cases and none of the official split", "check that it is the dataset"
        )
    writer = RawWriter(target)
    writer.check_empty()
    refused = {}
    for done, (case, reason) in enumerate(_outcomes(recipe, wanted, options, split, target, workers), start=1):
        if reason is not None:
            refused[case.id] = reason
        progress(done, len(wanted))
    if len(refused) == len(wanted):
        first = next(iter(refused.values()))
        raise BadInput(
            source, f"all {len(wanted)} cases are refused, the first: {first}", "check that it is the dataset"
        )
    summary = _summary(recipe, target, download, split, refused)
    _finish(writer, recipe, download.cropped or options.benchmark_crop, options, version, split, summary)
    return summary


def _outcomes(
    recipe: Recipe, cases: Sequence[Source], options: RecipeOptions, split: Split, target: Path, workers: int
) -> Iterator[tuple[Source, str | None]]:
    """Yield each case with None, or with the reason why it was refused, in the order of `cases`."""
    work = partial(_one, recipe.name, options, frozenset(split.test), target)
    if workers <= 1:
        yield from zip(cases, map(work, cases), strict=True)
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=obey_parent)
    try:
        yield from zip(cases, pool.map(work, cases), strict=True)
    except KeyboardInterrupt:
        for worker in set(active_children()) - others:
            worker.terminate()
        raise
    except BrokenProcessPool:
        raise BadInput(target, "a worker died, probably for lack of memory", "give --workers 1") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _one(name: str, options: RecipeOptions, test: frozenset[str], target: Path, case: Source) -> str | None:
    """Prepare one case completely, then write it; return None, or the reason why it was refused."""
    try:
        prepared = RECIPES[name].prepare(case, options)
    except BadInput as error:
        return str(error)
    RawWriter(target).write_case(case.id, prepared.images, prepared.label, test=case.unlabelled or case.id in test)
    return None


def _summary(recipe: Recipe, target: Path, download: Download, split: Split, refused: dict[str, str]) -> Preparation:
    names = [case.id for case in download.cases]
    available = set(names) - set(refused)
    held_out = set(split.validation)
    return Preparation(
        name=recipe.name,
        target=target,
        kind=download.kind,
        train=tuple(name for name in split.order if name in available and name not in held_out),
        validation=tuple(name for name in split.validation if name in available),
        test=tuple(name for name in split.test if name in available),
        unlabelled=tuple(case.id for case in download.cases if case.unlabelled and case.id in available),
        refused=refused,
        missing=tuple(name for name in split.ids if name not in names) if split.official else (),
        left_out=tuple(name for name in names if name not in split.ids) if split.official else (),
    )


def _finish(
    writer: RawWriter,
    recipe: Recipe,
    cropped: bool,
    options: RecipeOptions,
    version: str,
    split: Split,
    summary: Preparation,
) -> None:
    """Write `splits.json` and `dataset.json`."""
    training = (*summary.train, *summary.validation)
    dataset = dataset_json(
        name=recipe.name,
        title=recipe.title,
        channels=recipe.channels,
        labels=recipe.labels,
        training=len(training),
    )
    dataset["preparation"] = {
        "recipe": recipe.name,
        "fheat": version,
        "options": {name: getattr(options, name) for name in sorted(recipe.options)},
        "source": summary.kind,
        "cropped_around_label": cropped,
        "steps": list(recipe.steps),
        "refused": sorted(summary.refused),
        "missing": list(summary.missing),
    }
    writer.finish(dataset, split.to_json((*training, *summary.test), summary.unlabelled))

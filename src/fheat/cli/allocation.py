"""`fheat allocation MODEL`: what training decided, what retiring saves, and how a trained network works inside."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fheat import __version__
from fheat.cli.main import UsageError
from fheat.cli.options import given, parse
from fheat.data.case import Case
from fheat.data.layouts import open_dataset
from fheat.figures.picture import write_pictures
from fheat.gates.cost import cost
from fheat.gates.table import allocation
from fheat.inference.predictor import usable_device
from fheat.networks.registry import spec_of
from fheat.studies.inside.attention import NAME as MAPS
from fheat.studies.inside.attention import Plane, PlanesByModel, map_pictures, planes_bytes, read_planes
from fheat.studies.inside.figures import pictures
from fheat.studies.inside.measure import Questions, analyse, check_questions
from fheat.studies.inside.record import NAME, Analysis, ModelAnalysis, read_analysis
from fheat.studies.survivors import markdown, survivor_row
from fheat.system.errors import BadInput
from fheat.system.files import check_folder, write_file
from fheat.system.progress import progress_bar
from fheat.training.runs import Saved, open_saved


@dataclass(frozen=True)
class AllocationOptions:
    """Show, for each gate of a model, its strength D, order alpha, state and cost. Several models give a table in
    Markdown with one row each: which gates survived, with which D and alpha, validation Dice and seed.

    With --residual and --attention the model is run over labelled scans: how much of what its bottom blocks add lies at
    high frequencies, and how much of its attention lies inside the target, each beside what chance would give.

    Example: fheat allocation demo/model --json

    Example: fheat allocation run-seed0 run-seed1 run-seed2

    Example: fheat allocation la-4 --residual --attention --data LA --figures analysis

    Example: fheat allocation --from analysis/analysis.json --figures again
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...")] = ()
    """Model folders, written by fheat.save or by training, models of the zoo (see fheat models), or run folders: of a
    run its final network, while it has none its best."""
    patch_size: tuple[int, int, int] | None = None
    """Grid to cost; the model's own patch if not given."""
    residual: bool = False
    """Measure what the bottom blocks add, by frequency."""
    attention: bool = False
    """Measure how much of the attention lies inside the target."""
    data: str | None = None
    """Dataset for both; the one it was trained on if not given, for a run folder."""
    split: str = "validation"
    """Which scans of it."""
    cases: int | None = None
    """At most so many of them."""
    blocks: tuple[str, ...] = ()
    """Module paths for --residual, such as enc4.blocks.0.first; the blocks of the bottom stage if not given."""
    device: str | None = None
    """cpu, cuda or cuda:1; a GPU where there is one."""
    figures: Path | None = None
    """Folder for the figures (SVG, maps PNG), and analysis.json and attention-maps.npz to draw them again."""
    stored: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FILE")] = None
    """Draw the figures again from an analysis.json and what lies beside it, without network and data."""
    json: bool = False
    """Print JSON instead of a table."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(AllocationOptions, "allocation", arguments)
    _check(options)
    if options.figures is not None:
        check_folder(options.figures)
    if options.stored is not None:
        analysis = read_analysis(options.stored)
        _show([], {}, analysis, read_planes(options.stored.parent / MAPS, len(analysis.models)), options)
        return
    every = [open_saved(name) for name in options.models]
    inside = options.residual or options.attention
    name, cases = _scans(every, options) if inside else ("", ())
    questions = _questions(every, options) if inside else Questions()
    lines, result = _gates(every[0], options) if len(every) == 1 else _table(every, options)
    if not inside:
        print(json.dumps(result, indent=1) if options.json else "\n".join(lines))
        return
    found, planes = _analysed(every, cases, questions, options)
    analysis = Analysis(fheat=__version__, dataset=name, split=options.split, models=found)
    _show([*lines, ""], result, analysis, planes, options)


def _check(options: AllocationOptions) -> None:
    if options.stored is not None:
        if options.models or options.residual or options.attention:
            raise UsageError("--from draws what is stored: leave out models, --residual and --attention")
        if said := given(options, "patch_size", "data", "split", "cases", "blocks", "device"):
            raise UsageError(f"--from draws what is stored: leave out {', '.join(said)}")
        return
    if not options.models:
        raise UsageError("MODEL is missing: write for example 'fheat allocation demo/model --json'")
    if not (options.residual or options.attention):
        for name in ("data", "cases", "blocks", "figures"):
            if getattr(options, name):
                raise UsageError(f"--{name} is for --residual and --attention: add one of them")
    if options.blocks and not options.residual:
        raise UsageError("--blocks is for --residual: add it")
    if options.cases is not None and options.cases < 1:
        raise UsageError(f"--cases is {options.cases}: at least 1")
    if "" in options.blocks:
        raise UsageError("--blocks holds an empty path: name modules, such as enc4.blocks.0")


def _gates(saved: Saved, options: AllocationOptions) -> tuple[list[str], dict[str, Any]]:
    """Return the gates and the cost of one model, as lines and as data."""
    model = saved.model
    shape = None if options.patch_size is None else (1, spec_of(model).in_channels, *options.patch_size)
    try:
        table, counted = allocation(model, shape), cost(model, shape)
    except ValueError as error:
        raise UsageError(str(error)) from None
    found = f"{len(table.open)} of {len(table)} gates open{': ' + ', '.join(table.open) if table.open else ''}."
    if idle := [site for site in table.open if site in table.idle]:
        found += f" Nothing to mix on a single voxel: {', '.join(idle)}."
    head = [] if saved.part is None else [f"{saved.name}: the network in {saved.part}"]
    return [*head, str(table), "", found, str(counted)], {"gates": table.to_json(), "cost": counted.to_json()}


def _table(every: Sequence[Saved], options: AllocationOptions) -> tuple[list[str], dict[str, Any]]:
    """Return one row per model, as lines and as data."""
    if options.patch_size is not None:
        raise UsageError("--patch-size is for the cost of one model: leave it out")
    rows = [survivor_row(saved) for saved in every]
    return [markdown(rows)], {"models": [row.to_json() for row in rows]}


def _questions(every: Sequence[Saved], options: AllocationOptions) -> Questions:
    """Return what to measure, once every model and the device are known to be able to."""
    questions = Questions(residual=options.residual, attention=options.attention, blocks=options.blocks)
    try:
        if options.device is not None:
            usable_device(options.device)
        for saved in every:
            check_questions(saved, questions)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return questions


def _analysed(
    every: Sequence[Saved], cases: Sequence[Case], questions: Questions, options: AllocationOptions
) -> tuple[tuple[ModelAnalysis, ...], PlanesByModel]:
    found, planes = [], {}
    try:
        for place, saved in enumerate(every):
            kept: list[Plane] = []
            with progress_bar(saved.name) as show:
                found.append(analyse(saved, cases, questions, device=options.device, keep=kept.append, progress=show))
            planes[place] = kept
    except ValueError as error:
        raise UsageError(str(error)) from None
    return tuple(found), planes


def _scans(every: Sequence[Saved], options: AllocationOptions) -> tuple[str, tuple[Case, ...]]:
    folders = (
        {options.data} if options.data else {one.record.settings.data.folder for one in every if one.record is not None}
    )
    if len(folders) != 1:
        raise UsageError("--data is missing: give the dataset with the scans to run over")
    dataset = open_dataset(str(folders.pop()))
    cases = dataset.split(options.split)[: options.cases]
    if not cases:
        splits = ", ".join(dict.fromkeys(case.split for case in dataset.cases))
        raise BadInput(dataset.root, f"has no scans in {options.split!r}", f"choose another --split: {splits}")
    return dataset.name, cases


def _show(
    lines: Sequence[str], result: dict[str, Any], analysis: Analysis, planes: PlanesByModel, options: AllocationOptions
) -> None:
    """Write the figures, then print the analysis after what was found before it."""
    drawn = pictures(analysis)
    shown = [*lines, *(picture.caption for picture in drawn)]
    if options.figures is not None:  # before printing: a reader that leaves must not cost the result
        paths = write_pictures(options.figures, [*drawn, *map_pictures(analysis, planes)])
        stored = {options.figures / NAME: analysis.text().encode()}
        if any(planes.values()):
            stored[options.figures / MAPS] = planes_bytes(planes)
        for path, data in stored.items():
            write_file(path, data)
        shown.append(f"wrote {', '.join(map(str, [*paths, *stored]))}")
    everything = {**result, "analysis": json.loads(analysis.text())}
    print(json.dumps(everything, indent=1) if options.json else "\n".join(shown))

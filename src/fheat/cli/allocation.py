"""`fheat allocation MODEL`: the gates that training left open, their cost, and how a trained network works inside."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fheat import __version__
from fheat.cli.main import UsageError
from fheat.cli.options import given, parse
from fheat.data.case import Case, Dataset
from fheat.data.layouts import open_dataset
from fheat.figures.picture import write_pictures
from fheat.gates.cost import cost
from fheat.gates.table import allocation
from fheat.inference.predictor import usable_device
from fheat.networks.registry import spec_of
from fheat.studies.inside.figures import map_pictures, pictures
from fheat.studies.inside.measure import AnalysisOptions, analyse, blocks_to_record
from fheat.studies.inside.record import (
    ANALYSIS,
    MAPS,
    Analysis,
    ModelAnalysis,
    Plane,
    PlanesByModel,
    planes_bytes,
    read_analysis,
    read_planes,
)
from fheat.studies.survivors import markdown, survivor_row
from fheat.system.errors import BadInput
from fheat.system.files import check_folder, write_file
from fheat.system.progress import counted_steps, progress_bar
from fheat.training.runs import Saved, open_saved
from fheat.training.scans import check_still_there, open_run_dataset
from fheat.training.settings import DataSettings


@dataclass(frozen=True)
class AllocationOptions:
    """Show strength D, order alpha, state and cost of each gate of a model. Several models give a table in Markdown
    with one row each: the gates that survived with their D and alpha, validation Dice and seed.

    With --residual and --attention the model is run over labelled scans, to measure how much of what its bottom blocks
    add lies at high frequencies, and how much of its attention lies inside the target, each compared with chance.

    Example: fheat allocation demo/model --json

    Example: fheat allocation run-seed0 run-seed1 run-seed2

    Example: fheat allocation la-4 --residual --attention --data LA --figures analysis

    Example: fheat allocation --from analysis/analysis.json --figures again
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...")] = ()
    """Model folders, written by fheat.save or by training, models of the zoo (see fheat models), or run folders, which
    stand for their best network or, where they validated none, for their final one."""
    patch_size: tuple[int, int, int] | None = None
    """Patch size for which the cost is counted; that of the model if not given."""
    residual: bool = False
    """Measure what the bottom blocks add to their input, by frequency."""
    attention: bool = False
    """Measure how much of the attention lies inside the target."""
    data: Path | None = None
    """Dataset with the scans for --residual and --attention; for a run folder, by default that of the run."""
    split: str = "validation"
    """Split of the dataset whose scans are used."""
    cases: int | None = None
    """Largest number of scans; all of the split if not given."""
    blocks: tuple[str, ...] = ()
    """Module paths for --residual, such as enc4.blocks.0.first; the blocks of the bottom stage if not given."""
    device: str | None = None
    """Device, such as cpu, cuda or cuda:1; a GPU where there is one if not given."""
    figures: Path | None = None
    """Folder for the figures (SVG, maps as PNG), and for analysis.json and attention-maps.npz to draw them again."""
    stored: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FILE")] = None
    """An analysis.json from which the figures are drawn again, with the maps beside it; no network and data needed."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
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
    measured = _analysis_options(every, options) if inside else AnalysisOptions()
    lines, result = _gates(every[0], options) if len(every) == 1 else _table(every, options)
    if not inside:
        print(json.dumps(result, indent=1) if options.json else "\n".join(lines))
        return
    results, planes = _analyse(every, cases, measured, options)
    analysis = Analysis(fheat=__version__, dataset=name, split=options.split, models=results)
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
        with progress_bar("counting multiply-adds"):
            table, counted = allocation(model, shape), cost(model, shape)
    except ValueError as error:
        raise UsageError(str(error)) from None
    sentence = f"{len(table.open)} of {len(table)} gates open{': ' + ', '.join(table.open) if table.open else ''}."
    if idle := [site for site in table.open if site in table.idle]:
        sentence += f" Nothing to mix on a single voxel: {', '.join(idle)}."
    head = [] if saved.part is None else [f"{saved.name}: the network in {saved.part}"]
    return [*head, str(table), "", sentence, str(counted)], {"gates": table.to_json(), "cost": counted.to_json()}


def _table(every: Sequence[Saved], options: AllocationOptions) -> tuple[list[str], dict[str, Any]]:
    """Return one row per model, as lines and as data."""
    if options.patch_size is not None:
        raise UsageError("--patch-size is for the cost of one model: leave it out")
    with progress_bar("counting multiply-adds") as show:
        rows = [survivor_row(saved) for saved in counted_steps(every, show)]
    return [markdown(rows)], {"models": [row.to_json() for row in rows]}


def _analysis_options(every: Sequence[Saved], options: AllocationOptions) -> AnalysisOptions:
    """Return what is measured, after a check that the device and every model can do it."""
    measured = AnalysisOptions(residual=options.residual, attention=options.attention, blocks=options.blocks)
    try:
        if options.device is not None:
            usable_device(options.device)
        for saved in every:
            blocks_to_record(saved, measured)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return measured


def _analyse(
    every: Sequence[Saved], cases: Sequence[Case], measured: AnalysisOptions, options: AllocationOptions
) -> tuple[tuple[ModelAnalysis, ...], PlanesByModel]:
    """Return the results of every model, and planes of its attention."""
    results, planes = [], {}
    try:
        for place, saved in enumerate(every):
            kept: list[Plane] = []
            with progress_bar(saved.name) as show:
                result = analyse(saved, cases, measured, device=options.device, keep=kept.append, progress=show)
            results.append(result)
            planes[place] = kept
    except ValueError as error:
        raise UsageError(str(error)) from None
    return tuple(results), planes


def _scans(every: Sequence[Saved], options: AllocationOptions) -> tuple[str, tuple[Case, ...]]:
    """Return the name of the dataset and the scans to run over."""
    trained_on = {
        (saved.record.settings.data.folder, saved.record.settings.data.fold): saved.record.settings.data
        for saved in every
        if saved.record is not None
    }
    if not options.data and len(trained_on) != 1:
        raise UsageError("--data is missing: give the dataset with the scans to run over")
    dataset = open_dataset(options.data) if options.data else _dataset_of(trained_on.popitem()[1])
    cases = dataset.split(options.split)[: options.cases]
    if not cases:
        splits = ", ".join(dict.fromkeys(case.split for case in dataset.cases))
        raise BadInput(dataset.root, f"has no scans in {options.split!r}", f"choose another --split: {splits}")
    return dataset.name, cases


def _dataset_of(trained_on: DataSettings) -> Dataset:
    check_still_there(trained_on, "give the place to which the dataset was moved with --data")
    return open_run_dataset(trained_on)


def _show(
    lines: Sequence[str], result: dict[str, Any], analysis: Analysis, planes: PlanesByModel, options: AllocationOptions
) -> None:
    """Write the figures and the stored files, then print the lines and the analysis."""
    drawn = pictures(analysis)
    shown = [*lines, *(picture.caption for picture in drawn)]
    if options.figures is not None:  # before printing, so that a closed pipe does not lose the result
        paths = write_pictures(options.figures, [*drawn, *map_pictures(analysis, planes)])
        stored = {options.figures / ANALYSIS: analysis.text().encode()}
        if any(planes.values()):
            stored[options.figures / MAPS] = planes_bytes(planes)
        for path, data in stored.items():
            write_file(path, data)
        shown.append(f"wrote {', '.join(map(str, [*paths, *stored]))}")
    everything = {**result, "analysis": json.loads(analysis.text())}
    print(json.dumps(everything, indent=1) if options.json else "\n".join(shown))

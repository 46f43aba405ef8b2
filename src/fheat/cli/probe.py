"""`fheat probe MODEL --data DATA`: which sites want global mixing, measured on labelled scans."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from fheat import __version__
from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.data.plausible import Allowance
from fheat.gates.probe import Others, Probe
from fheat.inference.predictor import usable_device
from fheat.networks.registry import NetworkSpec, spec_of
from fheat.ops.gates import gates_of
from fheat.studies.probe_scans import BATCH, METHOD, ProbePlan, checked_classes, draw_crops, probe_crops
from fheat.system.errors import BadInput
from fheat.system.files import check_file, write_file
from fheat.system.machine import memory_for
from fheat.system.progress import progress_bar
from fheat.training.runs import Saved, open_saved
from fheat.training.scans import check_still_there, open_run_dataset
from fheat.training.settings import DataSettings


@dataclass(frozen=True)
class ProbeOptions:
    """Measure, for each gate of a model, the pairing P = -dL/dtau at tau = 0 of the supervised loss on random crops of
    labelled training scans: P > 0 says that opening the gate lowers the loss. Beside it come the gradient at the
    strength that training left, and what the gate leaves of the gradient. The model is not changed.

    Example: fheat probe la-4 --data scans

    Example: fheat probe run --others trained --out probe.json
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, a model of the zoo, such as la-4, see fheat models, or a run folder: of a run its best network,
    where it validated none its final one."""
    data: Path | None = None
    """Dataset folder, see fheat data check; the one it was trained on if not given, for a run folder."""
    batches: int = 8
    """Batches of two crops to average over."""
    labelled: int | None = None
    """Use the first so many labelled training scans; by default as many as the run, for a run folder, else all."""
    others: Others = "closed"
    """closed: all gates are closed to measure P; trained: an open gate is closed alone, the others as training left
    them."""
    patch_size: tuple[int, int, int] | None = None
    """Voxels of a crop; the model's own patch if not given."""
    allow: Annotated[tuple[Allowance, ...], tyro.conf.UseAppendAction] = ()
    """implausible-spacing takes scans whose voxels or extent no scanner gives, instead of refusing them."""
    seed: int = 0
    """Seed of the crops and of dropout."""
    device: str | None = None
    """cpu or cuda; a GPU where there is one."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print JSON instead of a table."""
    out: Path | None = None
    """Also write the JSON to this file."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(ProbeOptions, "probe", arguments)
    if options.batches < 1:
        raise UsageError(f"batches={options.batches} is too few: give 1 or more")
    if options.out is not None and options.out.suffix != ".json":
        raise UsageError(f"{options.out} is not a .json file: name it so")
    if options.out is not None:
        check_file(options.out)
    device = _device(options.device)
    saved = open_saved(options.model)
    spec = spec_of(saved.model)
    if not gates_of(saved.model):
        raise BadInput(options.model, "has no gates to probe", "give a network with gates, see fheat models")
    trained = _trained_on(options, saved)
    data, labelled, dataset = trained.folder, trained.labelled, open_run_dataset(trained)
    classes = checked_classes(options.model, spec, saved.card, dataset)
    plan = _plan(options, labelled, spec)
    with progress_bar("reading") as show:
        crops = draw_crops(dataset, classes, saved.card, spec, plan, device, show)
    model = saved.model.float().to(device).train()
    what = f"an iteration with patch_size {plan.patch_size}"
    with progress_bar("probing") as show, memory_for(what, data, device, "use a smaller --patch-size"):
        try:
            probed = probe_crops(model, crops, classes, plan, show)
        except ValueError as error:
            raise BadInput(options.model, str(error), "probe a model with gates on data it was made for") from None
    result = json.dumps(_facts(options, plan, data, saved.part, device, probed), indent=1)
    if options.out is not None:
        write_file(options.out, (result + "\n").encode())
    head = "" if saved.part is None else f"{saved.name}: the network in {saved.part}\n"
    print(result if options.json else f"{head}{probed}\n\n{_sentences(probed)}")


def _device(name: str | None) -> torch.device:
    try:
        return usable_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _trained_on(options: ProbeOptions, saved: Saved) -> DataSettings:
    """Return the dataset and how many of its labels to use: what is given, else what the run had."""
    run = None if saved.record is None else saved.record.settings.data
    labelled = options.labelled if options.labelled is not None or run is None else run.labelled
    if options.data is not None:
        return DataSettings.model_construct(folder=str(options.data), labelled=labelled)
    if run is None:
        raise UsageError("--data is missing: give the dataset with labelled scans")
    check_still_there(run, "give the place to which the dataset was moved with --data")
    return run.model_copy(update={"labelled": labelled})


def _plan(options: ProbeOptions, labelled: int | None, spec: NetworkSpec) -> ProbePlan:
    """Return what to measure, or raise `UsageError` where an option is out of range."""
    if labelled is not None and labelled < 1:
        raise UsageError(f"--labelled takes 1 or more, not {labelled}")
    if not 0 <= options.seed < 2**63:
        raise UsageError(f"--seed takes a whole number from 0 to 2^63 - 1, not {options.seed}")
    if options.patch_size is not None and min(options.patch_size) < 1:
        raise UsageError(f"--patch-size takes three lengths of 1 or more, not {options.patch_size}")
    x, y, z = options.patch_size or spec.patch_size
    return ProbePlan((x, y, z), options.batches, labelled, options.others, options.seed, options.allow)


def _facts(
    options: ProbeOptions, plan: ProbePlan, data: str, part: str | None, device: torch.device, probed: Probe
) -> dict[str, Any]:
    return {
        "model": options.model,
        "part": part,
        "data": data,
        "method": METHOD,
        "labelled": plan.labelled,
        "patch_size": plan.patch_size,
        "batches": plan.batches,
        "batch": BATCH,
        "others": plan.others,
        "seed": plan.seed,
        "device": str(device),
        "versions": {"fheat": __version__, "torch": torch.__version__},
        "agreement": probed.agreement,
        "gates": probed.to_json(),
    }


def _sentences(probed: Probe) -> str:
    signs = [row.agrees for row in probed if row.agrees is not None]
    said = f"P > 0 predicts an open gate, P < 0 a closed one: {sum(signs)} of {len(signs)} sites are as predicted."
    unclear = [row.site for row in probed if row.error is not None and abs(row.pairing) <= 2 * row.error]
    return said + (f"\nWithin two standard errors of zero: {', '.join(unclear)}." if unclear else "")

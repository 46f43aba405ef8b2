"""`fheat probe MODEL --data DATA`: which sites want global mixing, measured on labelled scans."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor, nn

from fheat import __version__
from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.data.case import Dataset, checked_classes
from fheat.data.layouts import open_dataset
from fheat.data.preprocessing import Preprocessing
from fheat.gates.probe import Others, Probe, probe
from fheat.inference.predictor import usable_device
from fheat.methods.base import Batch
from fheat.methods.supervised import Supervised
from fheat.models.card import Card
from fheat.networks.registry import NetworkSpec, spec_of
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput
from fheat.system.files import check_file, write_file
from fheat.system.machine import memory_for
from fheat.system.progress import progress_bar
from fheat.training.batches import labelled_batches
from fheat.training.runs import Saved, open_saved
from fheat.training.scans import load_scans
from fheat.training.settings import TrainConfig, checked


@dataclass(frozen=True)
class ProbeOptions:
    """Measure, for each gate of a model, the pairing P = -dL/dtau at tau = 0 of the supervised loss on random crops of
    labelled training scans: P > 0 says that opening the gate lowers the loss. Beside it come the slope at the strength
    that training left, and what the gate leaves of the gradient. The model is not changed.

    Example: fheat probe la-4 --data scans

    Example: fheat probe run --others trained --out probe.json
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, a model of the zoo, such as la-4, see fheat models, or a run folder: of a run its final network,
    while it has none its best."""
    data: Path | None = None
    """Dataset folder, see fheat data check; the one it was trained on if not given, for a run folder."""
    batches: int = 8
    """Batches of two crops to average over."""
    labelled: int | None = None
    """Use the first so many labelled training scans; by default as many as the run, for a run folder, else all."""
    method: Literal["supervised"] = "supervised"
    """Whose loss: cross-entropy and Dice."""
    others: Others = "closed"
    """closed: all gates are closed to measure P; trained: an open gate is closed alone, the others as training left
    them."""
    patch_size: tuple[int, int, int] | None = None
    """Voxels of a crop; the model's own patch if not given."""
    seed: int = 0
    """Of crops and dropout."""
    device: str | None = None
    """cpu or cuda; a GPU where there is one."""
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
    data, labelled = _trained_on(options, saved)
    dataset = open_dataset(data)
    _check(spec, saved.card, dataset, options)
    config = _config(options, data, labelled, spec, saved.card)
    batches = _batches(dataset, config, saved.card, spec, options.batches, device)
    found = _probe(saved.model.float().to(device).train(), batches, config, options, device)
    result = json.dumps(_facts(options, config, saved.part, device, found), indent=1)
    if options.out is not None:
        write_file(options.out, (result + "\n").encode())
    head = "" if saved.part is None else f"{saved.name}: the network in {saved.part}\n"
    print(result if options.json else f"{head}{found}\n\n{_sentences(found)}")


def _device(name: str | None) -> torch.device:
    try:
        return usable_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _check(spec: NetworkSpec, card: Card, dataset: Dataset, options: ProbeOptions) -> None:
    """Raise `BadInput` where the loss of this model on this dataset has no meaning."""
    classes = checked_classes(dataset)
    if len(classes) != spec.out_channels:
        reason = f"has {len(classes)} classes ({', '.join(classes)}), {options.model} has {spec.out_channels}"
        raise BadInput(dataset.root, reason, "give the kind of data the model was trained on")
    if card.regions:
        raise BadInput(
            options.model, "has nested regions, the supervised loss has classes", "use fheat.probe in Python"
        )
    intensity = card.preprocessing.intensity
    if intensity.kind == "window" or intensity.nonzero:
        kind = "window" if intensity.kind == "window" else "zscore of non-zero voxels"
        raise BadInput(options.model, f"takes intensities by {kind}, training does not", "use fheat.probe in Python")


def _trained_on(options: ProbeOptions, saved: Saved) -> tuple[str, int | None]:
    """Return the dataset and how many of its labels to use: what is given, else what the run had."""
    data = None if options.data is None else str(options.data)
    if saved.record is not None:
        trained = saved.record.config
        return data or trained.data, trained.labelled if options.labelled is None else options.labelled
    if data is None:
        raise UsageError("--data is missing: give the dataset with labelled scans")
    return data, options.labelled


def _config(options: ProbeOptions, data: str, labelled: int | None, spec: NetworkSpec, card: Card) -> TrainConfig:
    """Return the settings of a run that would draw these crops, intensities and spacing as the model expects them."""
    settings: dict[str, Any] = {
        "data": data,
        "method": options.method,
        "labelled": labelled,
        "patch_size": options.patch_size or spec.patch_size,
        "spacing": card.preprocessing.spacing,
        "seed": options.seed,
    }
    if card.preprocessing != Preprocessing():
        settings["intensity"] = card.preprocessing.intensity.kind
    try:
        return checked(settings, "options")
    except BadInput as error:  # all of them are options of this verb, or were checked with the model
        raise UsageError(error.reason) from None


def _batches(
    dataset: Dataset, config: TrainConfig, card: Card, spec: NetworkSpec, count: int, device: torch.device
) -> list[Batch]:
    only_training = replace(dataset, cases=dataset.split("train"))
    with progress_bar("reading") as show:
        scans = load_scans(only_training, config, show, orientation=card.preprocessing.orientation)
    if scans.channels != spec.in_channels:
        reason = f"has scans with {scans.channels} channels, the model takes {spec.in_channels}"
        raise BadInput(dataset.root, reason, "give the kind of data the model was trained on")
    return labelled_batches(scans, config, count, device)


def _probe(
    model: nn.Module, batches: Sequence[Batch], config: TrainConfig, options: ProbeOptions, device: torch.device
) -> Probe:
    method = Supervised(labelled=config.batch)

    def loss(network: Any, batch: Batch) -> Tensor:
        return method.losses(network, batch)[method.names[0]]

    torch.manual_seed(config.seed)
    what = f"a step with patch_size {config.patch_size}"
    with progress_bar("probing") as show, memory_for(what, config.data, device, "use a smaller --patch-size"):
        try:
            return probe(model, loss, *batches, others=options.others, progress=show)
        except ValueError as error:
            raise BadInput(options.model, str(error), "probe a model with gates on data it was made for") from None


def _facts(
    options: ProbeOptions, config: TrainConfig, part: str | None, device: torch.device, found: Probe
) -> dict[str, Any]:
    return {
        "model": options.model,
        "part": part,
        "data": config.data,
        "method": config.method,
        "labelled": config.labelled,
        "patch_size": config.patch_size,
        "batches": options.batches,
        "batch": config.batch,
        "others": options.others,
        "seed": config.seed,
        "device": str(device),
        "versions": {"fheat": __version__, "torch": torch.__version__},
        "agreement": found.agreement,
        "gates": found.to_json(),
    }


def _sentences(found: Probe) -> str:
    signs = [row.agrees for row in found if row.agrees is not None]
    said = f"P > 0 predicts an open gate, P < 0 a closed one: {sum(signs)} of {len(signs)} sites are as predicted."
    unclear = [row.site for row in found if row.error is not None and abs(row.pairing) <= 2 * row.error]
    return said + (f"\nWithin two standard errors of zero: {', '.join(unclear)}." if unclear else "")

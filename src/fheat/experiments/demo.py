"""The demo: the whole story in a few minutes on a CPU, on synthetic scans or on those of a folder.

A packaged model segments a synthetic scan. Then few labels and many scans are compared with the same labels alone: both
networks are trained alike and tested on scans that neither has seen; the closed gates of the better-fed one are
retired, and it segments another scan.
"""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from fheat.data.phantom import phantom
from fheat.experiments.demo_data import CONTRAST, FIELD_OF_VIEW, DemoData, scans_of_folder, synthetic_scans
from fheat.experiments.demo_page import FirstMask, Tested, opening, shown_cases
from fheat.figures.preview import preview_png
from fheat.gates.cost import cost
from fheat.gates.retire import retire
from fheat.gates.table import allocation
from fheat.inference.predictor import Predictor
from fheat.io.nifti import write_nifti
from fheat.metrics.evaluate import evaluate
from fheat.models.folder import load, save
from fheat.models.zoo import zoo_folder
from fheat.networks.registry import spec_of
from fheat.ops.gates import gates_of
from fheat.report.curves import save_allocation_figure
from fheat.report.write import write_report
from fheat.studies.validation import ComparedScan, segment_cases
from fheat.system.errors import BadInput
from fheat.system.files import make_folder, write_file
from fheat.system.machine import machine
from fheat.system.progress import progress_bar
from fheat.system.text import counted
from fheat.training.run_folder import RunFolder
from fheat.training.runs import RunHistory, read_history
from fheat.training.settings_sources import make_settings
from fheat.training.train import begin, finish
from fheat.training.trainer import Trainer


@dataclass(frozen=True)
class Recipe:
    """How the demo trains with scans of one kind."""

    labelled: int
    """Number of scans whose labels are used."""
    iterations: int
    """Number of iterations of each of the two runs."""
    learning_rate: float
    gate_factor: float
    """Factor of the learning rate for the strengths of the gates, which move little in a few hundred iterations."""


SYNTHETIC: Final = Recipe(labelled=1, iterations=300, learning_rate=0.008, gate_factor=2.0)
REAL: Final = Recipe(labelled=40, iterations=700, learning_rate=0.01, gate_factor=1.0)
WARM_UP_SHARE: Final = 0.1
"""Share of the iterations over which the learning rate rises."""
RAMP_SHARE: Final = 0.2
"""Share of the iterations over which the network learns more and more from itself."""
BOX: Final = "labelled"
"""Content of the box that CSE replaces; the released code does so, and it is better in short runs."""
VALIDATIONS: Final = 4
PACKAGED: Final = "phantom"
"""Model of the zoo that makes the first mask."""
FIRST_SCAN, NEW_SCAN = (3, 0), (2, 0)
"""Keys of the scan of the packaged model and of the new scan among those of a seed; training scans have 0, test 1."""
NEW_SHAPE: Final = (72, 64, 56)
MARK: Final = "demo.json"
PARTS: Final = ("scans", "cse", "supervised", "model")
FILES: Final = ("first.png", "scan.nii.gz", "mask.nii.gz", "mask.png", "allocation.png", "report.html")
Shown = Callable[[str, Trainer], AbstractContextManager[None]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoPlan:
    """Where the demo writes, its scans if they are not synthetic ones, and how much it trains."""

    out: Path
    data: Path | None = None
    labelled: int | None = None
    iterations: int | None = None
    seed: int = 1

    @property
    def recipe(self) -> Recipe:
        """The recipe for the scans, with as many labels and iterations as were asked for."""
        usual = SYNTHETIC if self.data is None else REAL
        asked = {"labelled": self.labelled, "iterations": self.iterations}
        return replace(usual, **{name: number for name, number in asked.items() if number is not None})


def run_demo(plan: DemoPlan, say: Say, shown: Shown = lambda what, trainer: nullcontext()) -> dict[str, Any]:
    """Run the demo and return its numbers, which `demo.json` holds too.

    `say` gets each line of the story as it happens; `shown` is a context in which a trainer runs, for a screen.
    """
    began = time.perf_counter()
    torch.set_num_threads(1)  # at this size a second one only costs, and sums would depend on the machine
    if plan.data is not None:
        with progress_bar("looking at scans") as show:
            data = scans_of_folder(plan.data, plan.recipe.labelled, show)
        _begin(plan.out)
        result = _story(plan, data, None, say, shown, began)
    else:
        _begin(plan.out)
        first = _first_mask(plan, say, began)
        with progress_bar("making scans") as show:
            data = synthetic_scans(plan.out / "scans", plan.recipe.labelled, plan.seed, show)
        result = _story(plan, data, first, say, shown, began)
    result["seconds"], result["processor_seconds"] = time.perf_counter() - began, time.process_time()
    write_file(plan.out / MARK, (json.dumps(result, indent=1) + "\n").encode())
    return result


def _begin(out: Path) -> None:
    """Make the folder, or clear that of an earlier demo, which has a mark; anything else is left alone."""
    make_folder(out)
    if any(out.iterdir()) and not (out / MARK).is_file():
        raise BadInput(out, "is not empty and not of a demo", "give another folder with --out; nothing was touched")
    write_file(out / MARK, b"{}\n")
    for part in PARTS:
        if (out / part).exists():
            shutil.rmtree(out / part)
    for name in FILES:
        (out / name).unlink(missing_ok=True)


def _first_mask(plan: DemoPlan, say: Say, began: float) -> FirstMask:
    """Segment a synthetic scan with the packaged model and draw the mask, before anything is trained."""
    scan = phantom(np.random.SeedSequence(plan.seed, spawn_key=FIRST_SCAN))
    predictor = Predictor(zoo_folder(PACKAGED), largest_component=True, device="cpu")
    with progress_bar("segmenting") as show:
        mask = predictor.segment(scan.image, progress=show)
    picture = preview_png(scan.image, mask, predictor.labels, reference=scan.label)
    write_file(plan.out / "first.png", picture)
    found = FirstMask(evaluate(mask.data, scan.label.data).dice, picture, time.perf_counter() - began)
    say(f"a first mask, by the packaged model {PACKAGED}, after {found.seconds:.0f} s: Dice {found.dice:.4f}")
    say(f"  see {plan.out / 'first.png'}")
    return found


def _story(
    plan: DemoPlan, data: DemoData, first: FirstMask | None, say: Say, shown: Shown, began: float
) -> dict[str, Any]:
    out, iterations = plan.out, plan.recipe.iterations
    counts = f"{data.labelled} with a label, {data.unlabelled} without, {len(data.held_out)} held out for testing"
    labels = counted(data.labelled, "label")
    say(f"scans: {counts}, in {data.folder}")
    times = {"cse": _train(plan, data, "cse", shown)}
    record = read_history(out / "cse")
    closed = {site: at for site in record.sites if (at := record.closed_at(site)) is not None}
    say(f"CSE, {labels} and all scans: {iterations} iterations in {times['cse']:.0f} s")
    say(f"  gates closed for good: {', '.join(f'{site} at {at}' for site, at in closed.items()) or 'none'}")
    times["supervised"] = _train(plan, data, "supervised", shown)
    say(f"supervised-only, the same {labels}: {iterations} iterations in {times['supervised']:.0f} s")
    tested = {method: _test(out, data, method) for method in times}
    dice = {method: float(np.mean([one.mean for one in scans])) for method, scans in tested.items()}
    margin = dice["cse"] - dice["supervised"]
    say(
        f"Dice, mean of the {len(data.held_out)} held-out scans: CSE {dice['cse']:.4f}, "
        f"supervised-only {dice['supervised']:.4f}, margin {margin:+.4f}\n"
    )
    facts = _retire(out, data, record, say)
    new = _segment_new(plan, say) if data.synthetic else _segment_held_out(plan, data, tested["cse"], say)
    seconds = time.perf_counter() - began
    amounts = {
        "machine": f"{machine()['name']}, {counted(torch.get_num_threads(), 'thread')}",
        "time up to this page": f"{seconds:.0f} s, of which training {sum(times.values()):.0f} s",
        "scans": counts,
        "iterations": f"{iterations:,} with each method, crops of {'x'.join(map(str, data.patch))} voxels",
        "network": f"{record.settings.network.name}, {facts['before']['parameters']:,} parameters",
        "precision": "float32",
    }
    with progress_bar("writing reports") as show:
        top = opening(out, tested, _shown(out, data, tested["cse"]), first, amounts)
        write_report(out / "cse", out / "report.html", opening=top, network="best", scans=0, progress=show)
        write_report(out / "supervised", progress=show)
    return {
        "seed": plan.seed,
        "data": "synthetic" if data.synthetic else str(data.folder),
        "settings": _settings(plan, data),
        "counts": {"labelled": data.labelled, "unlabelled": data.unlabelled, "held_out": len(data.held_out)},
        "first_mask": None if first is None else {"dice": first.dice, "seconds": first.seconds},
        "dice": dice,
        "margin": margin,
        "cases": {method: {one.case: one.mean for one in scans} for method, scans in tested.items()},
        "classes": {method: _by_class(scans) for method, scans in tested.items()},
        "millilitres": {one.case: {"predicted": one.predicted, "reference": one.reference} for one in tested["cse"]},
        "closed_at": closed,
        "new_scan_dice": new,
        "training_seconds": times,
        **facts,
    }


def _settings(plan: DemoPlan, data: DemoData) -> dict[str, Any]:
    """Return what decides both runs but their method."""
    recipe = plan.recipe
    iterations = recipe.iterations
    return {
        **data.settings(),
        "iterations": iterations,
        "warm_up": round(WARM_UP_SHARE * iterations),
        "learning_rate": recipe.learning_rate,
        "optimiser.delta": recipe.gate_factor,
        "optimiser.precision": "fp32",
        "validate_every": max(1, iterations // VALIDATIONS) if data.apart else iterations,
        "checkpoint_every": iterations,
        "seed": plan.seed,
    }


def _train(plan: DemoPlan, data: DemoData, method: str, shown: Shown) -> float:
    """Train with one of the methods and return the seconds it took."""
    began = time.perf_counter()
    own = {"box": BOX, "ramp": round(RAMP_SHARE * plan.recipe.iterations)} if method == "cse" else {}
    settings = make_settings({"method": {"name": method, **own}, **_settings(plan, data)}, "demo")
    with RunFolder(plan.out / method) as folder:
        with progress_bar("reading scans") as show:
            trainer = begin(settings, folder, device="cpu", reading=show)
        with shown(method, trainer):
            finish(trainer, folder)
    return time.perf_counter() - began


def _test(out: Path, data: DemoData, method: str) -> list[Tested]:
    """Score every held-out scan with the best network of a run.

    Where the held-out scans are those that validate, a run is validated once, at its end: nothing is selected by them.
    """
    predictor = Predictor(out / method / "best", device="cpu")
    with progress_bar(f"testing {method}") as show:
        return [Tested.of(scan, predictor.classes) for scan in segment_cases(predictor, data.held_out, show)]


def _shown(out: Path, data: DemoData, tested: list[Tested]) -> dict[str, ComparedScan]:
    """Segment the scans that the page shows again: all of them would not fit into the memory of a small machine."""
    wanted = shown_cases(tested).values()
    cases = [case for case in data.held_out if case.id in wanted]
    return {scan.case: scan for scan in segment_cases(Predictor(out / "cse" / "best", device="cpu"), cases)}


def _by_class(scans: list[Tested]) -> dict[str, float]:
    return {name: float(np.mean([one.dice[name] for one in scans])) for name in scans[0].dice}


def _retire(out: Path, data: DemoData, record: RunHistory, say: Say) -> dict[str, Any]:
    """Retire the closed gates, check that no bit of the output changes, and save the network."""
    model = load(out / "cse" / "best")
    small = retire(model)
    folder = save(small, out / "model", overwrite=True)
    spec = spec_of(model)
    fresh = spec.build()
    before, after, gates = cost(fresh), cost(small), allocation(small)
    x = torch.randn(1, spec.in_channels, *data.patch, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        equal, restored = torch.equal(small(x), model(x)), torch.equal(load(folder)(x), small(x))
    start = {site: gate.strength.item() for site, gate in gates_of(fresh).items()}
    history = [start, *({site: step[f"D.{site}"] for site in record.sites} for step in record.steps)]
    save_allocation_figure(gates, history, out / "allocation.png")
    say(f"{gates}\n\nbefore: {before}\nafter:  {after}\n")
    say(f"torch.equal(retire(model)(x), model(x)): {equal}")
    say(f"torch.equal(load(folder)(x), retire(model)(x)): {restored}")
    return {
        "gates": gates.to_json(),
        "before": before.to_json(),
        "after": after.to_json(),
        "retired_equal": equal,
        "loaded_equal": restored,
    }


def _segment_new(plan: DemoPlan, say: Say) -> float:
    """Segment a scan of another kind with the saved network, write scan, mask and picture; return the Dice."""
    sequence = np.random.SeedSequence(plan.seed, spawn_key=NEW_SCAN)
    scan = phantom(sequence, NEW_SHAPE, field_of_view=FIELD_OF_VIEW, contrast=CONTRAST)
    predictor = Predictor(plan.out / "model", largest_component=True, device="cpu")
    mask = predictor.segment(scan.image, check=False)  # finer than the training scans, on purpose
    write_nifti(scan.image, plan.out / "scan.nii.gz")
    write_nifti(mask, plan.out / "mask.nii.gz")
    write_file(plan.out / "mask.png", preview_png(scan.image, mask, predictor.labels, reference=scan.label))
    dice = evaluate(mask.data, scan.label.data).dice
    say(f"Dice on a new scan of another size, spacing and orientation: {dice:.4f}")
    return dice


def _segment_held_out(plan: DemoPlan, data: DemoData, tested: list[Tested], say: Say) -> float:
    """Segment the held-out scan of median Dice with the saved network, write mask and picture; return the Dice."""
    middle = Tested.middle(tested)
    predictor = Predictor(plan.out / "model", device="cpu")
    (scan,) = segment_cases(predictor, [case for case in data.held_out if case.id == middle.case])
    write_nifti(scan.predicted, plan.out / "mask.nii.gz")
    write_file(
        plan.out / "mask.png", preview_png(scan.image, scan.predicted, predictor.labels, reference=scan.reference)
    )
    dice = float(np.mean(list(scan.dice.values())))
    say(f"Dice by the retired network on {scan.case}, the median of the held-out scans: {dice:.4f}")
    return dice

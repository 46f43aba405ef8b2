"""The demo: the whole story on synthetic scans, in a few minutes, on the CPU, without data.

Few labels and many scans against the same labels alone: both networks are trained alike and compared on scans that
neither has seen; the closed gates of the better-fed one are retired, and it segments a new scan.
"""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from fheat.data.layouts import open_dataset
from fheat.data.phantom import phantom, write_phantoms
from fheat.data.read import read_image, read_label
from fheat.figures.page import PageSection, figure, paragraph, planes, table
from fheat.figures.preview import contour_pngs, preview_png
from fheat.gates.cost import cost
from fheat.gates.retire import retire
from fheat.gates.table import allocation
from fheat.inference.predictor import Predictor
from fheat.io.nifti import write_nifti
from fheat.metrics.evaluate import evaluate
from fheat.models.folder import load, save
from fheat.networks.registry import spec_of
from fheat.ops.gates import gates_of
from fheat.report.curves import save_allocation_figure
from fheat.report.write import write_report
from fheat.system.errors import BadInput
from fheat.system.files import write_file
from fheat.system.progress import progress_bar
from fheat.training.run_folder import RunFolder
from fheat.training.runs import RunHistory, read_history
from fheat.training.settings_sources import make_settings
from fheat.training.train import begin, finish
from fheat.training.trainer import Trainer

SHAPE: Final = (40, 36, 34)
PATCH: Final = (32, 32, 32)
CASES: Final = 40
TEST: Final = 12
LABELLED: Final = 2
ITERATIONS: Final = 480
WARM_UP: Final = 20
LEARNING_RATE: Final = 0.003
GATE_FACTOR: Final = 3.0
"""Factor of the learning rate for the strengths of the gates, which move little in a few hundred iterations."""
RAMP_SHARE: Final = 2 / 3
"""Share of the iterations over which the network learns more and more from itself."""
MARK: Final = "demo.json"
PARTS: Final = ("scans", "cse", "supervised", "model")
Shown = Callable[[str, Trainer], AbstractContextManager[None]]


@dataclass(frozen=True)
class DemoPlan:
    """Where the demo writes, how long each of its two runs lasts, and its seed."""

    out: Path
    iterations: int = ITERATIONS
    seed: int = 1


def run_demo(
    plan: DemoPlan,
    say: Callable[[str], None],
    shown: Shown = lambda what, trainer: nullcontext(),
) -> dict[str, Any]:
    """Run the demo and return its numbers, which `demo.json` holds too.

    `say` gets each line of the story as it happens; `shown` is a context in which a trainer runs, for a screen.
    """
    began = time.perf_counter()
    torch.set_num_threads(1)  # at this size a second one only costs, and sums would depend on the machine
    _begin(plan.out)
    result = {"seed": plan.seed} | _story(plan, say, shown)
    result["seconds"] = time.perf_counter() - began
    write_file(plan.out / MARK, (json.dumps(result, indent=1) + "\n").encode())
    return result


def _begin(out: Path) -> None:
    """Make the folder, or clear that of an earlier demo, which has a mark; anything else is left alone."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()) and not (out / MARK).is_file():
        raise BadInput(out, "is not empty and not of a demo", "give another folder with --out; nothing was touched")
    write_file(out / MARK, b"{}\n")
    for part in PARTS:
        if (out / part).exists():
            shutil.rmtree(out / part)


def _story(plan: DemoPlan, say: Callable[[str], None], shown: Shown) -> dict[str, Any]:
    out = plan.out
    with progress_bar("making scans") as show:
        write_phantoms(out / "scans", CASES, seed=plan.seed, shape=SHAPE, test=TEST, progress=show)
    unlabelled = CASES - LABELLED - len(open_dataset(out / "scans").split("validation"))
    say(f"scans: {LABELLED} with labels, {unlabelled} without, {TEST} held out for testing, in {out / 'scans'}")
    times = {"cse": _train(plan, "cse", shown)}
    record = read_history(out / "cse")
    closed = {site: at for site in record.sites if (at := record.closed_at(site)) is not None}
    say(f"CSE, {LABELLED} labels and all scans: {plan.iterations} iterations in {times['cse']:.0f} s")
    say(f"  gates closed for good: {', '.join(f'{site} at {at}' for site, at in closed.items()) or 'none'}")
    times["supervised"] = _train(plan, "supervised", shown)
    say(f"supervised-only, the same {LABELLED} labels: {plan.iterations} iterations in {times['supervised']:.0f} s")
    scores = {method: _test(out, method) for method in times}
    dice = {method: float(np.mean(list(found.values()))) for method, found in scores.items()}
    margin = dice["cse"] - dice["supervised"]
    say(
        f"Dice, mean of the {TEST} held-out scans: CSE {dice['cse']:.4f}, supervised-only {dice['supervised']:.4f}, "
        f"margin {margin:+.4f}\n"
    )
    facts = _retire(out, record, say)
    new, pictures = _segment_new(plan)
    say(f"Dice on a new scan of another size, spacing and orientation: {new:.4f}")
    more = [_comparison(scores, dice, margin), _new_scan(new, pictures)]
    with progress_bar("writing reports") as show:
        write_report(out / "cse", out / "report.html", more=more, progress=show)
        write_report(out / "supervised", progress=show)
    outcome = {"dice": dice, "margin": margin, "cases": scores, "closed_at": closed, "new_scan_dice": new}
    return {"settings": _settings(plan), **outcome, "training_seconds": times, **facts}


def _settings(plan: DemoPlan) -> dict[str, Any]:
    """Return what decides both runs but their method."""
    return {
        "data": str(plan.out / "scans"),
        "labelled": LABELLED,
        "patch_size": PATCH,
        "iterations": plan.iterations,
        "warm_up": WARM_UP,
        "learning_rate": LEARNING_RATE,
        "optimiser.delta": GATE_FACTOR,
        "validate_every": max(1, plan.iterations // 6),
        "checkpoint_every": max(1, plan.iterations),
        "seed": plan.seed,
    }


def _train(plan: DemoPlan, method: str, shown: Shown) -> float:
    """Train with one of the methods and return the seconds it took."""
    began = time.perf_counter()
    ramp = {"ramp": round(RAMP_SHARE * plan.iterations)} if method == "cse" else {}
    settings = make_settings({"method": {"name": method, **ramp}, **_settings(plan)}, "demo")
    with RunFolder(plan.out / method) as folder:
        trainer = begin(settings, folder, device="cpu")
        with shown(method, trainer):
            finish(trainer, folder)
    return time.perf_counter() - began


def _test(out: Path, method: str) -> dict[str, float]:
    """Return the Dice of every held-out scan by the network after the last iteration: nothing is selected."""
    predictor = Predictor(out / method / "final", device="cpu")
    found = {}
    with progress_bar(f"testing {method}") as show:
        cases = open_dataset(out / "scans").split("test")
        for done, case in enumerate(cases, start=1):
            image = read_image(case)
            label = read_label(case, image)
            assert label is not None
            mask = predictor.segment(image, check=False)  # four labelled scans say little about the range of others
            found[case.id] = evaluate(mask.data, label.data).dice
            show(done, len(cases))
    return found


def _retire(out: Path, record: RunHistory, say: Callable[[str], None]) -> dict[str, Any]:
    """Retire the closed gates, check that no bit of the output changes, and save the network."""
    model = load(out / "cse" / "final")
    small = retire(model)
    folder = save(small, out / "model", overwrite=True)
    fresh = spec_of(model).build()
    before, after, gates = cost(fresh), cost(small), allocation(small)
    x = torch.randn(1, 1, *PATCH, generator=torch.Generator().manual_seed(0))
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


def _segment_new(plan: DemoPlan) -> tuple[float, list[tuple[str, bytes]]]:
    """Segment a scan with the saved network, write scan, mask and picture; return the Dice and slices."""
    scan = phantom(np.random.SeedSequence(plan.seed, spawn_key=(2, 0)))
    predictor = Predictor(plan.out / "model", largest_component=True, device="cpu")
    mask = predictor.segment(scan.image, check=False)  # finer than the training scans, on purpose
    write_nifti(scan.image, plan.out / "scan.nii.gz")
    write_nifti(mask, plan.out / "mask.nii.gz")
    write_file(plan.out / "mask.png", preview_png(scan.image, mask, predictor.labels))
    return evaluate(mask.data, scan.label.data).dice, contour_pngs(scan.image, mask, scan.label)


def _comparison(scores: dict[str, dict[str, float]], dice: dict[str, float], margin: float) -> PageSection:
    words = (
        f"Dice on {TEST} scans that neither run has seen, by full sliding window, the networks after their last "
        f"iteration: CSE {dice['cse']:.4f}, supervised-only {dice['supervised']:.4f}, margin {margin:+.4f}. Labels, "
        "iterations, learning rates and seed are the same."
    )
    rows = [(case, f"{value:.4f}", f"{scores['supervised'][case]:.4f}") for case, value in scores["cse"].items()]
    return PageSection("With and without the unlabelled scans", paragraph(words) + table(("scan", *scores), rows))


def _new_scan(dice: float, pictures: list[tuple[str, bytes]]) -> PageSection:
    caption = (
        f"A scan of another size, spacing and orientation, segmented by the retired network, its largest component. "
        f"Prediction in orange, reference in blue; Dice {dice:.4f}."
    )
    return PageSection("A new scan", figure(planes(pictures), caption))

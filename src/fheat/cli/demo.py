"""`fheat demo`: from synthetic scans to a small network and a mask, in a minute, on the CPU, without data."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fheat.allocation.cost import cost
from fheat.allocation.retire import retire
from fheat.allocation.table import allocation
from fheat.cli.main import UsageError, program
from fheat.cli.options import parse
from fheat.cli.progress import progress_bar
from fheat.data.intensity import zscore
from fheat.data.phantom import Phantom, phantom
from fheat.files import write_file
from fheat.inference.predictor import Predictor
from fheat.io.nifti import write_nifti
from fheat.metrics.evaluate import evaluate
from fheat.models.card import Card, Intensity
from fheat.models.folder import check_target, load, save
from fheat.models.registry import create_model
from fheat.ops.gates import gates_of
from fheat.report.preview import preview_png
from fheat.report.spectral import save_allocation_figure


@dataclass(frozen=True)
class Demo:
    """Train FHEAT-Seg for a moment on synthetic scans of a heart chamber, read the gates, retire the closed ones, check
    that nothing changed, and segment a new scan of another size, spacing and orientation.

    Example: fheat demo --out demo
    """

    out: Path = Path("demo")
    """Where the model folder, the scan, its mask and the pictures go."""
    iterations: int = 120
    """Optimiser steps; the gates decide within the first dozens."""
    seed: int = 0
    """Seed of weights, data and steps."""
    json: bool = False
    """Print the result as JSON."""


PATCH = (48, 48, 48)
SCANS = 12
RATE = 0.01
WARM_UP = 20


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Demo, "demo", arguments)
    if options.iterations < 0:
        raise UsageError(f"iterations={options.iterations} is negative: give 0 or more")
    if not 0 <= options.seed < 2**63:
        raise UsageError(f"seed={options.seed} is out of range: give a whole number from 0 to 2^63 - 1")
    options.out.mkdir(parents=True, exist_ok=True)
    check_target(options.out / "model", overwrite=True)
    torch.manual_seed(options.seed)
    model = create_model("fheat_seg", patch_size=PATCH)
    children = np.random.SeedSequence(options.seed).spawn(SCANS + 1)
    scans = [phantom(child, PATCH, geometry="canonical") for child in children[:SCANS]]
    history = _train(model, scans, options)
    model.eval()
    small = retire(model)
    before, after, table = cost(create_model("fheat_seg", patch_size=PATCH)), cost(small), allocation(small)
    card = Card(
        title="fheat demo",
        classes=("background", "chamber"),
        intensity=Intensity(kind="zscore"),
        orientation="RAS",
        spacing=scans[0].image.spacing,
        data="synthetic scans",
        licence="Apache-2.0",
    )
    folder = save(small, options.out / "model", card, overwrite=True)
    x, _ = _batch(scans, torch.tensor([0, 1]))
    with torch.no_grad():
        equal = torch.equal(small(x), model(x))
        restored = torch.equal(load(folder)(x), small(x))
    picture = options.out / "allocation.png"
    save_allocation_figure(table, history, picture)
    dice = _segment(folder, phantom(children[-1]), options.out)
    if options.json:
        result = {"gates": table.to_json(), "before": before.to_json(), "after": after.to_json(), "dice": dice}
        print(json.dumps(result | {"retired_equal": equal, "loaded_equal": restored}, indent=1))
        return
    print(table)
    print(f"\nbefore: {before}\nafter:  {after}\n")
    print(f"torch.equal(retire(model)(x), model(x)): {equal}")
    print(f"torch.equal(load(folder)(x), retire(model)(x)): {restored}")
    print(f"Dice on a new scan of another spacing and orientation: {dice:.3f}")
    print(f"wrote {folder}, {picture} and {options.out / 'mask.png'}; next:")
    print(f"  {program()} allocation {folder}")
    print(f"  {program()} predict {folder} {options.out / 'scan.nii.gz'} {options.out / 'masks'}")


def _train(model: nn.Module, scans: Sequence[Phantom], options: Demo) -> list[dict[str, float]]:
    """Take AdamW steps with warm-up and cosine decay; return D of every gate before the first and after each."""
    generator = torch.Generator().manual_seed(options.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=1e-4)
    gates = gates_of(model)
    history = [{site: gate.strength.item() for site, gate in gates.items()}]
    with progress_bar("training") as show:
        for step in range(options.iterations):
            warm = min(1.0, (step + 1) / WARM_UP)
            optimiser.param_groups[0]["lr"] = RATE * warm * (1 + math.cos(math.pi * step / options.iterations)) / 2
            x, label = _batch(scans, torch.randint(len(scans), (2,), generator=generator))
            logits = model(x)
            inside = logits.softmax(dim=1)[:, 1]
            dice = 2 * (inside * label).sum() / (inside.sum() + label.sum())
            optimiser.zero_grad()
            (F.cross_entropy(logits, label) + 1 - dice).backward()
            optimiser.step()
            history.append({site: gate.strength.item() for site, gate in gates.items()})
            show(step + 1, options.iterations)
    return history


def _batch(scans: Sequence[Phantom], chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, *PATCH), normalised, and labels (N, *PATCH)."""
    some = [scans[index] for index in chosen.tolist()]
    images = np.stack([zscore(scan.image.data) for scan in some])
    return torch.from_numpy(images)[:, None], torch.from_numpy(np.stack([scan.label.data for scan in some])).long()


def _segment(folder: Path, scan: Phantom, out: Path) -> float:
    """Segment a scan with the model folder, write scan, mask and picture, and return the Dice."""
    predictor = Predictor(folder, largest_component=True, device="cpu")
    mask = predictor.segment(scan.image)
    write_nifti(scan.image, out / "scan.nii.gz")
    write_nifti(mask, out / "mask.nii.gz")
    write_file(out / "mask.png", preview_png(scan.image, mask, predictor.labels))
    return evaluate(mask.data, scan.label.data).dice

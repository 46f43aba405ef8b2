"""`fheat demo`: the main job in half a minute, on the CPU, without data."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from fheat.allocation.cost import cost
from fheat.allocation.retire import retire
from fheat.allocation.table import allocation
from fheat.cli.main import UsageError, program
from fheat.cli.options import parse
from fheat.models.card import Card
from fheat.models.folder import check_target, load, save
from fheat.models.registry import create_model
from fheat.ops.gates import gates_of
from fheat.report.spectral import save_allocation_figure


@dataclass(frozen=True)
class Demo:
    """Train FHEAT-Seg for a moment on noisy synthetic blobs, read the gates, retire the closed ones, compare.

    Example: fheat demo --out demo
    """

    out: Path = Path("demo")
    """Where the model folder and the picture go."""
    iterations: int = 40
    """Optimiser steps; the gates decide within the first dozens."""
    seed: int = 0
    """Seed of weights, data and steps."""
    json: bool = False
    """Print the result as JSON."""


PATCH = (48, 48, 48)


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
    history = _train(model, options)
    model.eval()
    small = retire(model)
    x, _ = _blobs(torch.Generator().manual_seed(options.seed + 1))
    with torch.no_grad():
        equal = torch.equal(small(x), model(x))
    before, after, table = cost(create_model("fheat_seg", patch_size=PATCH)), cost(small), allocation(small)
    card = Card(title="fheat demo", classes=("background", "blob"), data="synthetic blobs", licence="Apache-2.0")
    folder = save(small, options.out / "model", card, overwrite=True)
    with torch.no_grad():
        restored = torch.equal(load(folder)(x), small(x))
    picture = options.out / "allocation.png"
    save_allocation_figure(table, history, picture)
    if options.json:
        result = {"gates": table.to_json(), "before": before.to_json(), "after": after.to_json()}
        print(json.dumps(result | {"retired_equal": equal, "loaded_equal": restored}, indent=1))
        return
    print(table)
    print(f"\nbefore: {before}\nafter:  {after}\n")
    print(f"torch.equal(retire(model)(x), model(x)): {equal}")
    print(f"torch.equal(load(folder)(x), retire(model)(x)): {restored}")
    print(f"wrote {folder} and {picture}; next: {program()} allocation {folder}")


def _train(model: nn.Module, options: Demo) -> list[dict[str, float]]:
    """Take a few AdamW steps; return D of every gate before the first and after each."""
    generator = torch.Generator().manual_seed(options.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1e-4)
    gates = gates_of(model)
    screen = Console(stderr=True)
    history = [{site: gate.strength.item() for site, gate in gates.items()}]
    for _ in track(range(options.iterations), "training", console=screen, disable=not screen.is_terminal):
        x, label = _blobs(generator)
        logits = model(x)
        inside = logits.softmax(dim=1)[:, 1]
        dice = 2 * (inside * label).sum() / (inside.sum() + label.sum())
        optimiser.zero_grad()
        (F.cross_entropy(logits, label) + 1 - dice).backward()
        optimiser.step()
        history.append({site: gate.strength.item() for site, gate in gates.items()})
    return history


def _blobs(generator: torch.Generator, batch: int = 2, noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """Ellipsoids of random place and size under white noise: images (N, 1, *PATCH) and labels (N, *PATCH)."""
    centre = 0.6 * torch.rand(batch, 3, 1, 1, 1, generator=generator) - 0.3
    radius = 0.25 + 0.35 * torch.rand(batch, 3, 1, 1, 1, generator=generator)
    axes = [torch.linspace(-1, 1, length) for length in PATCH]
    position = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    inside = (((position - centre) / radius) ** 2).sum(dim=1) < 1
    image = inside.float() + noise * torch.randn(inside.shape, generator=generator)
    return image[:, None], inside.long()

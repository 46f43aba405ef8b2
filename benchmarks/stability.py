"""Train every network and every method for 200 iterations in bfloat16: `python benchmarks/stability.py --data LA`.

The data are LA in the nnU-Net layout with its splits.json: 4 labels, patches of 112x112x80. Every registered network
trains by supervised learning at its default learning rate, every method on FHEAT-Seg. A row says whether all losses and
weights stayed finite, how many updates were skipped for a gradient that was not, the loss before and after, and which
share of the outputs of convolutions and linear layers is in bfloat16: a layer that a network keeps in float32 is meant
to be an exception. `--only` names networks and methods to run; their rows are merged into the stored file. Speed is not
measured here, so that several of these may share a GPU: `fheat bench step` measures it.
"""

import json
from pathlib import Path
from typing import Any

import torch
from record import arguments, write_result
from torch import nn

from fheat.methods.registry import list_methods
from fheat.networks.registry import list_models
from fheat.ops import kernels
from fheat.training.prepare import prepare
from fheat.training.settings_sources import make_settings

WINDOW = 20
"""Number of iterations over which the loss before and after is averaged."""


def row(data: Path, network: str, method: str, iterations: int, device: str, patch: list[int]) -> dict[str, Any]:
    """Train one network by one method, and say how it went."""
    settings = make_settings(
        {
            "data": str(data), "labelled": 4, "network": network, "method": method, "iterations": iterations,
            "warm_up": iterations // 4, "patch_size": patch, "optimiser.precision": "bf16",
        }
    )  # fmt: skip
    step = prepare(settings, device=device).step
    kinds: list[torch.dtype] = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: kinds.append(output.dtype))
        for module in step.model.modules()
        if isinstance(module, nn.Conv3d | nn.ConvTranspose3d | nn.Linear)
    ]
    with kernels.use("never"):  # kernels call no layers
        step()
    for hook in hooks:
        hook.remove()
    for _ in range(1, iterations):
        step()
    losses = step.history[:iterations, 0].double().cpu()
    weights = [value for value in step.model.state_dict().values() if value.is_floating_point()]
    return {
        "finite": bool(losses.isfinite().all()) and all(bool(value.isfinite().all()) for value in weights),
        "skipped": int(step.optimiser.skipped),
        "learning_rate": settings.optimiser.learning_rate,
        "loss_before": round(losses[:WINDOW].mean().item(), 4),
        "loss_after": round(losses[-WINDOW:].mean().item(), 4),
        "in_bfloat16": round(sum(kind == torch.bfloat16 for kind in kinds) / max(len(kinds), 1), 3),
        "gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 2) if device == "cuda" else None,
    }


def main() -> None:
    options = arguments(
        __doc__,
        "stability",
        rounds=200,
        data="LA with its splits.json",
        only="names of networks and methods, with commas",
        patch="patch, 112,112,80",
    )
    asked = options.only.split(",") if options.only else [*list_models(), *list_methods()]
    patch = [int(length) for length in (options.patch or "112,112,80").split(",")]
    found: dict[str, Any] = {"networks": {}, "methods": {}}
    if options.only and options.out.is_file():
        found = json.loads(options.out.read_text())["results"]
    for name in asked:
        network, method = ("fheat_seg", name) if name in list_methods() else (name, "supervised")
        kind = "methods" if name in list_methods() else "networks"
        try:
            found[kind][name] = row(options.data, network, method, options.rounds, options.device, patch)
        except Exception as error:  # one that fails must not cost the rows of the others
            found[kind][name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(name, json.dumps(found[kind][name]), flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        write_result(  # after each, so that a run that is ended keeps what it has
            options.name,
            title=f"Every network and every method trained for {options.rounds} iterations in bfloat16 on LA",
            command="python benchmarks/stability.py --data LA --device cuda",
            seed=0,
            device=options.device,
            settings={"iterations": options.rounds, "labels": 4, "patch": patch},
            results=found,
            out=options.out,
        )


if __name__ == "__main__":
    main()

"""The gate's transform in the fused kernels against the library's products: `python benchmarks/fused_transform.py`.

y = idct(m * dct(x)) on every grid of the two networks whose stages the kernels take, windows of 112x112x80, for the
windows of a prediction (eight), of a training step (four), and one. On a GPU, captured, in turns. Forward keeps the
spectrum where a backward pass follows; the backward pass is the same transform of the gradient.
"""

import json

import torch
from record import arguments
from transforms import GRIDS

from fheat.bench.timing import interleaved
from fheat.ops.dct import dct, idct
from fheat.ops.heat import FractionalHeat
from fheat.ops.kernels import transform
from fheat.ops.kernels.launch import WIDEST
from fheat.system.machine import machine


def times(batch: int, channels: int, grid: tuple[int, ...], rounds: int) -> dict[str, float]:
    x = torch.randn(batch, *grid, channels, device="cuda")
    multiplier, closed = FractionalHeat(initial_strength=0.5).cuda()._multiplier(grid, x)

    def library() -> torch.Tensor:
        found = idct(dct(x, channels_last=True) * multiplier[..., None], channels_last=True)
        return torch.where(closed, x, found)

    return interleaved(
        {
            "library": library,
            "kernels": lambda: transform.filtered(x, multiplier, closed, keep_spectrum=False),
            "kernels, spectrum kept": lambda: transform.filtered(x, multiplier, closed, keep_spectrum=True),
        },
        rounds,
        "cuda",
    )


def main() -> None:
    options = arguments(__doc__, "fused-transform", rounds=20)
    torch.manual_seed(0)
    found = {}
    with torch.no_grad():
        for site, (channels, grid) in GRIDS.items():
            if channels > WIDEST:
                continue
            for batch in (1, 4, 8):
                found[f"{site}, batch {batch}"] = times(batch, channels, grid, options.rounds)
    for name, values in found.items():
        print(f"{name:34}", "  ".join(f"{kind} {1e3 * value:.1f} us" for kind, value in values.items()))
    result = {
        "command": "python benchmarks/fused_transform.py --device cuda",
        "machine": machine("cuda"),
        "seed": 0,
        "milliseconds": found,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

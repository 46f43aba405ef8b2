"""Time one window of FHEAT-Seg with gates open, closed and retired: `python benchmarks/bypass.py [--device cuda]`.

Light-UNETR is timed beside it. All run in plain PyTorch, without the fused kernels of this package, on a GPU as
captured graphs, and take shuffled turns in one process. The medians are stored; only ratios to the retired network
are claimed.
"""

import torch
from record import arguments, write_result
from torch import nn

from fheat import cost, create_model, retire
from fheat.bench.timing import interleaved
from fheat.ops import kernels
from fheat.ops.gates import gates_of

PATCH = (112, 112, 80)


def fheat_seg(
    open_sites: tuple[str, ...] | None, *, transform: str = "auto", mixer: str = "kan", bypass: bool
) -> nn.Module:
    torch.manual_seed(0)
    model = create_model("fheat_seg", mixer=mixer)
    for site, gate in gates_of(model).items():
        gate.transform = transform  # type: ignore[assignment]
        if open_sites is not None and site not in open_sites:
            gate.delta.data.fill_(-0.1)
    return retire(model) if bypass else model


def main() -> None:
    options = arguments(__doc__, "bypass", rounds=40)
    networks = {
        "fheat_seg, all gates open": fheat_seg(None, bypass=False),
        "fheat_seg, all closed, not retired": fheat_seg((), bypass=False),
        "fheat_seg, all retired": fheat_seg((), bypass=True),
        "fheat_seg, dec1 open, rest retired": fheat_seg(("dec1",), bypass=True),
        "fheat_seg, dec1 open by split, rest retired": fheat_seg(("dec1",), transform="split", bypass=True),
        "fheat_seg, gelu mixer, all retired": fheat_seg((), mixer="gelu", bypass=True),
        "light_unetr": create_model("light_unetr"),
    }
    counted = {name: cost(model).to_json() for name, model in networks.items()}
    x = torch.randn(1, 1, *PATCH, device=options.device)
    networks = {name: model.eval().to(options.device) for name, model in networks.items()}
    with torch.inference_mode(), kernels.use("never"):
        times = interleaved(
            {name: (lambda model=model: model(x)) for name, model in networks.items()}, options.rounds, options.device
        )
    base = times["fheat_seg, all retired"]
    for name, milliseconds in times.items():
        macs = counted[name]["macs"] / 1e9
        print(f"{name:<46} {macs:6.3f} G  {milliseconds:8.2f} ms  {milliseconds / base:5.2f} x")
    write_result(
        options.name,
        title=f"Time of one window with gates open, closed and retired on {options.device}, plain PyTorch",
        command=f"python benchmarks/bypass.py --device {options.device}",
        seed=0,
        device=options.device,
        settings={"unit": "milliseconds per 112x112x80 window, median of interleaved runs, float32"},
        results={
            "times": times,
            "ratio_to_retired": {name: value / base for name, value in times.items()},
            "macs": {name: value["macs"] for name, value in counted.items()},
        },
        out=options.out,
    )


if __name__ == "__main__":
    main()

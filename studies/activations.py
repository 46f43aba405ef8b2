"""How large the activations of a trained network become, block by block: `python studies/activations.py RUN`.

The network of a run, as its newest checkpoint has it or else its best one, segments its validation scans by
half-overlapping windows, in float32 on a CPU. For every module whose path fits `--modules` the result holds the largest
absolute value that it returned. Float32 ends at 3e38; a product of two activations leaves it where they reach about
1e19.
"""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import tyro
from record import write_result

from fheat import Predictor
from fheat.experiments.scoring import cases_to_score
from fheat.inference.windows import Windows
from fheat.models.folder import load
from fheat.training.checkpoints import newest_checkpoint
from fheat.training.run_folder import CONFIG, RunFolder
from fheat.training.settings_sources import read_settings


def main(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    modules: tuple[str, ...] = ("*.blocks.*",),
    data: str | None = None,
    scans: int | None = None,
    store: str | None = None,
) -> None:
    """Print the largest value behind every module, and store it under a name.

    Args:
        run: folder of a run.
        modules: patterns of the paths of modules, in which * stands for one name.
        data: folder of the scans, if it is another than the run was trained with.
        scans: number of validation scans; all if none.
        store: name of the stored result.
    """
    settings = read_settings(run / CONFIG, {} if data is None else {"data.folder": data})
    cases = cases_to_score(settings.data, "validation")[:scans]
    network, newest = load(run / "best"), newest_checkpoint(RunFolder(run).checkpoints)
    if newest is not None:
        prefix = "model."
        weights = {
            name.removeprefix(prefix): value for name, value in newest.tensors.items() if name.startswith(prefix)
        }
        network.load_state_dict(weights)
    largest: dict[str, float] = {}
    for path, module in network.named_modules():
        if any(fnmatchcase(path, pattern) and path.count(".") == pattern.count(".") for pattern in modules):
            module.register_forward_hook(_noting(largest, path))
    x, y, z = settings.data.patch_size
    predictor = Predictor(network, device="cpu", runtime="torch", windows=Windows((x, y, z), (x // 2, y // 2, z // 2)))
    for case in cases:
        predictor.segment(case.images[0])
    for path, value in largest.items():
        print(f"{path:24} {value:.2e}")
    if store is not None:
        write_result(
            store,
            title=f"The largest activations of a trained {settings.network.name}, block by block",
            command=f"python studies/activations.py RUN --store {store}",
            seed=settings.schedule.seed,
            settings={
                "method": settings.method.name,
                "learning_rate": settings.optimiser.learning_rate,
                "iterations": None if newest is None else newest.iteration,
                "labelled": settings.data.labelled,
                "scans": len(cases),
            },
            results={"largest": {path: float(f"{value:.3g}") for path, value in largest.items()}},
        )


def _noting(largest: dict[str, float], path: str) -> Any:
    def note(module: object, inputs: object, output: Any) -> None:
        value = (output[0] if isinstance(output, tuple) else output).abs().max().item()
        largest[path] = max(largest.get(path, 0.0), value)

    return note


if __name__ == "__main__":
    tyro.cli(main)

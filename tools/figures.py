"""Draw the figures of docs/images that show stored results, stored runs and networks: `python tools/figures.py`.

This needs no scans and no training: `benchmarks/results`, `studies/runs` and the zoo hold the numbers.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import tyro
from results import RESULTS, ROOT, RUNS

from fheat import create_model, load
from fheat.cli.main import main as fheat
from fheat.figures.architecture import architecture_picture
from fheat.figures.picture import write_pictures
from fheat.gates.architecture import architecture
from fheat.report.write import write_report
from fheat.studies.inside.figures import pictures
from fheat.studies.inside.record import read_analysis
from fheat.system.files import write_file

SHOWN = {
    "la-4-base": ("D", "alpha", "responses", "pairing", "attenuation"),
    "la-4-noise": ("D", "validation"),
    "la-4-spike": ("D", "validation"),
    "la-4-softplus": ("D", "alpha"),
    "la-4-fheat-segformer3d": ("D", "validation"),
    "la-4-segformer3d": ("validation",),
}
"""The figures that the documentation shows, by the stored run whose report has them."""
ANALYSES = {"analysis": "analysis-la-4-cpu.json", "trained": "analysis-trained-cpu.json"}


def main(out: Annotated[Path, tyro.conf.arg(help="folder")] = ROOT / "docs" / "images") -> None:
    """Write the figures into a folder."""
    networks = {"fheat-seg": load("la-4"), "light-unetr": create_model("light_unetr")}
    drawn = [architecture_picture(architecture(model), f"architecture-{name}") for name, model in networks.items()]
    write_pictures(out, drawn)
    fheat(["simulate", "--from", str(RESULTS / "simulation-cpu.json"), "--out", str(out)])
    for name, file in ANALYSES.items():
        for picture in pictures(read_analysis(RESULTS / file)):
            write_file(out / f"{name}-{picture.file}", picture.data)
    for run, names in SHOWN.items():
        with tempfile.TemporaryDirectory() as folder:
            write_report(RUNS / run, Path(folder) / "page.html", figures=Path(folder), scans=0)
            for name in names:
                write_file(out / f"{run}-{name}.svg", (Path(folder) / f"{name}.svg").read_bytes())


if __name__ == "__main__":
    tyro.cli(main)

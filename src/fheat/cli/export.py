"""`fheat export MODEL OUT --to FORMAT`: a model as a standard file that needs no fheat to run."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import tyro

from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.export.compare import Difference
from fheat.export.write import Exported, FormatName, export_model
from fheat.system.progress import progress_bar
from fheat.system.text import counted, printable


@dataclass(frozen=True)
class Export:
    """Write a model as a file that other programs run: ONNX, OpenVINO, torch's pt2, or a MONAI bundle. Gates that
    training closed are not part of it. How a scan becomes its input, and its output a mask, is inside the file as JSON;
    docs/how-to/export.md explains it.

    Before anything is written, the file is compared with the network on windows of noise and of the scans given. Where
    a logit differs by more than 0.0001 of the largest one, nothing is written and the exit code is 3.

    Example: fheat export la-4 la-4.onnx --to onnx

    Example: fheat export la-4 la-4.xml --to openvino --check scan.nii.gz

    Example: fheat export my-run my-bundle --to bundle --largest-component
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, the folder of a run, or a name from the zoo, such as la-4; fheat models lists them."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """File to write, ending in .onnx, .xml or .pt2, or the folder of a bundle."""
    to: FormatName
    """Kind of file. openvino writes a .bin file beside the .xml file; all but bundle write a .sha256 file."""
    check: tuple[Path, ...] = ()
    """Scans, on whose windows the file is compared with the network too."""
    largest_component: bool = False
    """Say in the recipe that only the largest connected component of each class is kept."""
    overwrite: bool = False
    """Replace an export that is there."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print JSON instead of lines."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    leading = list(takewhile(lambda word: not word.startswith("-"), arguments))
    if len(leading) > 2:
        raise UsageError(f"{len(leading) - 1} models are given: an average of several cannot be exported, give one")
    options = parse(Export, "export", arguments)
    exported = export_model(
        options.model,
        options.to,
        options.out,
        scans=options.check,
        largest_component=options.largest_component,
        overwrite=options.overwrite,
        watch=progress_bar,
    )
    if options.json:
        print(json.dumps(exported.to_json(), indent=1))
    else:
        _print(exported)


def _print(exported: Exported) -> None:
    taken, gates = exported.recipe.input, exported.recipe.gates
    for path, size in exported.files.items():
        print(printable(f"wrote {path}  {size:,} bytes"))
    window = "x".join(map(str, (taken.channels, *taken.size)))
    sizes = f"only, because {taken.fixed_because}" if taken.step is None else f"or longer by multiples of {taken.step}"
    print(printable(f"input: any batch of windows {window} {sizes}"))
    if gates.open or gates.retired:
        gone = counted(len(gates.retired), "gate")
        print(f"gates: {', '.join(gates.open) or 'none'} in the graph, {gone} gone from it")
    print(f"noise: {_said(exported.on_noise)}")
    if exported.on_scans is not None:
        print(f"scans: {_said(exported.on_scans)}")
    else:
        print("note: --check SCAN compares on windows of real scans, too", file=sys.stderr)


def _said(found: Difference) -> str:
    return (
        f"{counted(found.windows, 'window')}, logits differ from PyTorch by at most {found.largest:.1e} of the largest,"
        f" {found.other_class:,} of {found.voxels:,} voxels get another class"
    )

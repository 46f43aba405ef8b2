"""`fheat prompt PROGRAM SCAN OUT`: segment a scan through somebody else's program that takes boxes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fheat.cli.main import UsageError
from fheat.cli.options import check_device, given, parse
from fheat.system.errors import BadInput

if TYPE_CHECKING:
    from fheat.inference.prompt_program import PromptProgram
    from fheat.inference.prompts import Box
    from fheat.io.volume import Volume


@dataclass(frozen=True)
class Prompt:
    """Segment a scan slice by slice through a program of your own that takes an image and a box, such as MedSAM: an
    ONNX file, or a program of torch.export. fheat has no such program. The boxes come from a file, from a reference, or
    from the mask of a coarse model. The mask has the place of the scan; beside it, a .json file says how it was made.

    A mask from the boxes of a reference has seen the answer: never compare it with one of a network that has not.

    Example: fheat prompt medsam.onnx scan.nii.gz mask.nii.gz --coarse la-4 --margin 5

    Example: fheat prompt medsam.onnx scan.nii.gz mask.nii.gz --boxes boxes.json --adapter medsam.json
    """

    program: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PROGRAM")]
    """ONNX file, or .pt2 file of torch.export, which needs --trust."""
    scan: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SCAN")]
    """A .nii, .nii.gz or .nrrd file with one channel, or a folder of DICOM files."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Mask to write, .nii or .nii.gz."""
    adapter: Path | None = None
    """JSON file that names inputs and output of the program and says what it expects; docs/how-to/prompt.md has
    examples. By default the program takes `image`, 1 x 3 x 1024 x 1024, and `box`, 1 x 4."""
    boxes: Path | None = None
    """JSON file with boxes: a list of {"label": 1, "slice": 12, "box": [a0, b0, a1, b1]}."""
    reference: Path | None = None
    """Mask whose labels are boxed in every slice."""
    coarse: str | None = None
    """Model folder, run or zoo model whose mask of the scan is boxed in every slice."""
    axis: Literal[0, 1, 2] | None = None
    """Axis of the scan across which slices are cut; by default the one with the thickest slices."""
    margin: int = 0
    """Voxels by which boxes around masks are made wider on each side."""
    jitter: int = 0
    """Largest number of voxels by which each side of these boxes is moved at random."""
    seed: int = 0
    """Seed of these moves."""
    device: str | None = None
    """Where the coarse model runs: cpu or cuda. The program runs on the CPU."""
    overwrite: bool = False
    """Replace OUT and its .json file if they exist."""
    trust: bool = False
    """Open a .pt2 program, which may run code of its maker, and read scans in this process: for files of your own."""
    json: bool = False
    """Print the .json file instead of a line."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Prompt, "prompt", arguments)
    _check(options)
    import time

    from fheat import __version__
    from fheat.data.classes import millilitres
    from fheat.inference.prompt_program import Adapter, PromptProgram
    from fheat.inference.prompted import segment_prompted
    from fheat.inference.prompts import slicing_axis
    from fheat.io import read_volume
    from fheat.system.files import write_file
    from fheat.system.progress import progress_bar

    began = time.perf_counter()
    with progress_bar("opening the program and the scan"):
        adapter = Adapter() if options.adapter is None else Adapter.read(options.adapter)
        program = PromptProgram(options.program, adapter)
        scan = read_volume(options.scan)
    if scan.data.ndim != 3:
        raise BadInput(options.scan, f"has {scan.data.shape[3]} channels", "give a file with one of them")
    axis = slicing_axis(scan.spacing) if options.axis is None else options.axis
    boxes, prompts = _boxes(options, program, scan, axis)
    with progress_bar("boxes") as show:
        mask = segment_prompted(program, scan, boxes, axis, show)
    record: dict[str, Any] = {
        "scan": str(options.scan),
        "mask": str(options.out),
        "program": {"file": str(options.program), "sha256": program.sha256},
        "adapter": program.adapter.model_dump(mode="json"),
        "prompts": prompts | {"boxes": len(boxes), "slices": len({box.slice for box in boxes})},
        "axis": axis,
        "millilitres": millilitres(mask, {str(label): (label,) for label in sorted({box.label for box in boxes})}),
        "seconds": round(time.perf_counter() - began, 2),
        "fheat": __version__,
    }
    mask.save(options.out)
    write_file(_beside(options.out), (json.dumps(record, indent=1) + "\n").encode())
    if options.json:
        print(json.dumps(record, indent=1))
    else:
        volumes = ", ".join(f"label {label} {value} ml" for label, value in record["millilitres"].items()) or "empty"
        print(f"{options.out}: {len(boxes)} boxes from {prompts['from']}, {volumes}, {record['seconds']} s")


def _check(options: Prompt) -> None:
    said = given(options, "boxes", "reference", "coarse")
    if len(said) > 1:
        raise UsageError(f"{' and '.join(said)} are given: boxes come from one of them")
    if options.coarse is None and options.device is not None:
        raise UsageError("--device is for the model of --coarse: leave it out")
    if not options.reference and not options.coarse and (moved := given(options, "margin", "jitter", "seed")):
        raise UsageError(f"{moved[0]} is for boxes around a mask: give --reference or --coarse")
    if min(options.margin, options.jitter, options.seed) < 0:
        raise UsageError("margin, jitter and seed must not be negative")
    check_device(options.device)
    if not options.out.name.endswith((".nii", ".nii.gz")):
        raise UsageError(f"OUT is {options.out.name}: name it .nii or .nii.gz")
    for file in (options.out, _beside(options.out)):
        if file.is_dir() or (file.exists() and not options.overwrite):
            raise BadInput(file, "exists already", "choose another name, or give --overwrite")


def _boxes(options: Prompt, program: "PromptProgram", scan: "Volume", axis: int) -> tuple[list["Box"], dict[str, Any]]:
    """Return the boxes, and for the record where they come from."""
    from fheat.inference.prompted import every_slice
    from fheat.inference.prompts import boxes_of_mask, read_boxes

    said = given(options, "boxes", "reference", "coarse")
    if program.adapter.box is None:
        if said:
            raise UsageError(f"{said[0]} gives boxes, and the adapter says that the program takes none")
        return every_slice(scan, axis), {"from": "no prompt"}
    if options.boxes is not None:
        return read_boxes(options.boxes, scan.data.shape, axis), {"from": "file", "file": str(options.boxes)}
    if not said:
        raise UsageError("the program needs boxes: give --boxes FILE, --reference MASK or --coarse MODEL")
    source, mask = (
        ("reference", _reference(options, scan)) if options.reference else ("coarse model", _coarse(options, scan))
    )
    boxes = boxes_of_mask(mask.data, axis, margin=options.margin, jitter=options.jitter, seed=options.seed)
    file = str(options.reference or options.coarse)
    if not boxes:
        raise BadInput(file, "has no label to put a box around", "give another mask, or boxes in a file")
    moves = {"margin": options.margin, "jitter": options.jitter, "seed": options.seed}
    return boxes, {"from": source, "file": file, **moves}


def _reference(options: Prompt, scan: "Volume") -> "Volume":
    from fheat.data.classes import LARGEST_VALUE
    from fheat.data.read import fractions, integers
    from fheat.io import Volume, read_volume
    from fheat.io.volume import grid_difference

    assert options.reference is not None
    mask = read_volume(options.reference)
    data = integers(mask.data)
    if data is None:
        raise BadInput(options.reference, f"holds {fractions(mask.data)}", "round the labels or export them again")
    if data.max() > LARGEST_VALUE:
        reason = f"holds the label {data.max()}, over {LARGEST_VALUE}"
        raise BadInput(options.reference, reason, "renumber the labels")
    if difference := grid_difference(scan, mask):
        reason = f"field {difference.field} is {difference.second}, that of the scan {difference.first}"
        raise BadInput(options.reference, reason, "resample one onto the other's grid")
    return Volume(data, mask.affine)


def _coarse(options: Prompt, scan: "Volume") -> "Volume":
    from fheat.inference.predictor import Predictor
    from fheat.system.progress import progress_bar

    assert options.coarse is not None
    with progress_bar("coarse mask") as show:
        return Predictor(options.coarse, device=options.device).segment(scan, progress=show)


def _beside(out: Path) -> Path:
    """Return the file that says how a mask was made."""
    return out.with_name(f"{out.name.removesuffix('.gz').removesuffix('.nii')}.json")

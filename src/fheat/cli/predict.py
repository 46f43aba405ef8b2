"""`fheat predict MODEL INPUT OUT`: a mask for every scan, in the scan's own place."""

import errno
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from fheat import __version__
from fheat.cli.main import UsageError, program
from fheat.cli.options import parse
from fheat.data.case import Case
from fheat.data.inputs import scans_at
from fheat.data.read import read_image
from fheat.figures.preview import label_counts, preview_png
from fheat.inference.memory import machine_bytes
from fheat.inference.predictor import Predictor
from fheat.inference.replay import Precision
from fheat.inference.runtimes import Runtime
from fheat.inference.windows import PRESETS, Triple, Weights, Windows
from fheat.io.dicom import Series, read_dicom
from fheat.io.dicom_seg import write_dicom_seg
from fheat.io.nifti import write_nifti
from fheat.io.volume import Volume
from fheat.models.folder import MANIFEST, WEIGHTS, read_manifest
from fheat.models.zoo import find_folder, zoo_names
from fheat.system.errors import BadInput
from fheat.system.files import write_file
from fheat.system.progress import progress_bar


@dataclass(frozen=True)
class Predict:
    """Segment scans with a model folder, or with a trained model that comes with fheat. Each mask has the size, spacing
    and orientation of its scan. Beside the masks come a picture of each with its contour on three planes, and run.json
    with everything that was done.

    Scans that cannot be used are named, the others still run, and the exit code is 3. Masks that exist are kept, so the
    same command goes on after an interruption.

    Example: fheat predict la-4 scan.nii.gz masks

    Example: fheat predict demo/model patient/series-3 masks --format seg
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, or a name from the zoo, such as la-4; fheat models lists them."""
    input: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
    """A .nii, .nii.gz or .nrrd file, a folder of them (ID_0000, ID_0001 are channels of one scan), a folder of DICOM
    files, a folder of such folders, or a dataset."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder for the masks; created if needed."""
    format: Literal["nifti", "seg"] = "nifti"
    """Write ID.nii.gz, or DICOM SEG (ID.dcm) for DICOM input."""
    preset: Literal["la", "pancreas", "pancreas-b", "brats", "fast"] | None = None
    """Window and stride of a benchmark, by default the model's own; fast is the model's own with as little as a seventh
    of the windows: nearly the same mask, but up to a tenth of the voxels, at the edges, is not looked at."""
    stride: Triple | None = None
    """Voxels between windows per axis: smaller is slower and smoother."""
    weights: Weights = "constant"
    """Count all voxels of a window alike, or those in its centre more."""
    batch: int | None = None
    """Windows per forward pass; by default 4, on a GPU 16."""
    flips: bool = False
    """Average over the eight mirror images of each window; eight times slower."""
    largest_component: bool = False
    """Keep only the largest connected component of each class."""
    device: str | None = None
    """cpu, cuda or cuda:1; a GPU where there is one."""
    precision: Precision = "auto"
    """On a GPU and with OpenVINO; auto is float32 on a CPU, and on a GPU bfloat16 where it keeps the classes of the
    first windows."""
    runtime: Runtime = "auto"
    """What runs the network on a CPU; auto is OpenVINO where it is installed (pip install "fheat[export]"), else
    torch."""
    preview: bool = True
    """Leave out ID.png, which shows the contour on three planes."""
    overwrite: bool = False
    """Replace masks that exist already, instead of keeping them."""
    json: bool = False
    """Print run.json instead of a line per scan."""


@dataclass
class Record:
    """What run.json says."""

    model: str
    weights_sha256: str
    input: str
    settings: dict[str, Any]
    versions: dict[str, str]
    device: str
    complete: bool = False
    """Whether the run came to its end; an interrupted one lists what it had done."""
    cases: list[dict[str, Any]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Scans that had a mask already."""
    refused: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the JSON."""
        return json.dumps({"format": 1, **asdict(self)}, indent=1) + "\n"


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Predict, "predict", arguments)
    _check_order(options)
    predictor = _predictor(options)
    cases = scans_at(options.input)
    _check_outputs(cases, options)
    record = _record(options, predictor)
    try:
        for case in cases:
            if _target(case, options).exists() and not options.overwrite:
                record.kept.append(case.id)
                continue
            try:
                done = _segment(case, predictor, options)
            except (BadInput, ValueError, RuntimeError, MemoryError) as error:
                record.refused[case.id] = _reason(case, error)
                print(f"refused {case.id}: {record.refused[case.id]}", file=sys.stderr)
                continue
            if not options.json:
                if not record.cases:
                    print(
                        f"model: {predictor.card.title or options.model} ({predictor.card.data or 'data not stated'})"
                    )
                print(_line(done), flush=True)
            record.cases.append(done)
        record.complete = True
    finally:
        write_file(_record_path(options), record.text().encode())
    if record.kept:
        print(f"{len(record.kept)} masks exist already and are kept; --overwrite replaces them", file=sys.stderr)
    if options.json:
        print(record.text(), end="")
    if record.refused:
        raise BadInput(
            options.input, f"{len(record.refused)} of {len(cases)} scans refused", "see the lines above for each"
        )


def _check_order(options: Predict) -> None:
    """Refuse a scan, or a folder beside a model, in the place of the model: the order was mistaken."""
    given, other = Path(options.model), options.input
    is_scan = given.is_file() and given.name not in (MANIFEST, WEIGHTS)
    swapped = given.is_dir() and not (given / MANIFEST).exists()
    if is_scan or (swapped and ((other / MANIFEST).exists() or str(other) in zoo_names())):
        raise BadInput(given, "is no model folder", f"give the model first: {program()} predict MODEL INPUT OUT")


def _predictor(options: Predict) -> Predictor:
    windows = PRESETS[options.preset] if options.preset not in (None, "fast") else None
    try:
        predictor = Predictor(
            options.model,
            windows=windows,
            weights=options.weights,
            batch=options.batch,
            flips=options.flips,
            largest_component=options.largest_component,
            device=options.device,
            runtime=options.runtime,
            precision=options.precision,
        )
        if options.stride is not None:
            predictor.windows = Windows(predictor.windows.size, options.stride)
        if options.preset == "fast":
            predictor.windows = predictor.windows.fast()
    except ValueError as error:
        raise UsageError(str(error)) from None
    size = predictor.windows.size
    if predictor.spec is not None and size != predictor.spec.patch_size:
        patch = predictor.spec.patch_size
        raise UsageError(
            f"window {size} differs from the network's patch {patch}: use a preset of that size, or --stride"
        )
    return predictor


def _check_outputs(cases: Sequence[Case], options: Predict) -> None:
    """Refuse before the first scan what would fail after it."""
    names = [case.id for case in cases]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(options.input, f"has two scans named {twice}", "rename one; their masks would collide")
    if options.format == "seg" and not all(case.images[0].is_dir() for case in cases):
        raise UsageError("DICOM SEG refers to a DICOM series: give a DICOM folder, or leave out --format seg")
    inputs = {os.path.realpath(image) for case in cases for image in case.images}
    for case in cases:
        if os.path.realpath(_target(case, options)) in inputs:
            raise BadInput(_target(case, options), "is a scan itself", "choose another folder for the masks")
    options.out.mkdir(parents=True, exist_ok=True)


def _target(case: Case, options: Predict) -> Path:
    return options.out / f"{case.id}{'.dcm' if options.format == 'seg' else '.nii.gz'}"


def _record_path(options: Predict) -> Path:
    """Return run.json, or the first of run-2.json, run-3.json, ... that does not exist."""
    names = chain(["run.json"], (f"run-{number}.json" for number in count(2)))
    return next(options.out / name for name in names if options.overwrite or not (options.out / name).exists())


def _reason(case: Case, error: Exception) -> str:
    """Say in one line why a scan was not segmented."""
    if isinstance(error, BadInput):
        return str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return f"{case.images[0]}: there is not enough memory for it; use a smaller --batch or another --device"
    return f"{case.images[0]}: {str(error).splitlines()[0]}; give the kind of scan the model was trained on"


def _segment(case: Case, predictor: Predictor, options: Predict) -> dict[str, Any]:
    """Read, segment, write; return what run.json says of it."""
    begin = time.perf_counter()
    source = read_dicom(case.images[0]) if case.images[0].is_dir() else read_image(case)
    scan = source.volume if isinstance(source, Series) else source
    bound, shape = predictor.memory(scan), predictor.scan(scan).shape
    windows, unseen = predictor.sliding(None).count(shape), predictor.windows.unseen(shape)
    there = machine_bytes()
    if there is not None and bound.total > there:
        reason = f"would take {bound.total / 2**20:,.0f} MiB, this machine has {there / 2**20:,.0f}"
        raise BadInput(case.images[0], reason, "check its spacing, or use a larger machine")
    if not options.json:
        missed = f", {100 * unseen:.1f} % of the voxels not looked at" if unseen else ""
        print(f"{case.id}: {windows} {'window' if windows == 1 else 'windows'}{missed}, {bound}", file=sys.stderr)
    with progress_bar(case.id) as show:
        mask = predictor.segment(scan, progress=show)
    target = _target(case, options)
    try:
        if options.preview:  # before the mask, whose presence says that the scan is done
            write_file(options.out / f"{case.id}.png", preview_png(scan, mask, predictor.labels))
        if isinstance(source, Series) and options.format == "seg":
            write_dicom_seg(mask, source, target, ("background", *predictor.labels))
        else:
            write_nifti(mask, target)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise BadInput(case.images[0], "its name is too long for a mask beside it", "rename it") from None
    return {
        "id": case.id,
        "images": [str(image) for image in case.images],
        "mask": str(target),
        "shape": list(mask.data.shape),
        "spacing": list(mask.spacing),
        "orientation": mask.orientation,
        "windows": windows,
        "unseen": round(unseen, 4),
        "runtime": predictor.runtime,
        "precision": predictor.precision,
        "memory_bound_bytes": bound.total,
        "memory_parts_bytes": asdict(bound),
        "seconds": round(time.perf_counter() - begin, 3),
        "millilitres": _millilitres(mask, predictor.classes),
    }


def _millilitres(mask: Volume, classes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    voxel = abs(float(np.linalg.det(mask.affine[:3, :3]))) / 1000
    counts = label_counts(mask.data)
    return {name: round(int(counts[list(values)].sum()) * voxel, 3) for name, values in classes.items()}


def _line(done: dict[str, Any]) -> str:
    shape = "x".join(map(str, done["shape"]))
    volumes = ", ".join(f"{name} {amount:.1f} ml" for name, amount in done["millilitres"].items())
    return f"{done['id']}  {shape}  {volumes}  {done['seconds']:.1f} s  {done['mask']}"


def _record(options: Predict, predictor: Predictor) -> Record:
    settings = {
        "window": predictor.windows.size,
        "stride": predictor.windows.stride,
        "thinned": predictor.windows.thinned,
        "weights": options.weights,
        "flips": options.flips,
        "largest_component": options.largest_component,
    }
    return Record(
        model=options.model,
        weights_sha256=read_manifest(find_folder(options.model)).sha256["model.safetensors"],
        input=str(options.input),
        settings=settings,
        versions={"fheat": __version__, "torch": torch.__version__, "numpy": np.__version__},
        device=str(predictor.device),
    )

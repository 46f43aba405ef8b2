"""`fheat predict MODEL [MODEL ...] INPUT OUT`: a mask for every scan, in the scan's own place."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fheat.cli.main import UsageError, program, until_the_end
from fheat.cli.options import given, parse
from fheat.data.appearance import unusual_text
from fheat.data.plausible import Allowance
from fheat.inference.masks import MAPS, Changed, Preview
from fheat.inference.on_ray import predict_on_ray
from fheat.inference.predictor import MaskFormat, Predictor
from fheat.inference.record import PredictionRecord, SegmentedScan
from fheat.inference.replay import Precision
from fheat.inference.runtimes import RuntimeName
from fheat.inference.stages import FolderWatcher, Workload
from fheat.inference.uncertainty import UncertaintyKind
from fheat.inference.windows import PRESETS, Triple, Weights, Windows
from fheat.models.folder import WEIGHTS, read_manifest
from fheat.models.zoo import MANIFEST, find_folder, networks_of, zoo_names
from fheat.system.allocator import return_large_blocks
from fheat.system.errors import BadInput
from fheat.system.progress import Progress, progress_bar
from fheat.system.text import counted, duration, printable, some_of


@dataclass(frozen=True)
class Predict:
    """Segment scans with a model folder, a training run, or a trained model that comes with fheat; with several of
    them, their probabilities are averaged. Each mask has the size, spacing and orientation of its scan. Beside the
    masks come a picture of each with its contour on three planes, and run.json with everything that was done.

    Scans that cannot be used are named, the others still run, and the exit code is 3; a single one that cannot be used
    leaves no file. Scans that do not look like the
    training scans of the model are segmented after a note. A mask that exists is kept if run.json says that it was made
    of this scan with this model and these settings, so the same command goes on after an interruption. Files that fheat
    did not make, or that were edited since, are not replaced.

    Example: fheat predict la-4 scan.nii.gz masks

    Example: fheat predict demo/model patients masks --format seg --series "LGE axial"

    Example: fheat predict run-seed-0 run-seed-1 run-seed-2 scans masks --uncertainty disagreement

    Example: fheat predict la-4 cohort masks --engine ray --parallel 2
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Model folder, the folder of a run, or a name from the zoo, such as la-4; fheat models lists them. Several models
    are written one after the other, before INPUT; a folder that holds nothing but finished runs or models, such as the
    seeds of a sweep, means all of them."""
    input: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
    """A .nii, .nii.gz or .nrrd file, a folder of them (ID_0000, ID_0001 are channels of one scan), a folder of DICOM
    files, a tree of such folders (patients, studies, series), or a dataset."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder for the masks; created if needed."""
    format: MaskFormat = "nifti"
    """Write ID.nii.gz; for DICOM input also DICOM SEG (ID.dcm), or contours as RT Structure Set (ID_rtstruct.dcm)."""
    series: str | None = None
    """UID or description of the DICOM series to segment; by default all series of images but localisers and secondary
    captures."""
    pattern: str | None = None
    """Names of the scans below INPUT, with {id} for the name of a scan and {any} for any text: {id}_LGE.nii.gz, or
    {id}/t1.nii.gz."""
    preset: Literal["la", "pancreas", "pancreas-b", "brats", "fast"] | None = None
    """Window and stride of a benchmark, by default the model's own; fast is the model's own with a third to a half of
    the windows where they are dense, all where they are sparse, and nearly the same mask."""
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
    probabilities: bool = False
    """Write ID_probabilities.nii.gz as well: the probability of each class, one channel per class, in float32."""
    uncertainty: UncertaintyKind | None = None
    """Write ID_uncertainty.nii.gz as well, from 0 to 1: the entropy of the probabilities, or the disagreement of flips
    and models, which is the fraction of them with another class than their mean."""
    device: str | None = None
    """cpu, cuda or cuda:1; a GPU where there is one."""
    precision: Precision = "auto"
    """On a GPU and with OpenVINO; auto is float32 on a CPU, and on a GPU with many windows bfloat16 where it keeps the
    classes of the first ones."""
    runtime: RuntimeName = "auto"
    """Runtime of the network on a CPU; auto is OpenVINO where it is installed (pip install "fheat[export]"), else
    torch."""
    allow: Annotated[tuple[Allowance, ...], tyro.conf.UseAppendAction] = ()
    """implausible-spacing takes scans whose voxels or extent no scanner gives, such as micrographs, instead of refusing
    them."""
    preview: bool = True
    """Leave out ID.png, which shows the contour on three planes."""
    preview_window: tuple[float, float] = (1.0, 99.0)
    """Percentiles of the intensities that are black and white in ID.png."""
    reference: Path | None = None
    """Folder with reference masks of the same names, their path with {id} for the name of a scan, or the one file;
    ID.png shows their contours in dashes."""
    overwrite: bool = False
    """Replace files in the place of a mask, whoever made them, instead of keeping or refusing them."""
    changed: Changed = "recompute"
    """Where a mask of fheat was made of another scan, or with another model or other settings: segment again, or refuse
    the scan."""
    engine: Literal["local", "ray"] = "local"
    """Segment one scan after the other here, or many at once on a Ray cluster whose machines share INPUT and OUT."""
    parallel: int | None = None
    """With --engine ray, number of workers on each GPU, or on the processors of each machine; by default 1."""
    address: str | None = None
    """Address of the Ray cluster; by default the one that this machine is part of, else one that is started here."""
    trust: bool = False
    """Read scans in this process, which is faster: for files of your own. Others are parsed in a confined process."""
    json: bool = False
    """Print run.json instead of a line per scan."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    leading = list(takewhile(lambda word: not word.startswith("-"), arguments))
    more = leading[1:-2]  # models beside the first one
    options = parse(Predict, "predict", [*arguments[:1], *arguments[1 + len(more) :]])
    _check_order(options)
    _check_engine(options)
    models = [network for name in (options.model, *more) for network in _networks(name)]
    try:
        record = _record(options, models, shlex.join([program(), "predict", *arguments]))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if record.kept:
        print(
            f"{counted(len(record.kept), 'mask')} of the same scan, model and settings kept; --overwrite replaces them",
            file=sys.stderr,
        )
    if options.json:
        print(record.text(), end="")
    if record.refused and record.scans == 1:
        raise BadInput.of_line(*record.refused.values())
    if record.refused:
        raise BadInput(
            options.input, f"{len(record.refused)} of {record.scans} scans refused", "see the lines above for each"
        )


def _record(options: Predict, models: Sequence[str], command: str) -> PredictionRecord:
    """Segment the scans here or on a cluster."""
    card = read_manifest(find_folder(models[0])).card
    first = card.title or models[0]
    others = f" and {len(models) - 1} more" if len(models) > 1 else ""
    watcher = _Watcher() if options.json else _Printer(f"{first}{others}", card.data, many=options.engine == "ray")
    preview = Preview(options.reference, options.preview_window) if options.preview else False
    if options.engine == "ray":
        with redirect_stdout(sys.stderr):  # on which Ray prints its remarks
            return predict_on_ray(
                partial(_predictor, options, models),
                options.input,
                options.out,
                parallel=options.parallel,
                device=options.device,
                address=options.address,
                mask_format=options.format,
                preview=preview,
                overwrite=options.overwrite,
                changed=options.changed,
                series=options.series,
                pattern=options.pattern,
                command=command,
                maps=[name for name in MAPS if getattr(options, name)],
                watcher=watcher,
            )
    return until_the_end(partial(_predictor, options, models)).segment_folder(
        options.input,
        options.out,
        mask_format=options.format,
        preview=preview,
        overwrite=options.overwrite,
        changed=options.changed,
        series=options.series,
        pattern=options.pattern,
        command=command,
        watcher=watcher,
    )


class _Watcher(FolderWatcher):
    """Shows a bar for the scan in work and names the scans that are unusual or refused, on standard error.

    A single scan that is refused is named by the line with which the program ends.
    """

    def __init__(self) -> None:
        self._total = 0

    def progressed(self, done: int, total: int, seconds_left: float | None) -> None:
        """Take note of the number of scans."""
        self._total = total

    def waiting(self, what: str) -> AbstractContextManager[Progress]:
        """Show what is done and for how long."""
        return progress_bar(printable(what))

    @contextmanager
    def segmenting(self, case: str, workload: Workload) -> Iterator[Progress]:
        """Show a bar while the scan is segmented."""
        with progress_bar(printable(case)) as show:
            yield show

    def segmented(self, scan: SegmentedScan) -> None:
        """Print what differs most in a scan that does not look like the training scans."""
        if scan.unusual:
            print(f"note: {printable(unusual_text(scan.id, scan.unusual))}", file=sys.stderr)

    def noted(self, case: str, text: str) -> None:
        """Print the remark."""
        print(printable(f"note: {case}: {text}"), file=sys.stderr)

    def skipped(self, name: str, reason: str) -> None:
        """Print what is no scan and why."""
        print(printable(f"skipped {name}: {reason}"), file=sys.stderr)

    def refused(self, case: str, reason: str) -> None:
        """Print the scan and the reason, where there are others."""
        if self._total != 1:
            print(printable(f"refused {case}: {reason}"), file=sys.stderr)


class _Printer(_Watcher):
    """Prints a line per scan, too, and before the first one the model."""

    def __init__(self, model: str, data: str, *, many: bool) -> None:
        super().__init__()
        self._model: str | None = f"model: {model} ({data or 'data not stated'})"
        self._out = sys.stdout
        self._many, self._done, self._left = many, 0, ""
        self._open: set[str] = set()
        """Scans that are segmented, or have been, and are not told as done: one may still be written behind another."""

    def progressed(self, done: int, total: int, seconds_left: float | None) -> None:
        """Take note of the next scan's place among all; where many are segmented at once, print how many are done."""
        super().progressed(done, total, seconds_left)
        self._done = done
        self._left = f", about {duration(seconds_left)} left" if seconds_left is not None else ""
        if self._many and 0 < done < total:
            print(f"{done} of {total} scans done{self._left}", file=sys.stderr)

    @contextmanager
    def segmenting(self, case: str, workload: Workload) -> Iterator[Progress]:
        """Print what the scan will take."""
        windows = f"{workload.windows} {'window' if workload.windows == 1 else 'windows'}"
        number = self._done + len(self._open) + 1
        place = f"scan {number} of {self._total}{self._left}: " if self._total > 1 else ""
        print(printable(f"{place}{case}: {windows}, {workload.bound}"), file=sys.stderr)
        self._open.add(case)
        with super().segmenting(case, workload) as show:
            yield show

    def segmented(self, scan: SegmentedScan) -> None:
        """Print the scan with the volume of every class."""
        super().segmented(scan)
        self._open.discard(scan.id)
        if self._model is not None:
            print(printable(self._model), file=self._out)
            self._model = None
        shape = "x".join(map(str, scan.shape))
        volumes = ", ".join(f"{name} {millilitres:.1f} ml" for name, millilitres in scan.millilitres.items())
        line = f"{scan.id}  {shape}  {volumes}  {scan.seconds:.1f} s  {scan.mask}"
        print(printable(line), file=self._out, flush=True)

    def refused(self, case: str, reason: str) -> None:
        """Print the scan and the reason, where there are others."""
        super().refused(case, reason)
        self._open.discard(case)


def _networks(name: str) -> list[str]:
    """Return the models that a name means, and say on standard error which they are where a folder holds them."""
    networks = [str(network) for network in networks_of(name)]
    if networks != [name]:
        listed = ", ".join(some_of([Path(network).name for network in networks]))
        what = f"the mean of {len(networks)} networks: {listed}" if len(networks) > 1 else f"the network in {listed}"
        print(printable(f"{name}: {what}"), file=sys.stderr)
    return networks


def _check_order(options: Predict) -> None:
    """Refuse a scan, or a folder beside a model, in the place of the model: the order was mistaken."""
    model, other = Path(options.model), options.input
    is_scan = model.is_file() and model.name not in (MANIFEST, WEIGHTS)
    swapped = model.is_dir() and not (model / MANIFEST).exists()
    if is_scan or (swapped and ((other / MANIFEST).exists() or str(other) in zoo_names())):
        raise BadInput(model, "is no model folder", f"give the model first: {program()} predict MODEL INPUT OUT")


def _check_engine(options: Predict) -> None:
    """Refuse what makes sense on a cluster only, and too few workers."""
    said = given(options, "parallel", "address")
    if said and options.engine != "ray":
        raise UsageError(f"{said[0]} is for a Ray cluster: add --engine ray")
    if options.parallel is not None and options.parallel < 1:
        raise UsageError(f"parallel={options.parallel} is too few: give 1 or more")


def _predictor(options: Predict, models: Sequence[str], *, device: str | None = None) -> Predictor:
    windows = None if options.preset is None else PRESETS.get(options.preset)
    return_large_blocks()  # for the bound that is printed
    try:
        predictor = Predictor(
            models,
            windows=windows,
            weights=options.weights,
            batch=options.batch,
            flips=options.flips,
            largest_component=options.largest_component,
            probabilities=options.probabilities,
            uncertainty=options.uncertainty,
            device=device or options.device,
            runtime=options.runtime,
            precision=options.precision,
            allow=options.allow,
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

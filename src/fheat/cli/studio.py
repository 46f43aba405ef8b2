"""`fheat studio`: a page in the browser where a scan goes in and a mask comes out, and a service for other programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fheat.cli.main import UsageError
from fheat.cli.options import parse
from fheat.system.errors import BadInput


@dataclass(frozen=True)
class Studio:
    """Open a page in the browser: drag a scan in, choose a model, look at the mask over the scan, compare it with a
    reference, correct it with a brush, download it. Other pages show training runs while they go on, the gates of
    models, and the cases of a dataset. 3D Slicer can use the same service as a MONAI Label server.

    The service answers this machine alone, and only with the token in the address that it prints. Scans and results are
    deleted after an hour and at the end. Nothing is sent anywhere.

    Example: fheat studio

    Example: fheat studio --models demo/model --runs runs --labels corrected

    Example: fheat studio --dataset Task04_Hippocampus --predictions masks
    """

    models: tuple[Path, ...] = ()
    """Model folders or run folders to offer beside the zoo."""
    runs: Path | None = None
    """Folder of training runs, whose curves are shown and whose models are offered."""
    dataset: Path | None = None
    """Dataset to look through."""
    predictions: Path | None = None
    """Masks of that dataset, as fheat predict writes them."""
    labels: Path | None = None
    """Folder for corrected masks; nothing in it is ever replaced."""
    host: str = "127.0.0.1"
    """Address to bind; another one than that of this machine needs --token."""
    port: int = 8000
    """Port to bind; 0 is any free one."""
    token: str | None = None
    """Secret of the address, 16 characters or more; by default a random one, new with each start."""
    names: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME...")] = ()
    """Further names under which browsers reach the service, such as studio.example.org behind a proxy."""
    device: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DEVICE...")] = ()
    """cpu, cuda or cuda:1; one job at a time runs on each. By default a GPU where there is one."""
    runtime: Literal["auto", "torch", "onnx", "openvino"] = "auto"
    """Runtime of the networks on a CPU; see fheat predict --help."""
    queue: int = 32
    """Largest number of jobs that wait; more are refused."""
    time_limit: float = 300.0
    """Seconds after which a job is ended."""
    max_bytes: int = 512 * 2**20
    """Largest number of bytes of a file that is sent."""
    keep: float = 3600.0
    """Seconds after which results, and scans that nobody uses, are deleted."""
    no_browser: bool = False
    """Do not open the browser."""


def run(arguments: Sequence[str]) -> None:
    """Run the verb."""
    options = parse(Studio, "studio", arguments)
    _check(options)
    try:
        from fheat.studio.server import serve
    except ImportError as error:
        missing = (error.name or "fastapi").partition(".")[0]
        if missing == "fheat":
            raise
        raise BadInput("studio", f"needs the package {missing}", 'pip install "fheat[studio]"') from None
    from fheat.studio.settings import Limits, StudioSettings

    limits = Limits(queue=options.queue, seconds=options.time_limit, body=options.max_bytes, keep=options.keep)
    given = {} if options.token is None else {"token": options.token}
    settings = StudioSettings(
        host=options.host,
        port=options.port,
        names=options.names,
        models=options.models,
        runs=options.runs,
        dataset=options.dataset,
        predictions=options.predictions,
        labels=options.labels,
        devices=options.device or (None,),
        runtime=options.runtime,
        limits=limits,
        **given,
    )
    serve(settings, given_token=options.token, browser=not options.no_browser)


def _check(options: Studio) -> None:
    for name, least in (("port", 0), ("queue", 1), ("max_bytes", 1)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(options, name)}: give {least} or more")
    for name in ("time_limit", "keep"):
        if not getattr(options, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(options, name):g}: give seconds above 0")
    for name in ("runs", "dataset", "predictions"):
        folder = getattr(options, name)
        if folder is not None and not folder.exists():
            raise BadInput(folder, "does not exist", f"give an existing folder to --{name}")
    for folder in options.models:
        if not folder.is_dir():
            raise BadInput(folder, "is no folder", "give model folders to --models; the zoo is there anyway")
    if options.predictions is not None and options.dataset is None:
        raise UsageError("--predictions belongs to --dataset: add it")

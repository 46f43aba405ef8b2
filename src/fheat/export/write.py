"""Export a model: make the file, compare it with the network, and only then put it in its place."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import torch

from fheat.export import bundle
from fheat.export.compare import LARGEST_DIFFERENCE, Difference, check_scan, compare_on_noise, compare_on_scans
from fheat.export.graphs import GRAPHS
from fheat.export.recipe import STEP, Recipe, recipe_of
from fheat.inference.compilable import compilable
from fheat.inference.compilers import Forward
from fheat.inference.predictor import Predictor
from fheat.models.folder import WEIGHTS, read_manifest
from fheat.models.zoo import find_folder
from fheat.ops.gates import gates_of
from fheat.system.errors import BadInput
from fheat.system.files import check_file, check_folder, write_file, write_folder
from fheat.system.progress import Watch, unwatched
from fheat.system.text import printable

FormatName = Literal["onnx", "openvino", "pt2", "bundle"]
HASHES: Final = ".sha256"
"""End of the name of the file that has the hashes of the others, as sha256sum writes and reads it."""

OWN: Final = frozenset({"LICENSE", "configs", "models", "docs"})
"""Names in the folder of a bundle."""


@dataclass(frozen=True)
class Exported:
    """Result of an export: the files that were written, and how near their outputs are to those of the network."""

    format: FormatName
    files: Mapping[str, int]
    """Path and number of bytes of every file."""
    sha256: Mapping[str, str]
    """Hash of every file."""
    recipe: Recipe
    on_noise: Difference
    on_scans: Difference | None
    seconds: float
    """Time to make the file, load it and compare it on noise."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        scans = None if self.on_scans is None else asdict(self.on_scans)
        return {
            "format": self.format,
            "files": dict(self.files),
            "sha256": dict(self.sha256),
            "limit": LARGEST_DIFFERENCE,
            "on_noise": asdict(self.on_noise),
            "on_scans": scans,
            "seconds": self.seconds,
            "recipe": self.recipe.model_dump(mode="json"),
        }


def export_model(
    model: str | Path,
    to: FormatName,
    out: str | Path,
    *,
    scans: Sequence[Path] = (),
    largest_component: bool = False,
    overwrite: bool = False,
    watch: Watch = unwatched,
) -> Exported:
    """Write a model as a file of another kind, with its recipe inside, or raise `BadInput` and write nothing.

    Args:
        model: model folder, name of a zoo model or run folder.
        to: `onnx`, `openvino`, `pt2` or `bundle`.
        out: file to write, whose name ends as its kind does, or the folder of a bundle.
        scans: scans on whose windows the file is compared with the network, besides noise.
        largest_component: say in the recipe that only the largest component of each class is kept.
        overwrite: replace what is there.
        watch: opens a context for each part of the work: making the file, comparing on noise, comparing on scans.

    The graph is that of the retired network: closed gates are not in it. It takes any batch, and any grid a multiple of
    32 longer than the window, unless a gate is open or the network cannot be exported that way.
    """
    if to not in get_args(FormatName):
        raise ValueError(f"format {to!r} is unknown: use one of {', '.join(get_args(FormatName))}")
    target = Path(out)
    check_export_target(target, to, overwrite=overwrite)
    folder = find_folder(model)
    sha256 = read_manifest(folder).sha256[WEIGHTS]
    _check_packages(to)
    try:
        predictor = Predictor(folder, device="cpu", runtime="torch", largest_component=largest_component)
    except ValueError as error:
        raise BadInput(model, str(error), "train or save the model with a window") from None
    for path in scans:  # before the work that would be lost
        check_scan(predictor, path)
    start = time.perf_counter()
    made = _first_that_works(predictor, to, sha256, target, watch)
    seconds = time.perf_counter() - start
    on_scans = None
    if scans:
        with watch("comparing on scans") as show:
            on_scans = compare_on_scans(predictor, made.run, list(scans), show)
    if on_scans is not None and not on_scans.accepted:
        raise BadInput(target, f"{_too_far(on_scans)} on the scans", "nothing was written; use another format")
    files = _write(target, to, made.contents)
    sizes = {path: len(data) for path, data in files.items()}
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    return Exported(to, sizes, hashes, made.recipe, made.on_noise, on_scans, seconds)


class _Made(NamedTuple):
    """The content of an export that passed the comparison on noise, and what runs it."""

    contents: Mapping[str, bytes]
    run: Forward
    recipe: Recipe
    on_noise: Difference


def check_export_target(target: Path, to: FormatName, *, overwrite: bool) -> None:
    """Raise `BadInput` where nothing can or may be written; nothing is changed."""
    if to == "bundle":
        check_folder(target)
        if target.exists() and not overwrite:
            raise BadInput(target, "exists already", "choose another folder, or add --overwrite")
        if target.exists() and any(target.iterdir()) and not (target / "configs" / "metadata.json").is_file():
            raise BadInput(target, "is not a MONAI bundle", "choose another folder; nothing was touched")
        foreign = sorted({path.name for path in target.iterdir()} - OWN) if target.exists() else []
        if foreign:  # scans and masks, which MONAI reads and writes there
            reason = f"holds {foreign[0]!r}, which is not part of an export"
            raise BadInput(target, reason, "move it to another place; nothing was touched")
        return
    suffix = GRAPHS[to].suffixes[0]
    if target.suffix != suffix:
        raise BadInput(target, f"a file for {to} ends in {suffix}", f"write {target.name or 'model'}{suffix}")
    for path in _paths(target, to):
        check_file(path)
        if path.exists() and not overwrite:
            raise BadInput(path, "exists already", "choose another name, or add --overwrite")


def _first_that_works(predictor: Predictor, to: FormatName, sha256: str, target: Path, watch: Watch) -> _Made:
    """Return the export for most sizes that can be made and agrees with the network, or raise `BadInput`."""
    obstacles: list[str] = []
    for recipe in _recipes(predictor, to, sha256, obstacles):
        try:
            with watch(f"writing the network as {to}"):
                contents, run = _make(predictor, to, recipe)
            with watch("comparing on noise") as show:
                on_noise = compare_on_noise(predictor, run, recipe.input.step, show)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # exporters and runtimes raise whatever they like
            obstacles.append(_first_line(error))
            continue
        if on_noise.accepted:
            return _Made(contents, run, recipe, on_noise)
        obstacles.append(_too_far(on_noise))
    raise BadInput(
        target, f"{to} cannot hold this network ({obstacles[-1]})", "nothing was written; use another format"
    )


def _recipes(predictor: Predictor, to: FormatName, sha256: str, obstacles: list[str]) -> Iterator[Recipe]:
    """Yield the recipes to try: for other sizes too, which an open gate excludes in a graph, then for windows only."""
    packages = bundle.PACKAGES if to == "bundle" else GRAPHS[to].packages
    opened = [site for site, gate in gates_of(predictor.network).items() if not gate.retired]
    if to == "bundle" or not opened:
        yield recipe_of(predictor, sha256, step=STEP, packages=packages)
    because = (
        f"the network could not be exported for other sizes ({obstacles[-1]})"
        if obstacles
        else f"the cosine transforms of the open gates {', '.join(opened)} are matrices for one size"
    )
    yield recipe_of(predictor, sha256, step=None, fixed_because=because, packages=packages)


def _make(predictor: Predictor, to: FormatName, recipe: Recipe) -> tuple[dict[str, bytes], Forward]:
    """Return the files by name or by the end of their name, and what runs them as a user would."""
    if to == "bundle":
        made = bundle.make_bundle(predictor, recipe)
        return made, bundle.described_network(made, predictor.network.state_dict())
    form = compilable(predictor.network)
    with torch.no_grad():  # open gates keep their matrices, which so become constants of the graph
        form(torch.zeros(1, recipe.input.channels, *recipe.input.size))
    files = GRAPHS[to].make(form, recipe)
    return dict(files), GRAPHS[to].load(files)


def _write(target: Path, to: FormatName, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Write the files, each completely or not at all, and return them by path; the file of hashes comes last."""
    if to == "bundle":
        write_folder(target, contents)
        return {str(target / name): data for name, data in contents.items()}
    files = {target.with_suffix(suffix): data for suffix, data in contents.items()}
    lines = (f"{hashlib.sha256(data).hexdigest()}  {path.name}\n" for path, data in files.items())
    files[_paths(target, to)[-1]] = "".join(lines).encode()
    for path, data in files.items():
        write_file(path, data)
    return {str(path): data for path, data in files.items()}


def _paths(target: Path, to: FormatName) -> list[Path]:
    return [*(target.with_suffix(suffix) for suffix in GRAPHS[to].suffixes), target.with_name(target.name + HASHES)]


def _check_packages(to: FormatName) -> None:
    needed = bundle.PACKAGES if to == "bundle" else GRAPHS[to].packages
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise BadInput(to, f"needs the package {missing[0]}", 'pip install "fheat[export]"')


def _too_far(found: Difference) -> str:
    return f"differs from PyTorch by {found.largest:.1g} of the largest logit, over the limit of {LARGEST_DIFFERENCE:g}"


def _first_line(error: Exception) -> str:
    said = next(iter(str(error).strip().splitlines()), "")
    return printable(said or type(error).__name__)

"""Runs on disk: the history that a run folder logs, and the network that a folder or the name of a zoo model means."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fheat.gates.table import closed_from
from fheat.models.card import Card
from fheat.models.folder import load
from fheat.models.zoo import MANIFEST
from fheat.system.errors import BadInput
from fheat.system.files import LOG_LIMIT, read_capped
from fheat.training.log import from_line, is_checked, split_log
from fheat.training.run_folder import CONFIG, LOG, RunFolder
from fheat.training.settings import TrainSettings

_NO_LOSS = ("iteration", "norm", "rate", "per_second")
"""Fields of a logged iteration that are no losses; neither are D and alpha of the gates."""
_NESTED = ("cases", "probe", "closed")
"""Fields that hold something else than one number."""


@dataclass(frozen=True)
class ValidationScore:
    """Validation Dice at an iteration: the mean, and that of every scan."""

    iteration: int
    mean: float
    cases: dict[str, float]


@dataclass(frozen=True)
class ProbeAt:
    """Result of a probe at one gate; NaN stands for a number that could not be measured."""

    pairing: float
    """P = -dL/dtau at D = 0."""
    error: float
    """Standard error of the pairing."""
    slope: float
    """-dL/dtau at the D of this iteration."""
    slope_error: float
    """Standard error of the slope."""
    attenuation: float
    """Part of the gradient that passes the gate, without the constant mode."""


@dataclass(frozen=True)
class RunHistory:
    """A run as its folder logs it."""

    folder: Path
    settings: TrainSettings
    steps: list[dict[str, float]]
    """Losses and gates of every logged iteration, in order; there is at least one."""
    validations: list[ValidationScore]
    speeds: dict[int, float]
    """Iterations per second, without validation and saving, by the iteration at which they were measured."""
    probes: dict[int, dict[str, ProbeAt]] = field(default_factory=dict)
    """Result of the probe at each site, by iteration, in order; iteration 0 is before the first step."""
    began_closed: frozenset[str] = frozenset()
    """Sites of the gates that were closed before the first step; empty for runs of earlier versions."""

    @property
    def iterations(self) -> list[int]:
        """Numbers of the logged iterations."""
        return [int(step["iteration"]) for step in self.steps]

    @property
    def done(self) -> int:
        """Number of the last logged iteration."""
        return max(self.iterations[-1], *(validation.iteration for validation in self.validations), 0)

    @property
    def finished(self) -> bool:
        """Whether the run reached its last iteration and saved its final network."""
        return self.done >= self.settings.schedule.iterations and (self.folder / "final").is_dir()

    @cached_property
    def losses(self) -> list[str]:
        """Names of the losses; the first is the one that is minimised."""
        return [name for name in self.steps[-1] if _is_loss(name)]

    @cached_property
    def sites(self) -> list[str]:
        """Sites of the gates."""
        return [name.removeprefix("D.") for name in self.steps[-1] if name.startswith("D.")]

    def column(self, name: str) -> list[float]:
        """Return one logged quantity over the iterations; NaN where it was not logged."""
        return [step.get(name, float("nan")) for step in self.steps]

    def closed_at(self, site: str) -> int | None:
        """Return the first logged iteration from which a gate is closed to the end, or None for an open gate.

        It is 0 for a gate that was closed before the first step and never opened.
        """
        at = closed_from(self.iterations, self.column(f"D.{site}"))
        return 0 if site in self.began_closed and at == self.iterations[0] else at

    @property
    def survivors(self) -> list[str]:
        """Sites of the gates that are open in the last logged iteration."""
        return [site for site in self.sites if self.steps[-1][f"D.{site}"] != 0]


def read_history(folder: Path) -> RunHistory:
    """Return the history in the folder of a run that ended, stopped or still goes on, or raise `BadInput`.

    The beginning of a last line is ignored: it is being written, or was when the run was killed.
    """
    if not folder.is_dir():
        raise BadInput(folder, "is not a run folder", "give the --out of fheat train")
    settings = RunFolder(folder).settings()
    path = folder / LOG
    try:
        content = read_capped(path, LOG_LIMIT)
        content.decode()
    except FileNotFoundError:
        raise BadInput(path, "is missing", "give the --out of fheat train, once it has logged something") from None
    except UnicodeDecodeError as error:
        raise BadInput(path, f"is not text ({error})", "restore it, or resume the run") from None
    lines = split_log(content)
    checked = is_checked(lines)
    steps: list[dict[str, Any]] = []
    validations, speeds = [], {}
    probes: dict[int, dict[str, ProbeAt]] = {}
    began_closed: frozenset[str] = frozenset()
    for number, text in enumerate(lines, start=1):
        line = _parsed(text, path, number, settings.schedule.iterations, checked=checked)
        if "probe" in line:
            probes[line["iteration"]] = line["probe"]
        elif "closed" in line:
            began_closed = frozenset(line["closed"])
        elif "validation" in line:
            validations.append(ValidationScore(int(line["iteration"]), float(line["validation"]), dict(line["cases"])))
        elif "per_second" in line:
            speeds[int(line["iteration"])] = float(line["per_second"])
        else:
            if not any(map(_is_loss, line)):
                raise _not_logged(path, number, "a loss is missing")
            if steps and (lost := steps[0].keys() ^ line.keys()):
                raise _not_logged(path, number, f"{min(lost)} is not in all lines")
            steps.append(line)
    if not steps:
        raise BadInput(path, "holds no iteration yet", "wait until the run has logged some")
    for iteration, sites in probes.items():
        if unknown := [site for site in sites if f"D.{site}" not in steps[0]]:
            reason = f"the probe at iteration {iteration} has a gate that no iteration has, {min(unknown)}"
            raise BadInput(path, reason, "restore it, or resume the run")
    return RunHistory(folder, settings, steps, validations, speeds, dict(sorted(probes.items())), began_closed)


def _is_loss(name: str) -> bool:
    return name not in _NO_LOSS and not name.startswith(("D.", "alpha."))


def _parsed(text: bytes, path: Path, number: int, last: int, *, checked: bool) -> dict[str, Any]:
    """Return one line of a log as a mapping, or raise `BadInput`; `last` is the last iteration of the run."""
    try:
        line = from_line(text, checked=checked)
        numbers = {name: value for name, value in line.items() if name not in _NESTED} | line.get("cases", {})
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers.values()):
            raise TypeError("a value is no number")
        [float(value) for value in numbers.values()]  # raises for an integer that is too large
        if not isinstance(line["iteration"], int) or ("validation" in line and "cases" not in line):
            raise TypeError("a value is missing")
        if "closed" in line and not _is_texts(line["closed"]):
            raise TypeError("closed is no list of gates")
        first = 0 if "probe" in line or "closed" in line else 1
        if not first <= line["iteration"] <= last:
            raise ValueError(f"iteration is not in {first} to {last}")
        if "probe" in line:
            line["probe"] = {site: _probe_at(logged) for site, logged in line["probe"].items()}
        if any(f"alpha.{name[2:]}" not in line for name in line if name.startswith("D.")):
            raise KeyError("alpha of a gate")
    except (ValueError, AttributeError, KeyError, TypeError, OverflowError) as error:
        raise _not_logged(path, number, f"{type(error).__name__}: {error}") from None
    return line


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _probe_at(logged: dict[str, float | None]) -> ProbeAt:
    """Return what is logged for one site after checking it; every number but the pairing may be null."""
    if logged.keys() != ProbeAt.__dataclass_fields__.keys():
        raise KeyError("a number of a probe")
    values = {name: float("nan") if value is None and name != "pairing" else value for name, value in logged.items()}
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values.values()):
        raise TypeError("a value of a probe is no number")
    return ProbeAt(**{name: float(value) for name, value in values.items() if value is not None})


def _not_logged(path: Path, number: int, why: str) -> BadInput:
    return BadInput(path, f"line {number} is not a line of a log ({why})", "restore it, or resume the run")


Part = Literal["final", "best"]
"""A network that a run leaves: that after its last iteration, or the one with the best validation Dice."""
_MISSING = {
    False: ("has saved no network yet", "wait for its first validation or its end"),
    True: ("is of a run that is over, without its networks", "give a folder that has final/ or best/"),
}
"""Reason and remedy where a run has no network, by whether the run is over."""


@dataclass(frozen=True)
class Saved:
    """A loaded network, in float32 whatever it is stored in, and where it comes from."""

    name: str
    """The folder or zoo name that the user gave, without a trailing slash."""
    model: nn.Module
    part: str | None
    """`final` or `best` of a run folder, None for a model folder or a zoo model."""
    record: RunHistory | None
    """History of the run folder; None for a model folder or a zoo model."""

    @property
    def card(self) -> Card:
        """Model card of the network; an empty one where it has none."""
        card = getattr(self.model, "card", None)
        return card if isinstance(card, Card) else Card()


def open_saved(name: str) -> Saved:
    """Return the network that a name means: a model folder, a zoo model, or a run folder.

    A run folder means the network in its `best/` or, where there is none, in its `final/`, as `find_folder` has it.
    """
    folder = Path(name)
    if not is_run_folder(folder):
        return Saved(name.rstrip("/") or name, load(name).float(), None, None)
    record = read_history(folder)
    saved = network_of(record, name.rstrip("/"))
    if saved is None:
        raise BadInput(folder, *_MISSING[record.done >= record.settings.schedule.iterations])
    return saved


def network_of(record: RunHistory, name: str, wanted: Part = "best") -> Saved | None:
    """Return the wanted network of a run, in `final/` or `best/`, else the other one; None while there is neither."""
    for part in (wanted, "best" if wanted == "final" else "final"):
        if (record.folder / part).is_dir():
            return Saved(name, load(record.folder / part).float(), part, record)
    return None


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder was written by `fheat train` and is not itself a model folder."""
    try:
        return (folder / CONFIG).is_file() and not (folder / MANIFEST).exists()
    except OSError:  # no file can have such a name
        return False

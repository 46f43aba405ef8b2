"""Tasks that the processes of the service perform, by kind. Importing this module takes seconds; only `worker` does."""

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from fheat.studio.comparing import compare, correct, score_dataset
from fheat.studio.describing import describe_allocation, describe_models, describe_run, list_runs
from fheat.studio.segmenting import segment, time_retirement
from fheat.studio.worker import ANSWER, tell
from fheat.system.errors import BadInput, first_line
from fheat.system.files import write_file
from fheat.system.progress import Progress

KINDS: Final[dict[str, Callable[[Path, dict[str, Any], Progress], Any]]] = {
    "models": describe_models,
    "allocation": describe_allocation,
    "runs": list_runs,
    "run": describe_run,
    "segment": segment,
    "timing": time_retirement,
    "compare": compare,
    "correct": correct,
    "dataset": score_dataset,
}
"""Functions of the folder of the task, its arguments and its `Progress`; what they return becomes JSON."""
PRELOADED: Final = ("torch._dynamo", "highdicom")
"""Modules that tasks reach for late and that take seconds to import; some are optional."""
NO_MEMORY: Final = ("there is not enough memory for it", "use a smaller scan, or a machine with more memory")


def preload() -> None:
    """Import what tasks will need, so that no task has to."""
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)


def perform(request: dict[str, Any], lines: int) -> int:
    """Do a task, write its answer, and return the exit code of its process.

    Whatever a library raises on a scan that nobody foresaw is a refusal too: the service goes on. Answers name neither
    files nor the numbers that an unforeseen error mentions.
    """
    folder = Path(request["folder"])

    def progress(done: int, total: int) -> None:
        tell(lines, {"task": request["task"], "progress": (done, total)})

    refused: tuple[str, str]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer: dict[str, Any] = {"result": KINDS[request["kind"]](folder, request["arguments"], progress)}
    except BadInput as error:
        refused = error.reason, error.remedy
        answer = {"refused": refused}
    except (MemoryError, torch.OutOfMemoryError):
        answer = {"refused": NO_MEMORY}
    except ValueError as error:
        refused = first_line(error), "give the kind of scan that the model was trained on"
        answer = {"refused": refused}
    except Exception as error:
        refused = f"an internal error happened ({type(error).__name__})", "please report it"
        answer = {"refused": refused}
    write_file(folder / ANSWER, json.dumps(answer).encode())
    return 0

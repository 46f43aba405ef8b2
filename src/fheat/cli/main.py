"""The program `fheat`: find the verb, import only that, map every failure to one line and an exit code."""

import errno
import io
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from fheat import __version__
from fheat.system.errors import BadInput
from fheat.system.trust import trusting

VERBS: Final = {
    "demo": "the whole story on synthetic scans: few labels, gates that close, retirement, a mask, a report",
    "models": "list the networks with their parameters and multiply-adds, and the trained models of the zoo",
    "data": "check a dataset, prepare a public one, or make phantoms",
    "train": "train a network on a dataset, with few labels or with all",
    "sweep": "train and score many networks, each once, and compare them in a table",
    "predict": "segment a scan, a folder of scans or a DICOM series with a model folder or a zoo model",
    "evaluate": "compare masks with references: overlap, surface distances, tables; or two result files",
    "reproduce": "run the tables and figures of the paper and show them beside the published numbers",
    "report": "write what a run did and what it left on one HTML page",
    "bench": "time operator, training step, window and scan side by side with other networks",
    "allocation": "show what training decided about each gate of models and runs, and how they work inside",
    "probe": "measure on a dataset which gates the loss wants open, and whether training did that",
    "simulate": "train gates on plain signals: which close, which survive, and why",
}
EXIT_CODES: Final = "exit codes: 0 fine, 2 usage, 3 bad input, 4 no space or no permission, 130 or 143 interrupted"


class UsageError(Exception):
    """An argument that cannot be used; the program exits with 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name is shown, whatever the terminal can print
    try:
        return _run(words)
    except UsageError as error:
        verb = " ".join(word for word in words[: 2 if words[0] == "data" else 1] if not word.startswith("-"))
        return _fail(f"{error}; see '{program()} {verb} --help'", 2)
    except BadInput as error:
        return _fail(str(error), 3)
    except BrokenPipeError:
        # The reader left. Python would complain about the rest when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        no_room = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
        remedy = "free space or choose a writable folder" if no_room else "choose another path"
        return _fail(f"{error.filename or 'output'}: {error.strerror}; {remedy}", 4 if no_room else 3)
    except MemoryError:
        return _fail("not enough memory; give less at a time, or use a machine with more", 4)
    except KeyboardInterrupt as error:
        return _fail("interrupted", error.args[0] if error.args else 130)


def program() -> str:
    """Return how the user can call this program: `fheat` where that is found, else its path."""
    called = Path(sys.argv[0])
    return os.path.relpath(called) if called.name == "fheat" and shutil.which("fheat") is None else "fheat"


def command(*words: object) -> str:
    """Return a command of this program that can be pasted into a terminal, such as `fheat report 'my run'`."""
    return f"{program()} {shlex.join(map(str, words))}"


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_help(), flush=True)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"fheat {__version__}")
        return 0
    if words[0] not in VERBS:
        return _fail(f"no verb {words[0]!r}: use one of {', '.join(VERBS)}, see '{program()} --help'", 2)
    with trusting("--trust" in words):  # verbs without this option refuse it
        import_module(f"fheat.cli.{words[0]}").run(words[1:])
    sys.stdout.flush()
    return 0


def _help() -> str:
    verbs = "\n".join(f"  {name:<12}{text}" for name, text in VERBS.items())
    return (
        "usage: fheat VERB [OPTIONS]\n\n"
        "Networks that learn how much global spectral mixing each layer needs, and drop the rest exactly.\n\n"
        f"verbs:\n{verbs}\n\n"
        "  fheat VERB --help shows the options of a verb; verbs that print a result take --json\n"
        "  fheat --version\n\n"
        f"example: fheat models --json\n{EXIT_CODES}"
    )


def _fail(message: str, code: int) -> int:
    print(f"fheat: {message}", file=sys.stderr)
    return code


def script() -> None:
    """Entry point of the installed program."""
    sys.exit(main())

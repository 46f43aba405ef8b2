"""The program `fheat`: find the verb, import only that, map every failure to one line and an exit code."""

import atexit
import gc
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Final, TypeVar

from fheat import __version__
from fheat.cli.streams import drop_output, prepare_streams, say
from fheat.system.cache import keep_kernels_here
from fheat.system.errors import FULL, NOT_ALLOWED, BadInput, NotReadable, NotWritable, lacks_memory, unreadable
from fheat.system.signals import EXIT, interruptible
from fheat.system.text import printable
from fheat.system.trust import trusting

VERBS: Final = {
    "demo": "the whole story on synthetic scans: few labels, gates that close, retirement, a mask, a report",
    "models": "list the networks with their parameters and multiply-adds, and the trained models of the zoo",
    "data": "check a dataset, prepare a public one, or make phantoms",
    "train": "train a network on a dataset, with few labels or with all",
    "sweep": "train and score many networks, each once, and compare them in a table",
    "predict": "segment a scan, a folder of scans or a DICOM series with a model folder or a zoo model",
    "export": "write a model as ONNX, OpenVINO, pt2 or MONAI bundle, with its recipe inside",
    "evaluate": "compare masks with references: overlap, surface distances, tables; or two result files",
    "reproduce": "run the tables and figures of the paper and show them beside the published numbers",
    "studio": "a page in the browser: scans in, masks out, runs and gates watched; also a service for 3D Slicer",
    "report": "write what a run did and what it left on one HTML page",
    "bench": "time operator, training step, window, scan, cold start, reading and cohorts side by side",
    "prompt": "segment a scan through a program of your own that takes boxes, such as MedSAM",
    "allocation": "show what training decided about each gate of models and runs, and how they work inside",
    "probe": "measure on a dataset which gates the loss wants open, and whether training did that",
    "cache": "show or clear the compiled networks that are kept for the next start",
    "simulate": "train gates on plain signals: which close, which survive, and why",
    "completion": "print the script with which bash, zsh or fish completes verbs and options",
}
READERS: Final = ("predict",)
"""Verbs that segment scans with a model, their first argument: what they will wait for begins beside their imports."""
EXIT_CODES: Final = (
    "exit codes: 0 fine, 2 usage, 3 bad input, 4 no space or no permission, 70 internal error, 130 or 143 interrupted"
)
NO_MEMORY: Final = "not enough memory; give less at a time, or use a machine with more"
LONGEST_SAID: Final = 200
"""Number of characters of an unforeseen error that are shown; its file has them all."""
Thing = TypeVar("Thing")
_HELD: Final[list[object]] = []


class UsageError(Exception):
    """An argument that cannot be used; the program exits with 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with interruptible():
            prepare_streams()
            keep_kernels_here()
            return _attempt(words)
    except KeyboardInterrupt as error:
        return _fail("interrupted", error.args[0] if error.args else 130)


def _attempt(words: list[str]) -> int:
    """Run one verb; whatever it raises becomes one line and an exit code."""
    try:
        return _run(words)
    except UsageError as error:
        return _fail(f"{error}; see '{program()} {_verb(words)} --help'", 2)
    except BadInput as error:
        return _fail(str(error), 4 if isinstance(error, NotReadable) else 3)
    except BrokenPipeError as error:  # of a child: standard streams go on
        return _crashed(error, words)
    except OSError as error:
        return _fail(*_system_error(error))
    except MemoryError:
        return _fail(NO_MEMORY, 4)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python wraps what is raised while a class is made
            raise error.__cause__ from None
        return _fail(NO_MEMORY, 4) if lacks_memory(error) else _crashed(error, words)
    finally:
        drop_output()


def _verb(words: list[str]) -> str:
    """Return the verb as its help is asked for, such as `predict` or `data check`; one of `data` that it lacks is left
    out."""
    if words[0] != "data":
        return words[0]
    from fheat.cli.data import VERBS as OF_DATA  # which imports this module

    return " ".join(["data", *(word for word in words[1:2] if word in OF_DATA)])


def _system_error(error: OSError) -> tuple[str, int]:
    """Return what the system said of a file, what to do, and the exit code.

    What may not be written is `NotWritable`, or can at least be read; all else that is not allowed is reading.
    """
    refused = isinstance(error, PermissionError) and not isinstance(error, NotWritable)
    if refused and error.filename and not os.access(error.filename, os.R_OK):
        return str(unreadable(error.filename, error)), 4
    no_room = error.errno in (*FULL, *NOT_ALLOWED)
    remedy = "free space or choose a writable folder" if no_room else "choose another path"
    said = error.strerror or str(error) or type(error).__name__
    return f"{error.filename or 'output'}: {said}; {remedy}", 4 if no_room else 3


def _crashed(error: Exception, words: list[str]) -> int:
    """Say what nobody foresaw in one line, and leave the rest in a file."""
    from fheat.cli.crash import write_crash  # what it imports nobody needs who has no bad luck

    file = write_crash(error, words)
    where = "no file could be written about it" if file is None else f"{file} has the details"
    said = " ".join(str(error).split())[:LONGEST_SAID]
    return _fail(f"internal error ({type(error).__name__}: {said}); {where}; please report it", 70)


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
    with trusting("--trust" in words), _prepared(words):  # verbs without this option refuse it
        verb = import_module(f"fheat.cli.{words[0]}")
        if not gc.isenabled():  # `script` has turned it off
            gc.freeze()  # what was imported stays, and need not be searched for what can go
            gc.enable()
        verb.run(words[1:])
    sys.stdout.flush()
    return 0


def _prepared(words: list[str]) -> AbstractContextManager[None]:
    """Begin with what can be done beside the imports of a verb that segments scans; the first argument is its model."""
    few = sum(not word.startswith("-") for word in words) < 4  # the verb, a model, a scan and a folder for its mask
    if words[0] not in READERS or few or {"-h", "--help", "ray"} & {*words}:  # Ray's workers open what they need
        return nullcontext()
    from fheat.inference.ahead import begun_ahead  # which imports what other verbs do not need

    return begun_ahead(words[1])


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
    say(f"fheat: {printable(message)}")
    return code


def script() -> None:
    """Entry point of the installed program."""
    gc.disable()  # until the libraries of the verb are imported: it would search them again and again
    ended: list[int] = []
    atexit.register(_leave, ended)  # before all others, so that it is called last
    try:
        ended.append(main())
    except SystemExit as end:  # of help, for one
        if end.code is None or isinstance(end.code, int):
            ended.append(end.code or 0)
        raise
    for number in EXIT:  # all is done: a signal from now on ends the program without a word
        signal.signal(number, signal.SIG_DFL)
    if ended[0] in EXIT.values():
        os._exit(ended[0])  # without waiting for threads, whose work nobody wants any more
    sys.exit(ended[0])


def until_the_end(make: Callable[[], Thing]) -> Thing:
    """Make a thing and hold it until the process ends: what takes long to take apart goes with the process then.

    Only the last one is held, and the one before is let go first.
    """
    _HELD.clear()
    thing = make()
    _HELD.append(thing)
    return thing


def _leave(ended: list[int]) -> None:
    """End the process with the code of a program that has ended, without taking its libraries apart, which takes Python
    a third of a second; the system does so at once."""
    if ended:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(ended[0])

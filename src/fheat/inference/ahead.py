"""Work that a program which segments scans does beside its imports: above all, it opens what OpenVINO compiled.

Opening takes a processor about as long as importing torch takes another one. Which compiled network will be wanted is
known for certain only when the network itself is there. So the cache keeps a note for each model that a user names,
with what was opened for it last, and that is opened as a guess, in a thread. It is taken only under the key that is
asked for in the end; a wrong guess is let go, and its note is replaced.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, Final, NamedTuple

from fheat.inference.opening import Plan, opened_requests, run_first_windows
from fheat.system.cache import is_cached, read_cached, remove_cached, write_cached
from fheat.system.imports import import_nibabel, import_openvino
from fheat.system.trust import is_trusting

NOTE: Final = "opened"
"""Kind of the notes in the cache."""


class Kept(NamedTuple):
    """A compiled network in the cache, and the plan that it was compiled for."""

    kind: str
    key: str
    plan: Plan


class _Guess:
    """The compiled network that is opened for a model, in a thread that begins at once; none where no note names it."""

    def __init__(self, model: str) -> None:
        name = os.path.abspath(model) if os.path.exists(model) else model
        self.note = hashlib.sha256(os.fsencode(name)).hexdigest()
        self.kept = _noted(self.note)
        self._requests: list[Any] | None = None
        self.thread: Thread | None = None
        if self.kept is not None:
            import_openvino()  # here, as beside torch the two imports would wait for each other
            self.thread = Thread(target=self._open, args=(self.kept,), daemon=True, name="opening")
            self.thread.start()

    def _open(self, kept: Kept) -> None:
        try:
            content = read_cached(kept.kind, kept.key)
            if content is not None:
                requests = opened_requests(content, kept.plan)
                run_first_windows(requests)
                self._requests = requests
        except Exception as reason:  # a library may say whatever it likes: it is asked again when the network is there
            logging.getLogger(__name__).debug("a kept network cannot be opened ahead: %s", reason)

    def taken(self) -> list[Any] | None:
        """Return the requests when they are open, and keep them no longer; None where they could not be opened."""
        if self.thread is not None:
            self.thread.join()
        requests, self._requests = self._requests, None
        return requests


_guess: _Guess | None = None


@contextmanager
def begun_ahead(model: str) -> Iterator[None]:
    """Do beside the imports in the body what a program that segments scans with this model will wait for.

    The process that parses scans starts, and what was compiled for the model is opened.
    """
    import_nibabel()
    from fheat.io.confined import start_reader  # which would import nibabel itself

    if not is_trusting():
        start_reader()
    with opening_ahead(model):
        yield


@contextmanager
def opening_ahead(model: str) -> Iterator[None]:
    """Open what was opened last for the model of this name while the body runs; nothing where that is not known."""
    global _guess
    try:
        _guess = _Guess(model)
    except Exception as reason:  # of OpenVINO, which may be gone or broken since the note was written
        if isinstance(reason.__cause__, KeyboardInterrupt):  # which its modules take for a failure of their own
            raise
        logging.getLogger(__name__).debug("OpenVINO cannot be imported ahead: %s", reason)
    try:
        yield
    finally:
        _guess = None


def taken_ahead(kept: Kept) -> list[Any] | None:
    """Return the requests of a network that was opened ahead, whose first windows have run; None where it was not.

    What is opened next for this model is what was asked for here.
    """
    if _guess is None:
        return None
    requests = _guess.taken()
    if kept == _guess.kept:
        return requests
    _guess.kept = kept
    write_cached(NOTE, _guess.note, json.dumps(kept).encode())
    return None


def wait_ahead() -> None:
    """Wait until what is opened ahead has taken its memory."""
    if _guess is not None and _guess.thread is not None:
        _guess.thread.join()


def was_opening() -> bool:
    """Return whether something is or was opened ahead; it takes memory beside all that the program does meanwhile."""
    return _guess is not None and _guess.thread is not None


def forget_ahead() -> None:
    """Let go what was opened ahead, and its note: that is not wanted."""
    if _guess is not None and _guess.kept is not None:
        _guess.taken()
        _guess.kept = None
        remove_cached(NOTE, _guess.note)


def _noted(note: str) -> Kept | None:
    content = read_cached(NOTE, note)
    try:
        kind, key, (shape, precision, batch, threads) = json.loads(content or b"")
        kept = Kept(str(kind), str(key), Plan(tuple(map(int, shape)), str(precision), int(batch), int(threads)))
    except (TypeError, ValueError):
        return None
    return kept if is_cached(kept.kind, kept.key) else None

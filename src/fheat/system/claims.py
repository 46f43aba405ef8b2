"""Claims: work that several processes may want, on one machine or on many that share a folder, has one owner.

    with claimed(Path("claims/run-7")) as claim:
        ...                                     # nobody else is in such a block for this folder
        claim.note = {"iteration": 40}          # whoever looks at `holder` sees it
        claim.check()                           # raises `Displaced` if this process was taken for dead

A claim is a file with a number as its name, and the highest number is the owner's. Its owner writes it anew every few
seconds: it beats. A claim whose process is gone, or that did not beat for `patience` seconds, is dead, and the one who
creates the next number owns the work from then on; only one process can create a file, and it appears complete.
Clocks of different machines are never compared: who waits measures with its own clock for how long a file stayed the
same. An owner that was only suspended finds a higher number when it wakes up.
"""

import errno
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from fheat.system.errors import BadInput, NotWritable, located
from fheat.system.files import TEXT_LIMIT, read_capped, write_file
from fheat.system.sealed import sealed, unsealed

BEAT: Final = 5.0
"""Seconds between two beats of a claim."""
PATIENCE: Final = 60.0
"""Seconds without a beat after which a claim is dead, where its process cannot be looked at."""
_UNFINISHED: Final = ".new-"
"""How the name of a claim begins while it is written."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Error numbers of a file system that cannot give a file a second name (a hard link)."""


class Displaced(BadInput):
    """The claim of this process was taken over by another one, which does the work now."""


@dataclass(frozen=True)
class Holder:
    """Owner of a claim, as the claim describes it."""

    token: str
    host: str
    pid: int
    process: str | None
    """Machine and start of the process, by which others on that machine know it; None where that cannot be read."""
    since: str = ""
    """When the owner took the work, by the clock of its machine; for people."""
    beat: int = 0
    released: bool = False
    """Whether the owner has given the work back."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the owner wants others to know, such as how far it is."""

    def gone(self) -> bool:
        """Return whether the owner gave the work back, or was a process of this machine that no longer runs."""
        return self.released or (self.is_here and self._started != _start_of(self.pid) and not _is_hidden(self.pid))

    @property
    def is_here(self) -> bool:
        """Whether the owner is a process of this machine, so that one can see whether it runs."""
        machine = (self.process or "").rpartition(" ")[0]
        return bool(machine) and machine == _this_machine()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" since {self.since}" if self.since else "")

    @property
    def _started(self) -> str:
        return (self.process or "").rpartition(" ")[2]


class Claim:
    """A claim of this process; made by `claimed`."""

    def __init__(self, path: Path, me: Holder, patience: float) -> None:
        self.note: Mapping[str, Any] = {}
        self._path, self._me, self._patience = path, me, patience
        self._confirmed = time.monotonic()
        self._lost = False
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise `Displaced` if another process has taken the work over; looks at the folder only if it must.

        As long as the claim beats, nobody takes it over. After a pause the folder is asked.
        """
        if time.monotonic() - self._confirmed > self._patience / 2:
            self.beat()
        if self._lost:
            reason = "was taken over by another process, because this one showed no sign of life for too long"
            raise Displaced(self._path.parent.parent, reason, "let that one go on")

    def release(self) -> None:
        """Give the work back; on a full disk by removing the claim."""
        try:
            self.beat(released=True)
        except OSError:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def beat(self, *, released: bool = False) -> None:
        """Show that the owner lives, and find out whether it still is the owner."""
        with self._lock:
            if self._lost:
                return
            begun = time.monotonic()
            self._me = replace(self._me, beat=self._me.beat + 1, note=dict(self.note), released=released)
            _write(self._path, self._me)
            if _newest(self._path.parent) != self._path:
                self._path.unlink(missing_ok=True)
                self._lost = True
            else:
                self._confirmed = begun


@contextmanager
def claimed(
    folder: Path,
    *,
    waiting: Callable[[Holder | None], None] = lambda holder: None,
    beating: Callable[[], None] = lambda: None,
    every: float = BEAT,
    patience: float = PATIENCE,
) -> Iterator[Claim]:
    """Wait until the work that a folder stands for has no living owner, and own it while the body runs.

    Args:
        folder: where the claims are; created if needed, and shared by all who might want the work.
        waiting: called again and again while another process owns the work; it may raise.
        beating: called after every beat, by another thread.
        every: seconds between beats.
        patience: seconds without a beat after which an owner is dead.
    """
    try:
        claim = _take(folder, waiting, patience, min(every / 5, 1.0))
    except OSError as error:
        raise located(error, folder) from None
    over = threading.Event()

    def live() -> None:
        while not over.wait(every):
            with suppress(OSError):  # a shared folder may be away for a while; `check` finds out if that mattered
                claim.beat()
            beating()

    thread = threading.Thread(target=live, name="claim", daemon=True)
    thread.start()
    try:
        yield claim
    finally:
        over.set()
        thread.join()
        claim.release()


def holder(folder: Path) -> Holder | None:
    """Return who owns the work now, None if nobody does; a silent owner on another machine is taken for alive."""
    path = _newest(folder)
    found = None if path is None else _read(path)[1]
    return None if found is None or found.gone() else found


def this_process() -> Holder:
    """Return this process as one who takes some work now."""
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    return Holder(secrets.token_hex(8), platform.node(), os.getpid(), _own_process(), since)


def _take(folder: Path, waiting: Callable[[Holder | None], None], patience: float, pause: float) -> Claim:
    folder.mkdir(parents=True, exist_ok=True)
    me = this_process()
    seen, changed = b"", time.monotonic()
    while True:
        newest = _newest(folder)
        content, owner = (b"", None) if newest is None else _read(newest)
        if content != seen:
            seen, changed = content, time.monotonic()
        silent = time.monotonic() - changed > patience
        if newest is None or silent or (owner is not None and owner.gone()):
            path = folder / f"{0 if newest is None else int(newest.name) + 1}"
            with suppress(FileExistsError):
                _create(path, me)
                if _newest(folder) == path:
                    for stale in _claims(folder):
                        if stale != path:
                            stale.unlink(missing_ok=True)
                    for unfinished in folder.glob(f"{_UNFINISHED}*"):
                        unfinished.unlink(missing_ok=True)
                    return Claim(path, me, patience)
                path.unlink(missing_ok=True)  # others were faster by more than one number
        else:
            waiting(owner)
            time.sleep(pause)


def _create(path: Path, me: Holder) -> None:
    """Create a claim that is complete from the first moment on, or raise `FileExistsError`.

    It is written under another name first: a process that is killed meanwhile leaves no claim that others must wait
    for. Where the file system has no second names for a file, the claim is created and then written.
    """
    unfinished = path.parent / f"{_UNFINISHED}{me.token}"
    unfinished.write_bytes(_content(me))
    try:
        os.link(unfinished, path)
    except FileNotFoundError:  # whoever became the owner meanwhile has removed it
        raise FileExistsError(path) from None
    except FileExistsError:
        found = _read(path)[1]
        if found is None or found.token != me.token:  # a network folder may ask twice, and the first time was ours
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with open(path, "xb") as file:
            file.write(_content(me))
    finally:
        unfinished.unlink(missing_ok=True)


def _claims(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []


def _newest(folder: Path) -> Path | None:
    return max(_claims(folder), key=lambda path: int(path.name), default=None)


def _read(path: Path) -> tuple[bytes, Holder | None]:
    """Return the content of a claim, which changes with every beat, and what it says if it is written completely."""
    try:
        content = read_capped(path, TEXT_LIMIT)
        return content, Holder(**unsealed(content))
    except FileNotFoundError:  # replaced by a higher one
        return b"", None
    except (ValueError, TypeError):
        return content, None


def _write(path: Path, me: Holder) -> None:
    try:
        write_file(path, _content(me))
    except NotWritable as error:  # it names the folder of the claims, which nobody has asked for
        raise located(error, path.parent) from None


def _content(me: Holder) -> bytes:
    return sealed(asdict(me))


def _own_process() -> str | None:
    machine, started = _this_machine(), _start_of(os.getpid())
    return None if machine is None or started is None else f"{machine} {started}"


def _this_machine() -> str | None:
    """Return what tells this running system, and the part of it whose process numbers we see, from any other."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _is_hidden(pid: int) -> bool:
    """Return whether a process of another user runs of which the system shows us nothing else."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not Path(f"/proc/{pid}").exists()
    except OSError:
        return False
    return False


def _start_of(pid: int) -> str | None:
    """Return when a process was started, by the kernel's count; None for one that ended or never was."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()

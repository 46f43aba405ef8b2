"""A disk that loses power: what a program does to a folder is recorded, and every state it may be found in is made.

What was written is on the disk for certain once the file was flushed, and a name once its folder was. Before that, both
may be there, or not, or a file only in part.
"""

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CUTS = {"all": 1.0, "half": 0.5, "none": 0.0}
"""How much of what was not flushed a file has afterwards."""


@dataclass
class Node:
    """A file or folder: as the program sees it, and as it is on the disk for certain."""

    is_folder: bool
    names: dict = field(default_factory=dict)
    certain_names: dict = field(default_factory=dict)
    data: bytes = b""
    certain_data: bytes = b""

    def found(self, path, names, cut):
        """Make what is found at a path afterwards; `names` is `names` or `certain_names`, `cut` a key of `CUTS`."""
        if self.is_folder:
            path.mkdir()
            for name, node in getattr(self, names).items():
                node.found(path / name, names, cut)
            return
        kept = self.certain_data if self.data.startswith(self.certain_data) else b""
        path.write_bytes(self.data[: len(kept) + int((len(self.data) - len(kept)) * CUTS[cut])])


class Disk:
    """A folder as what was done to it leaves it."""

    def __init__(self):
        self.root = Node(is_folder=True)

    def do(self, what, *arguments):
        """Do one of the things that were recorded."""
        getattr(self, f"_{what}")(*arguments)

    def _at(self, path):
        node = self.root
        for part in path.parts:
            node = node.names[part]
        return node

    def _write(self, path, data):
        names = self._at(path.parent).names
        names.setdefault(path.name, Node(is_folder=False)).data = data

    def _flush(self, path):
        node = self._at(path)
        node.certain_names, node.certain_data = dict(node.names), node.data

    def _mkdir(self, path):
        self._at(path.parent).names[path.name] = Node(is_folder=True)

    def _rename(self, path, target):
        self._at(target.parent).names[target.name] = self._at(path.parent).names.pop(path.name)

    def _remove(self, path):
        del self._at(path.parent).names[path.name]

    def _mark(self, thing):
        """Nothing happens: the program has promised something."""


class Recorder:
    """Everything that was done to a folder: `done` has tuples such as ("rename", path, target), paths within it."""

    def __init__(self, folder):
        self.folder, self.done = folder, []
        self._known = {}

    def mark(self, thing):
        """Take down what the program has promised by now."""
        self.done.append(("mark", thing))

    def states(self, found):
        """Make the states after everything that was done; yield a folder that is as found, and the marks before."""
        disk, marks = Disk(), []
        for number, (what, *arguments) in enumerate(self.done):
            disk.do(what, *arguments)
            marks += arguments if what == "mark" else []
            variants = [("names", "all")] if what in ("flush", "mark") else [("names", cut) for cut in CUTS]
            for names, cut in [*variants, ("certain_names", "none")]:
                place = found / f"{number}-{names}-{cut}"
                disk.root.found(place, names, cut)
                yield place, marks

    def take(self, what, *paths):
        """Take down what is done to paths, if they are in the folder."""
        if all(path.is_relative_to(self.folder) and ".claims" not in path.parts for path in paths):
            self.done.append((what, *(path.relative_to(self.folder) for path in paths)))

    def take_writes(self):
        """Take down what was written since the last time."""
        for path, state in self._files().items():
            if self._known.get(path) != state:
                self.done.append(("write", path.relative_to(self.folder), path.read_bytes()))
        self.forget()

    def forget(self):
        """Take what is there now for known, such as after files got other names."""
        self._known = self._files()

    def _files(self):
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file() and ".claims" not in path.parts)
        return {path: (path.stat().st_ino, path.stat().st_size) for path in paths}


def _path(name, folder=None):
    """Return the path that a function of `os` means by a name, or a number of an open file, maybe within a folder."""
    if isinstance(name, int):
        return Path(os.readlink(f"/proc/self/fd/{name}"))
    return Path(name) if folder is None else _path(folder) / name


@contextmanager
def recorded(folder, monkeypatch):
    """Record what is done to a folder while the body runs."""
    recorder = Recorder(folder)
    fsync, mkdir, rename, unlink, rmdir = os.fsync, os.mkdir, os.rename, os.unlink, os.rmdir

    def flushed(file):
        recorder.take_writes()
        recorder.take("flush", _path(file if isinstance(file, int) else file.fileno()))
        fsync(file)

    def made(path, *mode, **options):
        recorder.take_writes()
        mkdir(path, *mode, **options)
        recorder.take("mkdir", _path(path, options.get("dir_fd")))

    def renamed(path, target, **options):
        recorder.take_writes()
        rename(path, target, **options)
        recorder.take("rename", _path(path), _path(target))
        recorder.forget()

    def removed(path, *, dir_fd=None):
        recorder.take_writes()
        whole = _path(path, dir_fd)
        unlink(path, dir_fd=dir_fd)  # raises where nothing is there
        recorder.take("remove", whole)
        recorder.forget()

    def folder_removed(path, *, dir_fd=None):
        whole = _path(path, dir_fd)
        rmdir(path, dir_fd=dir_fd)
        recorder.take("remove", whole)

    with monkeypatch.context() as patch:
        wrapped = {"fsync": flushed, "mkdir": made, "rename": renamed, "unlink": removed, "rmdir": folder_removed}
        for name, function in wrapped.items():
            patch.setattr(os, name, function)
        patch.setattr(os, "replace", renamed)
        patch.setattr(os, "remove", removed)
        yield recorder

"""Short questions that take libraries or time: each is a task in a process of its own, a few at a time."""

import asyncio
import itertools
import shutil
from pathlib import Path
from typing import Any, Final

from fheat.studio.answers import Refused
from fheat.studio.launcher import Heard, Launcher

AT_A_TIME: Final = 2
MOST_WAITING: Final = 64
SECONDS: Final = 120.0


class Asking:
    """Asks tasks, see `fheat.studio.tasks.KINDS`, and waits for their answers without blocking anything."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher, self._folder = launcher, folder
        self._numbers = itertools.count(1)
        self._free = asyncio.Semaphore(AT_A_TIME)
        self._waiting = 0

    async def ask(
        self,
        kind: str,
        arguments: dict[str, Any],
        *,
        seconds: float = SECONDS,
        heard: Heard = lambda done, of: None,
        folder: Path | None = None,
    ) -> Any:
        """Return the answer of a task, or raise `Refused`. Its files go to `folder`, else to one that is removed."""
        if self._waiting >= MOST_WAITING:
            raise Refused.busy(f"{MOST_WAITING} requests of this kind wait already")
        self._waiting += 1
        try:
            async with self._free:
                return await self._ask(kind, arguments, seconds, heard, folder)
        finally:
            self._waiting -= 1

    async def _ask(
        self, kind: str, arguments: dict[str, Any], seconds: float, heard: Heard, target: Path | None
    ) -> Any:
        own = self._folder / str(next(self._numbers))
        await asyncio.to_thread(own.mkdir, 0o700)
        try:
            task = self._launcher.begin(kind, arguments, own, heard)
            ended = asyncio.wrap_future(task.future)
            try:
                await asyncio.wait({ended}, timeout=seconds)
            finally:
                if not ended.done():
                    task.kill()
            if not ended.done():
                raise Refused.busy(f"it took longer than {seconds:g} s")
            found = await asyncio.to_thread(task.answer)
            if found is None:
                raise Refused.busy("the process that worked on it ended early")
            if "refused" in found:
                raise Refused(422, *map(str, found["refused"]))
            if target is not None:
                await asyncio.to_thread(_move, own, target)
            return found["result"]
        finally:
            await asyncio.to_thread(shutil.rmtree, own, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    """Move the files of a folder into another one."""
    for file in source.iterdir():
        file.replace(target / file.name)

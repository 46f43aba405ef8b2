"""Events of jobs, for pages that watch: they are numbered, and the last ones are kept for late comers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from fheat.studio.answers import Refused

KEPT: Final = 1000
"""Events that can be sent again to a page that was away for a moment."""
WAITING: Final = 256
"""Events that may wait for a slow reader; then its stream ends, and it comes back for the state."""
MOST_STREAMS: Final = 64
QUIET: Final = 15.0

Event = tuple[int, dict[str, Any]]
"""Number and content."""


class Events:
    """Hands every event to all streams, in the order of their numbers, which begin at 1."""

    def __init__(self) -> None:
        self._last = 0
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._streams: set[asyncio.Queue[Event | None]] = set()

    def publish(self, content: dict[str, Any]) -> None:
        """Tell all streams. To be called in the thread of the service."""
        self._last += 1
        event = self._last, content
        self._kept.append(event)
        for stream in list(self._streams):
            try:
                stream.put_nowait(event)
            except asyncio.QueueFull:
                self._streams.discard(stream)
                while not stream.empty():
                    stream.get_nowait()
                stream.put_nowait(None)

    def check_room(self) -> None:
        """Raise `Refused` if there are too many streams."""
        if len(self._streams) >= MOST_STREAMS:
            raise Refused.busy(f"{MOST_STREAMS} pages watch already")

    async def stream(self, after: int | None, state: Callable[[], list[dict[str, Any]]]) -> AsyncIterator[Event | None]:
        """Yield what happens from now on, and before it what happened behind the event `after`.

        Where that is not known any more, and without `after`, the present state of everything comes first. None comes
        every `QUIET` seconds in which nothing happens, so that a connection that broke is noticed.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue(WAITING)
        self._streams.add(queue)
        try:
            first = self._kept[0][0] if self._kept else self._last + 1
            if after is None or not first - 1 <= after <= self._last:
                missed = [(self._last, content) for content in state()]
            else:
                missed = [event for event in self._kept if event[0] > after]
            for event in missed:
                yield event
            while True:
                try:
                    async with asyncio.timeout(QUIET):
                        next_one = await queue.get()
                except TimeoutError:
                    yield None
                    continue
                if next_one is None:
                    return
                yield next_one
        finally:
            self._streams.discard(queue)

    def close(self) -> None:
        """End all streams."""
        for stream in list(self._streams):
            if stream.full():
                stream.get_nowait()
            stream.put_nowait(None)

"""The models and runs that the service offers: the zoo, model folders and runs, each under a name of its own."""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any, Final

from fheat.studio.answers import Refused
from fheat.studio.asking import Asking
from fheat.studio.settings import StudioSettings

FRESH: Final = 10.0
"""Seconds for which the list of models, and that of runs, is not made again."""


@dataclass(frozen=True)
class Model:
    """A model: the folder that is loaded, and what its card says."""

    id: str
    folder: str
    source: str
    """`zoo`, `folder` or `run`."""
    facts: dict[str, Any]

    @property
    def channels(self) -> int:
        """Number of channels of a scan."""
        return int(self.facts["channels"])

    @property
    def labels(self) -> dict[str, int]:
        """Label value by name."""
        return dict(self.facts["classes"])

    def to_json(self) -> dict[str, Any]:
        """Return what clients get to know."""
        shown = {name: self.facts[name] for name in ("title", "classes", "channels", "modality")}
        return {"id": self.id, **shown, "source": self.source}


class Catalogue:
    """Models and runs by identifier. Reading them takes a process of its own, so that lists are kept for a moment."""

    def __init__(self, settings: StudioSettings, asking: Asking) -> None:
        self._settings, self._asking = settings, asking
        self._lock = asyncio.Lock()
        self._models: dict[str, Model] = {}
        self._runs: dict[str, dict[str, Any]] = {}
        self._read = float("-inf")

    async def models(self) -> dict[str, Model]:
        """Return all models; those given on the command line come first."""
        await self._refresh()
        return self._models

    async def model(self, key: str) -> Model:
        """Return a model, or raise `Refused`."""
        found = (await self.models()).get(key)
        if found is None:
            raise Refused(404, "there is no such model", "GET /api/models lists them")
        return found

    async def runs(self) -> dict[str, dict[str, Any]]:
        """Return all runs, or raise `Refused` where the service was started without their folder."""
        if self._settings.runs is None:
            raise Refused(404, "no runs were given", "start with --runs FOLDER")
        await self._refresh()
        return self._runs

    async def run(self, key: str, after: int) -> dict[str, Any]:
        """Return the curves of a run behind an iteration, or raise `Refused`."""
        found = (await self.runs()).get(key)
        if found is None:
            raise Refused(404, "there is no such run", "GET /api/runs lists them")
        curves: dict[str, Any] = await self._asking.ask("run", {"run": found["folder"], "after": after})
        return curves

    async def allocation(self, key: str) -> dict[str, Any]:
        """Return the gates of a model and its cost, or raise `Refused`."""
        model = await self.model(key)
        gates: dict[str, Any] = await self._asking.ask("allocation", {"model": model.folder})
        return gates

    async def _refresh(self) -> None:
        async with self._lock:
            if time.monotonic() - self._read < FRESH:
                return
            runs = self._settings.runs
            listed = [] if runs is None else await self._asking.ask("runs", {"runs": str(runs)})
            sources = [(path.resolve().name, str(path), "folder") for path in self._settings.models]
            sources += [(run["id"], run["folder"], "run") for run in listed if run.get("has_model")]
            models: dict[str, Model] = {}
            for found in await self._asking.ask("models", {"sources": sources}):
                key = _unused(found["name"], models)
                models[key] = Model(key, found["folder"], found["source"], found)
            self._models, self._runs = models, {run["id"]: run for run in listed}
            self._read = time.monotonic()


def _unused(name: str, taken: dict[str, Model]) -> str:
    """Return the name in characters that an address can have, with a number behind it if it is taken."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "model"
    key, number = plain, 1
    while key in taken:
        number += 1
        key = f"{plain}-{number}"
    return key

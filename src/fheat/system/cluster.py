"""Ray clusters: connect to one or start one, and share the GPUs and processors of its machines among workers.

Ray (https://www.ray.io) is optional: `pip install "fheat[cluster]"`. Every machine of a cluster needs fheat itself,
and the folders with scans and results under the same path.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor
from typing import Any, Final

from fheat.system.errors import BadInput

Ray = Any
"""The module `ray`, which has no types here because it need not be installed."""
OBJECT_STORE: Final = 100 * 2**20
"""Bytes that Ray keeps for objects on a machine where we start it; what we send is small."""
SECONDS_TO_ANSWER: Final = 10.0
"""Time in which the machine at an address must accept a connection."""
_NONE_HERE: Final = "Could not find any running Ray instance"
"""How Ray says that this machine is part of no cluster."""


@dataclass(frozen=True)
class Share:
    """Share of each of `workers` workers in a cluster: a part of a GPU or none, processors, the name of its device."""

    device: str
    gpus: float
    cpus: float
    workers: int

    @property
    def threads(self) -> int:
        """Number of threads for a worker: one per processor, and at least one."""
        return max(1, floor(self.cpus))

    def resources(self) -> dict[str, float]:
        """Return the resources of a worker, as Ray names them."""
        return {"num_gpus": self.gpus, "num_cpus": self.cpus}


@contextmanager
def cluster(address: str | None = None) -> Iterator[Ray]:
    """Connect to a cluster while the body runs, and yield the module `ray`.

    Without an address it is the cluster that this process is connected to already, else the one that this machine is
    part of (or `RAY_ADDRESS` names), else a new one of this machine alone. A cluster that is there and does not let us
    in is `BadInput`, and never replaced by a new one. How a cluster knows its users is a matter of Ray's own settings.
    """
    ray = _import()
    if ray.is_initialized() and address is None:
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a run is reported to anyone
    wanted = address or os.environ.get("RAY_ADDRESS") or "auto"
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    _check_answers(wanted)
    try:
        ray.init(wanted, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        if wanted != "auto" or not reason.startswith(_NONE_HERE):
            remedy = "see its logs, and whether RAY_AUTH_MODE and versions are the same there"
            raise BadInput(wanted, f"the Ray cluster does not let us in ({reason})", remedy) from None
        ray.init("local", include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise `BadInput` where nothing listens: Ray itself would try for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise BadInput(address, f"no Ray cluster answers ({error})", "start one with 'ray start --head'") from None


def share_of(machines: Sequence[Mapping[str, float]], parallel: int, device: str | None) -> Share:
    """Return what a worker gets, with `parallel` of them on each GPU, or on the processors of each machine.

    `machines` has the resources of each, as Ray names them. The smallest machine decides how many processors a worker
    gets, so larger ones may have more workers on their processors.
    """
    with_gpus = [machine for machine in machines if machine.get("GPU", 0) >= 1]
    kind = (device or ("cuda" if with_gpus else "cpu")).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise BadInput("--device", f"is {device}, which is unknown", "use cpu or cuda")
    if kind == "cuda":
        if not with_gpus:
            raise BadInput("cluster", "has no GPU", "leave out --device cuda, or add a machine with one")
        cpus = _whole(min(machine.get("CPU", 0) / (machine["GPU"] * parallel) for machine in with_gpus))
        return Share("cuda", 1 / parallel, cpus, parallel * int(sum(machine["GPU"] for machine in with_gpus)))
    working = [machine["CPU"] for machine in machines if machine.get("CPU", 0) > 0]
    if not working:
        raise BadInput("cluster", "has no processor for workers", "start workers with 'ray start --address ...'")
    cpus = _whole(min(working) / parallel)
    return Share(kind, 0, cpus, sum(floor(count / cpus + 1e-6) for count in working))


def machines_of(ray: Ray) -> list[dict[str, float]]:
    """Return the resources of each machine that is part of the cluster now."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _whole(cpus: float) -> float:
    """Round down to whole processors, of which a worker has several; less than one stays as it is."""
    return float(floor(cpus)) if cpus >= 1 else cpus


def _import() -> Ray:
    try:
        import ray
    except ImportError:
        raise BadInput("ray", "is not installed", 'pip install "fheat[cluster]"') from None
    return ray

"""Settings with which the service starts: addresses, folders, devices and limits."""

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from fheat.system.errors import BadInput

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine that only its own programs can use."""
SHORTEST_TOKEN: Final = 16
"""Smallest number of characters of a token that is given."""


@dataclass(frozen=True)
class Limits:
    """Limits on sizes, numbers and times, which the service refuses to exceed."""

    body: int = 512 * 2**20
    """Bytes of an upload."""
    voxel_bytes: int = 2 * 2**30
    """Bytes of the voxels of a scan, unpacked; what a header declares is compared with it before anything is
    allocated."""
    voxels: int = 2**30
    """Voxels of a scan, counted in all channels."""
    files: int = 4096
    """Files in an archive."""
    kept: int = 16 * 2**30
    """Bytes of all scans together."""
    scans: int = 1000
    """Scans kept at a time."""
    queue: int = 32
    """Jobs that wait."""
    seconds: float = 300.0
    """Time for a job."""
    keep: float = 3600.0
    """Time after which a scan that nobody uses, and a result, are deleted."""
    silence: float = 60.0
    """Time that a client may be silent while it sends a body."""
    body_seconds: float = 900.0
    """Time for a whole body."""


@dataclass(frozen=True)
class StudioSettings:
    """A start of the service; every field has a default.

    `port` is the one that is bound, which the cookie has in its name and the `Origin` of the page names.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    once: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Opens the page once: the address with which a browser is started can be read in the list of processes."""
    names: tuple[str, ...] = ()
    """Further names under which browsers reach the service, such as `studio.example.org` behind a proxy."""
    models: tuple[Path, ...] = ()
    runs: Path | None = None
    dataset: Path | None = None
    predictions: Path | None = None
    labels: Path | None = None
    devices: tuple[str | None, ...] = (None,)
    """One job at a time runs on each; None is a GPU where there is one, else the CPU."""
    runtime: Literal["auto", "torch", "onnx", "openvino"] = "auto"
    limits: Limits = Limits()

    @property
    def hosts(self) -> frozenset[str]:
        """Values of the header `Host` that are answered, in small letters."""
        own = {f"{name}:{self.port}" for name in (*LOOPBACK, _bracketed(self.host))}
        plain = set(LOOPBACK) if self.port == 80 else set()
        return frozenset(own | plain | {name.lower() for name in self.names})

    @property
    def origins(self) -> frozenset[str]:
        """Values of the header `Origin` that are answered."""
        behind_proxy = {f"https://{name.lower()}" for name in self.names}
        return frozenset({f"http://{host}" for host in self.hosts} | behind_proxy)


def check_address(host: str, token: str | None) -> None:
    """Raise `BadInput` for a token that is easily guessed, and for an address beyond loopback without a token."""
    if token is not None and not re.fullmatch(rf"[\w.~-]{{{SHORTEST_TOKEN},200}}", token, re.ASCII):
        reason = f"is no token of {SHORTEST_TOKEN} to 200 letters, digits, '-', '_', '.' or '~'"
        raise BadInput("--token", reason, "leave it out, and a random one is made")
    if token is None and _bracketed(host) not in LOOPBACK:
        reason = "is not this machine alone: everybody on the network could read and send scans"
        raise BadInput(f"--host {host}", reason, "add --token with a long random text, or leave --host out")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host.lower()

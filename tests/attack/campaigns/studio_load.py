"""Many clients of `fheat studio` at once: `python -m tests.attack.campaigns.studio_load --clients 50 --seconds 60`.

Every client draws what it does: segment a scan and fetch its mask, send a malformed or an oversized file, send slowly,
leave in the middle, come from another origin, ask for lists. Meanwhile the health check is asked ten times a second,
and a process that works on a job is killed now and then. Allowed are answers 2xx, 4xx and 503. A health check takes at
most 100 ms, or as long as the slowest answer of a server that does nothing else on the same machine. The service holds
no more memory at the end than after its first fifth, but for `ALLOWED` bytes.
"""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.attack.campaigns.common import options, report
from tests.attack.campaigns.predicting import make_model, make_scans
from tests.miniature import declare

TOKEN = "a-token-for-the-load"
ALLOWED = 48 * 2**20
"""Bytes by which the service may grow after the first fifth: voxels in work, and what the allocator keeps."""
SLOWEST_HEALTH = 0.1
KILL_EVERY = 10.0
CLIENTS_NICE = 10
ASK_EVERY = 1.0
"""Seconds between two questions of a client how far its job is; the page asks every two where its stream is broken."""
MOST_BYTES = 2**20


class Service:
    """The program in a process of its own."""

    def __init__(self, base: Path, model: Path) -> None:
        environment = declare(base / "site") | {"OMP_NUM_THREADS": "1", "TMPDIR": str(base)}
        words = ["studio", "--no-browser", "--port", "0", "--token", TOKEN, "--models", str(model), "--device", "cpu"]
        words += ["--runtime", "torch", "--max-bytes", str(MOST_BYTES)]
        self._log = open(base / "stderr", "wb")  # noqa: SIM115 - it is open as long as the service runs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fheat", *words],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline()
        self.port = int(address.split(":")[3].split("/")[0])

    def facts(self) -> dict[str, int]:
        """Return what the service holds (bytes, open files, threads), and its seconds of processor time."""
        folder = Path(f"/proc/{self.process.pid}")
        pages = int((folder / "statm").read_text().split()[1])
        return {
            "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "files": len(list((folder / "fd").iterdir())),
            "threads": len(list((folder / "task").iterdir())),
            "cpu": sum(map(int, (folder / "stat").read_text().split(")")[1].split()[11:13]))
            // os.sysconf("SC_CLK_TCK"),
        }

    def workers(self) -> list[int]:
        """Return the processes that work on tasks: children of the one that starts them."""
        found: list[int] = []
        for child in _children(self.process.pid):
            found += _children(child)
        return found

    def end(self) -> int:
        """Stop the service and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


Watched = tuple[np.ndarray, list[str]]
"""Seconds that answers took, and failures."""


@contextmanager
def idle_server() -> Iterator[int]:
    """Provide the port of a service that does nothing but answer."""
    command = [sys.executable, "-m", "tests.attack.campaigns.health", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(timeout=60)


class Health:
    """The process that asks for the health of a service; `end` returns what it saw."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "tests.attack.campaigns.health", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def end(self) -> Watched:
        """Return the seconds that answers took, and failures."""
        seen = json.loads(self._process.communicate(timeout=120)[0])
        return np.array(seen["seconds"]), seen["failures"]


def ask(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and content of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        own = {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers
        connection.request(method, path, body, own)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Client(threading.Thread):
    """One client that does what it draws until the time is over."""

    def __init__(self, port: int, scans: list[bytes], seed: int) -> None:
        super().__init__(daemon=True)
        self.port, self.scans, self.until = port, scans, 0.0
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.doing: tuple[tuple[Callable[[], None], int], ...] = (
            (self.segment, 5), (self.malformed, 6), (self.oversized, 1), (self.slow, 2), (self.leave, 2),
            (self.foreign, 2), (self.lists, 2),
        )  # fmt: skip

    def run(self) -> None:
        """Do one thing after the other."""
        things, weights = zip(*self.doing, strict=True)
        while time.monotonic() < self.until:
            thing = self.chance.choices(things, weights)[0]
            try:
                thing()
            except (OSError, http.client.HTTPException) as error:
                self.counts[f"{thing.__name__}: {type(error).__name__}"] += 1
                if thing != self.oversized:  # whose body the service need not read to its end
                    self.faults.append(f"{thing.__name__}: {type(error).__name__}: {error}")
            time.sleep(self.chance.uniform(0, 0.2))

    def seen(self, what: str, status: int) -> int:
        """Count an answer."""
        self.counts[f"{what}: {status}"] += 1
        if not (200 <= status < 300 or 400 <= status < 500 or status == 503):
            self.faults.append(f"{what}: status {status}")
        return status

    def segment(self) -> None:
        """Send a scan, start a job, wait for its end, fetch the mask, delete both."""
        status, content = ask(self.port, "PUT", "/api/scans?name=scan.nii.gz", self.chance.choice(self.scans))
        if self.seen("upload", status) != 201:
            return
        scan = json.loads(content)["scan"]
        wanted = {"scan": scan, "model": "model", "uncertainty": self.chance.random() < 0.3}
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        status, content = ask(self.port, "POST", "/api/jobs", json.dumps(wanted).encode(), headers)
        if self.seen("job", status) == 202:
            self._follow(json.loads(content)["job"])
        self.seen("delete", ask(self.port, "DELETE", f"/api/scans/{scan}")[0])

    def _follow(self, number: int) -> None:
        while time.monotonic() < self.until:
            status, content = ask(self.port, "GET", f"/api/jobs/{number}")
            if self.seen("state", status) != 200:
                return
            state = json.loads(content)["state"]
            if state == "done":
                self.counts["jobs done"] += 1
                self.seen("mask", ask(self.port, "GET", f"/api/jobs/{number}/mask.nii.gz")[0])
            if state not in ("queued", "running"):
                self.counts[f"jobs {state}"] += state != "done"
                break
            time.sleep(ASK_EVERY)
        self.seen("delete", ask(self.port, "DELETE", f"/api/jobs/{number}")[0])

    def malformed(self) -> None:
        """Send a scan that is cut off, damaged or nonsense, under a good or a bad name."""
        scan = bytearray(self.chance.choice(self.scans))
        content = self.chance.choice((
            bytes(scan[: self.chance.randrange(len(scan))]),
            self.chance.randbytes(2000),
            bytes(scan[:400] + bytes([scan[400] ^ 255]) + scan[401:]),
            b"",
        ))  # fmt: skip
        name = self.chance.choice(("a.nii.gz", "a.nii", "a.nrrd", "a.zip", "..%2Fa.nii", "a.exe", "a%00.nii"))
        self.seen("malformed", ask(self.port, "PUT", f"/api/scans?name={name}", content)[0])

    def oversized(self) -> None:
        """Send more than is allowed, with and without saying so."""
        parts = (bytes(2**16) for _ in range(40))
        body = bytes(MOST_BYTES + 1) if self.chance.random() < 0.5 else parts
        self.seen("oversized", ask(self.port, "PUT", "/api/scans?name=a.nii", body)[0])

    def slow(self) -> None:
        """Send a scan in small parts over seconds."""
        scan = self.chance.choice(self.scans)
        step = len(scan) // 8 + 1

        def parts() -> Any:
            for start in range(0, len(scan), step):
                yield scan[start : start + step]
                time.sleep(self.chance.uniform(0, 0.5))

        status, content = ask(self.port, "PUT", "/api/scans?name=slow.nii.gz", parts())
        if self.seen("slow", status) == 201:
            self.seen("delete", ask(self.port, "DELETE", f"/api/scans/{json.loads(content)['scan']}")[0])

    def leave(self) -> None:
        """Leave in the middle of a body, of a head, or of a stream of events."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as client:
            head = f"Host: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {TOKEN}\r\n"
            client.sendall(self.chance.choice((
                f"PUT /api/scans?name=a.nii HTTP/1.1\r\n{head}Content-Length: 5000\r\n\r\nbegin".encode(),
                f"PUT /api/scans?name=a.nii HTTP/1.1\r\n{head}".encode(),
                f"GET /api/events HTTP/1.1\r\n{head}\r\n".encode(),
            )))  # fmt: skip
            time.sleep(self.chance.uniform(0, 1))
        self.counts["left"] += 1

    def foreign(self) -> None:
        """Ask as a page of another origin, or without the token."""
        headers = self.chance.choice((
            {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"},
            {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"},
            {"Authorization": "Bearer wrong"},
        ))  # fmt: skip
        status = self.seen("foreign", ask(self.port, "POST", "/api/jobs", b"{}", headers)[0])
        if status not in (400, 401, 403):
            self.faults.append(f"foreign: status {status}")

    def lists(self) -> None:
        """Ask for models, jobs and pages."""
        path = self.chance.choice(("/api/models", "/api/jobs", "/docs", "/api/nothing", "/api/models/model/allocation"))
        self.seen("lists", ask(self.port, "GET", path)[0])


def load(given: Any, service: Service, clients: list[Client]) -> tuple[int, list[dict[str, int]]]:
    """Let the clients do what they draw; return how many workers were killed and what the service held meanwhile."""
    notes, killed, next_kill = [service.facts()], 0, time.monotonic() + KILL_EVERY / 2
    for client in clients:
        client.until = time.monotonic() + given.seconds
        client.start()
    while any(client.is_alive() for client in clients):
        time.sleep(0.5)
        notes.append(service.facts())
        if time.monotonic() > next_kill and (workers := service.workers()):
            with suppress(ProcessLookupError):
                os.kill(workers[0], signal.SIGKILL)
                killed += 1
            next_kill += KILL_EVERY
    return killed, [*notes, service.facts()]


def main() -> int:
    """Run the campaign."""
    given = options(__doc__, "studio-load-cpu", clients=50, seconds=60)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        scans = [path.read_bytes() for path in make_scans(base / "scans", [f"s{n}" for n in range(4)]).iterdir()]
        service = Service(base, make_model(base / "model"))
        try:
            while ask(service.port, "GET", "/api/models")[0] != 200:  # its libraries are loaded with the first answer
                time.sleep(0.5)
            clients = [Client(service.port, scans, given.seed + number) for number in range(given.clients)]
            with idle_server() as idle:
                watches = Health(service.port), Health(idle)
                os.nice(CLIENTS_NICE)  # real clients do not take the processor of the service
                killed, notes = load(given, service, clients)
                health, machine = (watch.end() for watch in watches)
        finally:
            code = service.end()
        log, left = (base / "stderr").read_text(), [path.name for path in base.glob("fheat-studio-*")]
    return _report(given, clients, health, machine, notes, killed, code, left, log)


def milliseconds(seconds: np.ndarray) -> dict[str, float]:
    """Return the number of answers and quantiles of their times."""
    parts = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "largest": 1.0}
    found = {name: round(1000 * float(np.quantile(seconds, part)), 1) for name, part in parts.items()}
    return {"answers": len(seconds), **found}


def _report(
    given: Any,
    clients: list[Client],
    health: Watched,
    machine: Watched,
    notes: list[dict[str, int]],
    killed: int,
    code: int,
    left: list[str],
    log: str,
) -> int:
    counts = sum((client.counts for client in clients), Counter[str]())
    seconds, failures = health
    early = notes[: max(1, len(notes) // 5)]
    most = {name: max(note[name] for note in early) for name in notes[0]}
    grown = notes[-1]["bytes"] - most["bytes"]
    faults = [fault for client in clients for fault in client.faults][:50]
    faults += [f"health: {failure}" for failure in failures[:10]]
    slowest = max(SLOWEST_HEALTH, float(machine[0].max()))
    faults += [f"health took {seconds.max():.3f} s"] if seconds.max() > slowest else []
    faults += [f"{grown} bytes more than after the first fifth"] if grown > ALLOWED else []
    faults += [f"exit code {code}"] if code != 143 else []
    faults += [f"left behind: {left}"] if left else []
    faults += ["the log names a file"] if ".nii" in log else []
    faults += [line for line in log.splitlines() if "internal" in line][:10]
    results = {
        "clients": given.clients,
        "seconds": given.seconds,
        "answers": dict(sorted(counts.items())),
        "workers_killed": killed,
        "health_milliseconds": milliseconds(seconds),
        "idle_server_milliseconds": milliseconds(machine[0]),
        "service_cpu_seconds": notes[-1]["cpu"] - notes[0]["cpu"],
        "mib": {"first": notes[0]["bytes"] // 2**20, "last": notes[-1]["bytes"] // 2**20, "grown": grown // 2**20},
        "open_files": {"first": notes[0]["files"], "last": notes[-1]["files"]},
        "threads": {"first": notes[0]["threads"], "last": notes[-1]["threads"]},
        "faults": faults,
    }
    title = "Parallel clients of the service: answers, health check and memory under good, bad and slow requests"
    settings = {"allowed_bytes": ALLOWED, "health_limit_seconds": SLOWEST_HEALTH, "cores": os.cpu_count()}
    return report(given, "studio_load", title, settings, results)


if __name__ == "__main__":
    sys.exit(main())

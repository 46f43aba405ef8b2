"""Binding the address, starting the service, and saying where it is."""

import contextlib
import gc
import socket
import sys
import warnings
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import uvicorn

from fheat.studio.app import create_app
from fheat.studio.settings import StudioSettings, check_address
from fheat.system.errors import BadInput

GRACE: Final = 3
"""Seconds that open streams have at the end."""
MOST_CONNECTIONS: Final = 512
SWITCH: Final = 0.0005
"""Seconds after which a thread that computes gives way; a request waits for that several times."""
BACKLOG: Final = 512
"""Connections that wait to be accepted."""


@contextlib.contextmanager
def bound(settings: StudioSettings) -> Iterator[tuple[socket.socket, StudioSettings]]:
    """Bind the address and provide the socket, and the settings with the port that it has, or raise `BadInput`."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as opened:
        if sys.platform != "win32":  # there it would let two programs have one port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((settings.host.strip("[]"), settings.port))
            opened.listen(BACKLOG)  # who comes before the service has started waits for it
        except (OSError, OverflowError, UnicodeError) as error:
            reason = f"cannot be bound ({getattr(error, 'strerror', None) or error})"
            raise BadInput(f"{settings.host}:{settings.port}", reason, "choose another --port or --host") from None
        yield opened, replace(settings, port=opened.getsockname()[1])


def server_of(settings: StudioSettings) -> uvicorn.Server:
    """Return the server of an address that is bound. It logs nothing: addresses have tokens, names have patients."""
    config = uvicorn.Config(
        create_app(settings),
        workers=1,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        backlog=BACKLOG,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config)


def serve(settings: StudioSettings, *, given_token: str | None, browser: bool) -> None:
    """Serve until the program is asked to stop."""
    check_address(settings.host, given_token)
    warnings.simplefilter("ignore")  # a library may quote a header of a scan
    with bound(settings) as (opened, running):
        name = "127.0.0.1" if running.host in ("0.0.0.0", "localhost") else running.host
        host = f"[{name}]" if ":" in name else name
        address = f"http://{host}:{running.port}"
        print(f"fheat studio: {address}/?token={running.token}")
        print(f"3D Slicer (MONAI Label server): {address}/s/{running.token}")
        print("Ctrl-C ends it, and deletes all scans and results.", flush=True)
        if browser:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(f"{address}/?token={running.once}")
        server = server_of(running)
        _stay_quick()
        server.run(sockets=[opened])


def _stay_quick() -> None:
    """Let the thread that answers requests wait less for the others, and for the collection of garbage."""
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()  # what was imported stays, and need not be looked through again

"""Checks that every request must pass first: who may ask, from where, and how much.

Loopback is no border: any page in the browser can send requests to it, and a name that its owner lets point to
127.0.0.1 makes them look local. So the header `Host` must be one of ours on every request, `Origin` too where it is
sent, changes may not come from another site, and all but the health check needs the secret of this start. These are
plain ASGI layers: they decide on headers, before a byte of the body is read.
"""

import asyncio
import hmac
import secrets
import sys
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fheat.studio.answers import Refused, answer
from fheat.studio.settings import Limits, StudioSettings

SECURITY: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every answer."""
SAFE: Final = ("GET", "HEAD")
"""Methods that change nothing."""
HEALTH: Final = "/api/health"
SLICER: Final = "/s/"
LONGEST_QUERY: Final = 2000
"""Number of characters of a query that are looked at."""
SMALL_BODY: Final = 64 * 2**10
"""Largest number of bytes of a body that is no file."""
FORM: Final = 2**20
"""Bytes that a form may have beside its file."""
_OPEN: Final = (
    "the request has no valid token",
    "open the address that fheat studio printed, or send Authorization: Bearer TOKEN",
)
_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>fheat studio</title>'
    "<h1>fheat studio</h1><p>This page needs the address that <code>fheat studio</code> printed in its terminal: it "
    "ends with <code>?token=...</code>. After a restart there is a new one.</p>"
)


class Guard:
    """Lets a request pass if its host, its origin and its token are right, and adds the security headers."""

    def __init__(self, app: ASGIApp, settings: StudioSettings) -> None:
        self._app, self._token, self._once = app, settings.token, settings.once
        self._hosts, self._origins = settings.hosts, settings.origins
        self._cookie, self._session = f"fheat-{settings.port}", secrets.token_urlsafe(24)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _with_headers(send))
        else:  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = self._foreign(scope, headers) or self._unknown(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if scope["path"].startswith(SLICER):  # the secret is part of the path, and nobody behind this needs it
            rest = scope["path"].removeprefix(SLICER).partition("/")[2]
            scope = {**scope, "path": SLICER + rest, "raw_path": (SLICER + rest).encode()}
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request that another site may have caused."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return answer(400, "the header Host is not an address of this service", "use the address that was printed")
        if any(origin.lower() not in self._origins for origin in headers.getlist("origin")):
            return answer(403, "another site may not use this service", "use the page of the service itself")
        sites = set(headers.getlist("sec-fetch-site"))
        if scope["method"] not in SAFE and not sites <= {"same-origin", "none"}:
            return answer(403, "another site may not change anything here", "use the page of the service itself")
        return None

    def _unknown(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request without the secret, or the cookie for one that has it in its address."""
        path = scope["path"]
        if path == HEALTH and scope["method"] in SAFE:
            return None
        if path.startswith(SLICER):
            stated = path.removeprefix(SLICER).partition("/")[0]
            return None if self._is_token(stated) else answer(401, *_OPEN)
        query = parse_qs(scope["query_string"][:LONGEST_QUERY].decode("latin-1")) if path == "/" else {}
        if "token" in query:
            given = query["token"][0]
            if self._once and _same(given, self._once):
                self._once = ""
            elif not self._is_token(given):
                return HTMLResponse(_PAGE, 401)
            return self._welcome()
        kind, _, stated = headers.get("authorization", "").partition(" ")
        if (kind.lower() == "bearer" and self._is_token(stated.strip())) or self._has_cookie(headers):
            return None
        wants_page = scope["method"] in SAFE and "text/html" in headers.get("accept", "")
        return HTMLResponse(_PAGE, 401) if wants_page else answer(401, *_OPEN, {"WWW-Authenticate": "Bearer"})

    def _welcome(self) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return response

    def _has_cookie(self, headers: Headers) -> bool:
        found = cookie_parser("; ".join(headers.getlist("cookie"))).get(self._cookie)
        return found is not None and _same(found, self._session)

    def _is_token(self, stated: str) -> bool:
        return _same(stated, self._token)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode())


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending


class Bodies:
    """Counts the bytes of every body as they come, whatever its header declares, and does not wait for ever."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with a body that is watched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._limit(scope)
        if headers.get("content-encoding", "identity").lower() != "identity":
            refusal = answer(415, "the body is packed (Content-Encoding)", "send the file as it is")
            await refusal(scope, receive, send)
        elif not (length := headers.get("content-length", "0")).isdecimal():
            await answer(400, "the header Content-Length is no number", "leave it out")(scope, receive, send)
        elif int(length[:20]) > limit:
            await _too_large(limit)(scope, receive, send)
        else:
            await self._app(scope, self._watched(receive, limit), send)

    def _limit(self, scope: Scope) -> int:
        if scope["path"].startswith(SLICER):
            return self._limits.body + FORM
        return self._limits.body if scope["method"] == "PUT" else SMALL_BODY

    def _watched(self, receive: Receive, limit: int) -> Receive:
        seen, complete = 0, False
        loop = asyncio.get_running_loop()
        end = loop.time() + self._limits.body_seconds

        async def watched() -> Message:
            nonlocal seen, complete
            if complete:  # what is waited for now is that the client leaves, however long that takes
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), min(self._limits.silence, max(end - loop.time(), 0.01)))
            except TimeoutError:
                raise Refused(408, "the body comes too slowly", "send it again", closes=True) from None
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if seen > limit:
                    raise Refused(413, *_size_words(limit), closes=True)
            return message

        return watched


def _too_large(limit: int) -> Response:
    return answer(413, *_size_words(limit))


def _size_words(limit: int) -> tuple[str, str]:
    return f"the body has more than {limit:,} bytes", "send a smaller one, or start with a larger --max-bytes"


class LastResort:
    """Answers 500 where something went wrong that nobody foresaw, and says where in the log, without any value."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if scope["type"] != "http":
                raise
            print(f"fheat studio: internal error ({_place(error)})", file=sys.stderr, flush=True)
            if not begun:
                await answer(500, f"an internal error happened ({type(error).__name__})", "please report it")(
                    scope, receive, send
                )


def _place(error: Exception) -> str:
    """Return the kind of an error and the line that raised it; its message may name a file or a patient."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
    return f"{type(error).__name__}{where}"

"""Refusals of the service: a status, one line that says what is wrong, and what to do."""

import errno
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fheat.system.errors import FULL, BadInput
from fheat.system.text import printable

LONGEST: Final = 500
"""Largest number of characters of a line."""
_PLAIN: Final = {
    404: ("there is nothing at this address", "look at /docs"),
    405: ("this address does not take that method", "look at /docs"),
}
"""Reason and remedy of the refusals that the framework itself raises, by status."""


class Refused(HTTPException):
    """A request that is refused, with the reason and the remedy, each in one line."""

    def __init__(
        self, status: int, reason: str, remedy: str, *, headers: Mapping[str, str] | None = None, closes: bool = False
    ) -> None:
        super().__init__(status, reason, {**(headers or {}), **({"Connection": "close"} if closes else {})})
        self.remedy = remedy

    @classmethod
    def busy(cls, reason: str) -> "Refused":
        """Return the refusal of what can be tried again later."""
        return cls(503, reason, "try again in a while", headers={"Retry-After": "5"})

    @classmethod
    def of(cls, error: BadInput, what: str) -> "Refused":
        """Return what a reader said of a file, under the name that its sender knows it by."""
        return cls(422, f"{what}: {error.reason}", error.remedy)


def answer(status: int, reason: str, remedy: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the JSON of a refusal."""
    content = {"error": printable(reason)[:LONGEST], "remedy": printable(remedy)[:LONGEST]}
    return JSONResponse(content, status, headers)


def add_handlers(app: FastAPI) -> None:
    """Let all refusals of an application have the same form."""

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, Refused):
            return answer(error.status_code, error.detail, error.remedy, error.headers)
        reason, remedy = _PLAIN.get(error.status_code, (str(error.detail), "look at /docs"))
        return answer(error.status_code, reason, remedy, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first: dict[str, Any] = dict(error.errors()[0])
        field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return answer(422, f"{field}: {first['msg']}", "look at /docs")

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> JSONResponse:
        return answer(400, "the body ended early", "send it again")

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        return answer(500, f"an internal error happened ({type(error).__name__})", "please report it")

    @app.exception_handler(OSError)
    async def full(request: Request, error: OSError) -> JSONResponse:
        if error.errno == errno.ENOENT:
            return answer(404, "the scan or the job was deleted meanwhile", "send it again")
        if error.errno not in (*FULL, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise error
        return answer(503, "there is no room for it on this machine", "free space, or try again later")

"""Turns every error into a problem document (RFC 9457): code, object, hint, no stack trace."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from controller.base.errors import ErrorCode, ServiceError
from controller.base.texts import clipped, shown
from sitefile.wording import plain_words

MAX_ERRORS = 20
"""Fields that one answer names; a body may have thousands of wrong fields."""
MAX_PATH = 500
MEDIA_TYPE = "application/problem+json"
STATUS: Mapping[ErrorCode, int] = {
    "invalid": 422,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "unavailable": 503,
    "failed": 500,
    "timeout": 504,
}
_HTTP_CODES: Mapping[int, ErrorCode] = {
    401: "forbidden",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
    409: "conflict",
    503: "unavailable",
    504: "timeout",
}

log = structlog.get_logger(__name__)


class FieldProblem(BaseModel):
    """One wrong field of a request."""

    field: str
    message: str


class Problem(BaseModel):
    """A problem document. ``code`` is for programs, ``detail`` and ``hint`` for people."""

    type: str
    title: str
    status: int
    detail: str
    code: ErrorCode
    object: str = ""
    hint: str = ""
    errors: list[FieldProblem] = Field(default_factory=list)
    """One entry per field, only if the request failed validation."""


def problem(
    status: int,
    code: ErrorCode,
    detail: str,
    *,
    object: str = "",
    hint: str = "",
    errors: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a response with one problem document."""
    document = Problem(
        type=f"urn:lightloom:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=shown(detail),
        code=code,
        object=shown(object),
        hint=shown(hint),
        errors=list(errors),
    )
    return JSONResponse(
        document.model_dump(),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers=dict(headers or {}),
    )


def from_service(error: ServiceError) -> JSONResponse:
    """Return the problem document of the controller's own error."""
    return problem(
        STATUS[error.code], error.code, error.message, object=error.object, hint=error.hint
    )


def responses(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI error responses of a route that may fail with ``codes``."""
    described = {STATUS[code]: code for code in ("invalid", "failed", "timeout", *codes)}
    return {
        status: {"model": Problem, "description": f"{HTTPStatus(status).phrase}: code `{code}`"}
        for status, code in sorted(described.items())
    }


def install(app: FastAPI) -> None:
    """Make every error of ``app`` a problem document, unknown routes and crashes included."""

    @app.exception_handler(ServiceError)
    async def _service(_: Request, error: ServiceError) -> JSONResponse:
        return from_service(error)

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = [_field(item) for item in error.errors()[:MAX_ERRORS]]
        detail = "; ".join(f"{e.field}: {e.message}" if e.field else e.message for e in errors)
        return problem(
            422,
            "invalid",
            detail,
            object=errors[0].field if errors else "",
            hint=f"correct {errors[0].field or 'it'} and send the request again" if errors else "",
            errors=errors,
        )

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        return from_http(request.method, request.url.path, error)


def from_http(method: str, path: str, error: HTTPException) -> JSONResponse:
    """Return the problem document of an error with a status code."""
    path = path if len(path) <= MAX_PATH else path[: MAX_PATH - 1] + "…"
    code = _HTTP_CODES.get(error.status_code, "invalid")
    detail, hint = str(error.detail), ""
    if error.status_code == 404:
        detail, hint = f"there is nothing at {path}", "routes are listed in /api/v1/openapi.json"
    elif error.status_code == 405:
        detail = f"{method} is not supported at {path}"
        hint = "routes are listed in /api/v1/openapi.json"
    return problem(error.status_code, code, detail, object=path, hint=hint, headers=error.headers)


def crashed(method: str, path: str, error: Exception) -> JSONResponse:
    """Return the answer after a defect: the cause goes to the log, not to the client."""
    trace = "".join(traceback.format_exception(error))
    log.error("request failed", method=method, path=path, error=repr(error), trace=trace)
    return problem(
        500,
        "failed",
        "the controller failed on this request",
        object=path,
        hint="the controller's log names the cause",
    )


def _field(item: Mapping[str, Any]) -> FieldProblem:
    location = [str(part) for part in item.get("loc", ())]
    if len(location) > 1 and location[0] in ("body", "query", "path"):
        location = location[1:]
    message = plain_words(item)
    return FieldProblem(field=clipped(".".join(location)), message=clipped(message))

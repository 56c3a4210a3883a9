"""The client of the REST API: whom it trusts, and which errors it raises."""

from __future__ import annotations

import ssl
from typing import Any

import httpx
import pytest

from base.errors import ExplainedError
from base.rest import RestClient


class OwnError(ExplainedError):
    """The error of one user of the client."""


class Own(RestClient):
    error = OwnError
    codes = frozenset({"conflict"})


def client(answer: httpx.Response) -> Own:
    return Own("http://there", None, 1.0, transport=httpx.MockTransport(lambda _: answer))


@pytest.mark.parametrize("url", ["https://there", "http://there"])
def test_certificates_are_verified_wherever_there_are_any(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(httpx, "Client", lambda **options: made.update(options))
    RestClient(url, None, 1.0)
    assert made["verify"] is url.startswith("https")
    own = ssl.create_default_context()
    RestClient(url, None, 1.0, trust=own)
    assert made["verify"] is own


@pytest.mark.parametrize(("code", "raised"), [("conflict", "conflict"), ("odd", "failed")])
def test_a_problem_is_the_users_own_error(code: str, raised: str) -> None:
    problem = {"code": code, "detail": "t3 moves gpu2", "object": "job/red", "hint": "wait"}
    with client(httpx.Response(409, json=problem)) as own, pytest.raises(OwnError) as caught:
        own.get("/jobs")
    error = caught.value
    assert (error.code, error.message, error.object, error.hint) == (
        *(raised, "t3 moves gpu2", "job/red", "wait"),
    )


def test_another_server_is_not_a_controller() -> None:
    answer = httpx.Response(200, text="<html>")
    with client(answer) as own, pytest.raises(OwnError, match="not a lightloom controller"):
        own.get("/jobs")

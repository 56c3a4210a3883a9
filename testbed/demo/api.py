"""Accesses the controller for the demo, through its REST API only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, get_args

import httpx

from testbed.demo.errors import DemoError, DemoErrorCode
from testbed.token import local_token

Document = dict[str, Any]
PREFIX = "/api/v1"
CONNECT_S = 5.0
ANSWER_S = 60.0
SILENCE_S = 600.0
"""Longest time without a line of output: TensorFlow's start on a loaded machine."""


class Controller:
    """One controller; every method raises DemoError."""

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        token = os.environ.get("LIGHTLOOM_TOKEN") or local_token(url)
        self._http = httpx.Client(
            base_url=url + PREFIX,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            transport=transport,
            trust_env=False,  # a proxy cannot reach a controller on this machine
        )

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Document:
        """Read one document."""
        return self._request("GET", path, params=params)

    def items(self, path: str) -> list[Document]:
        """Read the items of a list, page by page."""
        page = self.get(path)
        found: list[Document] = page["items"]
        while page.get("next"):
            page = self.get(path, cursor=page["next"])
            found += page["items"]
        return found

    def post(self, path: str, body: Document | None = None, *, wait_s: float = 0.0) -> Document:
        """Send a change; with ``wait_s`` the controller responds when it is done."""
        params = {"wait_s": wait_s} if wait_s else {}
        timeout = httpx.Timeout(ANSWER_S + wait_s, connect=CONNECT_S)
        return self._request("POST", path, json=body, params=params, timeout=timeout)

    def logs(
        self, job: str, *, follow: bool, rank: int | None = None, tail: int | None = None
    ) -> Iterator[tuple[int, str]]:
        """Yield (rank, line) of a job's output; with ``follow`` until the job has ended."""
        given = {"rank": rank, "tail": tail, "follow": follow}
        params = {key: value for key, value in given.items() if value is not None}
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=SILENCE_S)
        with (
            self._explained(f"job/{job}"),
            self._http.stream(
                "GET", f"/jobs/{job}/logs", params=params, timeout=timeout
            ) as response,
        ):
            if response.is_error:
                response.read()
                raise _refusal(response)
            for text in response.iter_lines():
                document = json.loads(text) if text else {}
                if "code" in document:
                    raise _from_problem(document)
                if document:
                    yield int(document["rank"]), str(document["text"])

    def _request(self, method: str, path: str, **options: Any) -> Document:
        with self._explained(path):
            response = self._http.request(method, path, **options)
            if response.is_error:
                raise _refusal(response)
            document: Document = response.json()
            return document

    @contextmanager
    def _explained(self, about: str) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise DemoError(
                "timeout",
                f"the controller at {self.url} did not answer in time ({type(error).__name__})",
                object=about,
                hint="see the controller's log: lightloom testbed status",
            ) from error
        except httpx.HTTPError as error:
            raise DemoError(
                "unreachable",
                f"no answer from the controller at {self.url}: {error or type(error).__name__}",
                object=about,
                hint="see the controller's log: lightloom testbed status",
            ) from error
        except ValueError as error:
            raise DemoError(
                "failed",
                f"the server at {self.url} is not a lightloom controller",
                object=about,
                hint="check what listens there: lightloom testbed status",
            ) from error


def _refusal(response: httpx.Response) -> DemoError:
    document = response.json()
    if not isinstance(document, dict) or "code" not in document:
        raise ValueError("not a problem document")
    return _from_problem(document)


def _from_problem(document: Document) -> DemoError:
    code = document["code"]
    return DemoError(
        code if code in get_args(DemoErrorCode) else "failed",
        str(document.get("detail", "")),
        object=str(document.get("object") or ""),
        hint=str(document.get("hint") or ""),
    )

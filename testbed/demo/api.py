"""Accesses the controller for the demo, through its REST API only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx

from base.rest import RestClient
from testbed.demo.errors import DemoError
from testbed.token import local_token

Document = dict[str, Any]
ANSWER_S = 60.0
SILENCE_S = 600.0
"""Longest time without a line of output: TensorFlow's start on a loaded machine."""


class Controller(RestClient):
    """One controller; every method raises DemoError."""

    error = DemoError
    codes = frozenset(
        {"invalid", "forbidden", "not_found", "conflict", "unavailable", "failed", "timeout"}
    )
    late = "see the controller's log: lightloom testbed status"

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        token = os.environ.get("LIGHTLOOM_TOKEN") or local_token(url)
        super().__init__(url, token, ANSWER_S, transport=transport)

    def items(self, path: str) -> list[Document]:
        """Read the items of a list, page by page."""
        found: list[Document] = self.whole(path)["items"]
        return found

    def post(
        self, path: str, body: Document | None = None, *, extra_s: float = 0.0, **params: Any
    ) -> Document:
        """Send a change; with ``wait_s`` the controller responds when it is done."""
        extra_s += params.get("wait_s", 0.0)
        return super().post(path, body, extra_s=extra_s, **params)

    def logs(
        self, job: str, *, follow: bool, rank: int | None = None, tail: int | None = None
    ) -> Iterator[tuple[int, str]]:
        """Yield (rank, line) of a job's output; with ``follow`` until the job has ended."""
        path = f"/jobs/{job}/logs"
        for document in self.lines(path, silence_s=SILENCE_S, follow=follow, rank=rank, tail=tail):
            yield int(document["rank"]), str(document["text"])

"""Answers a page's requests for measurements, communication, predictions and advice."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Page, Route

from controller.schema.base import View
from controller.schema.insight.measurements import MeasurementView
from tests.parts.api.studied import Json, document, running


class Answers:
    """Answers a page's requests for measurements, communication, predictions and advice.

    A path without a document is not found, as with a controller that knows no such object.
    """

    def __init__(self) -> None:
        self.measured: dict[str, MeasurementView] = {}
        self.documents: dict[str, View | list[Any]] = {}
        self.asked: list[tuple[str, str, Json]] = []

    async def on(self, page: Page) -> Answers:
        """Answer this page from now on."""
        await page.route(
            re.compile(r"/api/v1/(measurements|predictions|advice|jobs/[^/]+/(comms|whatif))"),
            self._answer,
        )
        return self

    def keep(self, *found: MeasurementView) -> Answers:
        """Keep these measurements."""
        self.measured |= {m.id: m for m in found}
        return self

    async def _answer(self, route: Route) -> None:
        asked = urlsplit(route.request.url)
        path = asked.path.removeprefix("/api/v1")
        body = route.request.post_data
        query = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        self.asked.append((route.request.method, path, json.loads(body) if body else query))
        status, document = self._found(route.request.method, path)
        await route.fulfill(status=status, json=document)

    def _found(self, method: str, path: str) -> tuple[int, Json]:
        _, kind, *rest = path.split("/")
        if kind == "measurements":
            return self._measurement(method, rest)
        found = self.documents.get(path)
        if found is None:
            return 404, {"code": "not_found", "detail": f"there is no {path}"}
        return 200, document(found)

    def _measurement(self, method: str, rest: list[str]) -> tuple[int, Json]:
        if not rest and method == "GET":
            listed = [m.model_copy(update={"result": None}) for m in self.measured.values()]
            return 200, document(listed)
        if not rest:
            request = self.asked[-1][2]
            made = running(9).model_copy(update={"type": request["type"]})
            if not request["dry_run"]:
                self.keep(made)
            return 201, document(made)
        found = self.measured.get(rest[0])
        if found is None:
            return 404, {"code": "not_found", "detail": f"measurement {rest[0]} does not exist"}
        if rest[1:] == ["cancel"]:
            found = found.model_copy(update={"state": "cancelled", "progress": None})
            self.keep(found)
        if method == "DELETE":
            del self.measured[rest[0]]
        return 200, document(found)

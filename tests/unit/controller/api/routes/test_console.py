"""The console's files as the controller serves them: headers, types, nothing else of the disk."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from controller.api.routes import console
from tests.parts.api.apps import app_of
from tests.parts.controller.rack import Rack


@pytest.fixture(scope="module")
def folder() -> Path:
    found = console.assets()
    assert found is not None
    return found


@pytest_asyncio.fixture
async def client(rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def test_every_file_under_a_policy_without_inline_script(
    client: httpx.AsyncClient, folder: Path
) -> None:
    static = sorted(p for p in (folder / "static").rglob("*") if p.is_file())
    paths = [f"/console/{p.relative_to(folder / 'static')}" for p in static]
    paths += [f"/console/vendor/{p.name}" for p in (folder / "vendor").iterdir()]
    for path in ["/", *paths]:
        answer = await client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-security-policy"] == console.POLICY, path
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["x-frame-options"] == "DENY", path
        if path.endswith((".js", ".mjs")):
            assert "javascript" in answer.headers["content-type"], path
    assert "unsafe" not in console.POLICY


async def test_the_catalogue_of_readings_is_a_module(client: httpx.AsyncClient) -> None:
    answer = await client.get("/console/js/readings.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["content-security-policy"] == console.POLICY
    entries = json.loads(answer.text.removeprefix("export const READINGS = ").rstrip(";\n"))
    assert {"temperature_c", "load"} <= {entry["name"] for entry in entries}


@pytest.mark.parametrize(
    "path",
    ["/console/../__init__.py", "/console/%2e%2e/__init__.py", "/console/vendor/..%2f..%2fx"],
)
async def test_nothing_else_of_the_disk(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


async def test_answers_of_the_api_are_not_guessed_nor_framed(client: httpx.AsyncClient) -> None:
    for path in ("/api/v1/health", "/api/v1/nothing"):
        answer = await client.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"


def test_pages_have_no_inline_script_and_load_nothing_from_elsewhere(folder: Path) -> None:
    ours = [p for p in (folder / "static").rglob("*") if p.suffix in (".html", ".js", ".css")]
    assert len(ours) > 20
    for page in ours:
        text = page.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|https?://", text), page
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), page


def test_vendored_files_are_those_that_were_checked(folder: Path) -> None:
    listed = re.findall(
        r"^\| `(\S+)` .* `([0-9a-f]{64})` \|$",
        (folder / "vendor" / "README.md").read_text("utf-8"),
        re.M,
    )
    assert {name for name, _ in listed} == {
        p.name for p in (folder / "vendor").iterdir() if p.suffix in (".js", ".mjs", ".css")
    }
    for name, digest in listed:
        assert hashlib.sha256((folder / "vendor" / name).read_bytes()).hexdigest() == digest


def test_without_a_console_the_api_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PACKAGE", "console.absent")
    assert console.assets() is None
    assert app_of().openapi()["paths"]

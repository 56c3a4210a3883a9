"""S12, S20 and their like: what is sent is refused with a reason, bounded, and leaks nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.cli.show.text import plain
from controller.api.operation import KIB
from tests.parts.api.desks import answer
from tests.parts.api.people import Site, people_site

NAMES = [
    "../../etc/passwd",
    "a/../b",
    "red\x00",
    "red\n",
    "\u202egnp.exe",
    "\x1b[31mred",
    "r\u00e9d",
    "-" * 64,
    "x" * 10_000,
    "",
    " ",
    "RED",
    "red;id",
    "%2e%2e%2f",
]


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with people_site(tmp_path) as site:
        yield site


async def test_odd_names_are_refused_in_bodies_and_paths(site: Site) -> None:
    async with site.client("admin") as client:
        for name in NAMES:
            body = await client.post("/jobs", json={"count": 1, "name": name})
            assert body.status_code == 422, name
            assert "\x1b" not in body.text
            for made in (
                {"name": name, "role": "viewer", "projects": ["*"]},
                {"name": "x", "role": "viewer", "projects": [name]},
            ):
                assert (await client.post("/tokens", json=made)).status_code == 422, name
            quoted = "".join(f"%{byte:02x}" for byte in name.encode())
            for tail in ("", "/cancel", "/logs"):
                method = "POST" if tail == "/cancel" else "GET"
                reply = await client.request(method, f"/jobs/{quoted}{tail}")
                assert reply.status_code in (307, 404, 405, 414, 422), (name, tail)
                assert "Traceback" not in reply.text
    assert not site.jobs


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"count": 1e999}',
        b'{"count": NaN}',
        b'{"count": "1; drop table"}',
        b'{"count": -1}',
        b'{"count": 1, "count_": 2}',
        b'{"count": 1, "env": {"A": 1}}',
        b'{"count": 1, "command": "sh"}',
        b"[" * 20_000,
        b'{"count": ' + b"9" * 5000 + b"}",
    ],
)
async def test_bodies_of_the_wrong_shape_are_refused(site: Site, content: bytes) -> None:
    async with site.client("admin") as client:
        reply = await client.post(
            "/jobs", content=content, headers={"content-type": "application/json"}
        )
        assert reply.status_code in (400, 422)
        assert reply.json()["code"] == "invalid"
        assert "Traceback" not in reply.text
    assert not site.jobs


async def test_a_huge_body_is_refused_before_it_is_read(site: Site) -> None:
    async with site.client("user-alpha") as client:
        headers = {"content-length": str(2**30), "content-type": "application/json"}
        reply = await client.post("/jobs", content=b"{}", headers=headers)
        assert reply.status_code == 413
        large = await client.post("/jobs", json={"count": 1, "command": ["x" * 256 * KIB]})
        assert large.status_code == 413


async def test_a_stale_plan_and_unknown_ids_are_refused(site: Site) -> None:
    async with site.client("operator") as client:
        plan = (await client.post("/plans", json={})).json()
        assert (await client.post("/jobs/alpha-red/cancel")).status_code == 200
        assert (await client.post("/transactions", json={"plan": plan})).status_code == 409
        for path in ("/transactions/t99", "/jobs/none", "/endpoints/none/trace"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post("/transactions/t99/abort")).status_code == 404


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.text(max_size=80))
def test_no_text_reaches_a_terminal_raw(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()


async def test_a_defect_tells_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    answer(site.desks.jobs, submit=RuntimeError("a secret inside"))
    async with site.client("admin") as client:
        reply = await client.post("/jobs", json={"count": 1})
    assert reply.status_code == 500
    assert "secret" not in reply.text
    out, err = capsys.readouterr()
    assert site.secrets["admin"] not in out + err


async def test_canary_secrets_appear_nowhere(site: Site, tmp_path: Path) -> None:
    canary = "ll_canary-S12-0123456789"
    async with site.client() as client:
        for _ in range(3):
            replies = [
                await client.get("/jobs", headers={"Authorization": f"Bearer {canary}"}),
                await client.post("/session", json={"token": canary}),
                await client.get("/jobs", headers={"Cookie": f"lightloom_session={canary}"}),
            ]
            assert all(canary not in reply.text + str(reply.headers) for reply in replies)
    async with site.client("admin") as client:
        for path in ("/tokens", "/audit", "/health", "/../../metrics"):
            text = (await client.get(path)).text
            assert canary not in text
            assert not any(secret in text for secret in site.secrets.values()), path
    kept = json.dumps([name.read_bytes().decode("latin-1") for name in _files(tmp_path)])
    assert canary not in kept
    assert not any(secret in kept for secret in site.secrets.values())


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_file()]

"""Commands in ranks: recorded before they begin, run once, for their own caller only."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from base import clock
from controller.api import executing
from controller.api import following as api_following
from controller.api.executing import MOST_PER_TOKEN, OPEN_S, Sessions
from controller.api.routes.streams import execs
from controller.devices.engine import RankState
from testbed.simulated.loop import settled
from tests.parts.api.people import Site, people_site
from tests.parts.api.repeater import Repeater
from tests.unit.controller.api.follower import following

JOB = "/jobs/alpha-red/exec"
USER = "user-alpha"


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with people_site(tmp_path) as site:
        yield site


@pytest.fixture
def ran(site: Site) -> Repeater:
    """What ran."""
    return Repeater(site.rack.engine)


async def prepare(client: httpx.AsyncClient, *command: str, **more: Any) -> str:
    made = await client.post(JOB, json={"command": command, **more})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def lines(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines() if line]


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await settled()


async def records(site: Site) -> list[tuple[str, str, int, str]]:
    found = await site.audit.records(0, 100)
    return [(r.actor, r.action, r.outcome, r.detail) for r in found]


async def test_a_command_is_recorded_before_it_begins_and_at_its_end(
    site: Site, ran: Repeater
) -> None:
    async with site.client(USER) as client:
        ident = await prepare(client, "sh", "-c", "echo it's")
        ((who, action, outcome, detail),) = await records(site)
        assert (who, action, outcome) == (USER, "prepare_exec", 201)
        assert detail.startswith(f"{ident[:8]}: rank 0")
        assert "sh -c " in detail
        assert ident not in detail
        assert ran.begun == []
        shown = lines(await client.get(f"{JOB}/{ident}"))
    assert shown == [
        {"stream": "stderr", "data": text(b"no more\n")},
        {"exit_code": 3, "reason": ""},
    ]
    end = (await records(site))[-1]
    assert end[:3] == (USER, "end_exec", 200)
    assert end[3].startswith(f"{ident[:8]}: exit code 3 after ")
    assert (await site.audit.verify()).ok


async def test_a_command_that_cannot_be_recorded_does_not_begin(site: Site, ran: Repeater) -> None:
    site.audit.damage = "the disk is full"
    async with site.client(USER) as client:
        refused = await client.post(JOB, json={"command": ["true"]})
        assert refused.status_code == 500
    assert ran.begun == []


async def test_input_reaches_the_command_once_and_in_order(site: Site, ran: Repeater) -> None:
    async with site.client(USER) as client:
        ident = await prepare(client, "cat", stdin=True, terminal=True)
        path = f"{JOB}/{ident}/input"
        reading = asyncio.create_task(client.get(f"{JOB}/{ident}"))
        window = {"rows": 40, "columns": 100}
        sent = [
            {"seq": 1, "stdin": text(b"one "), "window": window},
            {"seq": 1, "stdin": text(b"one ")},
            {"seq": 2, "stdin": text(b"two\x00")},
        ]
        for body in sent:
            assert (await client.post(path, json=body)).status_code == 200
        early = await client.post(path, json={"seq": 4, "stdin": ""})
        assert early.status_code == 409
        assert early.json()["detail"] == "input 4 came before input 3"
        assert (await client.post(path, json={"seq": 3, "stdin": "?"})).status_code == 422
        last = await client.post(path, json={"seq": 3, "stdin": "", "end": True})
        assert last.json() == {"next": 4}
        shown = lines(await reading)
        assert b"".join(base64.b64decode(s["data"]) for s in shown[:-2]) == b"one two\x00"
        assert (await client.post(path, json={"seq": 4, "stdin": ""})).status_code == 404
    assert [(w.rows, w.columns) for w in ran.windows] == [(40, 100)]
    actions = [action for _, action, _, _ in await records(site)]
    assert "send_exec_input" not in actions  # neither input nor its number is kept
    assert "one" not in str(await records(site))


async def test_input_for_a_command_without_input_is_refused(site: Site) -> None:
    async with site.client(USER) as client:
        ident = await prepare(client, "cat")
        refused = await client.post(f"{JOB}/{ident}/input", json={"seq": 1, "stdin": "AAAA"})
        assert refused.status_code == 409


async def test_a_command_is_its_callers_and_runs_once(site: Site, ran: Repeater) -> None:
    async with site.client(USER) as client:
        ident = await prepare(client, "true")
        for who in ("admin", "user-beta", "viewer-alpha", None):
            async with site.client(who) as other:
                for reply in (
                    await other.get(f"{JOB}/{ident}"),
                    await other.post(f"{JOB}/{ident}/input", json={"seq": 1, "stdin": ""}),
                ):
                    assert reply.status_code in (401, 403, 404), who
        assert (await client.get(f"/jobs/red/exec/{ident}")).status_code == 404
        assert lines(await client.get(f"{JOB}/{ident}"))[-1]["exit_code"] == 3
        assert (await client.get(f"{JOB}/{ident}")).status_code == 404
    assert len(ran.begun) == 1


async def test_a_command_of_another_project_and_of_a_viewer_is_refused_and_recorded(
    site: Site, ran: Repeater
) -> None:
    for who, status in (("user-beta", 404), ("viewer-alpha", 403)):
        async with site.client(who) as client:
            refused = await client.post(JOB, json={"command": ["cat", "/data/key"]})
            assert refused.status_code == status
    found = await records(site)
    assert [(who, outcome) for who, _, outcome, _ in found] == [
        ("user-beta", 404),
        ("viewer-alpha", 403),
    ]
    assert "cat /data/key" in found[0][3]
    assert ran.begun == []


async def test_a_command_ends_with_its_caller_and_with_its_token(site: Site, ran: Repeater) -> None:
    async with site.client(USER) as client:
        left = await prepare(client, "cat", stdin=True)
        revoked = await prepare(client, "cat", stdin=True)
        for ident in (left, revoked):
            await client.post(f"{JOB}/{ident}/input", json={"seq": 1, "stdin": "AAAA"})
    async with following(site, site.secrets[USER], f"{JOB}/{left}"):
        await until(lambda: len(ran.begun) == 1)
    await until(lambda: ran.ended == 1)
    async with following(site, site.secrets[USER], f"{JOB}/{revoked}") as follower:
        await until(lambda: len(ran.begun) == 2)
        token = next(t.id for t in site.accounts.tokens() if t.name == USER)
        async with site.client("admin") as admin:
            await admin.delete(f"/tokens/{token}")
        async with asyncio.timeout(60):
            await follower.task
    await until(lambda: ran.ended == 2)
    ends = [detail for _, action, _, detail in await records(site) if action == "end_exec"]
    assert len(ends) == 2
    assert all("its caller left" in detail for detail in ends)


async def test_an_error_after_the_beginning_is_the_last_line(site: Site) -> None:
    site.rack.engine.set_all("alpha-red", RankState.PAUSED)
    async with site.client(USER) as client:
        ident = await prepare(client, "true")
        (problem,) = lines(await client.get(f"{JOB}/{ident}"))
    assert (problem["code"], problem["status"]) == ("conflict", 409)
    assert "frozen" in (await records(site))[-1][3]


async def test_users_leave_room_for_operators(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executing, "MOST", 1)
    async with site.client(USER) as client, site.client("operator") as operator:
        await prepare(client, "true")
        refused = await client.post(JOB, json={"command": ["true"]})
        assert refused.status_code == 503
        await prepare(operator, "true")


async def test_a_token_has_so_many_commands_and_unopened_ones_are_dropped(
    site: Site, ran: Repeater
) -> None:
    now = 0.0
    site.app.state.sessions = Sessions(lambda: now)
    async with site.client(USER) as client:
        idents = [await prepare(client, "true") for _ in range(MOST_PER_TOKEN)]
        refused = await client.post(JOB, json={"command": ["true"]})
        assert refused.status_code == 503
        async with site.client("operator") as operator:
            await prepare(operator, "true")
        now = OPEN_S
        assert (await client.get(f"{JOB}/{idents[0]}")).status_code == 404
        await prepare(client, "true")
    assert ran.begun == []


@pytest.mark.parametrize(
    "body",
    [
        {"command": []},
        {"command": ["a\0b"]},
        {"command": ["true"], "rank": -1},
        {"command": ["true"], "idle_s": 1e9},
        {"command": ["true"], "total_s": 0},
        {"command": ["true"], "window": {"rows": 0, "columns": 80}},
        {"command": ["true"], "user": "root"},
    ],
)
async def test_what_cannot_run_is_refused(site: Site, body: dict[str, Any]) -> None:
    async with site.client(USER) as client:
        assert (await client.post(JOB, json=body)).status_code == 422


async def test_a_silent_command_keeps_its_connection_open(site: Site, ran: Repeater) -> None:
    async with site.client(USER) as client:
        ident = await prepare(client, "cat", stdin=True)
        caller = site.app.state.access.caller(client.headers)
    session = site.app.state.sessions.open(caller, "alpha-red", ident)
    pieces = execs._json_lines(session)
    assert await anext(pieces) == execs.PING
    await pieces.aclose()
    assert ran.ended == 1


async def test_output_has_a_rate(
    site: Site, monkeypatch: pytest.MonkeyPatch, ran: Repeater
) -> None:
    monkeypatch.setattr(api_following, "RATE_BPS", 10_000)
    monkeypatch.setattr(api_following, "RATE_BURST", 0)
    async with site.client(USER) as client:
        ident = await prepare(client, "cat", stdin=True)
        began = clock.monotonic()
        output = asyncio.create_task(client.get(f"{JOB}/{ident}"))
        for number in range(1, 11):
            body = {"seq": number, "stdin": text(b"x" * 30_000), "end": number == 10}
            assert (await client.post(f"{JOB}/{ident}/input", json=body)).status_code == 200
        shown = lines(await output)
    assert len(shown) == 12
    assert clock.monotonic() - began > 300_000 / 10_000

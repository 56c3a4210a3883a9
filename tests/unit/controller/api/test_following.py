"""Streams and followed logs end with the right to read them, and their number is limited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from base import clock
from controller.api import following
from controller.api.following import MOST_PER_TOKEN
from controller.devices.engine import LogLine
from controller.people.authz import Role
from tests.parts.api.desks import answer, never, restore
from tests.parts.api.people import Site, people_site
from tests.unit.controller.api.follower import LIMIT_S, Follower
from tests.unit.controller.api.follower import following as followed

LONG = ["/stream", "/jobs/alpha-red/logs?follow=true"]


async def endless(*_: object, **__: object) -> AsyncIterator[LogLine]:
    yield LogLine(0, 1.0, "stdout", "step 0")
    await never()


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with people_site(tmp_path) as site:
        answer(site.rack.engine, logs=endless)
        yield site


async def ended(follower: Follower) -> None:
    """Wait until the answer ended, and see that it ended as a whole one does."""
    async with asyncio.timeout(LIMIT_S):
        await follower.task
    assert follower.messages[-1] == {
        "type": "http.response.body",
        "body": b"",
        "more_body": False,
    }


@pytest.mark.parametrize("path", LONG)
async def test_a_revoked_token_follows_nothing_any_more(site: Site, path: str) -> None:
    token, secret = await site.accounts.create("bob", Role.VIEWER, ["alpha"])
    async with (
        followed(site, secret, path) as bob,
        followed(site, site.secrets["viewer-alpha"], path) as other,
    ):
        async with site.client("admin") as client:
            assert (await client.delete(f"/tokens/{token.id}")).status_code == 200
        await ended(bob)
        assert not other.task.done()
        assert site.desks.feed.readers == (path == "/stream")
    assert site.desks.feed.readers == 0


@pytest.mark.parametrize("path", LONG)
async def test_what_is_followed_ends_when_its_token_expires(site: Site, path: str) -> None:
    _, secret = await site.accounts.create("bob", Role.USER, ["alpha"], expires_s=60)
    async with followed(site, secret, path) as bob:
        assert not bob.task.done()
        site.clock.now += 61
        await ended(bob)


async def test_one_token_does_not_take_all_places(site: Site) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for number in range(MOST_PER_TOKEN):
            where = f"10.0.0.{number}"
            entered = followed(site, site.secrets["viewer-alpha"], address=where)
            assert (await stack.enter_async_context(entered)).status == 200
        refused = await stack.enter_async_context(followed(site, site.secrets["viewer-alpha"]))
        assert refused.status == 503
        for who in ("viewer-beta", "operator", "admin"):
            follower = await stack.enter_async_context(followed(site, site.secrets[who]))
            assert follower.status == 200
    async with followed(site, site.secrets["viewer-alpha"]) as again:
        assert again.status == 200


async def test_one_address_does_not_take_all_places(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.api.following.MOST_PER_ADDRESS", 1)
    alpha, beta = site.secrets["user-alpha"], site.secrets["user-beta"]
    async with followed(site, alpha):
        async with followed(site, beta) as late:
            assert late.status == 503
        async with followed(site, beta, address="10.0.0.9") as elsewhere:
            assert elsewhere.status == 200
        async with followed(site, site.secrets["operator"]) as operator:
            assert operator.status == 200


def written(site: Site) -> None:
    restore(site.rack.engine, "logs")
    lines = tuple(f"{n}".zfill(4096) for n in range(3000))
    site.rack.engine.output = {("alpha-red", 0): lines, ("alpha-red", 1): ()}


async def taken(site: Site, *who: str) -> float:
    """Read a long log at full speed, all at once; return the bytes a second."""
    began = clock.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(site.client(one)) for one in who]
        replies = await asyncio.gather(*(c.get("/jobs/alpha-red/logs") for c in clients))
    assert all(reply.text.count("\n") == 3000 for reply in replies)
    passed_s = clock.monotonic() - began
    return sum(len(reply.content) for reply in replies) / max(passed_s, 0.001)


async def test_what_one_user_reads_at_full_speed_has_a_rate(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RATE_BURST", 0)
    written(site)
    who = ["user-alpha"] * 4
    assert following.RATE_BPS / 2 < await taken(site, *who) <= following.RATE_BPS
    assert await taken(site, "admin") > 10 * following.RATE_ALL_BPS


async def test_all_users_together_have_a_rate(site: Site) -> None:
    written(site)
    await taken(site, *["user-alpha"] * 4)
    names = []
    for number in range(8):
        _, secret = await site.accounts.create(f"bob{number}", Role.USER, ["alpha"])
        site.secrets[f"bob{number}"] = secret
        names.append(f"bob{number}")
    assert await taken(site, *names) < 2 * following.RATE_ALL_BPS


async def test_one_token_more_gives_a_user_no_further_rate(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RATE_BURST", 0)
    written(site)
    _, site.secrets["again"] = await site.accounts.create("user-alpha", Role.USER, ["alpha"])
    assert await taken(site, "user-alpha", "again") <= following.RATE_BPS

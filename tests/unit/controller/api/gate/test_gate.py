"""Tokens, sessions, rate limits, keys, epochs, pages: what the gate does beside judging roles."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from controller.api.gate.pace import BYTES, HOOKS, Limit, RateLimit
from controller.base.errors import ServiceError
from controller.people.accounts import ADMIN_FILE, Accounts, StoredProject, digest
from controller.people.authz import Principal, Role
from tests.parts.api.desks import answer, restore
from tests.parts.api.people import PLENTY, Clock, Site, people_site


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with people_site(tmp_path) as site:
        yield site


async def test_a_token_is_kept_as_a_hash_and_dies_when_it_should(
    site: Site, tmp_path: Path
) -> None:
    async with site.client("admin") as admin:
        made = await admin.post(
            "/tokens", json={"name": "eve", "role": "viewer", "projects": ["*"], "expires_s": 60}
        )
        secret, ident = made.json()["token"], made.json()["id"]
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        listed = await admin.get("/tokens")
        assert secret not in listed.text
        assert any(t["id"] == ident and t["state"] == "valid" for t in listed.json()["items"])
    raw = (tmp_path / "accounts.sqlite").read_bytes() + (tmp_path / "audit.jsonl").read_bytes()
    assert secret.encode() not in raw
    assert digest(secret).encode() in raw
    site.secrets["eve"] = secret
    async with site.client("eve") as eve:
        assert (await eve.get("/whoami")).json()["roles"] == ["viewer"]
        site.clock.now += 61
        assert (await eve.get("/whoami")).status_code == 401
    async with site.client("user-beta") as beta, site.client("admin") as admin:
        token = next(t.id for t in site.accounts.tokens() if t.name == "user-beta")
        assert (await beta.get("/whoami")).status_code == 200
        assert (await admin.delete(f"/tokens/{token}")).json()["state"] == "revoked"
        assert (await admin.delete(f"/tokens/{token}")).status_code == 200
        assert (await beta.get("/whoami")).status_code == 401


async def test_a_restart_forgets_no_revocation(tmp_path: Path) -> None:
    clock = Clock()
    first = Accounts(tmp_path / "a.sqlite", clock)
    await first.open()
    path = await first.bootstrap(tmp_path)
    assert path.name == ADMIN_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a.sqlite").stat().st_mode & 0o777 == 0o600
    admin = path.read_text().strip()
    spare, secret = await first.create("spare", Role.ADMIN)
    await first.revoke(spare.id)
    assert first.find(admin) is not None
    await first.close()
    again = Accounts(tmp_path / "a.sqlite", clock)
    await again.open()
    await again.bootstrap(tmp_path)
    assert path.read_text().strip() == admin
    assert again.find(secret) is None
    found = again.find(admin)
    assert found is not None and found.last_used_at == clock.now
    with pytest.raises(ServiceError, match="last valid token of an admin"):
        await again.revoke(found.id)
    await again.close()


async def test_an_admins_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ADMIN_FILE).symlink_to(victim)
    accounts = Accounts(tmp_path / "a.sqlite", Clock())
    await accounts.open()
    path = await accounts.bootstrap(tmp_path)
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
    await accounts.close()


async def test_a_damaged_database_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"not a database" * 100)
    accounts = Accounts(tmp_path / "a.sqlite", Clock())
    with pytest.raises(ServiceError) as caught:
        await accounts.open()
    assert (caught.value.code, caught.value.object) == ("failed", f"store/{tmp_path / 'a.sqlite'}")
    assert not isinstance(caught.value, sqlite3.Error)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "x", "role": "user"}, 422),
        ({"name": "x", "role": "user", "projects": ["nowhere"]}, 422),
        ({"name": "x", "role": "king"}, 422),
        ({"name": "../x", "role": "viewer", "projects": ["*"]}, 422),
        ({"name": "x", "role": "viewer", "projects": ["*"], "expires_s": -1}, 422),
        ({"name": "x", "role": "viewer", "projects": ["*"], "hash": "00"}, 422),
    ],
)
async def test_bad_tokens_are_refused(site: Site, body: dict[str, object], status: int) -> None:
    async with site.client("admin") as admin:
        assert (await admin.post("/tokens", json=body)).status_code == status


async def test_projects_whose_jobs_names_could_clash_are_refused(site: Site) -> None:
    async with site.client("admin") as admin:
        reply = await admin.put("/projects/alpha-b", json={"name": "alpha-b"})
        assert (reply.status_code, reply.json()["code"]) == (409, "conflict")
        changed = await admin.put("/projects/alpha", json={"name": "alpha", "quota": 3})
        assert changed.json()["quota"] == 3
    async with site.client("user-alpha") as user:
        items = (await user.get("/projects")).json()["items"]
        assert [(p["name"], p["quota"], p["endpoints"]) for p in items] == [("alpha", 3, 2)]


# --- sessions -----------------------------------------------------------------------------


async def test_a_page_logs_in_with_a_cookie_that_scripts_can_not_read(site: Site) -> None:
    async with site.client() as page:
        refused = await page.post("/session", json={"token": "ll_wrong"})
        assert refused.status_code == 403
        reply = await page.post("/session", json={"token": site.secrets["user-alpha"]})
        cookie = reply.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
        assert reply.json()["may"] == sorted(reply.json()["may"])
        assert (await page.get("/whoami")).json()["name"] == "user-alpha"
        body = {"count": 1, "project": "alpha"}
        forged = await page.post("/jobs", json=body)
        assert forged.status_code == 403
        assert "X-Lightloom" in forged.json()["detail"]
        meant = await page.post("/jobs", json=body, headers={"X-Lightloom": "1"})
        assert meant.status_code == 201
        await page.delete("/session")
        assert (await page.get("/whoami")).status_code == 401


async def test_a_page_of_another_origin_changes_nothing_even_with_the_cookie(site: Site) -> None:
    async with site.client() as page:
        await page.post("/session", json={"token": site.secrets["admin"]})
        headers = {"Origin": "http://evil.example", "X-Lightloom": "1"}
        reply = await page.post("/jobs/alpha-red/cancel", headers=headers)
        assert reply.status_code == 403


@pytest.mark.parametrize(
    "header", ["Basic YWRtaW46YWRtaW4=", "Bearer", "Bearer ll_x\u00e9", "bearer  ", "Token x"]
)
async def test_a_broken_header_is_no_token(site: Site, header: str) -> None:
    async with site.client() as client:
        reply = await client.get("/jobs", headers={"Authorization": header.encode("latin-1")})
        assert reply.status_code == 401


# --- epochs, keys, pages -------------------------------------------------------------------


async def test_a_change_only_at_the_epoch_it_was_decided_at(site: Site) -> None:
    async with site.client("operator") as client:
        stale = await client.post("/jobs/alpha-red/pause", headers={"If-Match": '"2"'})
        assert (stale.status_code, stale.json()["code"]) == (412, "conflict")
        assert site.desks.jobs.job("alpha-red").state == "running"
        now = f'"{site.rack.see.epoch}"'
        fresh = await client.post("/jobs/alpha-red/pause", headers={"If-Match": now})
        assert fresh.json()["state"] == "paused"
        bad = await client.post("/jobs/alpha-red/resume", headers={"If-Match": "*"})
        assert bad.status_code == 422


async def test_a_change_sent_twice_is_made_once(site: Site) -> None:
    async with site.client("operator") as client, site.client("admin") as other:
        body = {"count": 1, "name": "twice"}
        headers = {"Idempotency-Key": "k-1"}
        both = await asyncio.gather(
            client.post("/jobs", json=body, headers=headers),
            client.post("/jobs", json=body, headers=headers),
        )
        assert [r.status_code for r in both] == [201, 201]
        assert both[0].json() == both[1].json()
        assert site.jobs == ["twice"]
        reused = await client.post("/jobs", json={"count": 2, "name": "x"}, headers=headers)
        assert reused.status_code == 409
        assert (await other.post("/jobs", json=body, headers=headers)).status_code == 409
        bad = await client.post("/jobs", json=body, headers={"Idempotency-Key": "x" * 201})
        assert bad.status_code == 422


async def test_a_refused_change_may_be_tried_again_after_a_crash(site: Site) -> None:
    async with site.client("operator") as client:
        answer(site.desks.jobs, submit=RuntimeError("a secret inside"))
        headers = {"Idempotency-Key": "k-2"}
        body = {"count": 1, "name": "later"}
        assert (await client.post("/jobs", json=body, headers=headers)).status_code == 500
        restore(site.desks.jobs, "submit")
        assert (await client.post("/jobs", json=body, headers=headers)).status_code == 201


async def test_pages_show_every_item_once(site: Site) -> None:
    async with site.client("operator") as client:
        seen, cursor = [], None
        while True:
            params = {"limit": 4, **({"cursor": cursor} if cursor else {})}
            page = (await client.get("/endpoints", params=params)).json()
            seen += [item["name"] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == [f"gpu{i}" for i in range(6)]
        assert (await client.get("/endpoints", params={"cursor": "Z29uZQ=="})).status_code == 409
        assert (await client.get("/endpoints", params={"cursor": "%%"})).status_code == 409
        assert (await client.get("/endpoints", params={"limit": 0})).status_code == 422


# --- rate limits (S16) ---------------------------------------------------------------------------


async def test_a_flood_is_refused_and_an_operator_gets_through(tmp_path: Path) -> None:
    now = 0.0
    rate_limit = RateLimit(
        changes=Limit(1, 5), reads=PLENTY, failures=Limit(1, 3), clock=lambda: now
    )
    async with people_site(tmp_path, rate_limit) as site:
        async with site.client("user-alpha") as flood, site.client("operator") as keeper:
            body = {"count": 1, "project": "alpha"}
            replies = await asyncio.gather(*(flood.post("/jobs", json=body) for _ in range(100)))
            codes = [reply.status_code for reply in replies]
            assert codes.count(201) == 5
            assert codes.count(429) == 95
            late = next(r for r in replies if r.status_code == 429)
            assert late.json()["code"] == "unavailable"
            assert int(late.headers["retry-after"]) >= 1
            assert (await keeper.post("/jobs", json={"count": 1})).status_code == 201
            now = 2.0
            assert (await flood.post("/jobs", json=body)).status_code == 201
        async with site.client() as stranger:
            codes = [(await stranger.get("/jobs")).status_code for _ in range(6)]
            assert codes == [401, 401, 401, 429, 429, 429]


async def test_pace_remembers_a_bounded_number_of_callers() -> None:
    from controller.api.gate import pace as module

    rate_limit = RateLimit(clock=lambda: 0.0)
    for number in range(module.MAX_KNOWN + 500):
        rate_limit.failed(f"10.0.{number // 256}.{number % 256}")
    assert len(rate_limit._buckets["failed"]) == module.MAX_KNOWN


async def test_a_large_change_makes_later_ones_wait() -> None:
    now = 0.0
    rate_limit = RateLimit(changes=Limit(rate=20, burst=100), clock=lambda: now)
    ann = Principal("ann", Role.USER)
    assert rate_limit.change(ann, 400 * BYTES) is None
    refused = rate_limit.change(ann, 0)
    assert refused is not None and int(refused.headers["Retry-After"]) in range(14, 18)
    assert rate_limit.change(Principal("bob", Role.USER), 0) is None
    assert rate_limit.change(Principal("root", Role.ADMIN), 400 * BYTES) is None
    now = 20.0
    assert rate_limit.change(ann, 0) is None


async def test_the_hook_of_an_engine_has_a_rate_of_its_own() -> None:
    now = 0.0
    rate_limit = RateLimit(clock=lambda: now)
    hook = Principal("slurm", Role.ENGINE)
    accepted = [rate_limit.change(hook, 0) for _ in range(2000)].count(None)
    assert accepted == HOOKS.burst
    assert rate_limit.read(hook) is not None
    assert rate_limit.change(Principal("ann", Role.USER), 0) is None
    now = 1.0
    assert rate_limit.change(hook, 0) is None


async def test_the_pace_counts_a_body_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    monkeypatch.setattr(RateLimit, "change", lambda _self, _who, size: sizes.append(size))
    async with people_site(tmp_path) as site, site.client("user-alpha") as client:
        await client.post("/submissions", content="x" * 300_000)
        await client.post("/jobs/alpha-red/cancel")
    assert sizes == [300_000, 0]


async def test_addresses_push_no_users_bucket_out() -> None:
    from controller.api.gate import pace as module

    rate_limit = RateLimit(changes=Limit(1, 1), clock=lambda: 0.0)
    ann = Principal("ann", Role.USER)
    assert rate_limit.change(ann, 0) is None
    for number in range(module.MAX_KNOWN + 500):
        rate_limit.failed(f"10.0.{number // 256}.{number % 256}")
    assert rate_limit.change(ann, 0) is not None


async def test_a_project_kept_over_a_restart(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path / "a.sqlite", Clock())
    await accounts.open()
    await accounts.put_project(StoredProject("gamma", 2.0, 4))
    await accounts.close()
    again = Accounts(tmp_path / "a.sqlite", Clock())
    await again.open()
    assert StoredProject("gamma", 2.0, 4) in again.projects()
    assert "default" in {p.name for p in again.projects()}
    await again.close()

"""Images of jobs through a whole controller: pinned, checked, fetched, cancelled, restarted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from controller.base.errors import ServiceError
from controller.devices.engine import PullProgress, ServerImage
from controller.images.keeper import how_far, pulling
from controller.schema.images import PreparationView, PrepareRequest
from controller.schema.jobs import JobView, read_job
from sitefile import PasswordRef, Registry, load_site
from tests.parts.controller.engine import IMAGE_ID
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

DIGEST = f"sha256:{'d' * 64}"
TAG = "registry.example:5000/net:1"
PIN = f"registry.example:5000/net@{DIGEST}"
PASSWORD = "s3cret-of-the-registry"  # noqa: S105


@pytest_asyncio.fixture
async def private(tmp_path: Path) -> AsyncIterator[Rack]:
    """A controller whose site file has a registry for project vision."""
    secret = tmp_path / "password"
    secret.write_text(PASSWORD, encoding="ascii")
    secret.chmod(0o600)
    login = Registry(
        "registry.example:5000", frozenset({"vision"}), "puller", PasswordRef(file=str(secret))
    )
    rack = Rack(tmp_path, replace(load_site(PAPER), registries=(login,)))
    rack.engine.absent.add(TAG)
    rack.engine.registry[TAG] = DIGEST
    await rack.up()
    yield rack
    await rack.down()


async def submit(rack: Rack, name: str, **fields: object) -> JobView:
    given = {"name": name, "count": 2, "command": ["true"], **fields}
    return await rack.desks.jobs.submit(read_job(given))


async def job(rack: Rack, name: str) -> JobView:
    return rack.desks.jobs.job(name)


async def reasons(rack: Rack, about: str) -> list[str]:
    return [e.reason for e in rack.desks.fabric.events(0, 1000) if e.object == about]


async def test_a_tag_is_pinned_at_submit_and_fetched_by_its_digest(private: Rack) -> None:
    made = await submit(private, "red", project="vision", image=TAG, pull="missing")
    assert (made.image, made.image_digest) == (TAG, PIN)
    private.engine.registry[TAG] = f"sha256:{'e' * 64}"  # the tag moves
    await private.state("red", "running")
    assert {spec.image for spec in private.engine.specs["red"]} == {PIN}
    assert {image for _, image in private.engine.pulls} == {PIN}
    assert {one.password for one in private.engine.logins if one} == {PASSWORD}


async def test_a_restarted_controller_starts_the_same_image(private: Rack) -> None:
    await submit(private, "red", project="vision", image=TAG, pull="missing")
    await private.state("red", "running")
    await private.service.desks.jobs.cancel("red")
    await submit(private, "red", project="vision", image=TAG, pull="missing", count=6)
    await private.state("red", "running")
    blue = await submit(private, "blue", project="vision", image=TAG, pull="missing")
    assert blue.state == "pending"
    await private.down()
    private.engine.registry[TAG] = f"sha256:{'e' * 64}"
    await private.up()
    await private.service.desks.jobs.cancel("red")
    await private.state("blue", "running")
    assert {spec.image for spec in private.engine.specs["blue"]} == {PIN}
    ended = await job(private, "red")
    assert (ended.state, ended.image_digest) == ("cancelled", PIN)


async def test_the_image_of_a_registry_is_for_its_projects(private: Rack) -> None:
    with pytest.raises(ServiceError) as refused:
        await submit(private, "red", image=TAG, pull="missing")
    assert refused.value.code == "forbidden"
    for server in private.site.servers:
        private.engine.held[server.name] = {
            IMAGE_ID: ServerImage(server.name, True, IMAGE_ID, (PIN,))
        }
    with pytest.raises(ServiceError) as tricked:
        await submit(private, "red", image=IMAGE_ID)
    assert tricked.value.code == "forbidden"
    assert private.engine.pulls == []


async def test_a_missing_image_is_refused_before_endpoints_are_taken(private: Rack) -> None:
    with pytest.raises(ServiceError) as refused:
        await submit(private, "red", project="vision", image=TAG)
    assert refused.value.code == "invalid"
    assert f"image {TAG} is not on " in refused.value.message
    assert "--pull missing" in refused.value.hint
    del private.engine.registry[TAG]
    with pytest.raises(ServiceError) as unknown:
        await submit(private, "red", project="vision", image=TAG, pull="missing")
    assert unknown.value.code == "not_found"
    assert await private.service.desks.jobs.jobs() == []


async def test_servers_that_disagree_about_a_name_are_named(rack: Rack) -> None:
    other = f"sha256:{'b' * 64}"
    first, second = rack.site.servers[:2]
    rack.engine.held[second.name] = {"net:1": ServerImage("", True, other, ("net:1",))}
    with pytest.raises(ServiceError) as refused:
        await submit(rack, "red", image="net:1")
    assert refused.value.code == "conflict"
    assert first.name in refused.value.message
    assert second.name in refused.value.message
    mine = [e.name for e in rack.site.endpoints if e.server == second.name]
    made = await submit(rack, "red", image="net:1", count=len(mine), endpoints=mine)
    assert made.image_digest == other


async def test_without_an_answer_at_submit_the_image_is_pinned_at_the_start(rack: Rack) -> None:
    everyone = {server.name for server in rack.site.servers}
    rack.engine.lost |= everyone
    made = await submit(rack, "red", image="net:1")
    assert made.image_digest == ""
    rack.engine.lost -= everyone
    await rack.state("red", "running")
    assert (await job(rack, "red")).image_digest == IMAGE_ID
    assert {spec.image for spec in rack.engine.specs["red"]} == {IMAGE_ID}


async def test_a_job_that_waits_for_its_image_says_so_and_can_be_cancelled(private: Rack) -> None:
    private.engine.slow = asyncio.Event()
    await submit(private, "red", project="vision", image=TAG, pull="missing")

    async def told() -> bool:
        return (await job(private, "red")).reason.startswith(f"pulling {TAG} on ")

    await private.until(told)
    assert "1.2 of 3.4 GB" in (await job(private, "red")).reason
    ended = await private.service.desks.jobs.cancel("red")
    assert (ended.state, ended.reason) == ("cancelled", "cancelled by the operator")
    assert "red" not in private.engine.specs
    assert "ImagePulling" in await reasons(private, "job/red")
    private.engine.slow.set()
    await submit(private, "red", project="vision", image=TAG, pull="missing")
    await private.state("red", "running")
    assert "ImagePulled" in await reasons(private, "job/red")


async def test_a_controller_that_restarts_while_servers_pull_starts_the_job(private: Rack) -> None:
    private.engine.slow = asyncio.Event()
    await submit(private, "red", project="vision", image=TAG, pull="missing")
    await private.until(lambda: len(private.engine.pulls) > 0)
    await private.down()
    private.engine.registry[TAG] = f"sha256:{'e' * 64}"
    private.engine.slow.set()
    await private.up()
    await private.state("red", "running")
    assert {spec.image for spec in private.engine.specs["red"]} == {PIN}


async def test_jobs_that_are_submitted_together_ask_a_server_once(rack: Rack) -> None:
    for name in ("red", "blue"):
        await submit(rack, name, image="net:1")
    assert sorted(rack.engine.asked) == sorted(s.name for s in rack.site.servers)
    rack.engine.absent.add("net:2")
    for _ in range(2):  # an absent image may be loaded at any time
        with pytest.raises(ServiceError):
            await submit(rack, "green", image="net:2")
    assert len(rack.engine.asked) == 3 * len(rack.site.servers)


async def test_a_password_that_cannot_be_read_is_named_and_not_shown(
    private: Rack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(ServiceError) as refused:
        await submit(private, "red", project="vision", image=TAG, pull="missing")
    assert "registry.example:5000" in refused.value.message
    captured = capsys.readouterr()
    assert PASSWORD not in refused.value.message + captured.out + captured.err


def stored_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.glob("controller.sqlite*"))


async def test_the_password_is_in_no_answer_and_not_in_the_store(
    private: Rack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await submit(private, "red", project="vision", image=TAG, pull="missing")
    await private.state("red", "running")
    shown = (await job(private, "red")).model_dump_json()
    events = [e.model_dump_json() for e in private.service.desks.fabric.events(0, 1000)]
    assert PASSWORD not in shown + "".join(events)
    assert PASSWORD.encode() not in stored_bytes(tmp_path)
    captured = capsys.readouterr()
    assert PASSWORD not in captured.out + captured.err


async def ended(rack: Rack, ident: str) -> PreparationView:
    async def over() -> bool:
        return rack.desks.images.preparation(ident).state != "running"

    await rack.until(over)
    return rack.desks.images.preparation(ident)


async def test_an_image_is_prepared_on_all_servers_with_the_login(private: Rack) -> None:
    began = private.service.desks.images.prepare(PrepareRequest(image=TAG))
    found = await ended(private, began.id)
    assert found.state == "done"
    assert {s.server for s in found.servers} == {s.name for s in private.site.servers}
    assert {(s.state, s.image_digest, s.size_bytes) for s in found.servers} == {
        ("done", IMAGE_ID, 7)
    }
    assert all(login is not None for login in private.engine.logins)
    assert await reasons(private, f"image/{TAG}") == ["ImagePreparing", "ImagePrepared"]


async def test_a_server_that_fails_is_named_and_the_others_are_done(private: Rack) -> None:
    first, second = (server.name for server in private.site.servers[:2])
    private.engine.lost.add(second)
    request = PrepareRequest(image=TAG, servers=[first, second])
    found = await ended(private, private.service.desks.images.prepare(request).id)
    assert found.state == "failed"
    assert [(s.server, s.state, s.message) for s in found.servers] == [
        (first, "done", ""),
        (second, "failed", "no answer"),
    ]


async def test_a_repeated_preparation_joins_the_one_under_way(private: Rack) -> None:
    private.engine.slow = asyncio.Event()
    request = PrepareRequest(image=TAG)
    began = private.service.desks.images.prepare(request)
    again = private.service.desks.images.prepare(request)
    assert again.id == began.id
    private.engine.slow.set()
    await ended(private, began.id)
    assert len(private.engine.pulls) == len(private.site.servers)


async def test_what_a_preparation_refuses(private: Rack) -> None:
    with pytest.raises(ServiceError) as unknown:
        private.service.desks.images.prepare(PrepareRequest(image=TAG, servers=["srv-none"]))
    assert (unknown.value.code, unknown.value.object) == ("not_found", "server/srv-none")
    with pytest.raises(ServiceError) as forgotten:
        private.service.desks.images.preparation("0")
    assert forgotten.value.code == "not_found"
    private.engine.slow = asyncio.Event()
    for number in range(8):
        private.service.desks.images.prepare(PrepareRequest(image=f"net:{number}"))
    with pytest.raises(ServiceError) as full:
        private.service.desks.images.prepare(PrepareRequest(image="net:8"))
    assert full.value.code == "conflict"


async def test_images_are_listed_without_the_servers_that_do_not_answer(rack: Rack) -> None:
    await submit(rack, "red")
    await rack.state("red", "running")
    away = rack.site.servers[0].name
    rack.engine.lost.add(away)
    found = await rack.desks.images.images(10)
    assert {one.server for one in found} == {s.name for s in rack.site.servers} - {away}
    assert {tuple(one.jobs) for one in found} == {("red",)}


def test_the_slowest_server_is_shown() -> None:
    slow, fast = PullProgress(1, 4, 10**9, 4 * 10**9), PullProgress(3, 4, 3 * 10**9, 4 * 10**9)
    assert pulling("net:1", {"a": fast, "b": slow}) == (
        "pulling net:1 on b and 1 more: 1.0 of 4.0 GB"
    )
    assert how_far(PullProgress(1, 3)) == "1 of 3 layers"

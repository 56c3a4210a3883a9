"""Large answers: only what they show is computed, they are bounded, other tasks keep running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest
import pytest_asyncio

from base import clock
from console.cli.ask.client import ControllerClient
from console.cli.ask.settings import ConnectionSettings
from controller.api import paging
from controller.base import slices
from controller.jobs.admission import spec_of
from controller.schema.jobs import JobView
from controller.schema.submit.request import JobRequest
from controller.state.records import JobRecord, JobSpec
from controller.telemetry.history import RingBuffer
from controller.views.jobs import JobViews
from controller.views.series import MOST_SAMPLES
from tests.parts.api.apps import app_of
from tests.parts.controller.rack import Rack

LARGE = ("/jobs", "/endpoints", "/aggregators", "/containers", "/top", "/site", "/series")


@pytest_asyncio.fixture
async def client(rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        yield client


def ended(rack: Rack, count: int) -> None:
    """Add jobs that have ended."""
    now = clock.time()
    for number in range(count):
        job = JobRecord(
            f"old-{number}",
            JobSpec(count=1, command=("true",)),
            "image:1",
            now - 100,
            "completed",
            endpoints=(f"gpu{number % 6}",),
            started_at=now - 90,
            finished_at=now - 30,
            final_homes=("as0",),
        )
        rack.parts.state.jobs.put(job)


async def test_only_the_jobs_of_a_page_are_made_and_ended_jobs_once(
    client: httpx.AsyncClient, rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = JobViews._made

    def counted(self: JobViews, job: JobRecord, *rest: object) -> JobView:
        made.append(job.name)
        return make(self, job, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(JobViews, "_made", counted)
    ended(rack, 50)
    page = (await client.get("/jobs?limit=5")).json()
    assert made == [job["name"] for job in page["items"]] == [f"old-{n}" for n in range(5)]
    assert (await client.get("/jobs?limit=5")).json() == page
    assert (await client.get("/projects")).json()["items"][0]["jobs"] == 0
    assert len(made) == 5
    state = rack.parts.state
    state.jobs.change("old-0", reason="seen again")
    assert (await client.get("/jobs/old-0")).json()["reason"] == "seen again"
    assert len(made) == 6


async def test_no_list_is_longer_than_a_page(
    client: httpx.AsyncClient, rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MOST_ITEMS", 4)
    ended(rack, 9)
    for path, names in (
        ("/jobs", [f"old-{n}" for n in range(9)]),
        ("/endpoints", [f"gpu{n}" for n in range(6)]),
        ("/jobs?limit=10000", [f"old-{n}" for n in range(9)]),
    ):
        found, cursor = [], None
        while True:
            given = {} if cursor is None else {"cursor": cursor}
            reply = await client.get(path, params=given) if given else await client.get(path)
            items = reply.json()["items"]
            assert len(items) <= 4
            found += [item["name"] for item in items]
            if (cursor := reply.json()["next"]) is None:
                break
        assert found == names


async def test_jobs_with_much_text_make_smaller_pages(
    client: httpx.AsyncClient, rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MOST_BYTES", 5000)
    now = clock.time()
    for number in range(5):
        asked = JobRequest(count=1, command=["x" * 2000], env={"APP_A": "y" * 300})
        job = JobRecord(
            f"big-{number}", spec_of(asked), "image:1", now, "cancelled", finished_at=now
        )
        rack.parts.state.jobs.put(job)
    sizes, cursor = [], None
    while True:
        given = {} if cursor is None else {"cursor": cursor}
        page = (await client.get("/jobs", params=given)).json()
        sizes.append(len(page["items"]))
        if (cursor := page["next"]) is None:
            break
    assert sizes == [2, 2, 1]


def test_the_command_line_reads_all_pages_of_a_list() -> None:
    """It starts again from the first page if an item was removed between two pages."""
    asked: list[str | None] = []
    pages = {None: (["a", "b"], "B"), "B": (["c"], None)}

    def answer(request: httpx.Request) -> httpx.Response:
        cursor = request.url.params.get("cursor")
        asked.append(cursor)
        if len(asked) == 2:
            gone = {"status": 409, "code": "conflict", "detail": "gone", "title": "", "type": ""}
            return httpx.Response(409, json=gone)
        names, following = pages[cursor]
        items = [{"name": name} for name in names]
        return httpx.Response(200, json={"items": items, "epoch": 1, "next": following})

    with ControllerClient(ConnectionSettings(url="http://127.0.0.1:1")) as client:
        client._http = httpx.Client(
            transport=httpx.MockTransport(answer), base_url="http://127.0.0.1:1/api/v1"
        )
        found = client.whole("/jobs")
    assert [item["name"] for item in found["items"]] == ["a", "b", "c"]
    assert asked == [None, "B", None, "B"]


async def test_other_tasks_run_while_a_large_answer_is_made(
    client: httpx.AsyncClient, rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With slices of length zero the loop runs between any two items."""
    await rack.desks.jobs.submit(JobRequest(name="red", count=6))
    await rack.state("red", "running")
    rack.parts.telemetry.history.append(clock.time(), np.ones((6, 3), dtype=np.float32))
    await client.get("/health")
    turns = 0

    async def beat() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def turned(path: str) -> int:
        before = turns
        assert (await client.get(path)).status_code == 200
        return turns - before

    beating = asyncio.create_task(beat())
    try:
        for path in LARGE:
            few = min([await turned(path) for _ in range(3)])
            with monkeypatch.context() as patched:
                patched.setattr(slices, "SLICE_S", 0.0)
                many = min([await turned(path) for _ in range(3)])
            assert many > few, path
    finally:
        beating.cancel()


def long(item: int) -> int:
    """Make an item for longer than the loop may be blocked."""
    clock.sleep(2 * slices.SLICE_S)
    return item


async def test_large_answers_take_turns() -> None:
    """Once all have started, at most one of them continues per iteration of the loop."""
    made = 0

    def make(item: int) -> int:
        nonlocal made
        made += 1
        return long(item)

    works = [asyncio.create_task(slices.in_slices(range(20), make)) for _ in range(10)]
    await asyncio.sleep(0)
    assert made == 10
    before, most = made, 0
    while not all(work.done() for work in works):
        await asyncio.sleep(0)
        most, before = max(most, made - before), made
    assert most == 1
    assert [work.result() for work in works] == [list(range(20))] * 10


async def test_a_cancelled_answer_leaves_the_queue() -> None:
    works = [asyncio.create_task(slices.in_slices(range(50), long)) for _ in range(4)]
    for work in works[:3]:
        await asyncio.sleep(0)
        work.cancel()
    async with asyncio.timeout(60):
        assert len(await works[3]) == 50
        assert len(await slices.in_slices(range(5), long)) == 5


async def test_a_series_of_any_length_is_bounded(
    client: httpx.AsyncClient, rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rack.desks.jobs.submit(JobRequest(name="red", count=4))
    await rack.state("red", "running")
    state, now = rack.parts.state, clock.time()
    state.jobs.change("red", started_at=now - 700)
    for second in range(600):
        values = np.full((6, 3), second, dtype=np.float32)
        rack.parts.telemetry.history.append(now - 600 + second, values)
    whole = (await client.get("/series?since_s=600")).json()
    assert len(whole["times"]) > 500
    monkeypatch.setattr("controller.views.series.MOST_SAMPLES", 200)
    few = (await client.get("/series?since_s=600")).json()
    assert 40 <= len(few["times"]) <= 50
    assert few["interval_s"] == 13.0  # 601 moments of 4 ranks, 200 samples
    assert len(few["containers"]) == 4
    known = dict(zip(whole["times"], whole["containers"][0]["rx_bps"], strict=True))
    for moment, rx_bps in zip(few["times"], few["containers"][0]["rx_bps"], strict=True):
        if moment < now - 10:  # newer samples are still being written
            assert known[moment] == rx_bps
    assert {moment % 13 for moment in few["times"]} == {0.0}


def test_only_requested_samples_are_read() -> None:
    ring = RingBuffer(None, [f"gpu{n}" for n in range(8)])
    for second in range(20):
        ring.append(1000.0 + second, np.arange(24, dtype=np.float32).reshape(8, 3) + 100 * second)
    window = ring.read(1000.0, 1019.0, of=["gpu5", "gpu2"])
    assert window.values.shape == (20, 2, 3)
    assert window.values[3].tolist() == [[315.0, 316.0, 317.0], [306.0, 307.0, 308.0]]
    assert ring.read(1000.0, 1019.0, of=[]).values.shape == (20, 0, 3)
    thinned = ring.read(1000.0, 1019.0, of=["gpu5"], most=5)
    assert (thinned.step, thinned.interval_s) == (4, 4.0)
    assert thinned.times.tolist() == [1000.0, 1004.0, 1008.0, 1012.0, 1016.0]
    assert MOST_SAMPLES <= 120_000

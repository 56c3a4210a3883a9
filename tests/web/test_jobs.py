"""The list of jobs at common window widths, and the output of a job that has ended."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from controller.devices.engine import EngineError, EngineFault, LogLine
from tests.web import world
from tests.web.world import TalkingRack, scattered, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAITING = "green-with-a-name-of-the-greatest-length"
LONG = (
    "needs 3 endpoints under 1 aggregator, the best now is 2 under as0 and 1 under as1; the project"
    " a-project-with-a-name-that-is-as-long-as-a-name-may-be-and-no-longer holds 6 of 6 endpoints,"
    " and 2 jobs of a higher priority wait before it"
)
VISIBLE = """(cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const area = cell.closest(".scroll").getBoundingClientRect();
  const sides = [area, { left: 0, top: 0, right: innerWidth, bottom: innerHeight }];
  const within = (text, box) => text.left >= box.left && text.right <= box.right
    && text.top >= box.top && text.bottom <= box.bottom;
  return [...range.getClientRects()].every((text) => sides.every((box) => within(text, box)));
}"""
CUT = """(element) => [element, element.closest(".scroll"), document.documentElement]
  .some((box) => box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight)"""
WIDER = """(element) => [element.closest(".scroll"), document.documentElement]
  .some((box) => box.scrollWidth > box.clientWidth)"""


async def queued(rack: TalkingRack) -> None:
    """Two jobs run, spread over both aggregators, and a third waits."""
    for name, count in (("red", 4), ("blue", 2)):
        await rack.desks.jobs.submit(scattered(name, count))
        await rack.state(name, "running")
    await rack.desks.jobs.submit(scattered(WAITING, 3))

    async def explained() -> bool:
        return rack.desks.jobs.job(WAITING).wait is not None

    await rack.until(explained)


async def answer(page: Page, url: str, copies: int = 1) -> None:
    """Answer with the jobs of this moment so many times, and with a long reason to wait."""

    def changed(job: dict[str, Any], n: int) -> dict[str, Any]:
        wait = job["wait"] and job["wait"] | {"reason": LONG}
        since = time.time() - 23.5 * 3600
        name = job["name"] + (f"-{n}" if n else "")
        return job | {"wait": wait, "name": name, "submitted_at": since}

    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        listed = (await client.get(f"{url}/api/v1/jobs")).json()
    listed["items"] = [changed(job, n) for n in range(copies) for job in listed["items"]]
    listed["items"].append(listed["items"][0] | {"name": "old", "state": "cancelled"})
    await page.route("**/api/v1/jobs", lambda route: route.fulfill(json=listed))


@pytest.mark.parametrize(
    "width", [1920, 1501, 1500, 1280, 1201, 1200, 1001, 1000, 901, 900, 761, 390]
)
async def test_the_whole_reason_is_readable(
    page: Page, url: str, rack: TalkingRack, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside other columns with the widest words that they may show."""
    monkeypatch.setattr(world, "APART_BPS", 25.7e9)
    await queued(rack)
    await answer(page, url)
    await page.set_viewport_size({"width": width, "height": 800})
    await page.goto(f"{url}/#/jobs")
    row = page.get_by_role("row", name=re.compile("green"))
    reason = row.locator("td.wrap")
    await expect(reason).to_have_text(f"1 of 1 waiting: {LONG}")
    await until(page, "lightloom.data.live.jobs.get('red')?.rx_bps > 1e11")
    busy = page.get_by_role("row", name="red")
    await expect(busy.locator("[data-label=Receives]")).to_have_text("103 Gbit/s")
    await expect(busy.locator("[data-label=Age]")).to_have_text("23 h 30 min")
    if width > 760:  # on a phone the list itself scrolls
        assert await reason.evaluate(VISIBLE)
        assert not await reason.evaluate(CUT)
    assert not await reason.evaluate(WIDER)
    lines = await reason.evaluate("(cell) => cell.clientHeight / 20")
    assert lines < 20, "the column is too narrow to read"


@pytest.mark.parametrize("width", [1280, 1024])
async def test_a_long_list_tells_the_whole_reason_under_the_pointer(
    page: Page, url: str, rack: TalkingRack, width: int
) -> None:
    await queued(rack)
    await answer(page, url, copies=150)
    await page.set_viewport_size({"width": width, "height": 800})
    await page.goto(f"{url}/#/jobs")
    await page.get_by_label("Filter jobs").fill("green")
    row = page.get_by_role("row", name=re.compile("green")).first
    reason = row.locator("td.wrap")
    await expect(reason).to_have_attribute("title", f"1 of 1 waiting: {LONG}")
    assert not await reason.evaluate(WIDER)


class Agents:
    """What agents answer for logs: of an ended job only to those who name the rank."""

    def __init__(self, rack: TalkingRack, silent: int | None = None) -> None:
        self._rack, self._silent = rack, silent
        self.asked: list[tuple[int | None, int | None]] = []
        rack.engine.logs = self.logs  # type: ignore[method-assign]

    async def logs(
        self,
        job: str,
        rank: int | None,
        tail: int | None,
        follow: bool,
        placed: Mapping[int, str] | None = None,
        *,
        since: float | None = None,
        search: str = "",
        epoch: int | None = None,
    ) -> AsyncIterator[LogLine]:
        assert not follow
        self.asked.append((rank, tail))
        held = [s.rank for s in self._rack.engine.statuses.values() if s.job == job]
        if rank is not None and rank == self._silent:
            raise EngineError([EngineFault("not_found", f"job/{job}", "it has no logs")])
        for one in held if rank is None else [rank]:
            for text in ("begins", "ends"):
                yield LogLine(one, time.time(), "stdout", f"rank {one} {text}")


def output(*ranks: int) -> re.Pattern[str]:
    """Each rank's two lines, rank by rank."""
    stamp = r"\d\d:\d\d:\d\d +"
    said = [f"{stamp}{rank}  rank {rank} {text}" for rank in ranks for text in ("begins", "ends")]
    return re.compile("^" + r"\n".join(said) + "$")


async def ended(rack: TalkingRack) -> None:
    """A job of four ranks runs and ends; no server holds its containers any more."""
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    for rank in range(4):
        rack.engine.exit("red", rank, 0)
    await rack.state("red", "completed")
    await rack.until(lambda: not rack.engine.states("red"))


async def read_output(page: Page, url: str) -> None:
    """Ask by the keyboard: while the page loads, the button moves between a press and a release."""
    await page.goto(f"{url}/#/jobs/red")
    await page.get_by_role("button", name="Read the last lines").press("Enter")


async def test_the_output_of_a_running_job(page: Page, url: str, rack: TalkingRack) -> None:
    agents = Agents(rack)
    await rack.desks.jobs.submit(scattered("red", 2))
    await rack.state("red", "running")
    await read_output(page, url)
    await expect(page.get_by_label("Output")).to_have_text(output(0, 1))
    assert agents.asked == [(None, 200)]


async def test_the_output_of_every_rank_of_an_ended_job(
    page: Page, url: str, rack: TalkingRack
) -> None:
    agents = Agents(rack)
    await ended(rack)
    await read_output(page, url)
    await expect(page.get_by_label("Output")).to_have_text(output(0, 1, 2, 3))
    assert set(agents.asked) == {(rank, 200) for rank in range(4)}


async def test_the_output_of_an_ended_job_without_ranks(
    page: Page, url: str, rack: TalkingRack
) -> None:
    agents = Agents(rack)
    await ended(rack)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        job = (await client.get(f"{url}/api/v1/jobs/red")).json()
    bare = job | {"ranks": [], "endpoints": []}
    await page.route("**/api/v1/jobs/red", lambda route: route.fulfill(json=bare))
    await read_output(page, url)
    await expect(page.get_by_label("Output")).to_have_text(output(0, 1, 2, 3))
    assert set(agents.asked) == {(rank, 200) for rank in range(4)}


async def test_a_rank_whose_output_is_gone_is_named(
    page: Page, url: str, rack: TalkingRack
) -> None:
    Agents(rack, silent=2)
    await ended(rack)
    await read_output(page, url)
    shown = page.get_by_label("Output")
    await expect(shown).to_have_text(re.compile(r"^ +2  job/red: it has no logs$", re.MULTILINE))
    await expect(shown).to_contain_text("rank 3 ends")

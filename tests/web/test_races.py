"""Answers that come late, out of order or not at all: nothing is lost, nothing older wins."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Locator, Page, Request, Route, expect

from controller.schema.plans import PlanRequest
from tests.web.world import HeldSwitch, TalkingRack, scattered, stand_still, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Held:
    """Holds back the first response that matches; it is as old as its request."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.there, self.go_on, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @classmethod
    async def first(cls, page: Page, path: str, method: str = "GET") -> Held:
        held = cls(page)

        async def hold(route: Route) -> None:
            if route.request.method != method or held.there.is_set():
                await route.fallback()
                return
            answer = await route.fetch()
            held.there.set()
            await held.go_on.wait()
            await route.fulfill(response=answer)
            held.gone.set()

        await page.route(path, hold)
        return held

    async def end(self) -> None:
        """Let it through, and give the page time to process it."""
        self.go_on.set()
        await self.gone.wait()
        await self._page.evaluate("new Promise((done) => setTimeout(done, 100))")


async def live(page: Page) -> None:
    await expect(page.locator(".status")).to_contain_text("live")


async def another(route: Route) -> None:
    """Answer as a controller with another start time."""
    answer = await route.fetch()
    await route.fulfill(response=answer, json=(await answer.json()) | {"started_at": 1.0})


def about(page: Page, job: str) -> Locator:
    """Events of a job, in the Events view."""
    return page.locator(".rows tbody tr", has=page.get_by_role("link", name=f"job/{job}"))


async def test_events_read_late_are_not_hidden_by_newer_ones(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await rack.desks.jobs.submit(scattered("red", 2))
    await rack.state("red", "running")
    held = await Held.first(page, "**/api/v1/events?*")
    await page.goto(f"{url}/#/events")
    await live(page)
    await held.there.wait()
    await rack.desks.jobs.submit(scattered("blue", 2))
    await until(page, "lightloom.data.events.some((e) => e.object === 'job/blue')")
    await held.end()
    await expect(about(page, "red")).to_have_count(2)
    ids = await page.evaluate("lightloom.data.events.map((e) => e.id)")
    assert ids == sorted(set(ids))


async def test_events_that_could_not_be_read_are_read_again(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await rack.desks.jobs.submit(scattered("red", 2))
    await page.route("**/api/v1/events?*", lambda route: route.abort(), times=1)
    await page.goto(f"{url}/#/events")
    await expect(about(page, "red")).to_have_count(2)


async def test_an_older_answer_about_a_transaction_does_not_win(page: Page, url: str) -> None:
    """The stream sent newer views while the request was on its way."""
    await page.goto(url)
    await live(page)
    took = await page.evaluate(
        """async (module) => {
          const { Transactions } = await import(module);
          const steps = [], real = window.fetch;
          const phase = (i, n) => ({ name: `p${i}`, finished_at: i < n - 1 ? 1 : null });
          const view = (n, end, state) => ({
            id: "t1", state, phase: `p${n}`, finished_at: end,
            phases: Array.from({ length: n }, (_, i) => phase(i, n)),
          });
          const all = new Transactions({ step: (v) => steps.push(v.state), failed: () => {} });
          let answer;
          window.fetch = () => new Promise((done) => {
            answer = (v) => done(new Response(JSON.stringify(v)));
          });
          all.follow("t1", view(3, null, "running"));
          all.told(view(3, null, "rolling_back"));
          answer(view(3, null, "running"));
          await new Promise((done) => setTimeout(done, 20));
          const after_answer = all.running.state;
          all.told(view(2, null, "running"));
          all.told(view(4, 9, "rolled_back"));
          all.told(view(4, null, "running"));
          window.fetch = real;
          all.stop();
          return { after_answer, steps };
        }""",
        "/console/js/transactions.js",
    )
    assert took == {
        "after_answer": "rolling_back",
        "steps": ["running", "rolling_back", "rolled_back"],
    }


async def test_without_a_stream_a_transaction_is_followed_past_a_failure(
    page: Page, url: str, rack: TalkingRack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    held = HeldSwitch(rack, monkeypatch)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    await rack.desks.plans.apply(plan, 0.0)
    await page.route("**/api/v1/stream", lambda route: route.abort())
    await page.route("**/api/v1/transactions/*", lambda route: route.abort(), times=1)
    await page.goto(url)
    await expect(page.locator(".banner")).to_contain_text(f"moving {len(plan.moves)} endpoint")
    await page.route("**/api/v1/transactions/*", lambda route: route.abort(), times=1)
    held.let_go()
    await expect(page.locator(".banner")).to_be_hidden()


async def test_a_transaction_that_is_over_before_the_answer_is_shown(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    await page.goto(f"{url}/#/plan?job=red")
    held = await Held.first(page, "**/api/v1/transactions", "POST")
    await page.get_by_role("button", name="Apply …").click()
    asked = page.get_by_role("dialog")
    await asked.get_by_role("button", name="Apply", exact=True).click()
    await held.there.wait()
    over = "[...lightloom.data.transactions.values()].some((t) => t.finished_at)"
    await until(page, over)
    await held.end()
    await expect(page.locator(".progress")).to_contain_text("committed")
    await expect(page.locator(".notice")).to_have_text(re.compile("committed"))
    await expect(page.get_by_role("button", name="Apply …")).to_have_count(0)


async def test_of_two_plans_the_one_asked_for_last_is_shown(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    await page.goto(f"{url}/#/plan")
    await live(page)
    held = await Held.first(page, "**/api/v1/plans", "POST")
    await page.get_by_role("button", name="Make a plan").click()
    await held.there.wait()
    await page.goto(f"{url}/#/plan?job=red")
    await expect(page.locator(".applybar")).to_be_visible()
    chosen = await page.evaluate("lightloom.plan.id")
    await held.end()
    assert await page.evaluate("lightloom.plan.id") == chosen


async def test_a_plan_has_the_time_it_was_given(page: Page, url: str) -> None:
    await page.goto(f"{url}/#/plan")
    await live(page)
    await page.evaluate(
        "() => { const real = AbortSignal.timeout; window.waits = [];"
        "AbortSignal.timeout = (ms) => { waits.push(ms); return real.call(AbortSignal, ms); }; }"
    )
    await page.get_by_label("Solver seconds").fill("300")
    async with page.expect_response("**/api/v1/plans"):
        await page.get_by_role("button", name="Make a plan").click()
    assert max(await page.evaluate("waits")) >= 300_000


async def test_a_look_that_comes_late_does_not_say_polling(page: Page, url: str) -> None:
    await page.route("**/api/v1/stream", lambda route: route.abort())
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("polling")
    held = await Held.first(page, "**/api/v1/top")
    await held.there.wait()
    await page.unroute("**/api/v1/stream")
    await live(page)
    await held.end()
    await live(page)


async def test_one_missed_health_is_not_the_end(page: Page, url: str) -> None:
    await page.clock.install()
    await page.goto(url)
    await live(page)
    await stand_still(page)
    await page.route("**/api/v1/health", lambda route: route.abort(), times=1)
    await page.clock.fast_forward(15_000)
    await expect(page.locator(".status")).to_contain_text("controller away")
    await page.clock.fast_forward(15_000)
    await live(page)


async def test_another_site_behind_the_same_address_is_seen(page: Page, url: str) -> None:
    await page.clock.install()
    await page.goto(url)
    await live(page)

    async def other(route: Route) -> None:
        answer = await route.fetch()
        body = await answer.json()
        body |= {"started_at": 1.0} if "started_at" in body else {"name": "elsewhere"}
        await route.fulfill(response=answer, json=body)

    await page.route(re.compile("/api/v1/(health|site)$"), other)
    await page.clock.fast_forward(15_000)
    await expect(page.locator(".site")).to_have_text("elsewhere")


async def test_all_is_read_again_from_another_controller_of_the_same_site(
    page: Page, url: str, rack: TalkingRack
) -> None:
    """Its events and epochs begin at 1 again, which does not make them old."""
    await page.clock.install()
    await page.goto(f"{url}/#/events")
    await live(page)
    await page.evaluate(
        "lightloom.data.events.push({...lightloom.data.events.at(-1), id: 10000}),"
        "lightloom.data.epoch = 10000"
    )

    await page.route("**/api/v1/health", another)
    await page.clock.fast_forward(15_000)
    await until(page, "lightloom.data.epoch < 10000")
    await rack.desks.jobs.submit(scattered("red", 2))
    await expect(about(page, "red")).to_have_count(2)


async def test_another_controller_whose_first_answer_fails_is_seen(page: Page, url: str) -> None:
    await page.clock.install()
    await page.goto(url)
    await live(page)
    await stand_still(page)
    await page.evaluate("lightloom.data.epoch = 10000")
    await page.route("**/api/v1/health", another)
    await page.route("**/api/v1/site", lambda route: route.abort(), times=1)
    await page.clock.fast_forward(15_000)
    await expect(page.locator(".status")).to_contain_text("controller away")
    await page.clock.fast_forward(15_000)
    await until(page, "lightloom.data.epoch < 10000")
    await live(page)


async def test_what_the_controller_before_answered_late_is_not_taken(
    page: Page, url: str, rack: TalkingRack
) -> None:
    """Its epoch is greater than those to come: every plan would look outdated."""
    await page.clock.install()
    await page.goto(f"{url}/#/objects/jobs")
    await live(page)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def old(route: Route) -> None:
        answer = await route.fetch()
        asked.set()
        await go_on.wait()
        await route.fulfill(response=answer, json=(await answer.json()) | {"epoch": 10_001})

    await page.route("**/api/v1/jobs", old, times=1)
    await page.evaluate("lightloom.data.epoch = 10000, lightloom.data.touch(['jobs'])")
    await asked.wait()
    await page.route("**/api/v1/health", another)
    await page.clock.fast_forward(15_000)
    await until(page, "lightloom.data.epoch < 10000")
    go_on.set()
    await rack.desks.jobs.submit(scattered("red", 4))
    await expect(page.get_by_role("row", name=re.compile("red"))).to_be_visible()
    assert await page.evaluate("lightloom.data.epoch") < 10_000


async def test_what_a_proxy_says_does_not_stop_the_reading(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await page.goto(f"{url}/#/objects/jobs")
    await live(page)
    await page.route(
        "**/api/v1/jobs",
        lambda route: route.fulfill(status=200, content_type="text/html", body="<p>sign in"),
        times=1,
    )
    await page.evaluate("lightloom.data.touch(['jobs'])")
    await rack.desks.jobs.submit(scattered("red", 4))
    await expect(page.get_by_role("row", name=re.compile("red"))).to_be_visible()


async def test_two_beginnings_make_one_console(page: Page, url: str) -> None:
    """The user presses the button, and the page retries by itself before the response comes."""
    await page.clock.install()
    await page.route("**/api/v1/whoami", lambda route: route.abort(), times=1)
    streams: list[Request] = []
    page.on("request", lambda r: streams.append(r) if r.url.endswith("/stream") else None)
    held = await Held.first(page, "**/api/v1/site")
    await page.goto(url)
    await page.get_by_role("button", name="Try again").click()
    await held.there.wait()
    await page.clock.fast_forward(3500)
    await page.wait_for_timeout(300)  # time for a second beginning to ask, if there is one
    await held.end()
    await live(page)
    await page.keyboard.press("d")
    assert await page.evaluate("localStorage.getItem('theme')") == "light"
    assert len(streams) == 1


async def test_a_button_pressed_while_the_page_tries_by_itself(page: Page, url: str) -> None:
    """The earlier start gets its response after the later one, and must stop reading."""
    await page.clock.install()
    await page.route("**/api/v1/whoami", lambda route: route.abort(), times=1)
    reads: list[Request] = []
    page.on("request", lambda r: reads.append(r) if "/events?" in r.url else None)
    held = await Held.first(page, "**/api/v1/site")
    await page.goto(url)
    again = page.get_by_role("button", name="Try again")
    await expect(again).to_be_visible()
    await page.clock.fast_forward(3500)
    await held.there.wait()
    await again.click()
    await live(page)
    await held.end()
    await page.wait_for_timeout(300)  # time to read them again, if that is done
    assert len(reads) == 1


async def test_samples_that_come_while_the_history_is_read_are_kept(page: Page, url: str) -> None:
    await page.goto(url)
    await live(page)
    kept = await page.evaluate(
        """async (module) => {
          const { History } = await import(module);
          const real = window.fetch;
          const who = { job: "red", rank: 0, endpoint: "gpu0" };
          const row = (rx) => ({ ...who, rx_bps: rx, tx_bps: 1, utilisation: 1 });
          let answer;
          window.fetch = () => new Promise((done) => {
            answer = (v) => done(new Response(JSON.stringify(v)));
          });
          const history = new History("red");
          const read = history.load();
          history.add({ time: 12, containers: [row(12)] });
          history.mark([{ time: 12, reason: "RegroupCommitted", object: "transaction/t1" }]);
          const line = { ...who, rx_bps: [10, 11], tx_bps: [1, 1], utilisation: [1, 1] };
          answer({ times: [10, 11], markers: [], containers: [line] });
          await read;
          history.add({ time: 13, containers: [row(13)] });
          window.fetch = real;
          return [history.times, history.lines[0].rx_bps, history.markers.length];
        }""",
        "/console/js/views/history.js",
    )
    assert kept == [[10, 11, 12, 13], [10, 11, 12, 13], 1]

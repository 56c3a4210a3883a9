"""What the pages show and how: names as text, keys, themes, phones, a controller that goes away."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from playwright.async_api import Browser, Page, Route, expect

from controller.devices.engine import RankSample, ServerSample
from tests.web.world import TalkingRack, scattered, stand_still, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

MARKUP = "<img src=x onerror=alert(1)>"


async def test_names_are_text(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")

    async def hostile(route: Route) -> None:
        answer = await route.fetch()
        text = (await answer.text()).replace('"image:1"', f'"{MARKUP}"')
        text = text.replace('"project":"default"', f'"project":"{MARKUP}"')
        await route.fulfill(response=answer, body=text)

    async def hostile_events(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(
            response=answer, body=(await answer.text()).replace("wants 4", f"{MARKUP} 4")
        )

    await page.route("**/api/v1/jobs", hostile)
    await page.route("**/api/v1/events?*", hostile_events)
    # The stream would show the real events before the changed ones.
    await page.route("**/api/v1/stream", lambda route: route.abort())
    await page.goto(f"{url}/#/jobs/red")
    await expect(page.locator(".facts code").first).to_have_text(MARKUP)
    await expect(page.locator(".stat", has_text="GPUs").first).to_contain_text(MARKUP)
    await page.goto(f"{url}/#/events")
    await expect(page.locator("td", has_text=MARKUP)).to_be_visible()
    assert await page.locator("img[src=x]").count() == 0


async def test_what_a_gpu_tells_is_shown_and_what_none_tells_is_a_dash(
    page: Page, url: str, rack: TalkingRack
) -> None:
    of_rank = {"utilisation": 0.42, "memory_bytes": 3 << 30}
    said = {"memory_total_bytes": 80 << 30, "temperature_c": 61.0, "power_w": 350.0, "xid": 13}

    async def telemetry() -> AsyncIterator[RankSample]:
        for s in list(rack.engine.statuses.values()):
            real, at = s.rank == 0, time.time() + 3600  # always fresh
            values = {**of_rank, **said} if real else of_rank
            yield RankSample(s.job, s.rank, s.endpoint, at, "nvml", values, real)

    rack.engine.telemetry = telemetry  # type: ignore[method-assign]
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    job = rack.desks.jobs.job("red")

    async def told() -> bool:
        return any(one.gpu is not None for one in await rack.desks.jobs.containers())

    await rack.until(told)
    await page.goto(f"{url}/#/objects/containers")
    row = page.locator("tbody tr", has_text=job.endpoints[0])
    await expect(row).to_contain_text("61 °C")
    await expect(row).to_contain_text("350 W")
    await expect(page.locator("tbody tr", has_text="°C")).to_have_count(1)
    await page.goto(f"{url}/#/objects/endpoints/{job.endpoints[0]}")
    facts = page.locator(".drawer .facts")
    await expect(facts).to_contain_text("61 °C")
    await expect(facts).to_contain_text("last Xid")
    await page.goto(f"{url}/#/objects/endpoints/{job.endpoints[1]}")
    await expect(page.locator(".drawer")).to_contain_text(f"endpoint/{job.endpoints[1]}")
    await expect(facts).not_to_contain_text("temperature")


async def test_what_a_server_reports_is_in_its_row_and_among_its_facts(
    page: Page, url: str, rack: TalkingRack
) -> None:
    name = rack.desks.fabric.nodes()[0].name

    async def telemetry() -> AsyncIterator[ServerSample]:
        while True:
            yield ServerSample(name, {"load": 1.25, "memory_available_bytes": 3 << 30})
            await asyncio.sleep(1.0)

    rack.engine.telemetry = telemetry  # type: ignore[method-assign]
    await rack.until(lambda: rack.desks.fabric.nodes()[0].readings)
    await page.goto(f"{url}/#/objects/nodes")
    await expect(page.locator("thead")).to_contain_text("Memory available")
    await expect(page.locator("tbody tr", has_text=name).first).to_contain_text("1.25")
    await page.goto(f"{url}/#/objects/nodes/{name}")
    facts = page.locator(".drawer .facts")
    await expect(facts).to_contain_text("memory available")
    await expect(facts).to_contain_text("3.00 GiB")


async def test_figures_of_containers_are_those_of_the_last_seconds(
    page: Page, url: str, rack: TalkingRack
) -> None:
    """Only measured values change, which is no reason to read a list again."""
    figures = [0.25, 3 << 30]

    async def telemetry() -> AsyncIterator[RankSample]:
        for s in list(rack.engine.statuses.values()):
            at = time.time() + 3600  # always fresh
            values = {"utilisation": figures[0], "memory_bytes": int(figures[1])}
            yield RankSample(s.job, s.rank, s.endpoint, at, "nvml", values)

    rack.engine.telemetry = telemetry  # type: ignore[method-assign]
    await rack.desks.jobs.submit(scattered("red", 1))
    await rack.state("red", "running")
    await page.goto(f"{url}/#/objects/containers")
    row = page.locator(".rows tbody tr", has_text="red")
    await expect(row).to_contain_text("25 %")
    await expect(row).to_contain_text("3.00 GiB")
    figures[:] = 0.75, 5 << 30
    await expect(row).to_contain_text("75 %")
    await expect(row).to_contain_text("5.00 GiB")


async def test_every_view_by_keys(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("live")
    for key, title in (
        ("j", "Jobs"),
        ("p", "Plan"),
        ("s", "Switches"),
        ("m", "Measurements"),
        ("e", "Events"),
        ("o", "Objects"),
        ("u", "Usage"),
        ("t", "Topology"),
    ):
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await expect(page.get_by_role("heading", level=1)).to_have_text(title)
    await page.keyboard.press("/")
    await page.keyboard.type("gpu3")
    await page.keyboard.press("Enter")
    await expect(page.locator(".drawer h2")).to_have_text("gpu3")
    await page.locator(".canvas").focus()
    await page.keyboard.press("ArrowUp")
    await expect(page.locator(".drawer h2")).to_have_text("gpu2")
    await page.keyboard.press("Escape")
    await expect(page.locator(".drawer")).to_be_hidden()
    await page.keyboard.press("?")
    keys = page.get_by_role("dialog")
    await expect(keys).to_contain_text("Submit a job")
    for key, name in (("m", "Measure"), ("u", "Usage")):
        term = keys.locator("dt", has_text=f"g{key}")
        await expect(term.locator("xpath=following-sibling::dd[1]")).to_have_text(name)


async def test_lists_have_the_ids_of_the_command_line(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    api = f"{url}/api/v1"
    async with httpx.AsyncClient(base_url=api, timeout=60, trust_env=False) as client:
        for kind in ("jobs", "endpoints", "aggregators", "switches", "containers", "nodes"):
            names = [item["name"] for item in (await client.get(f"/{kind}")).json()["items"]]
            await page.goto(f"{url}/#/objects/{kind}")
            first = page.locator(".rows tbody tr td:first-child")
            await expect(first).to_have_text(names)
    await page.goto(f"{url}/#/objects/endpoints")
    await page.get_by_label("Filter endpoints").fill("as1 idle")
    await expect(page.locator(".rows tbody tr")).to_have_count(1)
    await page.locator(".rows tbody tr").press("Enter")
    await expect(page.locator(".drawer h2")).to_have_text("endpoint/gpu5")


async def test_quarantine_is_shown_and_ended(page: Page, url: str, rack: TalkingRack) -> None:
    from controller.state.records import Quarantine

    rack.parts.state.light.quarantine.put(Quarantine("as0/4", "no light", 1.0))
    await page.goto(f"{url}/#/switches")
    await expect(page.locator("tr", has_text="as0/4")).to_contain_text("no light")
    await page.get_by_role("button", name="Put back into use").click()
    await expect(page.get_by_text("nothing: every port and endpoint may be used")).to_be_visible()
    assert not rack.desks.quarantine.views()


async def test_light_and_alarms_of_a_switch(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.parts.power.measure()
    await page.goto(f"{url}/#/switches")
    row = page.get_by_role("row", name=re.compile("gpu2"))
    await expect(row).to_contain_text("-3.0 dBm")
    await expect(row).to_contain_text("-4.0 dBm")
    await expect(row).to_contain_text("low light")
    await expect(page.locator(".facts", has_text="alarms")).to_contain_text("1.1.3: low light")
    await expect(page.locator(".facts").get_by_text("emulated")).to_be_visible()


async def test_light_and_dark(page: Page, url: str) -> None:
    await page.emulate_media(color_scheme="dark")
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("live")
    theme = "document.documentElement.dataset.theme"
    assert await page.evaluate(theme) == "dark"
    await page.get_by_role("button", name="Theme: system").click()
    assert await page.evaluate(theme) == "light"
    await page.reload()
    await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert await page.evaluate(theme) == "light"


async def test_on_a_phone_nothing_is_cut_off(browser: Browser, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    context = await browser.new_context(viewport={"width": 390, "height": 844})
    page = await context.new_page()
    for view in ("topology", "jobs", "jobs/red", "plan", "switches", "events", "objects"):
        await page.goto(f"{url}/#/{view}")
        title = view.split("/")[-1]
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_have_text(re.compile(f"^{title}$", re.IGNORECASE))
        wider = "document.documentElement.scrollWidth > innerWidth"
        assert not await page.evaluate(wider), view
    await context.close()


async def test_without_a_stream_it_asks_again(page: Page, url: str, rack: TalkingRack) -> None:
    await page.route("**/api/v1/stream", lambda route: route.abort())
    await page.goto(f"{url}/#/jobs")
    await expect(page.locator(".status")).to_contain_text("polling")
    await rack.desks.jobs.submit(scattered("red", 4))
    row = page.get_by_role("row", name=re.compile("red"))
    await expect(row).to_contain_text("running")
    await expect(row).to_contain_text("228 Mbit/s")
    await page.goto(f"{url}/#/events")
    await expect(page.get_by_role("row", name=re.compile("JobStarted"))).to_be_visible()


async def test_what_changes_while_an_answer_is_on_its_way_is_read_again(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await page.goto(f"{url}/#/objects/jobs")
    await expect(page.locator(".status")).to_contain_text("live")
    old_answer, go_on = asyncio.Event(), asyncio.Event()

    async def held(route: Route) -> None:
        answer = await route.fetch()
        old_answer.set()
        await go_on.wait()
        await route.fulfill(response=answer)

    await page.route("**/api/v1/jobs", held, times=1)
    await page.evaluate("lightloom.data.touch(['jobs'])")
    await old_answer.wait()
    await rack.desks.jobs.submit(scattered("red", 4))
    await until(page, "lightloom.data.events.some((e) => e.reason === 'JobStarted')")
    await page.wait_for_timeout(500)  # longer than the page gathers what the stream tells
    go_on.set()
    await expect(page.get_by_role("row", name=re.compile("red"))).to_be_visible()


async def test_a_list_that_could_not_be_read_is_read_again(
    page: Page, url: str, rack: TalkingRack
) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    await page.goto(f"{url}/#/objects/jobs")
    await expect(page.get_by_role("row", name=re.compile("red"))).to_be_visible()
    await page.wait_for_timeout(500)  # nothing else is to be read for now
    await page.route("**/api/v1/jobs", lambda route: route.abort(), times=1)
    await page.evaluate("lightloom.data.lists.jobs = [], lightloom.data.touch(['jobs'])")
    await until(page, "lightloom.data.lists.jobs.length === 1")


async def test_a_controller_that_goes_away_is_said(page: Page, url: str) -> None:
    await page.clock.install()
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("live")
    await page.route("**/api/v1/**", lambda route: route.abort())
    await page.evaluate("lightloom.data.stop()")
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("the controller does not answer")
    await stand_still(page)  # it tries again by itself, perhaps before the button is pressed
    await page.unroute("**/api/v1/**")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".status")).to_contain_text("live")

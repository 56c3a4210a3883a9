"""Updates do not disturb the user: choices, focus, typed words and open dialogs stay."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Page, Route, expect

from tests.web.world import TalkingRack, people, scattered, served, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFRESHED = """async () => {
  const before = lightloom.data.lists.%(kind)s;
  lightloom.data.touch(["%(kind)s"]);
  while (lightloom.data.lists.%(kind)s === before) await new Promise((f) => setTimeout(f, 20));
}"""


async def refreshed(page: Page, kind: str) -> None:
    """Make the page read and show a list again."""
    await page.evaluate(REFRESHED % {"kind": kind})


async def test_where_light_should_lead_stays_chosen(page: Page, url: str) -> None:
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("live")
    await page.locator("#search").fill("gpu0")
    await page.locator("#search").press("Enter")
    drawer = page.locator(".drawer")
    choice = drawer.get_by_label("Move gpu0 to")
    await choice.select_option("dark")
    move = await drawer.get_by_role("button", name="Move …").element_handle()
    await page.locator("#search").focus()
    await refreshed(page, "endpoints")
    await refreshed(page, "aggregators")
    assert await choice.locator("option:checked").text_content() == "dark"
    assert await move.evaluate("(button) => button.isConnected")


async def test_a_filter_outlives_the_opening_of_what_it_found(page: Page, url: str) -> None:
    await page.goto(f"{url}/#/objects/endpoints")
    await page.get_by_label("Filter endpoints").fill("as1")
    rows = page.locator(".rows tbody tr")
    await expect(rows).to_have_count(3)
    await rows.nth(1).press("Enter")
    await expect(page.locator(".drawer h2")).to_have_text(re.compile("endpoint/gpu"))
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_be_focused()
    await page.locator(".drawer").get_by_label("Close").click()
    await expect(page.locator(".drawer")).to_be_hidden()
    await expect(rows).to_have_count(3)


async def test_focus_and_selection_outlive_samples(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    await page.goto(f"{url}/#/jobs/red")
    back = page.locator(".back")
    await back.focus()
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('.facts code'))")
    selected = await page.evaluate("String(getSelection())")
    before = await page.evaluate("lightloom.data.live.time")
    await until(page, f"lightloom.data.live.time > {before} + 1")
    await expect(back).to_be_focused()
    assert await page.evaluate("String(getSelection())") == selected == "image:1"


async def test_a_row_that_goes_elsewhere_keeps_focus(page: Page, url: str) -> None:
    await page.goto(url)
    await expect(page.locator(".status")).to_contain_text("live")
    focused = await page.evaluate(
        """async (module) => {
          const { Table } = await import(module);
          const columns = [{ id: "n", label: "N", value: (o) => o.n }];
          const sort = { id: "n" };
          const onOpen = () => {};
          const table = new Table({ label: "T", key: (o) => o.id, columns, sort, onOpen });
          document.body.append(table.element);
          table.items = [{ id: "a", n: 1 }, { id: "b", n: 2 }];
          table.table.querySelectorAll("tbody tr")[1].focus();
          table.items = [{ id: "a", n: 1 }, { id: "b", n: 0 }];
          const rows = [...table.table.querySelectorAll("tbody tr")];
          return [rows.map((row) => row.textContent), rows.indexOf(document.activeElement)];
        }""",
        "/console/js/ui/table.js",
    )
    assert focused == [["0", "1"], 0]


async def test_an_age_grows(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 1))
    await rack.state("red", "running")
    await page.goto(f"{url}/#/objects/containers")
    age = page.locator(".rows tbody tr").get_by_role("cell", name=re.compile(r"^\d+ s$"))
    first = await age.text_content()
    await until(page, f"Date.now() > {await page.evaluate('Date.now()')} + 1100")
    await refreshed(page, "containers")
    await expect(age).not_to_have_text(first or "")


async def test_all_jobs_stays_chosen(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    await page.goto(f"{url}/#/plan?job=red")
    await expect(page.locator(".applybar")).to_be_visible()
    field = page.get_by_label("For")
    await field.select_option("all jobs")
    await page.get_by_label("Solver seconds").focus()
    await rack.desks.jobs.submit(scattered("blue", 2))
    await expect(field.locator("option", has_text="blue")).to_have_count(1)
    await expect(field).to_have_value("")
    await page.goto(f"{url}/#/topology")
    await page.goto(f"{url}/#/plan")
    await expect(field).to_have_value("red")  # whom the plan that is shown was made for


async def test_one_dialog_at_a_time(page: Page, url: str) -> None:
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    await page.get_by_role("heading", name="Submit a job").click()
    for key in "n", "g", "o", "?":
        await page.keyboard.press(key)
    await expect(page.locator("dialog")).to_have_count(1)
    await expect(
        page.get_by_role("heading", level=1, name="Jobs", include_hidden=True)
    ).to_have_count(1)
    await page.evaluate("location.hash = '#/events'")
    await expect(page.get_by_role("heading", level=1, name="Events")).to_be_visible()
    await expect(page.locator("dialog")).to_have_count(0)


async def test_what_fails_after_its_dialog_is_closed_is_said(page: Page, url: str) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        if route.request.method != "POST":
            await route.fallback()
            return
        asked.set()
        await go_on.wait()
        await route.fulfill(status=409, json={"code": "conflict", "detail": "no room", "hint": ""})

    await page.route("**/api/v1/jobs", late)
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    await form.get_by_role("button", name="Submit").click()
    await asked.wait()
    await form.get_by_role("button", name="Close").click()
    go_on.set()
    await expect(page.locator(".notice")).to_have_text("no room")


async def test_a_notice_covers_no_button(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.desks.jobs.submit(scattered("red", 4))
    await rack.state("red", "running")
    await page.goto(f"{url}/#/plan?job=red")
    apply = page.get_by_role("button", name="Apply …")
    await expect(apply).to_be_visible()
    await page.evaluate("for (let i = 0; i < 9; i += 1) lightloom.notice(`a notice ${i}`)")
    over = """(button) => {
      const box = button.getBoundingClientRect();
      return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === button;
    }"""
    assert await apply.evaluate(over)
    shown = await page.locator(".notice").last.bounding_box()
    button = await apply.bounding_box()
    assert shown is not None and button is not None
    assert shown["x"] + shown["width"] < button["x"]


async def test_a_session_that_ends_closes_what_is_open(page: Page, url: str) -> None:
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    refused = {"code": "forbidden", "detail": "who are you?", "hint": ""}
    await page.route("**/api/v1/**", lambda route: route.fulfill(status=401, json=refused))
    await page.evaluate("lightloom.data.touch(['jobs'])")
    await expect(page.get_by_label("Token")).to_be_visible()
    await expect(page.get_by_text("the session has ended")).to_be_visible()
    await expect(page.locator("dialog")).to_have_count(0)


async def test_leaving_that_fails_is_said(page: Page, rack: TalkingRack) -> None:
    access, tokens = await people(rack.state_dir)
    async with served(rack, access) as url:
        await page.goto(url)
        await page.get_by_label("Token").fill(tokens["viewer"])
        await page.get_by_role("button", name="Sign in").click()
        # Earlier the sign-in would fail instead.
        await expect(page.get_by_role("navigation", name="Views")).to_be_visible()
        await page.route("**/api/v1/session", lambda route: route.abort(), times=1)
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.locator(".notice")).to_contain_text("the controller does not answer")
        await expect(page.get_by_role("navigation", name="Views")).to_be_visible()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Token")).to_be_visible()
    assert access.accounts is not None
    await access.accounts.close()


async def test_an_address_that_means_nothing_shows_something(page: Page, url: str) -> None:
    await page.goto(f"{url}/#/jobs/%E0%A4%A")
    await expect(page.get_by_text("job %E0%A4%A not found")).to_be_visible()

"""A job's page: what it communicates, what if it lay elsewhere, and advice."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.parts.api import studied
from tests.parts.api.studied import MARKUP
from tests.web.measured import Answers
from tests.web.world import TalkingRack, people, scattered, served

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def answers(page: Page, rack: TalkingRack) -> Answers:
    """Job ``red`` runs, and all is known of it."""
    await rack.desks.jobs.submit(scattered("red", 4, "vision"))
    await rack.state("red", "running")
    answers = await Answers().on(page)
    answers.documents |= {
        "/jobs/red/comms": studied.comms(),
        "/predictions": list(studied.predictions("red", "other")),
        "/advice": studied.advice("red", "red"),
    }
    return answers


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(rack: TalkingRack, tmp_path: Path) -> AsyncIterator[tuple[str, dict[str, str]]]:
    access, tokens = await people(tmp_path)
    async with served(rack, access) as url:
        yield url, tokens
    assert access.accounts is not None
    await access.accounts.close()


async def test_what_a_job_communicates(page: Page, url: str, answers: Answers) -> None:
    await page.goto(f"{url}/#/jobs/red")
    panel = page.get_by_role("region", name="Communication")
    await expect(panel.locator(".stat", has_text="Exposed")).to_contain_text("25 % of the step")
    await expect(panel.locator(".stat", has_text="Efficiency")).to_contain_text("93 %")
    strip = panel.get_by_role("group", name="The slowest rank's step")
    await expect(strip.locator(".marks span")).to_have_text(
        [
            "compute 0.2 s",
            "hidden communication 0.1 s",
            "exposed communication 0.1 s",
        ]
    )
    operations = panel.get_by_role("table", name="Operations", exact=True).locator("tbody tr")
    await expect(operations).to_have_count(2)
    await expect(operations.first).to_contain_text("all_reduce")
    await expect(operations.first).to_contain_text("30 %")
    await expect(panel).to_contain_text("on a rank's time line")
    await expect(panel).to_contain_text("the first 10 steps are left out")
    counts = panel.get_by_role("list", name="Calls by size").get_by_role("listitem")
    await expect(counts).to_have_text(["4 KiB1,200", "1 MiB1,200"])
    latency = panel.get_by_role("list", name="Latency by size").get_by_role("listitem")
    await expect(latency.nth(1)).to_contain_text("10.0 ms (8.00 ms … 15.0 ms)")
    await panel.get_by_role("combobox", name="Operation").select_option("all_reduce")
    await expect(counts).to_have_count(1)
    await panel.get_by_role("img", name=re.compile("2 ranks by 1 sizes")).press("ArrowDown")
    await expect(panel.locator(".heat [aria-live]")).to_contain_text("rank 0, 1 MiB")
    await expect(panel.locator("details[open]")).to_contain_text(f"damaged {MARKUP}")
    assert await page.locator("img[src=x]").count() == 0


async def test_it_reads_again_and_asks_for_a_span(page: Page, url: str, answers: Answers) -> None:
    await page.clock.install()
    await page.goto(f"{url}/#/jobs/red")
    panel = page.get_by_role("region", name="Communication")
    calls = panel.get_by_role("table", name="Operations", exact=True).locator("tbody tr").first
    await expect(calls).to_contain_text("1,200")
    await panel.locator("summary", has_text="Every rank").click()
    view = studied.comms()
    rows = [row.model_copy(update={"calls": 1300}) for row in view.rows]
    answers.documents["/jobs/red/comms"] = view.model_copy(update={"rows": rows})
    await page.clock.fast_forward(10_000)
    await expect(calls).to_contain_text("1,300")
    await expect(panel.get_by_role("group", name="Rank 1's step")).to_be_visible()  # not folded
    await panel.get_by_role("combobox", name="Over").select_option("300")
    await expect(panel.get_by_role("combobox", name="Over")).to_have_value("300")
    asked = [query for _, path, query in answers.asked if path.endswith("/comms")]
    assert asked[0] == {}
    assert asked[-1] == {"since_s": "300"}


async def test_other_homes_are_supposed_and_nothing_moves(
    page: Page, url: str, answers: Answers, rack: TalkingRack
) -> None:
    job = rack.desks.jobs.job("red")
    homes = {r.endpoint: r.home for r in job.ranks}
    first = job.ranks[0]
    other = "as1" if first.home == "as0" else "as0"
    answers.documents["/jobs/red/whatif"] = studied.whatif("red", homes, {first.endpoint: other})
    await page.goto(f"{url}/#/jobs/red")
    panel = page.get_by_role("region", name="What if")
    await panel.get_by_role("button", name="Predict the step").click()
    await expect(panel).to_contain_text("choose another home for at least one endpoint")
    await panel.get_by_label(f"0 · {first.endpoint}").select_option(other)
    await panel.get_by_role("button", name="Predict the step").click()
    await expect(panel.locator(".stat", has_text="Step then")).to_contain_text("0.58 s … 0.61 s")
    await expect(panel.locator(".stat", has_text="Change")).to_contain_text("slower")
    await expect(panel).to_contain_text("the overlap is not known")
    sent = [body for method, _, body in answers.asked if method == "POST"]
    assert sent == [{"homes": {first.endpoint: other}}]
    assert {r.endpoint: r.home for r in rack.desks.jobs.job("red").ranks} == homes
    predictions = panel.get_by_role("table", name="Predictions").locator("tbody tr")
    await expect(predictions).to_have_count(1)  # not those of other jobs
    await expect(predictions).to_contain_text("2.0 %")
    advice = page.get_by_role("region", name="Advice")
    await expect(advice).to_contain_text("Limited by scatter")
    await expect(advice.locator("pre")).to_have_text("lightloom plan --job red")
    assert await page.locator("img[src=x]").count() == 0


async def test_an_ended_job_is_shown_and_asks_no_predictions(
    page: Page, url: str, answers: Answers, rack: TalkingRack
) -> None:
    for rank in range(4):
        rack.engine.exit("red", rank, 0)
    await rack.state("red", "completed")
    ended = studied.comms().model_copy(update={"state": "completed", "overlap": None})
    answers.documents["/jobs/red/comms"] = ended
    del answers.documents["/advice"]
    await page.goto(f"{url}/#/jobs/red")
    panel = page.get_by_role("region", name="Communication")
    await expect(panel.get_by_role("table", name="Operations", exact=True)).to_contain_text("1,200")
    await expect(page.get_by_role("region", name="Advice")).to_contain_text("there is no /advice")
    ask = page.get_by_role("button", name="Predict the step")
    await expect(ask).to_be_disabled()
    await expect(ask).to_have_attribute("title", "it is completed")


@pytest.mark.parametrize("role", ["operator", "user", "viewer"])
async def test_what_a_role_may(
    page: Page, guarded: tuple[str, dict[str, str]], answers: Answers, role: str
) -> None:
    url, tokens = guarded
    answers.keep(studied.scaling(), studied.running())
    await page.goto(url)
    await page.get_by_label("Token").fill(tokens[role])
    await page.get_by_role("button", name="Sign in").click()
    await page.goto(f"{url}/#/jobs/red")
    await expect(page.get_by_role("table", name="Operations", exact=True)).to_be_visible()
    ask = page.get_by_role("button", name="Predict the step")
    await (expect(ask).to_be_disabled() if role == "viewer" else expect(ask).to_be_enabled())
    for path, name in (("", "Measure …"), ("/m7", "Remove"), ("/m8", "Cancel")):
        await page.goto(f"{url}/#/measurements{path}")
        change = page.get_by_role("button", name=name)
        may = role == "operator"
        await (expect(change).to_be_enabled() if may else expect(change).to_be_disabled())


async def test_a_job_says_what_to_record(page: Page, url: str, rack: TalkingRack) -> None:
    await page.goto(f"{url}/#/jobs")
    await page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Name").fill("blue")
    await form.get_by_label("Record its communication").select_option("off")
    await form.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("row", name=re.compile("blue"))).to_be_visible()
    assert rack.desks.jobs.job("blue").record == "off"


async def test_on_a_phone_nothing_is_cut_off(browser: Browser, url: str, answers: Answers) -> None:
    context = await browser.new_context(viewport={"width": 390, "height": 844})
    page = await context.new_page()
    answers.keep(studied.links(("gpu0", "gpu1", "gpu2", "gpu3")))
    await answers.on(page)
    for view, title, part in (
        ("measurements", "Measurements", "table"),
        ("measurements/m7", "m7 links", "canvas"),
        ("measurements/predictions", "Predictions", "table"),
        ("measurements/advice", "Advice", ".finding"),
        ("jobs/red", "red", ".strip"),
    ):
        await page.goto(f"{url}/#/{view}")
        await expect(page.get_by_role("heading", level=1)).to_have_text(title)
        await expect(page.locator(f".view {part}").first).to_be_attached()
        assert not await page.evaluate("document.documentElement.scrollWidth > innerWidth"), view
    await context.close()

"""The page of measurements: list, form, and what each type shows."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from tests.parts.api import studied
from tests.parts.api.studied import MARKUP
from tests.web.measured import Answers
from tests.web.world import TalkingRack, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOUR = ("gpu0", "gpu1", "gpu2", "gpu3")


async def test_measurements_are_listed_followed_and_cancelled(page: Page, url: str) -> None:
    answers = await Answers().on(page)
    bad = studied.measurement("storage", [], number=6, invalid=(f"load 3.1 {MARKUP}",))
    answers.keep(studied.scaling(), bad, studied.running())
    await page.goto(f"{url}/#/measurements")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Measurements")
    rows = page.locator("table[aria-label=Measurements] tbody tr")
    await expect(rows.locator("td:first-child")).to_have_text(["m8", "m7", "m6"])
    await expect(rows.nth(0)).to_contain_text("12 of 40, pair 3")
    await expect(rows.nth(2)).to_contain_text("invalid")
    await expect(rows.nth(2)).to_contain_text(MARKUP)

    await page.get_by_role("link", name="m6", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("This result is not valid")
    await expect(page.get_by_role("alert")).to_contain_text(f"load 3.1 {MARKUP}")
    await page.get_by_role("button", name="Remove").click()
    await page.get_by_role("button", name="Remove the measurement").click()
    await expect(rows.locator("td:first-child")).to_have_text(["m8", "m7"])

    await page.get_by_role("link", name="m8", exact=True).click()
    await expect(page.locator(".stat", has_text="Progress")).to_contain_text("12 of 40")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Cancel the measurement").click()
    await expect(page.locator(".title")).to_contain_text("cancelled")
    assert await page.locator("img[src=x]").count() == 0


async def test_the_form_shows_the_jobs_first_and_starts_them(page: Page, url: str) -> None:
    answers = await Answers().on(page)
    await page.goto(f"{url}/#/measurements")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Measurements")
    await page.keyboard.press("n")
    form = page.get_by_role("dialog")
    await form.get_by_role("combobox", name="Type").select_option("storage")
    await form.get_by_role("button", name="Show the jobs").click()
    assert not [one for one in answers.asked if one[0] == "POST"]  # the volume is missing
    await form.get_by_label("Volume", exact=True).fill("scratch")
    await form.get_by_label("Workers").fill("1 8")
    await form.get_by_label("Endpoints").fill("gpu4, gpu5")
    await form.get_by_label("Other settings").fill("runtime_s=3\nengine=libaio")
    await form.get_by_role("button", name="Show the jobs").click()
    await expect(form).to_contain_text("1 job on gpu4 gpu5")
    await form.get_by_role("button", name="Start").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("m9 storage")
    tried, started = [body for method, _, body in answers.asked if method == "POST"]
    assert tried == started | {"dry_run": True}
    assert started == {
        "type": "storage",
        "endpoints": ["gpu4", "gpu5"],
        "settings": {"volume": "scratch", "workers": [1, 8], "runtime_s": 3, "engine": "libaio"},
        "seed": 1,
        "project": "default",
        "dry_run": False,
    }


async def test_links_as_heat_map_curves_and_table(page: Page, url: str, rack: TalkingRack) -> None:
    await rack.parts.power.measure()
    answers = await Answers().on(page)
    answers.keep(studied.links(FOUR))
    await page.goto(f"{url}/#/measurements/m7")
    heat = page.get_by_role("img", name=re.compile("4 senders by 4 receivers"))
    await heat.focus()
    said = page.locator(".heat [aria-live]")
    await page.keyboard.press("ArrowDown")
    await expect(said).to_have_text("gpu0, gpu0: not part of the measurement")
    await page.keyboard.press("ArrowRight")
    await expect(said).to_contain_text(f"gpu0 to gpu1, same aggregator: not measured: {MARKUP}")
    await page.keyboard.press("ArrowRight")
    await expect(said).to_contain_text("gpu0 to gpu2, across: 14.0 MB/s (95 %: 13.9 MB/s")
    await page.get_by_role("combobox", name="Figure").select_option("latency_s")
    await expect(said).to_contain_text("74.9 ms")
    await page.get_by_role("combobox", name="Size").select_option("65536")
    await expect(said).to_contain_text("4.68 ms")
    await expect(page.locator("table[aria-label=Pairs] tbody tr")).to_have_count(12)
    legend = page.get_by_role("group", name="Bandwidth by group").locator(".marks span")
    await expect(legend).to_have_text(["across", "same aggregator"])
    anomaly = page.locator(".anomaly")
    await expect(anomaly).to_contain_text("gpu1 (sends) endpoint: 0.80 times its class")
    await expect(anomaly).to_contain_text("in -3.0 dBm")
    assert await page.locator("img[src=x]").count() == 0
    await page.keyboard.press("d")  # the theme changes what is drawn
    await expect(said).to_contain_text("4.68 ms")


async def test_a_heat_map_of_many_endpoints_is_drawn(page: Page, url: str) -> None:
    names = tuple(f"gpu{i}" for i in range(96))
    answers = await Answers().on(page)
    answers.keep(studied.links(names, (1048576,)))
    await page.goto(f"{url}/#/measurements/m7")
    await expect(page.get_by_role("img", name=re.compile("96 senders"))).to_be_visible()
    coloured = """() => {
      const canvas = document.querySelector(".heat canvas");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4) seen.add(`${data[i]} ${data[i + 1]} ${data[i + 2]}`);
      return seen.size;
    }"""
    assert await page.evaluate(coloured) > 10
    pairs = page.locator("table[aria-label=Pairs] tbody tr:not(.gap)")
    assert 0 < await pairs.count() < 100  # of 9,120


async def test_collectives_scaling_storage_input_and_compare(page: Page, url: str) -> None:
    answers = await Answers().on(page)
    answers.keep(studied.collectives())
    await page.goto(f"{url}/#/measurements/m7")
    table = page.get_by_role("table", name="nccl-tests")
    await expect(table.locator("tbody tr")).to_have_count(2)
    await expect(table.locator("tbody tr").first).to_contain_text("0.0290")
    await page.get_by_role("combobox", name="Placement and operation").select_option(index=1)
    await expect(table.locator("tbody tr b")).to_have_text("3")
    curve = page.get_by_role("group", name="Bus bandwidth")
    await expect(curve.locator(".marks span")).to_have_count(2)

    answers.keep(studied.scaling())
    await page.reload()
    steps = page.get_by_role("group", name="Step against intensity")
    await expect(steps.locator(".marks")).to_contain_text("2 ranks, predicted")
    await expect(page.get_by_role("group", name="Efficiency")).to_contain_text("ResNet/8")

    answers.keep(studied.storage())
    await page.reload()
    for name in ("Throughput against workers", "CPU against workers", "99th percentile"):
        await expect(page.get_by_role("group", name=name).locator("canvas")).to_be_visible()

    answers.keep(studied.loading())
    await page.reload()
    bars = page.get_by_role("list", name=re.compile("Samples per second"))
    await expect(bars.get_by_role("listitem")).to_have_count(3)
    await expect(page.locator(".page")).to_contain_text("waits 88 % of its time")
    await expect(page.locator(".page")).to_contain_text(f"a faster disk {MARKUP}")

    compared = studied.comparison()
    plan = {"endpoints": ["gpu0", "gpu1"], "homes": {"gpu0": "as0"}, "moves": {"gpu0": "as0"}}
    assert compared.result is not None
    summary = compared.result.summary | {"plan": plan}
    result = compared.result.model_copy(update={"summary": summary})
    answers.keep(compared.model_copy(update={"result": result}))
    await page.reload()
    await expect(page.locator(".page")).to_contain_text("--endpoints gpu0,gpu1 --rank-order placed")
    await expect(page.locator(".page")).not_to_contain_text("homes")
    change = page.get_by_role("list", name="Change of training time").get_by_role("listitem")
    await expect(change.nth(0)).to_contain_text("local (recommended)")
    await expect(change.nth(1)).to_contain_text("not measured predicted +43.2 % … +50.6 %")
    await expect(change.nth(2)).to_contain_text("+100.0 %, 0.81")
    assert await page.locator("img[src=x]").count() == 0


async def test_rows_of_any_form_are_shown(page: Page, url: str) -> None:
    """Programs of jobs write what becomes rows; a page that fails would hide the reasons, too."""
    junk = [{}, {"size": "no", "from": None, "bandwidth": {"median": "x"}}, {"latency_s": [1]}]
    junk += [{"x": {"low": 1}, "limit": {"a": [1, {"b": MARKUP}]}, "placement": 7, "in_place": 3}]
    answers = await Answers().on(page)
    for type_ in ("links", "collectives", "scaling", "storage", "input", "compare", "new"):
        answers.keep(studied.measurement(type_, junk, summary={"recommended": [MARKUP], "n": None}))
        await page.goto(f"{url}/#/measurements")
        await page.goto(f"{url}/#/measurements/m7")
        await expect(page.get_by_role("heading", level=1)).to_have_text(f"m7 {type_}")
        await expect(page.get_by_role("heading", name="Settings")).to_be_visible()
        await until(page, "document.querySelectorAll('.page table tbody tr').length > 0")
    assert await page.locator("img[src=x]").count() == 0


async def test_predictions_and_advice_of_the_site(page: Page, url: str) -> None:
    answers = await Answers().on(page)
    answers.documents["/predictions"] = list(studied.predictions("red", "blue"))
    answers.documents["/advice"] = studied.advice(None, "red", "blue")
    await page.goto(f"{url}/#/measurements/predictions")
    rows = page.locator("table[aria-label=Predictions] tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("0.58 s … 0.61 s")
    await expect(page.locator(".page")).to_contain_text("error 2 % in the median")
    await page.get_by_role("link", name="Advice").click()
    await expect(page.locator(".finding")).to_have_count(2)
    await expect(page.locator(".finding").first).to_contain_text("saves 30 % … 34 % of the step")
    await expect(page.locator(".page")).to_contain_text("links were not measured")
    assert await page.locator("img[src=x]").count() == 0

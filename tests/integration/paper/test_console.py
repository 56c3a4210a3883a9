"""The console on the rack: submit, plan, apply in a browser, and throughput rises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from benchmarks.console_shots import CHROMIUM, SENDING
from testbed.demo.api import Controller
from testbed.rack import RackStatus
from testbed.token import rack_token

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

LIMIT_MS = 120_000
MEAN_S = 8
expect.set_options(timeout=LIMIT_MS)
"""A machine that runs a rack beside the browser is slow."""


@pytest.fixture
def page(paper: RackStatus, controller: Controller) -> Iterator[Page]:
    """The console of a rack that is up, signed in as its admin."""
    token = rack_token(Path(paper.run_dir))
    assert token
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=LIMIT_MS
        )
        page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.goto(paper.url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        yield page
        browser.close()


def throughput(page: Page) -> float:
    """Return what the job received on average over the last seconds, as the page was told.

    0 as long as there was a second without: the ring is not whole, or light moves.
    """
    last: list[float] = page.evaluate(f"(lightloom.data.sparks.get('red') ?? []).slice(-{MEAN_S})")
    return sum(last) / MEAN_S if len(last) == MEAN_S and all(last) else 0.0


def beyond(page: Page, bps: float) -> float:
    """Return the throughput as soon as it is greater than ``bps``."""
    for _ in range(LIMIT_MS // 1000):
        found = throughput(page)
        if found > bps:
            return found
        page.wait_for_timeout(1000)
    raise AssertionError(f"not beyond {bps:.3g} bit/s: {found:.3g}")


def go(page: Page, view: str) -> None:
    """Follow the link to a view, and wait until it has replaced the one before."""
    page.get_by_role("link", name=view).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(view)


def test_an_operator_brings_a_job_together(page: Page) -> None:
    go(page, "Jobs")
    page.get_by_role("button", name="Submit a job").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("red")
    form.get_by_label("GPUs").fill("4")
    form.get_by_label("Placement").select_option("any")
    form.get_by_label("Order of its ranks").select_option("placed")
    # One argument a line: the program itself must be on one.
    program = f"exec({SENDING[-1]!r})"
    form.get_by_label("Command").fill("\n".join([*SENDING[:-1], program]))
    form.get_by_role("button", name="Submit").click()
    row = page.get_by_role("row", name=re.compile(r"\bred\b"))
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("as0:2")
    row.click()
    beyond(page, 0)
    page.wait_for_timeout(1000 * MEAN_S)  # its connections have come up to speed
    before = beyond(page, 0)

    page.get_by_role("link", name="Plan a regroup").click()
    expect(page.locator(".stat", has_text="Excess span")).to_contain_text("1 → 0")
    page.get_by_role("button", name="Apply …").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply", exact=True).click()
    expect(page.locator(".progress")).to_contain_text("committed")

    go(page, "Jobs")
    row.click()
    expect(page.locator(".stat", has_text="Spread")).to_contain_text("least possible")
    beyond(page, 1.5 * before)
    go(page, "Switches")
    expect(page.get_by_role("row", name=re.compile("gpu0"))).to_contain_text("dBm")

"""Takes screenshots of the console for the documentation.

    python -m benchmarks.console_shots rack [--out docs/images]        a running rack
    python -m benchmarks.console_shots synthetic [--out docs/images]   4,096 synthetic endpoints

``rack`` submits two jobs to the emulated rack of ``lightloom testbed up``, plans, applies, and
cancels the jobs. The pictures are not edited.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, Page, async_playwright

from benchmarks.console_service import synthetic_console
from benchmarks.console_speed import CHROMIUM
from testbed.rack.up import RUN_DIR
from testbed.token import rack_token

URL = "http://127.0.0.1:8470"
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
SETTLE_S = 2.5
SENDING = (
    "python3",
    "-u",
    "-c",
    # Each rank sends to the next one in the ring at the full rate of the link.
    "import json,os,socket,threading,time\n"
    "ring=[w.rsplit(':',1)[0] for w in json.loads(os.environ['TF_CONFIG'])['cluster']['worker']]\n"
    "me=int(os.environ['LIGHTLOOM_RANK'])\n"
    "s=socket.create_server(('',7777))\n"
    "def take():\n"
    "    while True:\n"
    "        c=s.accept()[0]\n"
    "        while c.recv(65536): pass\n"
    "threading.Thread(target=take,daemon=True).start()\n"
    "while True:\n"
    "    try:\n"
    "        c=socket.create_connection((ring[(me+1)%len(ring)],7777),5)\n"
    "        while True: c.sendall(bytes(65536))\n"
    "    except OSError: time.sleep(0.5)\n",
)
"""A job that only fills the network; `lightloom demo` runs real trainings."""


class Camera:
    """Opens views of one console and takes screenshots."""

    def __init__(self, browser: Browser, url: str, token: str | None, out: Path) -> None:
        self._browser = browser
        self._url = url
        self._token = token
        self._out = out

    async def open(self, scheme: Any = "light", size: Any = None) -> Page:
        """Return a page that is signed in."""
        context = await self._browser.new_context(viewport=size or DESK, color_scheme=scheme)
        page = await context.new_page()
        page.set_default_timeout(30_000)
        await page.goto(self._url)
        if self._token is not None:
            await page.get_by_label("Token").fill(self._token)
            await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("navigation", name="Views").wait_for()
        return page

    async def take(self, page: Page, where: str, name: str, wait_s: float = SETTLE_S) -> None:
        """Open a view and take a screenshot."""
        await page.evaluate(f"location.hash = '#/{where}'")
        await self.keep(page, name, wait_s)

    async def keep(self, page: Page, name: str, wait_s: float = SETTLE_S) -> None:
        """Take a screenshot of the current view."""
        await asyncio.sleep(wait_s)
        await page.screenshot(path=self._out / f"console-{name}.png")
        print(f"console-{name}.png", flush=True)


async def rack(out: Path) -> None:
    """Take the screenshots of the emulated rack."""
    token = rack_token(RUN_DIR)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx.AsyncClient(base_url=f"{URL}/api/v1", headers=headers, timeout=60) as api,
        async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        camera = Camera(browser, URL, token, out)
        try:
            for name, count in (("red", 4), ("blue", 2)):
                await _submit(api, name, count)
            await asyncio.sleep(12)
            await _pictures(camera)
        finally:
            for name in ("red", "blue", "green"):
                await api.post(f"/jobs/{name}/cancel")
            await browser.close()


async def _pictures(camera: Camera) -> None:
    page = await camera.open()
    await camera.take(page, "topology", "topology-light")
    await camera.take(page, "plan?job=red", "plan", 4)
    await camera.take(page, "topology", "plan-overlay")
    dark = await camera.open("dark")
    await camera.take(dark, "topology", "topology-dark")
    await camera.take(page, "plan", "plan", 1)
    await page.get_by_role("button", name="Apply …").click()
    await page.get_by_role("dialog").get_by_role("button", name="Apply", exact=True).click()
    await page.locator(".progress", has_text="committed").wait_for()
    await camera.keep(page, "applied", 1)
    await asyncio.sleep(12)
    await camera.take(page, "jobs/red", "job")
    await camera.take(page, "jobs", "jobs")
    await camera.take(page, "switches", "switches", 7)
    await camera.take(page, "events", "events")
    phone = await camera.open("light", PHONE)
    await camera.take(phone, "topology", "phone")


async def _submit(api: httpx.AsyncClient, name: str, count: int) -> None:
    body = {
        "name": name,
        "count": count,
        "locality": "any",
        "rank_order": "placed",
        "command": list(SENDING),
    }
    (await api.post("/jobs", json=body)).raise_for_status()
    for _ in range(120):
        if (await api.get(f"/jobs/{name}")).json()["state"] == "running":
            return
        await asyncio.sleep(0.5)
    raise SystemExit(f"{name} did not start")


async def synthetic(out: Path) -> None:
    """Take the screenshots of a synthetic site with 4,096 endpoints."""
    async with synthetic_console(4096) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        camera = Camera(browser, url, None, out)
        page = await camera.open()
        await camera.take(page, "topology?by=aggregator", "4096", 4)
        await page.evaluate("lightloom.view.scene.select('tile/as40')")
        await camera.keep(page, "4096-selected")
        await camera.take(page, "topology?focus=aggregator/as12", "4096-aggregator", 4)
        dark = await camera.open("dark")
        await camera.take(dark, "topology?by=aggregator", "4096-dark", 4)
        await browser.close()


def main() -> None:
    """Take the requested screenshots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["rack", "synthetic"])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    asyncio.run((rack if options.what == "rack" else synthetic)(options.out))


if __name__ == "__main__":
    main()

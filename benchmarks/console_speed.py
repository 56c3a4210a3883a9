"""Measures first paint, frame rate and idle cost of the console at 4,096 endpoints.

    python -m benchmarks.console_speed [--endpoints 4096] [--runs 3]

The browser is Debian's Chromium, headless, with software rendering (no GPU): a desktop with a GPU
is faster. The site is synthetic; this machine serves its lists and samples over loopback. Two
rivals in the same run draw every endpoint, port, fiber and circuit: ``uncollapsed``, the same page
with Cytoscape; ``svg``, the same layout with one SVG element each, which never changes and ignores
clicks. A program moves the view in the same way in all arms; arms that are fast enough are also
dragged with the mouse. The benchmark prints one JSON document with medians over the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import structlog
from playwright.async_api import Browser, Page, async_playwright

from benchmarks.console_service import synthetic_console

CHROMIUM = shutil.which("chromium") or f"{sys.prefix}/bin/chromium"
ARMS = {
    "by_aggregator": "#/topology?by=aggregator",
    "by_server": "#/topology?by=server",
    "svg": "#/switches",
    "uncollapsed": "#/topology?by=detail",
}
RIVALS = ("svg", "uncollapsed")
MOVE_S = 4.0
IDLE_S = 10.0
ARM_LIMIT_S = 300.0
"""Time limit for one arm; the result reports arms that exceed it."""
DRAWN = """() => new Promise((done) => {
  const look = () => {
    const scene = window.lightloom?.view?.scene;
    const count = scene?.cy.elements().length;
    if (!count) { setTimeout(look, 5); return; }
    window.shift = (x, y) => scene.pan(x, y);
    window.scale = (factor) => scene.zoom(factor);
    requestAnimationFrame(() => done(count));
  };
  look();
})"""
DRAWN_SVG = """async () => {
  const { detail } = await import("/console/js/topology/model.js");
  const { detailPositions, shapeOf } = await import("/console/js/topology/layout.js");
  const { svg, show } = await import("/console/js/ui/dom.js");
  const needed = ["endpoints", "aggregators", "circuits", "switches"];
  while (!needed.every((kind) => window.lightloom?.data.known.has(kind)))
    await new Promise((done) => setTimeout(done, 5));
  const { data } = lightloom;
  const model = detail(data.lists, { uplinks: data.site.uplinks });
  const places = detailPositions(model, shapeOf(model.endpoints.length, false));
  const parts = [];
  const line = (a, b) => {
    const [from, to] = [places.get(`port/${a}`) ?? places.get(a), places.get(`port/${b}`)];
    if (from && to) parts.push(svg("path", { d: `M${from.x} ${from.y}L${to.x} ${to.y}`,
      stroke: "gray", fill: "none", "stroke-width": 2 }));
  };
  for (const e of model.endpoints) line(`endpoint/${e.name}`, e.fiber);
  for (const a of model.aggregators)
    for (const p of a.shown) if (p.kind === "fiber") line(p.far, `${a.name}/${p.port}`);
  for (const c of model.circuits) line(`${c.switch}/${c.a}`, `${c.switch}/${c.b}`);
  for (const u of model.uplinks) line(u.a, u.b);
  for (const [id, at] of places) {
    const wide = id.startsWith("endpoint/");
    parts.push(svg("rect", { x: at.x - (wide ? 135 : 20), y: at.y - 12, width: wide ? 270 : 40,
      height: 24, rx: 4, fill: "lightsteelblue", stroke: "gray" }));
  }
  const all = svg("g", {}, parts);
  show(document.getElementById("main"),
    svg("svg", { width: "100%", height: "100%", viewBox: "0 0 1264 748" }, all));
  const box = all.getBBox();
  const view = { zoom: Math.min(1264 / box.width, 748 / box.height), x: 632, y: 374 };
  const put = () => all.setAttribute("transform",
    `translate(${view.x} ${view.y}) scale(${view.zoom}) translate(${-box.x - box.width / 2} ` +
    `${-box.y - box.height / 2})`);
  window.shift = (x, y) => { view.x += x; view.y += y; put(); };
  window.scale = (factor) => { view.zoom *= factor; put(); };
  put();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return parts.length;
}"""
MOVED = """(seconds) => new Promise((done) => {
  const began = performance.now(), gaps = [];
  let last = began, turn = 0;
  const step = (now) => {
    gaps.push(now - last);
    last = now;
    if (now - began > 1000 * seconds && gaps.length > 2) { done(gaps.slice(1)); return; }
    turn += 1;
    if (turn % 20) shift(18 * Math.cos(turn / 7), 11 * Math.sin(turn / 7));
    else scale(turn % 40 ? 1.4 : 1 / 1.4);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
BYTES = "performance.getEntriesByType('resource').reduce((sum, r) => sum + r.transferSize, 0)"
HEAP = "performance.memory.usedJSHeapSize"
FRAMES = """(seconds) => new Promise((done) => {
  const began = performance.now(), gaps = [];
  let last = began;
  const step = (now) => {
    gaps.push(now - last);
    last = now;
    if (now - began > 1000 * seconds) done(gaps.slice(1));
    else requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""


async def measure(browser: Browser, url: str, arm: str) -> dict[str, float]:
    """Open one arm in a fresh profile and measure it."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    page.set_default_timeout(ARM_LIMIT_S * 1000)
    await page.goto(f"{url}/{ARMS[arm]}")
    # The page polls every 5 ms whether it is drawn.
    elements = int(await page.evaluate(DRAWN_SVG if arm == "svg" else DRAWN))
    result: dict[str, float] = {
        "first_paint_s": await page.evaluate(PAINT) / 1000,
        "drawn_s": await page.evaluate("performance.now()") / 1000,
        "elements": elements,
        "transferred_bytes": await page.evaluate(BYTES),
        "heap_bytes": await page.evaluate(HEAP),
    }
    await asyncio.sleep(2.0)
    result |= _frames("moved", await page.evaluate(MOVED, MOVE_S))
    if arm not in RIVALS:
        result |= _frames("by_hand", await _dragged(page))
    result["idle_cpu_share"] = await _idle(page)
    await context.close()
    return result


def _frames(name: str, gaps: list[float]) -> dict[str, float]:
    """Return the frame rate and the slow frame times; ``gaps`` are the ms between frames."""
    ordered = sorted(gaps)
    return {
        f"{name}_frames_per_s": 1000 * len(ordered) / sum(ordered),
        f"{name}_frame_p95_ms": ordered[int(0.95 * (len(ordered) - 1))],
    }


async def _dragged(page: Page) -> list[float]:
    """Drag and zoom with mouse events; return the times between frames in ms."""
    await page.mouse.move(700, 450)
    await page.mouse.wheel(0, -300)
    frames = asyncio.ensure_future(page.evaluate(FRAMES, MOVE_S))
    await page.mouse.down()
    turn = 0.0
    while not frames.done():
        turn += 0.15
        await page.mouse.move(700 + 150 * math.sin(turn), 450 + 90 * math.cos(turn))
        if round(turn / 0.15) % 20 == 0:
            await page.mouse.up()
            await page.mouse.wheel(0, 120 if round(turn / 3) % 2 else -120)
            await page.mouse.down()
    await page.mouse.up()
    return list(await frames)


async def _idle(page: Page) -> float:
    """Return the share of a core that the page's main thread uses while only samples arrive."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")

    async def busy() -> float:
        metrics = (await session.send("Performance.getMetrics"))["metrics"]
        return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    before = await busy()
    await asyncio.sleep(IDLE_S)
    return (await busy() - before) / IDLE_S


async def run(endpoints: int, runs: int) -> dict[str, Any]:
    """Measure every arm ``runs`` times, one after the other in each round."""
    seen: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    async with synthetic_console(endpoints) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"],
        )
        version = browser.version
        given_up: list[str] = []
        for _ in range(runs):
            for arm in ARMS:
                print(arm, file=sys.stderr, flush=True)
                try:
                    async with asyncio.timeout(ARM_LIMIT_S):
                        seen[arm].append(await measure(browser, url, arm))
                except TimeoutError:
                    given_up.append(arm)
        await browser.close()
    arms = {
        arm: {key: round(statistics.median(r[key] for r in found), 4) for key in found[0]}
        for arm, found in seen.items()
        if found
    }
    return {
        "endpoints": endpoints,
        "runs": runs,
        "machine": f"{os.cpu_count()} cores, {_cpu()}",
        "browser": f"Chromium {version}, headless, software drawing",
        "site": "synthetic, served over loopback, one sample a second",
        "arms": arms,
        "given_up": given_up,
        "against": {
            rival: {
                arm: {
                    "frames_per_s": round(
                        found["moved_frames_per_s"] / arms[rival]["moved_frames_per_s"], 2
                    ),
                    "drawn_s": round(found["drawn_s"] / arms[rival]["drawn_s"], 3),
                }
                for arm, found in arms.items()
                if arm not in RIVALS
            }
            for rival in RIVALS
            if rival in arms
        },
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoints", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    # The API logs to stderr: stdout has only the document.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    print(json.dumps(asyncio.run(run(options.endpoints, options.runs)), indent=2))


if __name__ == "__main__":
    main()

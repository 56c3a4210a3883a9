"""Sites with several optical switches or many linked aggregators: no line hides behind a box."""

from __future__ import annotations

import pytest
from playwright.async_api import Page

from tests.web.mesh import mesh_console
from tests.web.world import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

CROSSINGS = """() => {
  const { cy } = lightloom.view.scene;
  const STEPS = 60;
  const middle = (p, q) => ({ x: (p.x + q.x) / 2, y: (p.y + q.y) / 2 });
  const along = (p, c, q) => Array.from({ length: STEPS + 1 }, (_, i) => {
    const t = i / STEPS, u = 1 - t;
    const at = (axis) => u * u * p[axis] + 2 * u * t * c[axis] + t * t * q[axis];
    return { x: at("x"), y: at("y") };
  });
  // Straight parts are curves whose control point lies on them.
  const path = (edge) => {
    const ends = [edge.sourceEndpoint(), edge.targetEndpoint()];
    const corners = edge.segmentPoints();
    if (corners) {
      const all = [ends[0], ...corners, ends[1]];
      return all.slice(1).flatMap((q, i) => along(all[i], middle(all[i], q), q));
    }
    const controls = edge.controlPoints() ?? [middle(...ends)];
    const joints = controls.slice(1).map((c, i) => middle(controls[i], c));
    const all = [ends[0], ...joints, ends[1]];
    return controls.flatMap((c, i) => along(all[i], c, all[i + 1]));
  };
  const found = [];
  for (const edge of cy.edges(".uplink")) {
    const own = [edge.source().parent().id(), edge.target().parent().id()];
    for (const box of cy.nodes(".aggregator")) {
      if (own.includes(box.id())) continue;
      const { x1, y1, x2, y2 } = box.boundingBox({ includeLabels: false });
      const inside = ({ x, y }) => x > x1 && x < x2 && y > y1 && y < y2;
      if (path(edge).some(inside)) found.push(`${edge.id()} crosses ${box.id()}`);
    }
  }
  return found;
}"""
COVERED = """() => {
  const { cy } = lightloom.view.scene;
  const box = cy.elements().renderedBoundingBox();
  return [box.x1, box.y1, box.w / cy.width(), box.h / cy.height()];
}"""
WINDOWS = [(1280, 800), (1920, 1080), (700, 1000)]


async def drawn(page: Page, url: str, uplinks: int) -> None:
    """Open the topology, and wait until it is drawn."""
    await page.goto("about:blank")
    await page.goto(url)
    await until(page, "Boolean(window.lightloom?.view?.scene)")
    await until(page, f"lightloom.view.scene.cy.edges('.uplink').length === {uplinks}")


@pytest.mark.parametrize(
    ("size", "meshed", "optical"), [(12, 3, 2), (6, 3, 1), (6, 2, 2), (24, 4, 2), (48, 6, 3)]
)
async def test_uplinks_go_around_aggregators(
    page: Page, size: int, meshed: int, optical: int
) -> None:
    async with mesh_console(size, meshed, optical) as url:
        for width, height in WINDOWS:
            await page.set_viewport_size({"width": width, "height": height})
            await drawn(page, url, meshed * (meshed - 1) // 2)
            assert await page.evaluate(CROSSINGS) == []
            x, y, wide, tall = await page.evaluate(COVERED)
            assert max(wide, tall) >= 0.8, "the drawing is small"
            assert min(x, y) >= 0, "the drawing is cut off"
            assert max(wide, tall) <= 1, "the drawing is cut off"


async def test_no_uplink_hides_another(page: Page) -> None:
    async with mesh_console(24, 4) as url:
        await drawn(page, url, 6)
        lanes = await page.evaluate(
            "lightloom.view.scene.cy.edges('.uplink').map((edge) => {"
            " const [one, other] = edge.segmentPoints();"
            " return [one.x, ...[one.y, other.y].sort((a, b) => a - b)]; })"
        )
        for i, (x, top, bottom) in enumerate(lanes):
            for other_x, other_top, other_bottom in lanes[i + 1 :]:
                apart = bottom < other_top or other_bottom < top
                assert apart or abs(x - other_x) > 20, lanes


async def test_the_papers_site_is_drawn_from_rank_to_rank(page: Page, url: str) -> None:
    await drawn(page, url, 1)
    assert await page.evaluate("lightloom.view.scene.cy.edges('.bulging').length") == 1
    across = await page.evaluate(
        "['endpoint/gpu0', 'port/ocs0/1.1.1', 'port/ocs0/2.1.1', 'port/as0/1', 'port/as0/8']"
        ".map((id) => lightloom.view.scene.cy.getElementById(id).position('x'))"
    )
    assert across == [0, 265, 545, 800, 800]
    level = await page.evaluate(
        "['port/as0/1', 'port/ocs0/2.1.1'].map("
        "(id) => lightloom.view.scene.cy.getElementById(id).position('y'))"
    )
    assert level[0] == level[1]

"""On the rack: a paused job's connections bear a regroup, there and back.

F14 without a clock: how long the gap is, is measured by benchmarks/reconfig_gap.py.
"""

from __future__ import annotations

from functools import partial

import pytest

from testbed import ring
from testbed.demo import homes
from testbed.demo.api import Controller
from testbed.demo.errors import DemoError
from tests.integration import waiting

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

RINGS = {"red": ["gpu0", "gpu2"], "blue": ["gpu1", "gpu3"]}
PATIENCE_S = 180.0
until = partial(waiting.until, limit_s=PATIENCE_S)


def told(controller: Controller, name: str) -> dict[int, ring.RankSeen]:
    """What a ring's ranks told in their latest lines, as far as agents answer."""
    lines: list[str] = []
    try:
        lines += (text for _, text in controller.logs(name, follow=False, tail=6))
    except DemoError as error:
        if error.code != "unavailable":
            raise
    return ring.read({"text": text} for text in lines)


def seen(controller: Controller) -> dict[tuple[str, int], ring.RankSeen]:
    """What every rank of both rings told."""
    return {(name, rank): one for name in RINGS for rank, one in told(controller, name).items()}


def container_ids(controller: Controller) -> set[str]:
    """Of those that the agents saw last; one that is late for a look leaves its own out."""
    return {c["container_id"] for c in controller.items("/containers")}


def test_rings_lose_and_repeat_nothing_and_keep_their_connections(
    controller: Controller,
) -> None:
    for name, ends in RINGS.items():
        controller.post("/jobs", ring.request(name, ends, "pause"))
    until(lambda: len(seen(controller)) == 4 and all(s.rx_bytes for s in seen(controller).values()))
    containers: set[str] = set()
    while len(containers) < 4:
        containers |= container_ids(controller)
    apart = homes.present(controller)
    for target in ("together", "apart"):
        plan = controller.post("/plans", {})
        if target == "apart":
            now = homes.present(controller)
            back = [e for e in apart if now[e] != apart[e]]
            moves = [{"endpoint": e, "from": now[e], "to": apart[e]} for e in back]
            plan |= {"moves": moves, "circuits": {}, "homes_after": apart, "basis": None}
        assert plan["moves"]
        done = controller.post("/transactions", {"plan": plan}, wait_s=60)
        assert done["state"] == "committed", done["error"]
        assert done["dark_time_s"], "light was cut"
        until(lambda: len(seen(controller)) == 4)
        counted = {key: one.rx_bytes for key, one in seen(controller).items()}

        def flows(counted: dict[tuple[str, int], int] = counted) -> bool:
            now = seen(controller)
            return len(now) == 4 and all(now[key].rx_bytes > counted.get(key, 0) for key in now)

        until(flows)
        latest: dict[tuple[str, int], ring.RankSeen] = {}
        while len(latest) < 4:
            latest |= seen(controller)
        for key, one in latest.items():
            assert one.connections == 1, (target, key)
            assert (one.strangers, one.lost, one.repeated) == (0, 0, 0), (target, key)
    until(lambda: container_ids(controller) == containers)

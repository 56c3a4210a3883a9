"""On the rack: a paused job's connections bear a regroup, there and back.

F14 without a clock: how long the gap is, is measured by benchmarks/reconfig_gap.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from testbed import ring
from testbed.mortal import Mortal, taken_over
from tests.integration.racks import rack_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

PAPER = Path(testbed.__file__).parent / "sites" / "paper.yaml"
RINGS = {"red": ["gpu0", "gpu2"], "blue": ["gpu1", "gpu3"]}


@pytest.fixture
def mortal() -> Iterator[Mortal]:
    run_dir = Path(f"/run/lightloom/test-{os.getpid()}")
    with rack_of(PAPER, run_dir) as status, taken_over(status, run_dir) as one:
        yield one


def seen(mortal: Mortal) -> dict[tuple[str, int], ring.RankSeen]:
    """What every rank of both rings told in its latest lines."""
    return {
        (name, rank): told
        for name in RINGS
        for rank, told in ring.read(mortal.log_lines(name, tail=6)).items()
    }


def container_ids(mortal: Mortal) -> set[str]:
    """Of those that the agents saw last; one that is late for a look leaves its own out."""
    return {c["container_id"] for c in mortal.get("/containers")["items"]}


def homes(mortal: Mortal) -> dict[str, str | None]:
    return {e["name"]: e["home"] for e in mortal.get("/endpoints")["items"]}


def test_rings_lose_and_repeat_nothing_and_keep_their_connections(mortal: Mortal) -> None:
    for name, ends in RINGS.items():
        mortal.post("/jobs", ring.request(name, ends, "pause"))
    mortal.until(lambda: len(seen(mortal)) == 4 and all(s.rx_bytes for s in seen(mortal).values()))
    containers: set[str] = set()
    while len(containers) < 4:
        containers |= container_ids(mortal)
    apart = homes(mortal)
    for target in ("together", "apart"):
        plan = mortal.post("/plans", {})
        if target == "apart":
            now = homes(mortal)
            back = [e for e in apart if now[e] != apart[e]]
            moves = [{"endpoint": e, "from": now[e], "to": apart[e]} for e in back]
            plan |= {"moves": moves, "circuits": {}, "homes_after": apart, "basis": None}
        assert plan["moves"]
        done = mortal.post("/transactions", {"plan": plan}, wait_s=60)
        assert done["state"] == "committed", done["error"]
        assert done["dark_time_s"], "light was cut"
        mortal.until(lambda: len(seen(mortal)) == 4)
        counted = {key: told.rx_bytes for key, told in seen(mortal).items()}

        def flows(counted: dict[tuple[str, int], int] = counted) -> bool:
            now = seen(mortal)
            return len(now) == 4 and all(now[key].rx_bytes > counted.get(key, 0) for key in now)

        mortal.until(flows)
        latest: dict[tuple[str, int], ring.RankSeen] = {}
        while len(latest) < 4:
            latest |= seen(mortal)
        for key, told in latest.items():
            assert told.connections == 1, (target, key)
            assert (told.strangers, told.lost, told.repeated) == (0, 0, 0), (target, key)
    mortal.until(lambda: container_ids(mortal) == containers)

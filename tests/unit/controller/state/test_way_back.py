"""An older release goes on with the store that this one wrote, and this one with what it wrote."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

from controller.state.kept.drains import Drains, LeftContainers
from controller.state.kept.rollouts import ROLLOUTS, RolloutRecord
from controller.state.writes import PutRecords
from controller.store.store import Store
from sitefile import load_site
from tests.parts.sites import PAPER

ROLLOUT = RolloutRecord(
    id="o1",
    plan_id="p1",
    batches=(),
    total=0,
    least=0,
    max_dark=1,
    max_pauses=1,
    park=False,
    started_at=1.0,
)


def test_an_older_release_reads_what_lost_runs_left() -> None:
    """It takes three values of each, and writes them back without the endpoints."""
    drains = Drains(load_site(PAPER))
    drains.leave("red", 4, ["gpu0", "gpu2"])
    drains.leave("red", 4, ["gpu1"])
    facts = drains.left_facts()
    assert json.loads(facts["left_runs"]) == [["red", 4, "srv0"], ["red", 4, "srv1"]]
    again = Drains(load_site(PAPER))
    again.restore(facts)
    assert set(again.left) == set(drains.left)
    facts["left_runs"] = json.dumps([["red", 4, "srv0"], ["blue", 5, "srv1"]])
    again.restore(facts)
    assert again.left == (
        LeftContainers("red", 4, "srv0", ("gpu0",)),
        LeftContainers("red", 4, "srv0", ("gpu1",)),
        LeftContainers("blue", 5, "srv1", ("gpu2", "gpu3")),
    )


async def test_an_older_release_reads_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "controller.sqlite"
    store = Store(path)
    making_room = replace(ROLLOUT, id="o2", room_for="blue", room=("gpu0",), started_at=2.0)
    await store.load()
    await store.commit(PutRecords(ROLLOUTS, [ROLLOUT, making_room]))
    loaded = await store.load()
    await store.close()
    assert list(loaded.records["rollouts"]) == [ROLLOUT, making_room]
    with sqlite3.connect(path) as db:
        rows = db.execute("select body from rollouts order by id").fetchall()
    assert ["room" in json.loads(body) for (body,) in rows] == [False, True]

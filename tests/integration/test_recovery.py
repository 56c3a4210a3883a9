"""On the rack: the controller dies at a failpoint, and the next one converges.

One rack, one death a failpoint, with real switches, flow tables, containers and a real
SIGKILL's end. Two jobs run all the time as rings of TCP senders: they may see a gap, but never a
stranger, never a broken connection, and never the end. The run over every *passage* of every
point, without a rack, is tests/unit/controller/base/test_failpoints.py.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx
import pytest

import testbed
from controller.base import failpoints
from testbed import ring
from testbed.mortal import Mortal, taken_over
from tests.integration.racks import rack_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

PAPER = Path(testbed.__file__).parent / "sites" / "paper.yaml"
RINGS = {"red": ["gpu0", "gpu2"], "blue": ["gpu1", "gpu3"]}
SPARE = "gpu4"
ATTACH_PATH = f"/endpoints/{SPARE}/attachment"
OUT_OF_USE = "as0/9"
"""A port that the rack does not use."""

ROLLED_BACK, COMMITTED, UNHEARD_OF, LOGGED = "rolled_back", "committed", "unheard of", "logged"
REGROUP = {
    "log-admit.before": UNHEARD_OF,
    "log-admit.after": ROLLED_BACK,
    "freeze.before": ROLLED_BACK,
    "freeze.after": ROLLED_BACK,
    "drain.before": ROLLED_BACK,
    "drain.after": ROLLED_BACK,
    "switch.before": ROLLED_BACK,
    "switch.after": ROLLED_BACK,
    "qualify.before": ROLLED_BACK,
    "qualify.after": ROLLED_BACK,
    "log-proven.before": ROLLED_BACK,
    "log-proven.after": COMMITTED,
    "route.before": COMMITTED,
    "route.after": COMMITTED,
    "thaw.before": COMMITTED,
    "thaw.after": COMMITTED,
    "log-commit.before": COMMITTED,
    "log-commit.after": LOGGED,
}
"""Points that a regroup of both rings passes, and what becomes of the transaction."""
ROLLOUT = {"switch.after": 3, "route.before": 2}
"""Points in the first of two batches, and the transactions that it takes then: the batch that is
rolled back is begun again, the one that is committed is not."""
SUBMIT = ("save-job", "flows", "start")
CANCEL = ("stop",)
ATTACH = ("stop-for-restart",)
RESTART = ("save-intent", "log-recovered")
RELEASE = ("save-quarantine",)
"""Places passed by other operations; each with both its sides."""
ALWAYS = frozenset(
    {
        "switch.after",
        "log-proven.after",
        "start.after",
        "stop.before",
        "stop-for-restart.after",
        "log-recovered.before",
        "save-quarantine.after",
    }
)
"""Points for every change, one of each operation; the others repeat them (``make soak``)."""


def sides(*places: str) -> list[str]:
    return [f"{place}.{side}" for place in places for side in ("before", "after")]


class Story:
    """The rack with both rings, and one death after the other."""

    def __init__(self, mortal: Mortal, run_dir: Path) -> None:
        self.mortal = mortal
        self.store = run_dir / "controller" / "controller.sqlite"
        for name, ends in RINGS.items():
            mortal.post("/jobs", ring.request(name, ends))
        mortal.until(self.rings_run)
        self.before = self.homes()
        self.containers: set[str] = set()
        mortal.until(self.four_containers)
        mortal.until(lambda: min(self.received().values(), default=0) > 0)

    # --- what is seen ---------------------------------------------------------------------

    def homes(self) -> dict[str, str | None]:
        return {e["name"]: e["home"] for e in self.mortal.get("/endpoints")["items"]}

    def container_ids(self) -> set[str]:
        items = self.mortal.get("/containers")["items"]
        return {c["container_id"] for c in items if c["job"] in RINGS}

    def rings_run(self) -> bool:
        return all(self.mortal.get(f"/jobs/{name}")["state"] == "running" for name in RINGS)

    def seen(self) -> dict[tuple[str, int], ring.RankSeen]:
        """What every rank of both rings told in its latest lines."""
        return {
            (name, rank): seen
            for name in RINGS
            for rank, seen in ring.read(self.mortal.log_lines(name, tail=6)).items()
        }

    def received(self) -> dict[tuple[str, int], int]:
        seen = self.seen()
        return {key: s.rx_bytes for key, s in seen.items()} if len(seen) == 4 else {}

    def transaction(self, ident: str) -> str:
        answer = self.mortal.http.get(f"/transactions/{ident}")
        return str(answer.json()["state"]) if answer.is_success else UNHEARD_OF

    def last_transaction(self) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as db:
            rows = dict(db.execute("SELECT key, value FROM facts"))
        return int(rows.get("transactions", 0))

    # --- one death ------------------------------------------------------------------------

    def dies(self, point: str, act: Callable[[], object]) -> None:
        """Arm ``point``, act, wait for the death, and start the next controller."""
        self.mortal.die_at(point)
        with contextlib.suppress(httpx.TransportError):  # it may die before it has answered
            act()
        assert self.mortal.died() == failpoints.EXIT_STATUS, point
        assert not self.mortal.deathbed.exists(), point
        print(f"{point}: whole {self.mortal.start():.3f} s after the next start")

    def check(self, point: str, *allowed: dict[str, str | None]) -> None:
        """Old or new epoch; one circuit a port; the same containers, all running; bytes flow."""
        mortal = self.mortal
        mortal.until(self.rings_run)
        assert self.homes() in allowed, point
        ports = [c[side] for c in mortal.get("/circuits")["items"] for side in ("a", "b")]
        assert len(ports) == len(set(ports)), point
        mortal.until(lambda: self.states() == {"running"})
        mortal.until(self.same_containers)
        counted = self.received()
        mortal.until(lambda: self.grown(counted))
        seen_by_all: dict[tuple[str, int], ring.RankSeen] = {}

        def heard() -> bool:
            seen_by_all.update(self.seen())
            return len(seen_by_all) == 4

        mortal.until(heard)
        for key, seen in seen_by_all.items():
            assert (seen.strangers, seen.connections) == (0, 1), (point, key)
            assert (seen.lost, seen.repeated) == (0, 0), (point, key)

    def four_containers(self) -> bool:
        self.containers |= self.container_ids()
        return len(self.containers) == 4

    def same_containers(self) -> bool:
        """Whether all that were there at first are seen; an agent may be late for one look."""
        return self.container_ids() == self.containers

    def states(self) -> set[str]:
        return {c["state"] for c in self.mortal.get("/containers")["items"]}

    def grown(self, counted: dict[tuple[str, int], int]) -> bool:
        now = self.received()
        return bool(counted) and bool(now) and all(now[key] > counted[key] for key in counted)

    def regroup(self, point: str, outcome: str) -> None:
        plan = self.mortal.post("/plans", {})
        assert plan["moves"], point
        ident = f"t{self.last_transaction() + 1}"
        self.dies(point, lambda: self.mortal.http.post("/transactions", json={"plan": plan}))
        expected = COMMITTED if outcome == LOGGED else outcome
        self.mortal.until(lambda: self.transaction(ident) == expected)
        moved = outcome in (COMMITTED, LOGGED)
        self.check(point, plan["homes_after"] if moved else self.before)
        self.spread_out()

    def roll_out(self, point: str, begun: int) -> None:
        """Die in the first batch of two; the next controller goes on with the rollout."""
        plan = self.mortal.post("/plans", {"max_dark": 1})
        assert plan["batches"]["batches"] == 2, point
        self.dies(point, lambda: self.mortal.http.post("/rollouts", json={"plan": plan}))
        last = self.mortal.get("/rollouts")["items"][-1]["id"]
        self.mortal.until(lambda: self.mortal.get(f"/rollouts/{last}")["finished_at"])
        done = self.mortal.get(f"/rollouts/{last}")
        assert (done["state"], done["done"]) == (COMMITTED, 2), done
        assert len(done["transactions"]) == begun, done
        self.check(point, plan["homes_after"])
        self.spread_out()

    def spread_out(self) -> None:
        """Bring every endpoint back to its first home, by a plan written by hand."""
        now = self.homes()
        moves = [
            {"endpoint": e, "from": now[e], "to": home}
            for e, home in self.before.items()
            if now[e] != home
        ]
        if moves:
            made = self.mortal.post("/plans", {})
            plan = {
                **made,
                "moves": moves,
                "circuits": {},
                "homes_after": self.before,
                "basis": None,
            }
            done = self.mortal.post("/transactions", {"plan": plan}, wait_s=30)
            assert done["state"] == COMMITTED, done

    def spare(self) -> str:
        answer = self.mortal.http.get("/jobs/spare")
        return str(answer.json()["state"]) if answer.is_success else "none"

    def submit_spare(self) -> None:
        self.mortal.post("/jobs", ring.request("spare", [SPARE], "restart"))
        self.mortal.until(lambda: self.spare() == "running")

    def cancel_spare(self) -> None:
        """End the spare job and wait until its container is gone.

        It starts first, if it was on the way: a point that it passes must not be the next death's.
        """
        self.mortal.until(lambda: self.spare() not in ("starting", "pending"))
        if self.spare() == "running":
            self.mortal.http.post("/jobs/spare/cancel")
        self.mortal.until(
            lambda: (
                self.same_containers()
                and all(c["job"] in RINGS for c in self.mortal.get("/containers")["items"])
            )
        )


def some(points: Iterable[str]) -> list[object]:
    """Return parameters: those of ALWAYS, and the rest for ``make soak``."""
    return [
        point if point in ALWAYS else pytest.param(point, marks=pytest.mark.soak)
        for point in points
    ]


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """One rack for all deaths; each test leaves it as it was at first."""
    run_dir = Path(f"/run/lightloom/test-{os.getpid()}")
    with rack_of(PAPER, run_dir) as status, taken_over(status, run_dir) as mortal:
        yield Story(mortal, run_dir)


def test_every_failpoint_is_here() -> None:
    places = (*SUBMIT, *CANCEL, *ATTACH, *RESTART, *RELEASE)
    assert {*REGROUP, *ROLLOUT, *sides(*places)} == set(failpoints.POINTS)


@pytest.mark.parametrize("point", some(REGROUP))
def test_a_controller_dies_in_a_regroup(story: Story, point: str) -> None:
    story.regroup(point, REGROUP[point])


@pytest.mark.parametrize("point", some(ROLLOUT))
def test_a_controller_dies_in_the_first_batch_of_two(story: Story, point: str) -> None:
    story.roll_out(point, ROLLOUT[point])


@pytest.mark.parametrize("point", some(sides(*SUBMIT)))
def test_a_controller_dies_while_a_job_begins(story: Story, point: str) -> None:
    spare = ring.request("spare", [SPARE], "restart")
    story.dies(point, lambda: story.mortal.http.post("/jobs", json=spare))
    story.check(point, story.before)
    story.cancel_spare()


@pytest.mark.parametrize("point", some(sides(*CANCEL)))
def test_a_controller_dies_while_a_job_is_cancelled(story: Story, point: str) -> None:
    story.submit_spare()
    story.dies(point, lambda: story.mortal.http.post("/jobs/spare/cancel"))
    story.mortal.until(lambda: story.spare() in ("running", "cancelled", "failed"))
    story.cancel_spare()
    story.check(point, story.before)


@pytest.mark.parametrize("point", some(sides(*ATTACH)))
def test_a_controller_dies_while_a_job_restarts_for_its_light(story: Story, point: str) -> None:
    story.submit_spare()
    body = {"aggregator": "as1"}
    story.dies(point, lambda: story.mortal.http.post(ATTACH_PATH, json=body))
    story.mortal.until(lambda: story.spare() == "running")
    story.check(point, story.before)
    story.cancel_spare()


@pytest.mark.parametrize("point", some(sides(*RESTART)))
def test_a_controller_dies_again_while_it_recovers(story: Story, point: str) -> None:
    mortal = story.mortal
    mortal.die_at("switch.after")
    plan = mortal.post("/plans", {})
    with contextlib.suppress(httpx.TransportError):
        mortal.http.post("/transactions", json={"plan": plan})
    mortal.died()
    story.dies(point, mortal.spawn)
    story.check(point, story.before)


@pytest.mark.parametrize("point", some(sides(*RELEASE)))
def test_a_controller_dies_while_a_port_is_put_back_into_use(story: Story, point: str) -> None:
    mortal = story.mortal
    mortal.kill()
    with contextlib.closing(sqlite3.connect(story.store)) as db, db:
        row = (OUT_OF_USE, "put out of use by a test", time.time())
        db.execute("INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?)", row)
    mortal.start()
    story.dies(point, lambda: mortal.http.post(f"/quarantine/{OUT_OF_USE}/release"))
    gone = not mortal.get("/quarantine")["items"]
    assert gone == point.endswith("after")
    story.check(point, story.before)

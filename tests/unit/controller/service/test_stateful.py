"""Random stories: jobs come and go, light is regrouped, devices fail, the controller crashes.

Hypothesis generates the stories. After every step the test checks the invariants that no fault
may break; when no fault is present any more, the devices must also match the intent.

Takes some thirty seconds by default; ``LIGHTLOOM_STORIES`` sets the number of stories.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.devices.engine import RankState
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.rules.program import diff
from controller.schema.jobs import JobRequest
from controller.schema.plans import PlanRequest, PlanView
from tests.parts.controller.disk import FAULTS, Fault
from tests.parts.controller.failpoints import Reaper
from tests.parts.controller.rack import Rack, crash
from tests.parts.controller.see import owes
from tests.parts.openflow.fake_table import FakeFabric, FakeTable, arp, udp

STORIES = int(os.environ.get("LIGHTLOOM_STORIES", "10"))
STEPS = 20
ENDPOINTS = [f"gpu{n}" for n in range(6)]
PORTS = [f"2.{a}.{p}" for a in (1, 2) for p in range(1, 5)]
HOMES = ["as0"] * 3 + ["as1"] * 3
LIVE = (RankState.RUNNING, RankState.PAUSED)
BRIEFLY_S = 10.0
"""Long enough for a job that is starting to give up a path that does not work."""
WAIT_S = 60.0
"""How long a client waits for a change: a switch that has gone is waited for several times."""
REST_S = 60.0
"""Time for all that is tried again by itself, with the longest pause between two attempts."""


class Story(RuleBasedStateMachine):
    """One controller over devices in memory, and a model of what clients were told."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="ll-story-"))
        self.rack = Rack(self.folder)
        self.acknowledged: dict[str, str] = {}
        """Jobs by the last answer to their owner: ``there`` or ``cancelled``."""
        self.numbers = itertools.count(1)
        self.epoch = 0
        self.history: dict[int, tuple[dict[str, AttachPoint], dict[str, str]]] = {}
        """By epoch: the attachments and the holders of endpoints that were shown."""
        self.ended: dict[str, str] = {}
        """Transactions whose end was reported, and their end."""
        self.refused: set[str] = set()
        """Jobs whose submission was answered with an error."""
        self.over: dict[str, str] = {}
        """Jobs that were seen as ended, and their end."""

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.do(self._end())
        self.loop.close()
        shutil.rmtree(self.folder)

    async def _end(self) -> None:
        self._mend()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.rack.down(), 60)

    def _mend(self) -> None:
        rack = self.rack
        rack.switch.dull.clear()
        rack.switch.refused.clear()
        rack.switch.away = rack.switch.late = False
        rack.engine.lost, rack.engine.broken = set(), set()
        rack.aggregators.away = set()
        if hasattr(rack, "disk"):
            rack.disk.release()

    def broken(self) -> bool:
        rack = self.rack
        return bool(
            rack.switch.refused
            or rack.switch.dull
            or rack.switch.away
            or rack.switch.late
            or rack.engine.lost
            or rack.engine.broken
            or rack.aggregators.away
            or rack.disk.fault
        )

    # --- steps ----------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.do(self.rack.up())

    @rule(
        ends=st.permutations(ENDPOINTS).flatmap(lambda p: st.integers(1, 3).map(lambda n: p[:n])),
        named=st.sampled_from([True, True, False]),
        policy=st.sampled_from(["pause", "live", "restart"]),
        locality=st.sampled_from(["any", "preferred", "regroup"]),
    )
    def submit(self, ends: list[str], named: bool, policy: str, locality: str) -> None:
        """Submit a job on these endpoints, or on the same number of any."""
        name = f"job-{next(self.numbers)}"
        body = {"name": name, "count": len(ends), "policy": policy, "locality": locality}
        if named:
            body["endpoints"] = ends
        try:
            self.do(self.rack.service.commands.submit(JobRequest.model_validate(body)))
        except ServiceError:
            self.refused.add(name)
            return
        self.acknowledged[name] = "there"
        self.do(self._started(name))

    async def _started(self, name: str) -> None:
        """Wait briefly: a job that is starting conflicts with all other operations."""
        with contextlib.suppress(TimeoutError):
            await self.rack.until(
                lambda: self._state_of(name) not in ("pending", "starting"), BRIEFLY_S
            )

    def _state_of(self, name: str) -> str:
        return self.rack.service._state.jobs[name].state

    @rule(data=st.data())
    @precondition(lambda self: "there" in self.acknowledged.values())
    def cancel(self, data: st.DataObject) -> None:
        there = [name for name, state in self.acknowledged.items() if state == "there"]
        name = data.draw(st.sampled_from(there))
        with contextlib.suppress(ServiceError):
            self.do(self.rack.service.commands.cancel(name))
            self.acknowledged[name] = "cancelled"

    @rule(wait_s=st.sampled_from([0.0, WAIT_S, WAIT_S]), wanted=st.permutations(HOMES))
    def regroup(self, wait_s: float, wanted: list[str]) -> None:
        self.do(self._regroup(wait_s, wanted))

    async def _regroup(self, wait_s: float, wanted: list[str]) -> None:
        """Apply the planner's plan, or a random one if the planner finds no gain."""
        with contextlib.suppress(ServiceError):
            plan = await self.rack.service.commands.make_plan(PlanRequest(time_limit_s=0.2))
            if not plan.moves:
                now = {e.name: e.home for e in await self.rack.service.queries.endpoints()}
                moves = [
                    {"endpoint": e, "from": now[e], "to": home}
                    for e, home in zip(ENDPOINTS, wanted, strict=True)
                    if now[e] != home
                ]
                update = {"moves": moves, "homes_after": {}, "circuits": {}, "basis": None}
                plan = PlanView.model_validate(plan.model_dump(by_alias=True) | update)
            if plan.moves:
                shown = await self.rack.service.commands.apply(plan, wait_s)
                if shown.finished_at is not None:
                    self.ended[shown.id] = shown.state

    @rule(endpoint=st.integers(0, 5), aggregator=st.sampled_from(["as0", "as1", None]))
    def attach(self, endpoint: int, aggregator: str | None) -> None:
        move = mock.Mock(aggregator=aggregator)
        with contextlib.suppress(ServiceError):
            self.do(self.rack.service.commands.attach(f"gpu{endpoint}", move, WAIT_S))

    @rule(at=st.integers(1, 25), wanted=st.permutations(HOMES))
    def die_and_come_back(self, at: int, wanted: list[str]) -> None:
        """Crash at the ``at``-th failpoint of a regroup, or after it, and restart."""
        self.do(self._die(at, wanted))

    async def _die(self, at: int, wanted: list[str]) -> None:
        reaper = Reaper(at)
        with failpoints.hooked(reaper):
            life = asyncio.create_task(self._regroup(WAIT_S, wanted))
            death = asyncio.create_task(reaper.died.wait())
            await asyncio.wait({life, death}, return_when=asyncio.FIRST_COMPLETED)
            for task in (life, death):
                task.cancel()
            await asyncio.gather(life, death, return_exceptions=True)
            unsure = owes(self.rack.service.journal)
            await crash(self.rack)
        if unsure:  # answers may have been "not known": the store decides
            durable, log = self._on_disk()
            self.refused -= durable.keys()
            # A transaction that did not begin has no row, and its number may be used again.
            self.ended = {i: said for i, said in self.ended.items() if i in log}
            # Epochs that were only in memory are counted again.
            self.epoch = 0
            self.history.clear()
        away = set(self.rack.aggregators.away)
        with mock.patch.object(self.rack, "until", _at_once):
            await self.rack.up()
        self.rack.aggregators.away = away

    @rule(
        fault=st.sampled_from(
            ["dull", "refused", "switch", "late", "server", "aggregator", "freeze"]
        ),
        which=st.integers(0, 7),
    )
    @precondition(lambda self: not self.broken())
    def fail(self, fault: str, which: int) -> None:
        rack = self.rack
        match fault:
            case "dull":
                rack.switch.dull = {(f"1.1.{e}", PORTS[which]) for e in range(1, 7)}
            case "refused":
                rack.switch.refused = {PORTS[which]}
            case "switch":
                rack.switch.away = True
            case "late":
                rack.switch.late = True
            case "server":
                rack.engine.lost = {f"srv{which % 4}"}
            case "aggregator":
                rack.aggregators.away = {f"as{which % 2}"}
            case "freeze":
                rack.engine.broken = {"freeze"}

    @rule(fault=st.sampled_from(FAULTS), after=st.integers(0, 6))
    @precondition(lambda self: not self.broken())
    def the_disk_fails(self, fault: Fault, after: int) -> None:
        """The disk fails from the next durable write on, or after a few more writes."""
        self.rack.disk.fault, self.rack.disk.after = fault, after

    @rule()
    @precondition(lambda self: self.broken())
    def mend(self) -> None:
        self._mend()

    @rule(port=st.integers(0, 5))
    @precondition(lambda self: not self.broken())
    def a_fiber_is_pulled(self, port: int) -> None:
        """Light is lost without a command of the controller."""
        circuits = self.rack.switch.circuits
        self.rack.switch.circuits = [c for c in circuits if c.a != f"1.1.{port + 1}"]

    @rule()
    def the_quarantine_is_emptied(self) -> None:
        for entry in self.do(self.rack.service.queries.quarantine()):
            with contextlib.suppress(ServiceError):
                self.do(self.rack.service.commands.release(entry.object))

    @rule()
    @precondition(lambda self: not self.broken())
    def all_comes_to_rest(self) -> None:
        """Without faults the devices match the intent, and no container is frozen."""
        try:
            self.do(self.rack.until(self._at_rest, limit_s=REST_S))
        except TimeoutError:
            # Most circuits vanished at once: the controller waits for an operator's "repair".
            self.do(self.rack.service.commands.repair("ocs0"))
            self.do(self.rack.until(self._at_rest, limit_s=REST_S))
        state = self.rack.service._state
        assert self.rack.aggregators.light() == state.light.attachments, "I4: light = intent"
        assert self._flows_right(), "I4: flows = intent"
        running = {job.name: job for job in state.jobs.values() if job.state == "running"}
        there = self.rack.engine.statuses.values()
        assert {s.job for s in there if s.state in LIVE} == running.keys(), "I4: containers"
        for name, job in running.items():
            assert {s.endpoint for s in there if s.job == name} == set(job.endpoints)
            assert self.rack.engine.states(name) == {RankState.RUNNING}, "no container stays frozen"
        self._reach(whole=True)

    async def _at_rest(self) -> bool:
        state = self.rack.service._state
        health = await self.rack.service.queries.health()
        states = {job.state for job in state.jobs.values()}
        there = {s.job for s in self.rack.engine.statuses.values()}
        running = {job.name for job in state.jobs.values() if job.state == "running"}
        return (
            health.status == "ok"
            and not state.transactions.running
            and not state.jobs.owed
            and not state.light.held
            and "starting" not in states
            and there == running
            and all(self.rack.engine.states(name) == {RankState.RUNNING} for name in running)
            and self.rack.aggregators.light() == state.light.attachments
            and self._flows_right()
        )

    def _flows_right(self) -> bool:
        state = self.rack.service._state
        now = state.forwarding()
        wanted = compiler.compile(self.rack.site, now.epoch, now.attachments, now.jobs, now.held)
        have = self.rack.aggregators.programs
        return not any(diff(have[name], wanted[name]) for name in wanted)

    # --- invariants after every step ------------------------------------------------------

    @invariant()
    def i1_the_map_is_a_matching(self) -> None:
        ports = [port for c in self.rack.switch.circuits for port in (c.a, c.b)]
        assert len(ports) == len(set(ports))

    @invariant()
    def i2_an_endpoint_has_one_job_and_one_container(self) -> None:
        live = [s.endpoint for s in self.rack.engine.statuses.values() if s.state in LIVE]
        assert len(live) == len(set(live))
        if hasattr(self.rack, "service"):
            jobs = self.rack.service._state.jobs.values()
            held = [e for job in jobs if job.holding for e in job.endpoints]
            assert len(held) == len(set(held))

    @invariant()
    def i3_no_frame_leaves_its_job(self) -> None:
        if hasattr(self.rack, "service"):
            self._reach(whole=False)

    def _reach(self, *, whole: bool) -> None:
        """Follow frames through the present flow tables and circuits."""
        site, state = self.rack.site, self.rack.service._state
        programs = self.rack.aggregators.programs
        if programs.keys() != {a.name for a in site.aggregators}:
            return  # no flows were installed, so no frame passes
        fabric = FakeFabric(site, {n: FakeTable.of(p) for n, p in programs.items()})
        light = self.rack.aggregators.light()
        there = {(at.aggregator, at.port): e for e, at in light.items()}
        inhabited = {
            s.endpoint: s.job for s in self.rack.engine.statuses.values() if s.state in LIVE
        }
        for source, target in itertools.permutations(inhabited, 2):
            a, b = site.endpoint(source), site.endpoint(target)
            if source not in light:
                continue
            at = light[source]
            for packet in (udp(a.mac, b.mac, a.ip, b.ip), arp(a.mac, b.mac, a.ip, b.ip)):
                ends = fabric.leaves(packet, at.aggregator, at.port)
                found = {there.get((where, port)) for where, port, _ in ends} - {None}
                mates = {e for e, job in inhabited.items() if job == inhabited[source]}
                assert found <= mates | (set(light) - inhabited.keys()), (source, target, found)
                if whole and inhabited[source] == inhabited[target]:
                    assert state.jobs[inhabited[source]].state == "running"
                    assert found == {target}, "members of a job reach each other"

    @invariant()
    def i4_every_resource_has_an_owner(self) -> None:
        """Circuits, rules and containers belong to the intent or to a running transaction."""
        if not hasattr(self.rack, "service"):
            return
        state = self.rack.service._state
        pulled = self.rack.service._adopter._wanted
        for endpoint, at in self.rack.aggregators.light().items():
            owed = self.rack.service._interrupted.owed
            owners = {state.light.attachments.get(endpoint), owed.get(endpoint)}
            for running in state.transactions.running.values():
                for path in running.tx.paths:
                    if path.endpoint == endpoint:
                        owners |= {path.before, path.after}
            unread = "ocs0" not in state.light.foreign_points or endpoint in pulled
            lost = endpoint in state.light.quarantine  # a dull mirror may work again
            assert at in owners or unread or lost or self.broken(), (endpoint, at, owners)
        for name, program in self.rack.aggregators.programs.items():
            assert program.epoch <= state.epoch, f"{name} has rules of an unknown epoch"
        for status in self.rack.engine.statuses.values():
            assert status.job in state.jobs, "a container of an unknown job"
            assert status.epoch <= state.epoch

    @invariant()
    def i5_acknowledged_changes_are_on_the_disk(self) -> None:
        if not hasattr(self.rack, "service"):
            return
        jobs, log = self._on_disk()
        for name, said in self.acknowledged.items():
            assert name in jobs
            if said == "cancelled":
                assert jobs[name] in ("cancelled", "failed", "completed"), (name, jobs[name])
        for ident, said in self.ended.items():
            assert ident not in log or log[ident], "an end was reported before it was durable"
            assert ident in log or said == "rolled_back", (
                "only a transaction that did not begin is missing in the log"
            )

    def _on_disk(self) -> tuple[dict[str, str], dict[str, bool]]:
        """Return the states of the jobs, and which transactions are finished, from the store."""
        with contextlib.closing(sqlite3.connect(self.folder / "controller.sqlite")) as db:
            jobs = dict(db.execute("SELECT name, state FROM jobs"))
            log = dict(db.execute("SELECT id, finished FROM transactions"))
        return jobs, log

    @invariant()
    def i7_refused_jobs_do_not_run_and_reported_ends_stay(self) -> None:
        if not hasattr(self.rack, "service"):
            return
        state = self.rack.service._state
        assert not self.refused & state.jobs.keys()
        assert not self.refused & {s.job for s in self.rack.engine.statuses.values()}
        for job in state.jobs.values():
            if job.ended or job.name in self.over:
                assert self.over.setdefault(job.name, job.state) == job.state
        for view in state.transactions.finished.values():
            if view.finished_at is not None and view.id in self.ended:
                assert self.ended[view.id] == view.state, (
                    "another end than the one that was reported"
                )

    @invariant()
    def i6_an_epoch_is_one_state_and_never_goes_back(self) -> None:
        """An epoch has one set of attachments, and no endpoint has two holders in it."""
        if not hasattr(self.rack, "service"):
            return
        state = self.rack.service._state
        assert state.epoch >= self.epoch, "the epoch went back"
        self.epoch = state.epoch
        holders = {endpoint: job.name for endpoint, job in state.jobs.holders().items()}
        light, held = self.history.setdefault(state.epoch, (dict(state.light.attachments), {}))
        assert light == state.light.attachments, f"epoch {state.epoch} has two sets of attachments"
        for endpoint, job in holders.items():
            assert held.setdefault(endpoint, job) == job, f"{endpoint} changed hands in an epoch"


async def _at_once(*_: object, **__: object) -> None:
    """Do not wait for a controller that starts during a fault."""


def test_any_story_keeps_the_invariants() -> None:
    run_state_machine_as_test(
        Story,
        settings=settings(
            max_examples=STORIES,
            stateful_step_count=STEPS,
            # A failing story is not shrunk: that would take minutes.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )

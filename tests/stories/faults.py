"""Jobs come and go, light is regrouped, devices and the disk fail, the controller dies.

After every step the story checks the invariants that no fault may break; when no fault is present
any more, the devices must also match the intent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal
from unittest import mock

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.devices.engine import RankState
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.rules.program import diff
from controller.schema.jobs import read_job
from controller.schema.plans import PlanRequest, PlanView
from testbed.simulated.lives import DiedError
from tests.parts.controller.disk import FAULTS
from tests.parts.openflow.fake_table import FakeFabric, FakeTable, arp, udp
from tests.stories.rack import StoryRack
from tests.stories.telling import Log, tell

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

What = Literal[
    "submit",
    "cancel",
    "regroup",
    "attach",
    "fail",
    "disk fails",
    "mend",
    "pull a fiber",
    "empty the quarantine",
    "rest",
    "die",
    "die at",
]


@dataclass(frozen=True)
class Step:
    """Something happens, ``after_ms`` after the step before began, or had ended."""

    what: What
    """A ``rest`` mends all. ``die`` after ``number`` turns of the loop, ``die at`` the failpoint of
    that number."""
    number: int = 0
    """Draws the rest: endpoints, the fault, and so on."""
    after_ms: int = 0
    waits: bool = True
    """The next step waits for its end."""


class Faults:
    """One controller over devices that fail, and a model of what clients were told."""

    def __init__(self, folder: Path, log: Log, *, repairs: bool) -> None:
        """An operator ``repairs`` what does not come to rest by itself."""
        self.folder = folder
        self.rack = StoryRack(folder, log, after_death=self._forget)
        self._log = log
        self._repairs = repairs
        self._begun: list[asyncio.Task[None]] = []
        """Steps for whose end no other waits."""
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

    async def run(self, steps: Sequence[Step]) -> None:
        """Carry out all steps; check after each, and at rest."""
        async with self.rack.run():
            self.check()
            for step in [*steps, Step("rest")]:
                await asyncio.sleep(step.after_ms / 1000)
                task = asyncio.create_task(self._told(step))
                self._begun.append(task)
                if step.waits:
                    await task
                self.check()

    async def _told(self, step: Step) -> None:
        self._log.note(f"begins: {step.what} {step.number}")
        try:
            await self._do(step)
        except ServiceError as error:
            self._log.note(f"refused: {step.what} {step.number}: {error.message}")
        except DiedError:
            self._log.note(f"unanswered: {step.what} {step.number}")
        else:
            self._log.note(f"done: {step.what} {step.number}")

    async def _do(self, step: Step) -> None:  # noqa: PLR0912 - one case for each kind
        rack, dice = self.rack, Random(step.number)  # noqa: S311 - a story's dice
        match step.what:
            case "submit":
                await self._submit(dice)
            case "cancel":
                there = [name for name, state in self.acknowledged.items() if state == "there"]
                if there:
                    name = dice.choice(there)
                    await rack.do(rack.desks.jobs.cancel(name))
                    self.acknowledged[name] = "cancelled"
            case "regroup":
                wanted = dice.sample(HOMES, len(HOMES))
                await self._regroup(dice.choice([0.0, WAIT_S, WAIT_S]), wanted)
            case "attach":
                move = mock.Mock(aggregator=dice.choice(["as0", "as1", None]))
                endpoint = dice.choice(ENDPOINTS)
                await rack.do(rack.desks.plans.attach(endpoint, move, WAIT_S))
            case "fail" if not self.broken():
                self._fail(dice)
            case "disk fails" if not self.broken():
                rack.disk.fault, rack.disk.after = dice.choice(FAULTS), dice.randrange(7)
                self._log.note(f"the disk: {rack.disk.fault} after {rack.disk.after}")
            case "mend":
                self._mend()
            case "pull a fiber":
                port = f"1.1.{dice.randint(1, 6)}"
                rack.switch.circuits = [c for c in rack.switch.circuits if c.a != port]
            case "empty the quarantine":
                for entry in rack.desks.quarantine.views():
                    await rack.do(rack.desks.quarantine.release(entry.object))
            case "rest":
                await self._rest()
            case "die":
                await rack.death(turns=step.number)
            case "die at":
                await rack.death(points=step.number)

    async def _submit(self, dice: Random) -> None:
        """Submit a job on some endpoints, or on the same number of any."""
        rack, name = self.rack, f"job-{next(self.numbers)}"
        ends = dice.sample(ENDPOINTS, dice.randint(1, 3))
        body = {
            "name": name,
            "count": len(ends),
            "policy": dice.choice(["pause", "live", "restart"]),
            "locality": dice.choice(["any", "preferred", "regroup"]),
        }
        if dice.random() < 2 / 3:
            body["endpoints"] = ends
        self._log.note(f"submits {body}")
        try:
            await rack.do(rack.desks.jobs.submit(read_job(body)))
        except ServiceError:
            self.refused.add(name)
            raise
        self.acknowledged[name] = "there"
        with contextlib.suppress(TimeoutError):
            await rack.until(lambda: self._settled(name), BRIEFLY_S)

    def _settled(self, name: str) -> bool:
        job = self.rack.see.jobs.get(name)
        return job is not None and job.state not in ("pending", "starting")

    async def _regroup(self, wait_s: float, wanted: list[str]) -> None:
        """Apply the planner's plan, or a random one if the planner finds no gain."""
        rack = self.rack
        plan = await rack.do(rack.desks.plans.make_plan(PlanRequest()))
        if not plan.moves:
            now = {e.name: e.home for e in await rack.desks.fabric.endpoints()}
            moves = [
                {"endpoint": e, "from": now[e], "to": home}
                for e, home in zip(ENDPOINTS, wanted, strict=True)
                if now[e] != home
            ]
            update: dict[str, object] = {"moves": moves, "homes_after": {}}
            update |= {"circuits": {}, "basis": None}
            plan = PlanView.model_validate(plan.model_dump(by_alias=True) | update)
        if plan.moves:
            shown = await rack.do(rack.desks.plans.apply(plan, wait_s))
            if shown.finished_at is not None:
                self.ended[shown.id] = shown.state

    def _fail(self, dice: Random) -> None:
        rack, which = self.rack, dice.randrange(8)
        fault = dice.choice(["dull", "refused", "switch", "late", "server", "aggregator", "freeze"])
        self._log.note(f"{fault} {which}")
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
                rack.engine.lost.add(f"srv{which % 4}")
            case "aggregator":
                rack.away.add(f"as{which % 2}")
            case "freeze":
                rack.engine.broken.add("freeze")

    def broken(self) -> bool:
        rack = self.rack
        return bool(
            rack.switch.refused
            or rack.switch.dull
            or rack.switch.away
            or rack.switch.late
            or rack.engine.lost
            or rack.engine.broken
            or rack.away
            or rack.disk.fault
        )

    def _mend(self) -> None:
        rack = self.rack
        rack.switch.dull.clear()
        rack.switch.refused.clear()
        rack.switch.away = rack.switch.late = False
        for faults in (rack.engine.lost, rack.engine.broken, rack.away):
            faults.clear()
        rack.disk.release()

    def _forget(self) -> None:
        """After a death: answers may have been "not known", and the store decides."""
        if not self.rack.see.writes:
            return
        durable, log = self._on_disk()
        self.refused -= durable.keys()
        # A transaction that did not begin has no row, and its number may be used again.
        self.ended = {i: said for i, said in self.ended.items() if i in log}
        self.over = {name: end for name, end in self.over.items() if durable.get(name) == end}
        # Epochs that were only in memory are counted again.
        self.epoch = 0
        self.history.clear()

    async def _rest(self) -> None:
        """Without faults the devices match the intent, and no container is frozen."""
        this = asyncio.current_task()
        self._mend()
        await asyncio.gather(*(task for task in self._begun if task is not this))
        self._mend()
        rack = self.rack
        try:
            await rack.until(self._at_rest, limit_s=REST_S)
        except TimeoutError:
            assert self._repairs, "it does not come to rest by itself"
            # Most circuits vanished at once, or moving light back failed too often: the controller
            # waits for an operator's "repair".
            await rack.do(rack.desks.drift.repair("ocs0"))
            await rack.until(self._at_rest, limit_s=REST_S)
        state = rack.see
        assert rack.aggregators.light() == state.light.attachments, "I4: light = intent"
        assert self._flows_right(), "I4: flows = intent"
        running = {job.name: job for job in state.jobs.values() if job.state == "running"}
        there = rack.engine.statuses.values()
        assert {s.job for s in there if s.state in LIVE} == running.keys(), "I4: containers"
        for name, job in running.items():
            assert {s.endpoint for s in there if s.job == name} == set(job.endpoints)
            assert rack.engine.states(name) == {RankState.RUNNING}, "no container stays frozen"
        self._reach(whole=True)

    async def _at_rest(self) -> bool:
        state = self.rack.see
        health = self.rack.desks.health.health()
        states = {job.state for job in state.jobs.values()}
        there = {s.job for s in self.rack.engine.statuses.values()}
        running = {job.name for job in state.jobs.values() if job.state == "running"}
        lit = state.light.attachments.keys()
        return (
            state.ready
            and not self.rack.see.interrupted
            and health.status == "ok"
            and not state.transactions.running
            and not state.jobs.owed
            and not state.light.held
            and "starting" not in states
            and there == running
            and all(self.rack.engine.states(name) == {RankState.RUNNING} for name in running)
            and self.rack.aggregators.light() == state.light.attachments
            and all(lit >= set(state.jobs[name].endpoints) for name in running)
            and self._flows_right()
        )

    def _flows_right(self) -> bool:
        state = self.rack.see
        now = state.forwarding()
        wanted = compiler.compile(self.rack.site, now.epoch, now.attachments, now.jobs, now.held)
        have = self.rack.aggregators.programs
        return not any(diff(have[name], wanted[name]) for name in wanted)

    # --- invariants after every step ------------------------------------------------------

    def check(self) -> None:
        """Assert what no fault may break; a controller that starts shows nothing yet."""
        self.i1_the_map_is_a_matching()
        self.i2_an_endpoint_has_one_container()
        if self.rack.serves:
            self.i2_an_endpoint_has_one_job()
            self._reach(whole=False)
            self.i4_every_resource_has_an_owner()
            self.i5_acknowledged_changes_are_on_the_disk()
            self.i6_an_epoch_is_one_state_and_never_goes_back()
            self.i7_refused_jobs_do_not_run_and_reported_ends_stay()

    def i1_the_map_is_a_matching(self) -> None:
        ports = [port for c in self.rack.switch.circuits for port in (c.a, c.b)]
        assert len(ports) == len(set(ports))

    def i2_an_endpoint_has_one_container(self) -> None:
        live = [s.endpoint for s in self.rack.engine.statuses.values() if s.state in LIVE]
        assert len(live) == len(set(live))

    def i2_an_endpoint_has_one_job(self) -> None:
        jobs = self.rack.see.jobs.values()
        held = [e for job in jobs if job.holding for e in job.endpoints]
        assert len(held) == len(set(held))

    def _reach(self, *, whole: bool) -> None:
        """I3: no frame leaves its job, through the present flow tables and circuits."""
        site, state = self.rack.site, self.rack.see
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

    def i4_every_resource_has_an_owner(self) -> None:
        """Circuits, rules and containers belong to the intent or to a running transaction."""
        state = self.rack.see
        pulled = self.rack.see.dark()
        for endpoint, at in self.rack.aggregators.light().items():
            owed = self.rack.see.owed
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

    def i5_acknowledged_changes_are_on_the_disk(self) -> None:
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

    def i6_an_epoch_is_one_state_and_never_goes_back(self) -> None:
        """An epoch has one set of attachments, and no endpoint has two holders in it."""
        state = self.rack.see
        assert state.epoch >= self.epoch, "the epoch went back"
        self.epoch = state.epoch
        holders = {endpoint: job.name for endpoint, job in state.jobs.holders().items()}
        light, held = self.history.setdefault(state.epoch, (dict(state.light.attachments), {}))
        assert light == state.light.attachments, f"epoch {state.epoch} has two sets of attachments"
        for endpoint, job in holders.items():
            assert held.setdefault(endpoint, job) == job, f"{endpoint} changed hands in an epoch"

    def i7_refused_jobs_do_not_run_and_reported_ends_stay(self) -> None:
        state = self.rack.see
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


def story(steps: Sequence[Step], seed: int, *, repairs: bool = True) -> Log:
    """Tell a story of faults; AssertionError when an invariant breaks."""
    folder = Path(tempfile.mkdtemp(prefix="ll-story-"))

    async def told(log: Log) -> None:
        await Faults(folder, log, repairs=repairs).run(steps)

    try:
        return tell(told, seed)
    finally:
        shutil.rmtree(folder)

"""A fake controller: the paper's rack in memory, one red job, errors on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from agentlink.values import Typed, WindowSize
from base import clock
from controller.base.errors import ServiceError
from controller.devices.engine import ExecEnd, ExecOutput
from controller.schema.checkpoints import DrainView
from controller.schema.execs import ExecRequest
from controller.schema.fabric import SwitchView
from controller.schema.images import PreparationView, PrepareRequest, ServerPullView
from controller.schema.insight.advice import RangeView, WhatIfRequest, WhatIfView
from controller.schema.insight.measurements import (
    MeasurementImport,
    MeasurementRequest,
    MeasurementState,
    MeasurementView,
)
from controller.schema.jobs import ConditionView, JobView, RankView
from controller.schema.live import HealthView, LogLineView
from controller.schema.plans import (
    Allocation,
    AllocationDiffView,
    MoveView,
    PlanRequest,
    PlanView,
    QuarantineView,
    RolloutRequest,
    RolloutView,
    TransactionView,
)
from controller.schema.submit.request import JobRequest
from controller.schema.volumes import DataRemovalView, RemovedDataView
from controller.stream.feed import Feed
from scheduler.model import TimeLimitAction
from tests.parts.api.fake_desks import FakeDesks
from tests.parts.api.fake_engine import EngineCommands
from tests.parts.api.fake_plans import (
    STARTED_AT,
    fake_plan,
    fake_rollout,
    fake_transaction,
)
from tests.parts.api.fake_queries import SIZE, VOLUMES, FakeQueries
from tests.parts.api.fake_survival import SurvivalCommands


class FakeService:
    """State for fake queries and commands: enough for every route to answer.

    ``crash`` names an operation that fails like a defect; ``refuse`` maps an operation to the
    error it raises; ``delay_s`` maps an operation to how long it takes, unless it is taken away.
    """

    def __init__(self) -> None:
        self.epoch = 4
        self.projects: set[str] = set()
        """Those of the accounts, beside ``default``."""
        self.homes: dict[str, str | None] = {
            f"gpu{i}": "as0" if i in (0, 1, 4) else "as1" for i in range(SIZE)
        }
        self.requests: list[JobRequest] = []
        self.plans: list[PlanRequest] = []
        self.crash: str | None = None
        self.refuse: dict[str, ServiceError] = {}
        self.delay_s: dict[str, float] = {}
        self.entered: set[str] = set()
        self.transactions_: dict[str, list[TransactionView]] = {}
        self.rollouts_: dict[str, list[RolloutView]] = {}
        self.preparations: dict[str, list[PreparationView]] = {}
        self.unprepared: dict[str, str] = {}
        """Why servers fail to pull any image, by server."""
        self.measurements: dict[str, MeasurementView] = {}
        self.measure_number = 0
        self.end_state: str = "committed"
        self.logged: list[LogLineView] = [
            LogLineView(rank=r, time=STARTED_AT + n, stream="stdout", text=f'{{"step":{n}}}')
            for n in range(3)
            for r in range(2)
        ]
        self.log_error: ServiceError | None = None
        self.commands_run: list[tuple[str, ExecRequest]] = []
        """Commands that have begun."""
        self.commands_ended = 0
        self.windows: list[WindowSize] = []
        self.followed = False
        self.endless_logs = False
        """A job's output that is followed does not end."""
        self.feed = Feed()
        self.volumes = list(VOLUMES)
        self.removed: list[tuple[str, str, str | None, bool]] = []
        self.dropped: dict[str, set[int]] = {}
        """Steps that were dropped, by job."""
        self.verified: list[tuple[str, int | None]] = []
        self.drained: dict[str, DrainView] = {}
        self.queries = FakeQueries(self)
        self.commands = FakeCommands(self)
        self.desks = FakeDesks(self)
        self.jobs: dict[str, JobView] = {}
        self.put("red", "running", ["gpu0", "gpu2", "gpu1", "gpu3"])

    def put(self, name: str, state: str, endpoints: list[str], **changes: object) -> JobView:
        homes = [self.homes[e] for e in endpoints]
        spread = {str(h): homes.count(h) for h in homes}
        crossings = sum(a != b for a, b in zip(homes, homes[1:] + homes[:1], strict=True))
        fields: dict[str, object] = {
            "name": name,
            "state": state,
            "count": len(endpoints),
            "project": "default",
            "locality": "any",
            "policy": "live",
            "rank_order": "placed",
            "image": "trainer:1",
            "command": ["python3", "train.py"],
            "env": {},
            "endpoints": endpoints,
            "homes": homes,
            "ranks": [
                RankView(rank=i, endpoint=e, home=self.homes[e], server="s0", state="running")
                for i, e in enumerate(endpoints)
            ],
            "spread": spread,
            "span": len(spread),
            "excess_span": max(0, len(spread) - 1),
            "ring_crossings": crossings,
            "rx_bps": 1e8,
            "tx_bps": 1e8,
            "utilisation": 0.37,
            "epoch": self.epoch,
            "submitted_at": STARTED_AT,
            "started_at": STARTED_AT + 1,
            "exit_codes": [None] * len(endpoints),
            "conditions": [
                ConditionView(type="Placed", status=True, reason="Placed", since=STARTED_AT)
            ],
            **changes,
        }
        self.jobs[name] = JobView.model_validate(fields)
        return self.jobs[name]

    def own(self, name: str, project: str, endpoints: list[str]) -> None:
        """Give a project a running job."""
        self.put(name, "running", endpoints, project=project)

    def set_state(self, name: str, state: str, reason: str = "") -> None:
        """Let a job go on to another state."""
        job = self.jobs[name]
        self.jobs[name] = job.model_copy(update={"state": state, "reason": reason})

    async def enter(self, operation: str) -> None:
        self.entered.add(operation)
        if self.crash == operation:
            raise RuntimeError("a secret inside")
        if operation in self.refuse:
            raise self.refuse[operation]
        began = clock.monotonic()
        await asyncio.sleep(0)
        while clock.monotonic() - began < self.delay_s.get(operation, 0):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    def hang_up(self) -> None:
        """Close all streams."""
        self.feed.close()


class FakeCommands(SurvivalCommands, EngineCommands):
    """Changes the fake state."""

    def __init__(self, state: FakeService) -> None:
        self._fake = state

    async def measure(self, request: MeasurementRequest, user: str = "") -> MeasurementView:
        await self._fake.enter("measure")
        unknown = [e for e in request.endpoints if e not in self._fake.homes]
        if unknown:
            raise ServiceError(
                "not_found",
                f"the site has no endpoint {unknown[0]}",
                object=f"endpoint/{unknown[0]}",
            )
        if request.dry_run:
            return self._measured("", request.type, request.project, user, "pending")
        return self._kept(request.type, request.project, user, "running")

    async def import_measurement(
        self, request: MeasurementImport, user: str = ""
    ) -> MeasurementView:
        await self._fake.enter("import_measurement")
        return self._kept(request.type, "default", user, "completed")

    async def cancel_measurement(self, ident: str) -> MeasurementView:
        view = await self._fake.queries.measurement(ident)
        if view.state != "running":
            raise ServiceError(
                "conflict", f"{ident} is {view.state}", object=f"measurement/{ident}"
            )
        self._fake.measurements[ident] = view.model_copy(update={"state": "cancelled"})
        return self._fake.measurements[ident]

    async def remove_measurement(self, ident: str) -> MeasurementView:
        view = await self._fake.queries.measurement(ident)
        if view.state == "running":
            raise ServiceError("conflict", f"{ident} is running", object=f"measurement/{ident}")
        return self._fake.measurements.pop(ident)

    def _kept(self, kind: str, project: str, user: str, state: MeasurementState) -> MeasurementView:
        self._fake.measure_number += 1
        ident = f"m{self._fake.measure_number}"
        view = self._measured(ident, kind, project, user, state)
        self._fake.measurements[ident] = view
        return view

    @staticmethod
    def _measured(
        ident: str, kind: str, project: str, user: str, state: MeasurementState
    ) -> MeasurementView:
        return MeasurementView(
            id=ident,
            type=kind,
            state=state,
            user=user,
            project=project,
            submitted_at=STARTED_AT,
            endpoints=["gpu5"],
        )

    async def submit(self, request: JobRequest, user: str = "") -> JobView:
        await self._fake.enter("submit")
        self._fake.requests.append(request)
        if request.count > SIZE:
            raise ServiceError(
                "invalid",
                f"the job asks for {request.count} endpoints, site paper has {SIZE}",
                object=f"job/{request.name}",
                hint=f"ask for at most {SIZE}",
            )
        name = request.name or "job-1"
        if name in self._fake.jobs:
            raise ServiceError("conflict", f"there is a job {name}", object=f"job/{name}")
        return self._fake.put(
            name,
            "pending",
            [],
            count=request.count,
            project=request.project,
            reason="waits for 2 more GPUs",
            image=request.image or "trainer:1",
            command=request.command,
            env=dict(request.plain_env),
            secrets=dict(request.secrets),
            time_limit_s=request.time_limit_s,
            time_limit_action=request.time_limit_action or TimeLimitAction.IGNORE,
            ranks=[],
            span=0,
            started_at=None,
        )

    async def submit_all(self, requests: Sequence[JobRequest], user: str = "") -> list[str]:
        return [(await self.submit(request, user)).name for request in requests]

    async def _to(self, name: str, operation: str, state: str) -> JobView:
        await self._fake.enter(operation)
        await self._fake.queries.job(name)
        self._fake.set_state(name, state)
        return self._fake.jobs[name]

    async def cancel(self, name: str) -> JobView:
        return await self._to(name, "cancel", "cancelled")

    async def pause(self, name: str) -> JobView:
        return await self._to(name, "pause", "paused")

    async def resume(self, name: str) -> JobView:
        return await self._to(name, "resume", "running")

    async def whatif(self, name: str, request: WhatIfRequest) -> WhatIfView:
        await self._fake.enter("whatif")
        job = await self._fake.queries.job(name)
        before: dict[str, str | None] = dict(zip(job.endpoints, job.homes, strict=True))
        return WhatIfView(
            job=name,
            prediction="p1",
            homes_before=before,
            homes_after=before | {e: h for e, h in request.homes.items() if e in before},
            span_before=2,
            span_after=1,
            step_now_s=0.8,
            step_then_s=RangeView(low=0.4, high=0.5),
            change=RangeView(low=-0.5, high=-0.375),
            ring_rate_before=0.22,
            ring_rate_after=1.0,
            possible=True,
            basis=["100 recorded steps (torch) at 1 placement"],
            unidentified=["hide: how much communication fits behind its compute"],
        )

    async def exec(
        self, name: str, request: ExecRequest, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        await self._fake.enter("exec")
        await self._fake.queries.job(name)
        return self._exec(name, request, given)

    async def _exec(
        self, name: str, request: ExecRequest, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Repeat the input to its end, then complain on stderr, and end with 3."""
        self._fake.commands_run.append((name, request))
        try:
            await self._fake.enter("exec_begun")
            async for item in given:
                match item:
                    case WindowSize():
                        self._fake.windows.append(item)
                    case Typed(data=None):
                        break
                    case Typed(data=bytes(data)):
                        yield ExecOutput("stdout", data)
            yield ExecOutput("stderr", b"no more\n")
            yield ExecEnd(3)
        finally:
            self._fake.commands_ended += 1

    async def prepare_image(self, request: PrepareRequest) -> PreparationView:
        await self._fake.enter("prepare_image")
        servers = request.servers or ["s0", "s1"]
        first = PreparationView(
            id=f"p{len(self._fake.preparations) + 1}",
            image=request.image,
            state="running",
            started_at=STARTED_AT,
            servers=[
                ServerPullView(server=s, state="pulling", bytes_done=2**30, bytes_total=2**32)
                for s in servers
            ],
        )
        bad = self._fake.unprepared
        ends = [
            ServerPullView(server=s, state="failed", message=bad[s])
            if s in bad
            else ServerPullView(server=s, state="done", image_digest=request.image, size_bytes=7)
            for s in servers
        ]
        last = {
            "state": "failed" if bad else "done",
            "servers": ends,
            "finished_at": STARTED_AT + 9,
        }
        self._fake.preparations[first.id] = [first, first.model_copy(update=last)]
        return first

    async def make_plan(self, request: PlanRequest) -> PlanView:
        await self._fake.enter("make_plan")
        self._fake.plans.append(request)
        if request.job is not None:
            await self._fake.queries.job(request.job)
        return fake_plan(self._fake.homes, self._fake.epoch)

    async def apply(self, plan: PlanView, wait_s: float) -> TransactionView:
        await self._fake.enter("apply")
        if plan.epoch != self._fake.epoch:
            raise ServiceError(
                "conflict",
                f"the plan was made at epoch {plan.epoch}, "
                f"the fabric is at epoch {self._fake.epoch}",
                object=f"plan/{plan.id}",
                hint="plan again",
            )
        self._fake.homes.update(plan.homes_after)
        self._fake.epoch += 1
        running, ended = fake_transaction(plan, self._fake.epoch, self._fake.end_state)
        self._fake.transactions_["t1"] = [running, ended]
        return ended if wait_s else running

    async def roll_out(self, request: RolloutRequest) -> RolloutView:
        await self._fake.enter("roll_out")
        made = fake_rollout(request, self._fake.end_state)
        self._fake.rollouts_[made[0].id] = list(made)
        return made[0]

    async def abort_rollout(self, ident: str) -> RolloutView:
        return await self._fake.queries.rollout(ident)

    async def abort(self, ident: str) -> TransactionView:
        return await self._fake.queries.transaction(ident)

    async def attach(self, endpoint: str, aggregator: str | None, wait_s: float) -> TransactionView:
        await self._fake.enter("attach")
        if endpoint not in self._fake.homes:
            raise ServiceError(
                "not_found", f"the site has no endpoint {endpoint}", object=f"endpoint/{endpoint}"
            )
        plan = fake_plan(self._fake.homes, self._fake.epoch)
        return fake_transaction(plan, self._fake.epoch, self._fake.end_state)[0]

    async def release(self, name: str) -> QuarantineView:
        await self._fake.enter("release")
        if name != "as0/3":
            raise ServiceError("not_found", f"{name} is in use", object=f"quarantine/{name}")
        return (await self._fake.queries.quarantine())[0]

    async def remove_data(
        self, volume: str, owner: str, *, server: str | None, dry_run: bool
    ) -> DataRemovalView:
        await self._fake.enter("remove_data")
        found = [
            RemovedDataView(server=view.server, bytes=entry.bytes, files=entry.files)
            for view in self._fake.volumes
            for entry in view.data
            if view.name == volume and entry.owner == owner
        ]
        if not found:
            raise ServiceError("not_found", "it left nothing", object=f"volume/{volume}")
        self._fake.removed.append((volume, owner, server, dry_run))
        return DataRemovalView(volume=volume, owner=owner, dry_run=dry_run, directories=found)

    async def accept_store(self) -> HealthView:
        await self._fake.enter("accept_store")
        return await self._fake.queries.health()

    async def repair(self, switch: str) -> SwitchView:
        await self._fake.enter("repair")
        found = [view for view in await self._fake.queries.switches() if view.name == switch]
        if not found:
            raise ServiceError("not_found", f"no switch {switch}", object=f"switch/{switch}")
        return found[0]

    async def bring_back(
        self, wanted: Allocation, *, dry_run: bool, wait_s: float
    ) -> AllocationDiffView:
        await self._fake.enter("bring_back")
        if wanted.site != "paper":
            raise ServiceError("invalid", "the file is for another site", object="site/x")
        moves = [
            MoveView(endpoint=name, source=self._fake.homes.get(name), target=home)
            for name, home in wanted.homes.items()
            if self._fake.homes.get(name) != home
        ]
        if not dry_run:
            self._fake.homes.update({m.endpoint: m.target for m in moves})
        return AllocationDiffView(epoch=self._fake.epoch, moves=moves, jobs=[])

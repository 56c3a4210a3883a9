"""Checkpoints, recoveries and drains of the fake controller: every job has lost gpu3 once."""

from __future__ import annotations

from typing import Protocol

from checkpoints.ledger import State
from checkpoints.values import Scheme
from controller.base.errors import ServiceError
from controller.schema.checkpoints import (
    CheckpointSumsView,
    CheckpointsView,
    CheckpointView,
    DamageView,
    DrainKind,
    DrainView,
    IntervalView,
    PartView,
    RecoveriesView,
    RecoverySumsView,
    RecoveryView,
    SiteRecoveriesView,
    VerificationView,
)
from controller.schema.jobs import JobView
from tests.parts.api.fake_plans import STARTED_AT

STEPS = {400: State.WRITTEN, 300: State.PROTECTED, 200: State.PERSISTENT}
DRAINABLE = {"node/s0", "aggregator/as0", "aggregator/as1", "switch/ocs0"}
RECOVERY = RecoveryView(
    number=1,
    cause="endpoint",
    objects=["endpoint/gpu3"],
    how="swap",
    swaps={"gpu3": "gpu5"},
    failed_at=STARTED_AT + 60,
    finished_at=STARTED_AT + 72,
    step_written=310,
    step_restored=300,
    steps_lost=10,
    detect_s=0.4,
    decide_s=0.1,
    stop_s=0.5,
    light_s=0.8,
    fetch_s=0.6,
    start_s=0.7,
    import_s=6.0,
    first_step_s=3.5,
    total_s=12.0,
    own_s=2.5,
    gpu_hours_lost=0.02,
)


def fake_checkpoint(step: int, state: State, endpoints: list[str], *, why: str) -> CheckpointView:
    """Return one step of a job, each part of it copied to the next rank's server."""
    copied = state is not State.WRITTEN
    nexts = endpoints[1:] + endpoints[:1]
    return CheckpointView(
        step=step,
        epoch=4,
        state=state,
        complete=copied,
        restorable=True,
        why=why,
        scheme=Scheme.PARTNER,
        bytes=len(endpoints) * 2**30,
        written_at=STARTED_AT + step,
        protected_at=STARTED_AT + step + 2 if copied else None,
        persistent_at=STARTED_AT + step + 9 if state is State.PERSISTENT else None,
        written_s_median=0.8,
        written_s_max=1.1,
        parts=[
            PartView(
                rank=rank,
                endpoint=endpoint,
                bytes=2**30,
                held_by=[endpoint, *([nexts[rank]] if copied else [])],
                stored=state is State.PERSISTENT,
            )
            for rank, endpoint in enumerate(endpoints)
        ],
    )


class FakeState(Protocol):
    """What the fakes of this page use."""

    jobs: dict[str, JobView]
    dropped: dict[str, set[int]]
    verified: list[tuple[str, int | None]]
    drained: dict[str, DrainView]
    refuse: dict[str, ServiceError]

    async def enter(self, operation: str) -> None:
        """Fail or wait as the test has ordered."""


class SurvivalQueries:
    """Reads what survives."""

    _fake: FakeState

    async def _known(self, name: str) -> JobView:
        if name not in self._fake.jobs:
            raise ServiceError("not_found", f"there is no job {name}", object=f"job/{name}")
        return self._fake.jobs[name]

    async def checkpoints(self, name: str) -> CheckpointsView:
        await self._fake.enter("checkpoints")
        job = await self._known(name)
        gone = self._fake.dropped.get(name, set())
        why = "gpu4 waits for job beta-blue"
        steps = [
            fake_checkpoint(step, state, job.endpoints, why=why if step == max(STEPS) else "")
            for step, state in STEPS.items()
            if step not in gone
        ]
        return CheckpointsView(
            job=name,
            rule="rename",
            scheme=Scheme.PARTNER,
            space_bytes=3 * 2**30,
            known=True,
            silent=["s1"],
            restore_step=next((step.step for step in steps), None),
            restore_why="",
            steps=steps,
            ignored=["rank 0: 'notes.txt'"],
            naming="step-N or step-N.EXT",
        )

    async def checkpoint_advice(self, name: str) -> IntervalView:
        await self._fake.enter("checkpoint_advice")
        await self._known(name)
        return IntervalView(
            job=name,
            interval_s=90.0,
            steps=45,
            now_s=200.0,
            cost_s=0.9,
            step_s=2.0,
            restart_s=12.0,
            mtbf_s=4500.0,
            waste=0.021,
            waste_now=0.027,
        )

    async def recoveries(self, name: str) -> RecoveriesView:
        await self._fake.enter("recoveries")
        await self._known(name)
        why = "the spare of job beta-blue"
        return RecoveriesView(
            job=name,
            ettr=0.93,
            gpu_hours_lost={"endpoint": 0.02},
            recoveries=[RECOVERY.model_copy(update={"why": why})],
        )

    async def site_recoveries(self, since: float) -> SiteRecoveriesView:
        await self._fake.enter("site_recoveries")
        return SiteRecoveriesView(
            since=since,
            ettr=0.95,
            gpu_hours=40.0,
            gpu_hours_lost={"endpoint": 0.02, "program": 0.01},
            failures={"endpoint": 1, "program": 2},
        )

    def checkpoint_sums(self) -> dict[str, CheckpointSumsView]:
        if "survival" in self._fake.refuse:
            raise self._fake.refuse["survival"]
        return {
            name: CheckpointSumsView(
                bytes=dict.fromkeys(STEPS.values(), len(job.endpoints) * 2**30),
                written_s=0.8,
                unprotected_s=2.0,
            )
            for name, job in self._fake.jobs.items()
            if job.checkpoint is not None and job.finished_at is None
        }

    def recovery_sums(self) -> RecoverySumsView:
        return RecoverySumsView(
            seconds={"light_s": (3, 2.4)},
            gpu_hours_lost={"endpoint": 0.02, "program": 0.01},
            open_s={"alpha-red": 7.0},
        )

    async def drains(self) -> list[DrainView]:
        await self._fake.enter("drains")
        return list(self._fake.drained.values())


class SurvivalCommands:
    """Changes what survives."""

    _fake: FakeState

    async def verify_checkpoints(self, name: str, step: int | None) -> VerificationView:
        await self._fake.enter("verify_checkpoints")
        if name not in self._fake.jobs:
            raise ServiceError("not_found", f"there is no job {name}", object=f"job/{name}")
        self._fake.verified.append((name, step))
        damage = DamageView(
            step=300, epoch=4, rank=1, endpoint="gpu2", kind="copy", damages=["model.pt: crc32c"]
        )
        shown = [damage] if step in (None, 300) else []
        return VerificationView(job=name, parts=24, bytes=24 * 2**30, damaged=shown, silent=["s1"])

    async def drop_checkpoint(self, name: str, step: int, *, force: bool) -> CheckpointsView:
        await self._fake.enter("drop_checkpoint")
        queries = SurvivalQueries()
        queries._fake = self._fake
        kept = await queries.checkpoints(name)
        about = f"job/{name}"
        if step not in [view.step for view in kept.steps]:
            raise ServiceError("not_found", f"job {name} has no step {step}", object=about)
        if not force and step == next(view.step for view in kept.steps if view.complete):
            raise ServiceError(
                "conflict",
                f"step {step} is the newest complete one of job {name}",
                object=about,
                hint="drop it with force",
            )
        self._fake.dropped.setdefault(name, set()).add(step)
        return await queries.checkpoints(name)

    async def drain(self, kind: DrainKind, name: str, *, now: bool) -> DrainView:
        await self._fake.enter("drain")
        about = f"{kind}/{name}"
        if about not in DRAINABLE:
            raise ServiceError("not_found", f"there is no {kind} {name}", object=about)
        jobs = {} if now else dict.fromkeys(self._fake.jobs, "a protected checkpoint")
        state = "draining" if jobs else "drained"
        view = {"object": about, "state": state, "since": STARTED_AT, "jobs": jobs}
        self._fake.drained[about] = DrainView.model_validate(view)
        return self._fake.drained[about]

    async def undrain(self, kind: DrainKind, name: str) -> DrainView:
        await self._fake.enter("undrain")
        about = f"{kind}/{name}"
        if about not in self._fake.drained:
            raise ServiceError("not_found", f"{kind} {name} is not drained", object=about)
        return self._fake.drained.pop(about)

"""Documents of another engine, for a site that has none."""

from __future__ import annotations

from controller.schema.engine import (
    AllocationAnswerView,
    EngineChecksView,
    EngineCheckView,
    EngineView,
    PublishedView,
    WaitingAnswerView,
)

ANSWER = AllocationAnswerView(
    job="slurm-4711",
    id="4711",
    attempt=0,
    verdict="go",
    text="2 endpoints under 1 aggregator; 2 moves of idle light",
    moves=2,
    transaction="t7",
    engine_s=0.008,
    plan_s=0.002,
    light_s=0.19,
    at=1_800_000_000.0,
)
ENGINE = EngineView(
    kind="slurm",
    up=True,
    since=1_799_990_000.0,
    version="24.11.5",
    transport="rest",
    isolation="open",
    endpoints=4,
    jobs=1,
    waiting=2,
    published=PublishedView(epoch=41, at=1_799_999_990.0, took_s=0.21),
    allocations=[ANSWER],
    helped=[
        WaitingAnswerView(
            job="slurm-4712",
            text="2 idle endpoints brought together by 2 moves",
            moves=2,
            transaction="t8",
            plan_s=0.002,
            light_s=0.21,
            publish_s=0.3,
            at=1_800_000_001.0,
        )
    ],
    slowest_s=0.2,
)
CHECKS = EngineChecksView(
    kind="slurm",
    ok=False,
    checks=[
        EngineCheckView(subject="version", grade="ok", found="24.11.5"),
        EngineCheckView(
            subject="hook",
            grade="fault",
            found="no PrologSlurmctld",
            mend="PrologSlurmctld=/usr/lib/lightloom/lightloom-allocation",
        ),
    ],
)

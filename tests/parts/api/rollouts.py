"""A rollout of two batches, as it shows itself."""

from __future__ import annotations

from collections.abc import Sequence

from controller.schema.plans import RolloutRequest, RolloutView
from controller.service.desks import Desks
from tests.parts.api.desks import answer

_AT = 1_700_000_000.0
RUNNING = RolloutView(
    id="o1",
    plan_id="p1",
    state="running",
    batches=2,
    least=2,
    done=0,
    max_dark=1,
    max_pauses=1,
    park=False,
    pauses={"red": 1},
    transactions=["t1"],
    started_at=_AT,
)


def roll_out(desks: Desks, end: str) -> None:
    """Let a rollout begin on request, whose last transaction ends so; ``running`` never ends."""
    good = end == "committed"
    ended = RUNNING.model_copy(
        update={
            "state": "committed" if good else "stopped",
            "done": 2 if good else 1,
            "transactions": ["t1", "t2"],
            "finished_at": _AT + 0.8,
            "result": "every batch has committed" if good else f"transaction t2 ended {end}",
        }
    )
    last = RUNNING if end == "running" else ended
    told: list[RolloutView] = []

    async def begin(_: RolloutRequest) -> RolloutView:
        told[:] = [RUNNING, last]
        return RUNNING

    def rollout(_: str) -> RolloutView:
        return told.pop(0) if len(told) > 1 else last

    def rollouts() -> Sequence[RolloutView]:
        return [last]

    answer(desks.rollouts, begin=begin, rollout=rollout, rollouts=rollouts, abort=last)

"""The plan that brings the fake service's red job together, and the transaction that does it."""

from __future__ import annotations

from collections.abc import Mapping

from controller.schema.plans import (
    BoundView,
    CircuitChangesView,
    CircuitStepView,
    FlowChangesView,
    GainView,
    MoveView,
    PhaseView,
    PlanView,
    RolloutRequest,
    RolloutView,
    TransactionView,
)

STARTED_AT = 1_700_000_000.0


def fake_plan(homes: Mapping[str, str | None], epoch: int) -> PlanView:
    """Return a plan with two moves while gpu2 is away from the rest of red, else an empty one."""
    scattered = homes["gpu2"] == "as1"
    pairs = [("gpu2", "as1", "as0"), ("gpu4", "as0", "as1")] if scattered else []
    moves = [MoveView(endpoint=e, source=a, target=b) for e, a, b in pairs]
    step = CircuitStepView(
        switch="ocs0",
        a="1.1.2",
        b="2.1.3",
        endpoint="gpu2",
        aggregator="as1",
        aggregator_port=3,
    )
    gain = GainView(
        job="red",
        span_before=2,
        span_after=1,
        ring_crossings_before=4,
        ring_crossings_after=0,
        communication_speedup=2.2,
    )
    return PlanView(
        id="p1",
        epoch=epoch,
        site="paper",
        moves=moves,
        homes_after={**homes, **{m.endpoint: m.target for m in moves}},
        excess_span_before=len(moves) // 2,
        excess_span_after=0,
        running_moves=len(moves) // 2,
        jobs_paused=[],
        paused_gpus=0,
        pause_gpu_seconds=0.0,
        bound=BoundView(excess_span=0, running_moves=1, paused_gpus=0),
        optimal=True,
        solver_seconds=0.01,
        circuits=CircuitChangesView(break_=[step], make=[step]) if moves else CircuitChangesView(),
        flows=FlowChangesView(add=4, delete=4) if moves else FlowChangesView(),
        predicted_dark_time_s=0.045,
        predicted_gain=[gain] if moves else [],
    )


def fake_transaction(
    plan: PlanView, epoch: int, end_state: str
) -> tuple[TransactionView, TransactionView]:
    """Return a transaction in its fourth phase and at its end."""
    running = TransactionView(
        id="t1",
        state="running",
        phase="switch",
        phases=[PhaseView(name="admit", started_at=STARTED_AT, finished_at=STARTED_AT + 0.01)],
        cause="regroup",
        plan_id=plan.id,
        epoch_before=plan.epoch,
        moves=plan.moves,
        jobs=["red"],
        dark_time_s={},
        started_at=STARTED_AT,
    )
    ended = running.model_copy(
        update={
            "state": end_state,
            "phase": "done",
            "epoch_after": epoch,
            "dark_time_s": {m.endpoint: 0.05 for m in plan.moves},
            "finished_at": STARTED_AT + 0.4,
            "result": "every path is proven" if end_state == "committed" else "no light on as0/3",
        }
    )
    return running, ended


def fake_rollout(request: RolloutRequest, end_state: str) -> tuple[RolloutView, RolloutView]:
    """Return a rollout of two batches in its first one, and at its end.

    ``end_state`` is that of its last transaction.
    """
    running = RolloutView(
        id="o1",
        plan_id=request.plan.id,
        state="running",
        batches=2,
        least=2,
        done=0,
        max_dark=request.max_dark or 1,
        max_pauses=request.max_pauses or 1,
        park=bool(request.park),
        pauses={"red": 1},
        transactions=["t1"],
        started_at=STARTED_AT,
    )
    if end_state == "running":
        return running, running
    good = end_state == "committed"
    ended = running.model_copy(
        update={
            "state": "committed" if good else "stopped",
            "done": 2 if good else 1,
            "transactions": ["t1", "t2"],
            "finished_at": STARTED_AT + 0.8,
            "result": "every batch has committed" if good else f"transaction t2 ended {end_state}",
        }
    )
    return running, ended

"""A plan is stale, and says why, only when a fact that it depends on has changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.schema.plans import PlanRequest, PlanView
from controller.state.records import Quarantine
from scheduler.model import Policy
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

Change = Callable[[Rack, PlanView], Awaitable[object]]


async def pair(rack: Rack) -> PlanView:
    """Red's two GPUs are under different aggregators; the plan moves one of them."""
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"], rank_order="placed")
    await rack.state("red", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert [move.endpoint in ("gpu0", "gpu2") for move in plan.moves] == [True]
    assert [job.job for job in plan.basis or ()] == ["red"]
    return plan


async def four(rack: Rack) -> PlanView:
    """Red's four GPUs need the port of an idle one."""
    ends = ["gpu0", "gpu2", "gpu1", "gpu3"]
    await submit(rack, "red", 4, endpoints=ends, rank_order="placed")
    await rack.state("red", "running")
    plan = await rack.desks.plans.make_plan(PlanRequest())
    assert len(plan.moves) > plan.running_moves
    return plan


async def room(rack: Rack) -> PlanView:
    """Blue waits for four GPUs under one aggregator; red's light has to move."""
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"], rank_order="placed")
    await rack.state("red", "running")
    await submit(rack, "blue", 4, locality="strict")
    plan = await rack.desks.plans.make_plan(PlanRequest(job="blue"))
    assert plan.makes_room_for == "blue"
    return plan


def mover(plan: PlanView) -> str:
    return plan.moves[0].endpoint


def stayer(plan: PlanView) -> str:
    return ({"gpu0", "gpu2"} - {mover(plan)}).pop()


def port(plan: PlanView) -> AttachPoint:
    step = plan.circuits.make[0]
    return AttachPoint(step.aggregator, step.aggregator_port)


async def moved_by_hand(rack: Rack, endpoint: str) -> None:
    """Move an endpoint to the other aggregator."""
    home = rack.see.homes()[endpoint]
    to = {"as0": "as1", "as1": "as0"}[str(home)]
    done = await rack.desks.plans.attach(endpoint, to, wait_s=60)
    assert done.state == "committed", done


async def there_and_back(rack: Rack, endpoint: str) -> None:
    await moved_by_hand(rack, endpoint)
    await moved_by_hand(rack, endpoint)


async def dark(rack: Rack, endpoint: str) -> None:
    done = await rack.desks.plans.attach(endpoint, None, wait_s=60)
    assert done.state == "committed"


async def resubmitted(rack: Rack) -> None:
    await rack.desks.jobs.cancel("red")
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"], rank_order="placed")
    await rack.state("red", "running")


async def given_away(rack: Rack, plan: PlanView) -> None:
    idle = next(m.endpoint for m in plan.moves if m.endpoint in ("gpu4", "gpu5"))
    await submit(rack, "small", 1, endpoints=[idle])
    await rack.state("small", "running")


async def edited(rack: Rack, **fields: object) -> None:
    rack.parts.state.jobs.change("red", **fields)


async def other_policy(rack: Rack) -> None:
    request = rack.see.jobs["red"].request
    await edited(rack, request=replace(request, policy=Policy.LIVE))


async def quarantined(rack: Rack, name: str) -> None:
    rack.parts.state.light.quarantine.put(Quarantine(name, "no light", 0.0))


async def taken(rack: Rack, plan: PlanView) -> None:
    """An idle endpoint takes the only free port of the aggregator."""
    target = plan.moves[0].target
    homes = rack.see.homes()
    idle = next(e for e in ("gpu4", "gpu5") if homes[e] != target)
    await rack.desks.plans.attach(idle, target, wait_s=60)
    assert rack.see.light.attachments[idle] == port(plan)


async def foreign(rack: Rack, plan: PlanView) -> None:
    rack.parts.state.light.foreign_points["ocs0"] = frozenset({port(plan)})


async def other_port(rack: Rack, plan: PlanView) -> None:
    state, endpoint = rack.parts.state, mover(plan)
    at = state.light.attachments[endpoint]
    used = {p.port for p in state.light.attachments.values() if p.aggregator == at.aggregator}
    free = next(p for p in rack.site.aggregator(at.aggregator).fibers if p not in used)
    state.light.attachments[endpoint] = AttachPoint(at.aggregator, free)


async def idle_taken(rack: Rack) -> None:
    await submit(rack, "other", 2)
    await rack.state("other", "running")


Setup = Callable[[Rack], Awaitable[PlanView]]
DEPENDS: list[tuple[str, Setup, Change, str]] = [
    ("an endpoint it moves", pair, lambda r, p: moved_by_hand(r, mover(p)), "moved by t"),
    ("an endpoint it depends on", pair, lambda r, p: moved_by_hand(r, stayer(p)), "moved by t"),
    ("there and back", pair, lambda r, p: there_and_back(r, stayer(p)), "job red was moved by t"),
    (
        "an idle endpoint",
        four,
        lambda r, p: dark(r, next(m.endpoint for m in p.moves if m.endpoint in ("gpu4", "gpu5"))),
        "was moved by t",
    ),
    ("its job ended", pair, lambda r, p: r.service.desks.jobs.cancel("red"), "job red has ended"),
    ("another job of its name", pair, lambda r, p: resubmitted(r), "job red has ended"),
    (
        "its job is paused",
        pair,
        lambda r, p: r.service.desks.jobs.pause("red"),
        "red is paused, not running",
    ),
    ("its job's policy", pair, lambda r, p: other_policy(r), "policy live, not pause"),
    (
        "its job's ranks",
        pair,
        lambda r, p: edited(r, endpoints=("gpu2", "gpu0")),
        "job red holds other endpoints, or in another order",
    ),
    ("an idle one has a job", four, given_away, "was given to job small"),
    ("a quarantined endpoint", pair, lambda r, p: quarantined(r, mover(p)), "out of use: no light"),
    (
        "a quarantined port",
        pair,
        lambda r, p: quarantined(r, f"{port(p).aggregator}/{port(p).port}"),
        "out of use: no light",
    ),
    ("a taken port", pair, taken, "carries gpu"),
    ("a foreign port", pair, foreign, "used by a foreign circuit"),
    ("another port of its home", pair, other_port, "is on another port of as"),
    (
        "the job it is for is gone",
        room,
        lambda r, p: r.service.desks.jobs.cancel("blue"),
        "job blue is no longer waiting",
    ),
    ("its room is taken", room, lambda r, p: idle_taken(r), "job blue would no longer fit"),
]


@pytest.mark.parametrize(
    ("setup", "change", "named"), [case[1:] for case in DEPENDS], ids=[c[0] for c in DEPENDS]
)
async def test_a_stale_plan_names_the_changed_dependency(
    rack: Rack, setup: Setup, change: Change, named: str
) -> None:
    plan = await setup(rack)
    await change(rack, plan)
    asked = len(rack.switch.applied)
    with pytest.raises(ServiceError, match="the fabric moved since this plan was made") as caught:
        await rack.desks.plans.apply(plan, wait_s=60)
    assert caught.value.code == "conflict"
    assert named in caught.value.message
    assert len(rack.switch.applied) == asked


async def elsewhere(rack: Rack) -> None:
    """A job starts and ends on an endpoint that the plan does not touch."""
    await submit(rack, "short", 1, endpoints=["gpu5"])
    await rack.state("short", "running")
    await rack.desks.jobs.cancel("short")


async def starting(rack: Rack) -> None:
    await submit(rack, "short", 1, endpoints=["gpu5"])
    await rack.state("short", "running")


async def freed(rack: Rack, plan: PlanView) -> None:
    """The lowest port of the target becomes free: the plan still uses the port that it names."""
    homes = rack.see.homes()
    await dark(rack, next(e for e in ("gpu4", "gpu5") if homes[e] == plan.moves[0].target))


INDEPENDENT: list[tuple[str, Change]] = [
    ("a job that came and went", lambda r, p: elsewhere(r)),
    ("a job that runs", lambda r, p: starting(r)),
    ("an endpoint it does not touch", lambda r, p: dark(r, "gpu5")),
    ("a free port", freed),
    ("another quarantine", lambda r, p: quarantined(r, "gpu5")),
]


@pytest.mark.parametrize(
    "change", [case[1] for case in INDEPENDENT], ids=[case[0] for case in INDEPENDENT]
)
async def test_an_independent_change_does_not_make_a_plan_stale(rack: Rack, change: Change) -> None:
    plan = await pair(rack)
    await change(rack, plan)
    rack.parts.state.next_epoch()  # as any change anywhere does
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert (done.state, done.error) == ("committed", "")
    light = rack.aggregators.light()
    assert light[mover(plan)] == port(plan)
    assert rack.desks.jobs.job("red").span == 1


async def test_short_jobs_elsewhere_do_not_make_a_plan_stale(rack: Rack) -> None:
    """All of eight plans are applied, although a job starts and ends during each of them."""
    plan = await pair(rack)
    for _ in range(8):
        epoch = rack.desks.epoch
        await elsewhere(rack)
        assert rack.desks.epoch > epoch == plan.epoch
        done = await rack.desks.plans.apply(plan, wait_s=60)
        assert (done.state, done.error) == ("committed", "")
        await moved_by_hand(rack, mover(plan))
        plan = await rack.desks.plans.make_plan(PlanRequest())


async def test_a_plan_for_room_uses_the_present_homes(rack: Rack) -> None:
    """The plan does not list where the other endpoints are; the room is computed again."""
    plan = await room(rack)
    done = await rack.desks.plans.apply(plan.model_copy(update={"homes_after": {}}), wait_s=60)
    assert done.state == "committed"
    await rack.state("blue", "running")
    assert rack.desks.jobs.job("blue").span == 1


async def test_a_plan_without_a_basis_is_valid_at_its_epoch_only(rack: Rack) -> None:
    plan = (await pair(rack)).model_copy(update={"basis": None})
    rack.parts.state.next_epoch()
    with pytest.raises(ServiceError, match="does not say which jobs it depends on"):
        await rack.desks.plans.apply(plan, wait_s=60)
    rack.parts.state.epoch -= 1
    assert (await rack.desks.plans.apply(plan, wait_s=60)).state == "committed"

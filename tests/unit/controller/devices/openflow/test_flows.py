"""Flows that are compiled while light moves are used for the intent they were compiled for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from controller.devices.aggregators import AttachPoint
from controller.devices.openflow.flows import FlowKeeper
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.rules.program import FlowProgram, diff
from controller.devices.openflow.rules.rule import unpack_cookie
from controller.schema.submit.request import JobRequest
from controller.state.state import State
from tests.parts.controller.rack import Rack


async def moved(rack: Rack) -> tuple[State, FlowKeeper, dict[str, AttachPoint | None]]:
    """A running job whose endpoints could change places, and no other task that installs flows."""
    await rack.desks.jobs.submit(JobRequest(name="red", count=2, endpoints=["gpu0", "gpu1"]))
    await rack.state("red", "running")
    await rack.parts.tasks.stop()
    state = rack.parts.state
    places = state.light.attachments
    return (
        state,
        rack.flows,
        {"gpu0": places["gpu1"], "gpu1": places["gpu0"]},
    )


def wanted(state: State) -> Mapping[str, FlowProgram]:
    now = state.forwarding()
    return compiler.compile(state.site, now.epoch, now.attachments, now.jobs, now.held)


def holds_the_intent(rack: Rack, state: State) -> bool:
    return not any(diff(rack.aggregators.programs[n], p) for n, p in wanted(state).items())


def come_true(state: State, target: Mapping[str, AttachPoint | None]) -> None:
    state.light.attachments.update({e: at for e, at in target.items() if at is not None})
    state.epoch += 1


async def test_what_was_foreseen_is_not_compiled_again(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, keeper, target = await moved(rack)
    compiled = []
    compile_next = keeper._compiler.next

    def counted(*question: object) -> compiler.Compiled:
        compiled.append(question)
        return compile_next(*question)  # type: ignore[arg-type]

    monkeypatch.setattr(keeper._compiler, "next", counted)
    keeper.foresee(state.forwarding_at(target))
    come_true(state, target)
    await keeper.converge(state.forwarding())
    assert len(compiled) == 1
    assert holds_the_intent(rack, state)


@pytest.mark.parametrize("change", ["epoch", "held", "places", "jobs", "installed"])
async def test_what_came_differently_is_compiled_as_it_came(rack: Rack, change: str) -> None:
    state, keeper, target = await moved(rack)
    keeper.foresee(state.forwarding_at(target))
    if change == "installed":  # something else was, in between
        state.light.held["gpu2"] = state.light.attachments.get("gpu2")
        await keeper.converge(state.forwarding())
        del state.light.held["gpu2"]
    come_true(state, target)
    if change == "epoch":
        state.epoch += 1
    elif change == "held":
        state.light.held["gpu0"] = None
    elif change == "places":
        del state.light.attachments["gpu1"]
    elif change == "jobs":
        state.jobs.change("red", endpoints=("gpu0",))
    await keeper.converge(state.forwarding())
    assert holds_the_intent(rack, state)
    if change == "epoch":
        epochs = {unpack_cookie(r.cookie)[0] for r in rack.aggregators.programs["as0"].rules}
        assert state.epoch in epochs and state.epoch - 1 not in epochs

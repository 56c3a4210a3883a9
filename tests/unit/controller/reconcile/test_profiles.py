"""Profiles of aggregators: measured at each greeting and when asked, kept, and told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.base.errors import ServiceError
from controller.devices.aggregators import AggregatorConnected
from controller.devices.profile import Profile
from tests.parts.controller.rack import Rack

GOOD = Profile(hardware="AS-1", software="1.0", metadata_bits=64)


def told(rack: Rack) -> list[tuple[str, str]]:
    events = rack.parts.state.events.newer(0)
    return [(e.reason, e.message) for e in events if e.reason.startswith("Profile")]


async def test_a_greeting_measures_and_what_is_missing_is_an_event(rack: Rack) -> None:
    rack.aggregators.profiles["as0"] = replace(GOOD, metadata_bits=12)
    rack.aggregators.post(AggregatorConnected("as0"))
    state = rack.parts.state
    await rack.until(lambda: "as0" in state.light.profiles)
    assert [reason for reason, _ in told(rack)] == ["ProfileFinding"]
    view = rack.desks.profiles.view("as0")
    assert (view.hardware, view.metadata_bits) == ("AS-1", 12)
    assert [f.fact for f in view.findings] == ["metadata"]
    (shown,) = [a for a in await rack.desks.fabric.aggregators() if a.name == "as0"]
    assert (shown.model, shown.metadata_bits) == ("AS-1 1.0", 12)


async def test_an_upgrade_is_a_new_profile_and_the_event_names_what_changed(rack: Rack) -> None:
    rack.aggregators.profiles["as0"] = GOOD
    await rack.desks.profiles.probe("as0")
    await rack.desks.profiles.probe("as0")
    assert told(rack) == []
    rack.aggregators.profiles["as0"] = replace(GOOD, software="2.0", metadata_bits=32)
    await rack.desks.profiles.probe("as0")
    assert told(rack) == [("ProfileChanged", "software: 1.0 -> 2.0; metadata_bits: 64 -> 32")]


async def test_a_profile_outlives_the_controller(rack: Rack) -> None:
    rack.aggregators.profiles["as0"] = GOOD
    await rack.desks.profiles.probe("as0")
    await rack.down()
    await rack.up()
    assert rack.desks.profiles.view("as0").software == "1.0"


async def test_one_that_is_away_or_not_measured_says_so(rack: Rack) -> None:
    rack.aggregators.away.add("as0")
    with pytest.raises(ServiceError) as error:
        await rack.desks.profiles.probe("as0")
    assert error.value.code == "unavailable"
    with pytest.raises(ServiceError) as error:
        rack.desks.profiles.view("as0")
    assert error.value.code == "not_found"

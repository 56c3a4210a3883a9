"""A controller that listens, for switches that exist in memory only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from controller.devices.aggregators import AggregatorEvent
from controller.devices.openflow.aggregators import OpenFlowAggregators
from controller.devices.openflow.session.conversation import Conversation
from controller.devices.openflow.session.osken import OpenFlowSession
from sitefile.model import CabledSite
from testbed.simulated.loop import settled
from tests.parts.openflow import virtual
from tests.parts.openflow.sites import make_site

PATIENCE_S = 20.0


@dataclass
class Control:
    """The aggregators, where they listen, and what they posted."""

    site: CabledSite
    aggregators: OpenFlowAggregators
    address: tuple[str, int] = ("", 0)
    events: list[AggregatorEvent] = field(default_factory=list)

    def conversation(self, as_name: str = "as0") -> Conversation:
        return self.aggregators._conversations[as_name]

    def session(self, as_name: str = "as0") -> OpenFlowSession:
        session = self.conversation(as_name)._session
        assert session is not None
        return session

    def sessions(self) -> set[OpenFlowSession]:
        """Return all sessions, also those whose switch has not said who it is."""
        runtime = self.aggregators._runtime
        assert runtime is not None
        return runtime._sessions

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until ``condition`` holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await settled()


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    """A running controller for two aggregators (datapath ids 0xA0 and 0xA1)."""
    site = make_site()
    events: list[AggregatorEvent] = []
    with virtual.sessions():
        aggregators = OpenFlowAggregators(site, events.append)
        address = await aggregators.start()
        yield Control(site, aggregators, address, events)
        await aggregators.stop()

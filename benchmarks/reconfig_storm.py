"""Measures the cost of link flaps for the controller (F13): ``python -m benchmarks.reconfig_storm``

One switch sends 100 flaps per second (200 port-status messages) over a real OpenFlow session for
some seconds, to the real receiver with the real damper. It prints one JSON document:
``cpu_share`` is the CPU time of this whole process in cores, including the sending switch;
``answer_p99_s`` is the latency of the event loop meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import tempfile
import time
from pathlib import Path

import structlog

from controller.devices.openflow.aggregators import OpenFlowAggregators
from controller.reconcile.links import LinkWatch
from tests.parts.controller.rack import Rack
from tests.parts.openflow.fake_switch import FakeSwitch

FLAPS_PER_S = 100
TICK_S = 0.01


async def storm(seconds: float) -> dict[str, object]:
    """Flap one port for ``seconds``."""
    with tempfile.TemporaryDirectory() as folder:
        rack = Rack(Path(folder))
        await rack.up()
        state = rack.service.features.core.state
        links = LinkWatch(state)
        site = rack.site
        plain = tuple(dataclasses.replace(cable, tls=False) for cable in site.aggregators)
        local = dataclasses.replace(
            site, aggregators=plain, openflow_listen="127.0.0.1:0", openflow_netns=None
        )
        switch = FakeSwitch(site.aggregator("as0").dpid)
        aggregators = OpenFlowAggregators(local, links.handle)
        await switch.connect(await aggregators.start())
        while not aggregators.connected():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        before = len(rack.service.desks.fabric.events(0, 10_000))
        late: list[float] = []
        cpu, began = time.process_time(), time.monotonic()
        sent = 0
        while (now := time.monotonic()) < began + seconds:
            for _ in range(round(FLAPS_PER_S * (now - began)) - sent):
                switch.port_status(1, up=False)
                switch.port_status(1, up=True)
                sent += 1
            await asyncio.sleep(TICK_S)
            late.append(time.monotonic() - now - TICK_S)
            links.calm()
        spent = time.process_time() - cpu
        events = len(rack.service.desks.fabric.events(0, 10_000)) - before
        await aggregators.stop()
        await rack.down()
        late.sort()
        return {
            "machine": {"cores": os.cpu_count()},
            "flaps": sent,
            "seconds": seconds,
            "cpu_share": round(spent / seconds, 4),
            "events": events,
            "held_down": sorted(state.light.flapping),
            "answer_p99_s": round(late[int(len(late) * 0.99)], 4),
        }


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(json.dumps(asyncio.run(storm(options.seconds))))


if __name__ == "__main__":
    main()

"""Measures CPU time of complete telemetry: requests, sockets, threads, event loop, history.

``python -m benchmarks.telemetry_wire`` prints one JSON document. One process simulates the switches
and responds over loopback TCP; the controller under test runs in its own process, which reports
its CPU time. Lightloom runs ``OpenFlowAggregators`` and ``Telemetry`` like the daemon, behind the
keeper that holds the connections, with the history on disk. ``idle`` is the same process before the
first request for counters: it replies to echoes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from controller.daemon.keeper import keep
from controller.devices.aggregators import AttachPoint
from controller.devices.openflow.aggregators import OpenFlowAggregators
from controller.devices.openflow.session.listen import Listener, listening_socket
from controller.telemetry.throughput import Telemetry
from sitefile.model import AggregatorCable

SIZES = ((2, 3), (16, 64), (1024, 64))
"""Numbers of aggregators and of ports of each: 6, 1,024 and 65,536 counters."""
PATIENCE_S = 180.0
_PORT = struct.Struct("!I4x12QII")


# --- the switches -----------------------------------------------------------------------------


class Switch(asyncio.Protocol):
    """One switch with empty tables whose counters grow by a gigabit per second."""

    def __init__(self, dpid: int, ports: int) -> None:
        self._dpid = dpid
        self._ports = range(1, ports + 1)
        self._second = 0
        self._buffer = bytearray()
        self._transport: Any = None
        self.over = asyncio.Event()

    def connection_lost(self, error: Exception | None) -> None:
        """Signal the end of the connection."""
        self.over.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello."""
        self._transport = transport
        self._send(0, 0)

    def data_received(self, data: bytes) -> None:
        """Reply to every complete message."""
        self._buffer += data
        while len(self._buffer) >= 8 and len(self._buffer) >= (
            size := int.from_bytes(self._buffer[2:4])
        ):
            frame, self._buffer = bytes(self._buffer[:size]), self._buffer[size:]
            self._answer(frame[1], int.from_bytes(frame[4:8]), frame)

    def _send(self, kind: int, xid: int, body: bytes = b"") -> None:
        self._transport.write(struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body)

    def _answer(self, kind: int, xid: int, frame: bytes) -> None:
        if kind == 2:  # echo
            self._send(3, xid, frame[8:])
        elif kind == 5:  # features
            self._send(6, xid, struct.pack("!QIBB2xII", self._dpid, 0, 3, 0, 0, 0))
        elif kind == 18:  # multipart
            what = int.from_bytes(frame[8:10])
            body = {4: self._counters, 13: self._descriptions}.get(what, bytes)()
            self._send(19, xid, struct.pack("!HH4x", what, 0) + body)
        elif kind == 20:  # barrier
            self._send(21, xid)

    def _counters(self) -> bytes:
        self._second += 1
        moved = 125_000_000 * self._second
        counts = (moved // 1000, moved // 1000, moved, 2 * moved, *([0] * 8))
        return b"".join([_PORT.pack(n, *counts, self._second, 0) for n in self._ports])

    def _descriptions(self) -> bytes:
        return b"".join(
            [struct.pack("!I4x6s2x16s8I", n, b"\2" * 6, b"p", *([0] * 8)) for n in self._ports]
        )


async def switches(port: int, count: int, ports: int) -> None:
    """Connect all switches and serve until the controller is gone."""
    async with asyncio.TaskGroup() as all_of_them:
        for dpid in range(1, count + 1):
            all_of_them.create_task(_one(port, dpid, ports))
            await asyncio.sleep(0.005)


async def _one(port: int, dpid: int, ports: int) -> None:
    """Connect, and reconnect if the controller closes, as it does under too many connections."""
    loop = asyncio.get_running_loop()
    while True:
        with suppress(OSError):
            switch = Switch(dpid, ports)
            await loop.create_connection(lambda switch=switch: switch, "127.0.0.1", port)
            await switch.over.wait()
        await asyncio.sleep(1.0)


# --- ours -------------------------------------------------------------------------------------


async def ours(listener: Listener, count: int, ports: int, seconds: int) -> dict[str, Any]:
    """Run the controller's OpenFlow side and telemetry behind a keeper, our parent process."""
    names = [f"gpu{n}" for n in range(count * ports)]
    site: Any = SimpleNamespace(
        aggregators=[AggregatorCable(f"as{n}", n + 1, {}, {}) for n in range(count)],
        endpoints=[SimpleNamespace(name=name, emulated=True) for name in names],
        openflow_netns=None,
    )
    state: Any = SimpleNamespace(
        site=site,
        light=SimpleNamespace(
            attachments={
                name: AttachPoint(f"as{n // ports}", n % ports + 1) for n, name in enumerate(names)
            }
        ),
        jobs={},
        clock=time.time,
    )
    control = OpenFlowAggregators(site, lambda _: None, listener)
    print(json.dumps({"port": (await control.start())[1]}), flush=True)
    async with asyncio.timeout(PATIENCE_S):
        while len(control.connected()) < count:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.1)
    engine: Any = None
    with tempfile.TemporaryDirectory() as folder:
        known: list[int] = []

        def count_known(telemetry: Telemetry) -> None:
            rates = map(telemetry.rates, names[::ports])
            known.append(sum(rate.tx_bps is not None for rate in rates))

        telemetry = Telemetry(state, control, engine, Path(folder))
        telemetry.report_to(count_known)
        idle, kept_idle = await _cpu_shares(seconds / 3)
        polling = asyncio.create_task(telemetry.run_counters())
        await asyncio.sleep(3)
        known.clear()
        busy, kept_busy = await _cpu_shares(seconds)
        polling.cancel()
    return {
        "idle_share_of_a_core": idle,
        "share_of_a_core": busy,
        "keeper_idle_share_of_a_core": kept_idle,
        "keeper_share_of_a_core": kept_busy,
        "seconds_taken": len(known),
        "aggregators_with_rates": sum(known) / max(1, len(known) * count),
    }


async def _cpu_shares(seconds: float) -> tuple[float, float]:
    """Return the CPU use of this process and of its parent, in cores."""
    began, own, parent = time.monotonic(), time.process_time(), _parents_s()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - began
    return (time.process_time() - own) / passed, (_parents_s() - parent) / passed


def _parents_s() -> float:
    """Return the parent's CPU time with a resolution of 10 ms (proc(5): utime and stime)."""
    words = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def kept(count: int, ports: int, seconds: int) -> int:
    """Run lightloom like the daemon: a keeper that holds the connections, and its child."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

    def serve(listener: Listener, _ready: object) -> int:
        print(json.dumps(asyncio.run(ours(listener, count, ports, seconds))), flush=True)
        return 0

    return keep(listening_socket("127.0.0.1:0"), serve, lambda: None)


# --- the run ----------------------------------------------------------------------------------


def run(count: int, ports: int, seconds: int) -> dict[str, Any]:
    """Run the controller with its switches and return its report."""
    me = [sys.executable, "-m", "benchmarks.telemetry_wire"]
    asked = ["--aggregators", str(count), "--ports", str(ports), "--seconds", str(seconds)]
    controller = subprocess.Popen(
        [*me, "--part", "ours", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert controller.stdout is not None
    port = json.loads(controller.stdout.readline())["port"]
    far = subprocess.Popen([*me, "--part", "switches", "--port", str(port), *asked])
    try:
        found: dict[str, Any] = json.loads(controller.stdout.readline())
    finally:
        for process in (controller, far):
            process.kill()
            process.wait()
    return found


def main() -> None:
    """Measure all sizes and print one JSON document."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--part", choices=("switches", "ours"), help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options.add_argument("--aggregators", type=int)
    options.add_argument("--ports", type=int, default=64)
    options.add_argument("--seconds", type=int, default=20)
    given = options.parse_args()
    if given.part == "switches":
        asyncio.run(switches(given.port, given.aggregators, given.ports))
    elif given.part == "ours":
        sys.exit(kept(given.aggregators, given.ports, given.seconds))
    else:
        sizes = ((given.aggregators, given.ports),) if given.aggregators else SIZES
        document = {
            "benchmark": "telemetry_wire",
            "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
            "goal": "5 % of a core",
            "sizes": [
                {"aggregators": count, "ports": ports, "counters": count * ports}
                | {"ours": run(count, ports, given.seconds)}
                for count, ports in sizes
            ],
        }
        print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()

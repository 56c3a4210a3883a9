"""Measures CPU time per second of telemetry, against os-ken's stock polling app on the same bytes.

``python -m benchmarks.telemetry`` prints one JSON document. Both sides get the same
``OFPMP_PORT_STATS`` replies in wire format, one per aggregator of 16 ports, through os-ken's own
message parser. The rival then processes a reply like ``simple_monitor_13``: it sorts the ports and
logs a line for each (to a null handler). Lightloom maps the ports to endpoints, computes rates from
the switch's own durations and appends a row to the history on disk, with a coarse row every ten
seconds: figures are means and include them. Neither figure includes sockets and requests:
``benchmarks.telemetry_wire`` does. The goal is 5 % of a core at 65,536 counters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import statistics
import struct
import tempfile
import time
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from os_ken.ofproto import ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofproto
from os_ken.ofproto import ofproto_v1_3_parser as parser

from controller.devices.aggregators import AttachPoint
from controller.devices.openflow.session.osken import parser as mended
from controller.devices.openflow.wire.port_stats import block_of
from controller.telemetry.throughput import Telemetry

PORTS = 16
GOAL = 0.05
DATAPATH = SimpleNamespace(ofproto=ofproto, ofproto_parser=parser, id=1)


def replies(counters: int, second: int) -> list[bytes]:
    """Return the replies of all aggregators after ``second`` seconds."""
    made = []
    for first in range(0, counters, PORTS):
        ports = range(first, min(first + PORTS, counters))
        body = b"".join(_port(n - first + 1, n, second) for n in ports)
        head = struct.pack("!HH4x", ofproto.OFPMP_PORT_STATS, 0)
        size = 8 + len(head) + len(body)
        kind = ofproto.OFPT_MULTIPART_REPLY
        made.append(struct.pack("!BBHI", ofproto.OFP_VERSION, kind, size, first) + head + body)
    return made


def _port(number: int, seed: int, second: int) -> bytes:
    moved = second * (10_000_000 + seed)
    counts = (moved // 1000, moved // 1000, moved, 2 * moved, *([0] * 8))
    return struct.pack("!I4x12QII", number, *counts, second, 0)


def decoded(message: bytes) -> Any:
    """Parse one message like os-ken's receiving thread."""
    version, kind, size, xid = struct.unpack_from("!BBHI", message)
    return ofproto_parser.msg(DATAPATH, version, kind, size, xid, message)


def rival(counters: int, ticks: int) -> list[float]:
    """Return the CPU seconds of each tick of the stock app, with os-ken's unmodified parser."""
    ours_parser = parser._MSG_PARSERS[ofproto.OFPT_MULTIPART_REPLY]
    parser._MSG_PARSERS[ofproto.OFPT_MULTIPART_REPLY] = parser.OFPMultipartReply.parser
    logger = logging.getLogger("simple_monitor_13")
    logger.propagate = False
    spent = []
    with Path(os.devnull).open("w") as nowhere:
        handler = logging.StreamHandler(nowhere)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        for second in range(ticks + 1):
            messages = replies(counters, second)
            began = time.process_time()
            for message in messages:
                _monitor(logger, decoded(message))
            spent.append(time.process_time() - began)
        logger.removeHandler(handler)
    parser._MSG_PARSERS[ofproto.OFPT_MULTIPART_REPLY] = ours_parser
    return spent


def _monitor(logger: logging.Logger, msg: Any) -> None:
    """Process a reply like ``simple_monitor_13._port_stats_reply_handler``."""
    for stat in sorted(msg.body, key=attrgetter("port_no")):
        logger.info(
            "%016x %8x %8d %8d %8d %8d %8d %8d",
            1,
            stat.port_no,
            stat.rx_packets,
            stat.rx_bytes,
            stat.rx_errors,
            stat.tx_packets,
            stat.tx_bytes,
            stat.tx_errors,
        )


async def ours(counters: int, ticks: int, directory: Path) -> list[float]:
    """Return the CPU seconds of each tick of lightloom."""
    assert parser is mended  # `decoded` uses the parser that ofkit patches
    names = [f"gpu{n}" for n in range(counters)]
    now = 1_800_000_000.0
    state: Any = SimpleNamespace(
        site=SimpleNamespace(
            endpoints=[SimpleNamespace(name=name, emulated=True) for name in names]
        ),
        light=SimpleNamespace(
            attachments={
                name: AttachPoint(f"as{n // PORTS}", n % PORTS + 1) for n, name in enumerate(names)
            }
        ),
        jobs={},
        clock=lambda: now,
    )
    aggregators = [f"as{n}" for n in range(-(-counters // PORTS))]
    telemetry = Telemetry(state, None, None, directory)  # type: ignore[arg-type]
    spent = []
    for second in range(ticks + 1):
        messages = replies(counters, second)
        now += 1.0
        began = time.process_time()
        read = (block_of(decoded(message).body) for message in messages)
        blocks = dict(zip(aggregators, read, strict=True))
        telemetry.record(blocks)
        await telemetry.flush()
        spent.append(time.process_time() - began)
    rate = telemetry.rates(names[-1]).rx_bps
    assert rate == 16 * (10_000_000 + counters - 1), rate
    return spent


def run(counters: int, ours_ticks: int, rival_ticks: int) -> dict[str, Any]:
    """Measure both sides at one size, without the first tick of each, which has no rates."""
    with tempfile.TemporaryDirectory() as folder:
        mine = asyncio.run(ours(counters, ours_ticks, Path(folder)))[1:]
    theirs = rival(counters, rival_ticks)[1:]
    own, stock = statistics.mean(mine), statistics.mean(theirs)
    return {
        "counters": counters,
        "ours_cpu_s_per_tick": own,
        "ours_worst_tick_s": max(mine),
        "rival_cpu_s_per_tick": stock,
        "ours_us_per_counter": own / counters * 1e6,
        "rival_us_per_counter": stock / counters * 1e6,
        "ratio": stock / own,
        "ours_share_of_a_core_at_1_hz": own,
        "goal": GOAL,
        "met": own <= GOAL,
    }


def main() -> None:
    """Measure 6, 1,024 and 65,536 counters and print one JSON document."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ticks", type=int, default=30)
    options.add_argument("--rival-ticks", type=int, default=2)
    given = options.parse_args()
    sizes = (6, 1024, 65_536)
    document = {
        "benchmark": "telemetry",
        "rival": "os-ken simple_monitor_13",
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "sizes": [run(size, given.ticks, given.rival_ticks) for size in sizes],
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()

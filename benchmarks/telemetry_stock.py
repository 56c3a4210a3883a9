"""Runs the rival of ``benchmarks.telemetry_wire``: unmodified os-ken with its simple_monitor_13.

Its handlers are those of the published application without the flow counters. It prints its
listening port, then its CPU use, and ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import time
from operator import attrgetter
from typing import Any

from os_ken import cfg
from os_ken.base import app_manager
from os_ken.controller import ofp_event, ofp_handler
from os_ken.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib import hub
from os_ken.ofproto import ofproto_v1_3

from controller.devices.openflow.session.listen import listening_socket

PATIENCE_S = 180.0
polling = threading.Event()
seen: dict[int, int] = {}
logger = logging.getLogger("simple_monitor_13")


class Monitor(app_manager.OSKenApp):  # type: ignore[misc]  # os_ken has no types
    """Requests the port counters of every datapath once a second, and logs them."""

    OFP_VERSIONS = (ofproto_v1_3.OFP_VERSION,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.datapaths: dict[int, Any] = {}
        self.monitor_thread = hub.spawn(self._monitor)

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])  # type: ignore[untyped-decorator]
    def state_changed(self, ev: Any) -> None:
        """Record the connected datapaths."""
        if ev.state == MAIN_DISPATCHER:
            self.datapaths[ev.datapath.id] = ev.datapath

    def _monitor(self) -> None:
        polling.wait()
        while True:
            for dp in list(self.datapaths.values()):
                dp.send_msg(dp.ofproto_parser.OFPPortStatsRequest(dp, 0, dp.ofproto.OFPP_ANY))
            hub.sleep(1)

    @set_ev_cls(ofp_event.EventOFPPortStatsReply, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def replied(self, ev: Any) -> None:
        """Sort and log the counters."""
        dpid = ev.msg.datapath.id
        seen[dpid] = seen.get(dpid, 0) + 1
        for stat in sorted(ev.msg.body, key=attrgetter("port_no")):
            logger.info(
                "%016x %8x %8d %8d %8d %8d %8d %8d",
                dpid,
                stat.port_no,
                stat.rx_packets,
                stat.rx_bytes,
                stat.rx_errors,
                stat.tx_packets,
                stat.tx_bytes,
                stat.tx_errors,
            )


def main() -> None:
    """Serve switches that connect, print the CPU use and exit."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--aggregators", type=int, required=True)
    options.add_argument("--ports", type=int)
    options.add_argument("--seconds", type=int, required=True)
    given = options.parse_args()
    with listening_socket("127.0.0.1:0") as free:
        port = free.getsockname()[1]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stderr))  # which is discarded
    cfg.CONF(["--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", str(port)])
    manager = app_manager.AppManager.get_instance()
    handler = manager.instantiate(ofp_handler.OFPHandler)
    monitor = manager.instantiate(Monitor)
    for app in (handler, monitor):
        app.start()
    print(json.dumps({"port": port}), flush=True)
    until = time.monotonic() + PATIENCE_S
    while len(monitor.datapaths) < given.aggregators and time.monotonic() < until:
        time.sleep(0.1)
    found = {"idle_share_of_a_core": _used(given.seconds / 3)}
    polling.set()
    time.sleep(3)
    before = sum(seen.values())
    found["share_of_a_core"] = _used(given.seconds)
    found["seconds_taken"] = (sum(seen.values()) - before) / given.aggregators
    print(json.dumps(found), flush=True)
    os._exit(0)  # its threads do not end


def _used(seconds: float) -> float:
    began, cpu = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu) / (time.monotonic() - began)


if __name__ == "__main__":
    main()

"""Measures how well `measure links` knows the emulated rack, and how long it takes.

    lightloom testbed up
    python benchmarks/links.py --runs 20 --slowed 20 --together 3

Clean runs: groups at every size from 64 KiB are {inside an aggregator, across}; beta of each class
is the link's rate x 1448/1514 (payload of a frame) within 3 %; what stands out is false. Slowed
runs: one fiber in turn has 90 % of its rate towards the endpoint; where the kernel has netem, one
is late by 0.5 ms. Rivals in the same run: a bare TCP connection of two ranks, and loopback.
Prints a line a run and a JSON document. Runs that are not valid are counted apart, never left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sitefile import load_site
from testbed.demo.api import Controller, Document
from testbed.rack import RUN_DIR, record
from testbed.rack.layout import OCS_NETNS
from testbed.rack.shaping import htb_class, run_tc

PAYLOAD = 1448 / 1514
"""Of a full frame on the rack: HTB counts Ethernet's header as well."""
TOLERANCE = 0.03
SLOWED = 0.9
LATE = "500us"
LIMIT_S = 900.0
ENDED = ("completed", "failed", "cancelled")
TCP = """
import json, os, socket, time
me, peers = int(os.environ["LIGHTLOOM_RANK"]), os.environ["LIGHTLOOM_ADDRESSES"].split(",")
if me:
    with socket.create_server((peers[1], 5999)) as server:
        link, _ = server.accept()
        count, began = 0, None
        while piece := link.recv(1 << 20):
            now = time.monotonic()
            if began is None and count > 1 << 20:
                began, count = now, 0
            count += len(piece)
        print(json.dumps({"bytes_per_s": count / (now - began)}), flush=True)
else:
    until = time.monotonic() + 60
    while True:
        try:
            link = socket.create_connection((peers[1], 5999), 5)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    until, block = time.monotonic() + 3, bytes(1 << 18)
    while time.monotonic() < until:
        link.sendall(block)
    link.shutdown(socket.SHUT_WR)
    link.recv(1)  # a container that ends takes what its sockets have not sent with it
"""


class Bench:
    """The running rack."""

    def __init__(self, controller: Controller) -> None:
        written = record.load(RUN_DIR)
        if written is None:
            raise SystemExit("no rack is up: lightloom testbed up")
        self.site = load_site(record.site_copy(RUN_DIR))
        self.access, self.between = int(written.access_bps), int(written.inter_aggregator_bps)
        self.controller = controller

    def measure(self, seed: int, **settings: object) -> Document:
        """Measure all idle endpoints; return the measurement with ``took_s``."""
        began = time.monotonic()
        body = {"type": "links", "seed": seed, "settings": settings}
        ident = self.controller.post("/measurements", body)["id"]
        while (view := self.controller.get(f"/measurements/{ident}"))["state"] not in ENDED:
            if time.monotonic() - began > LIMIT_S:
                raise SystemExit(f"{ident} does not end")
            time.sleep(0.5)
        if view["result"] is None:
            raise SystemExit(f"{ident}: {view['reason']}")
        return {**view["result"], "took_s": time.monotonic() - began}

    def rates(self) -> dict[str, float]:
        """Return the payload that each class of paths carries, bytes/s."""
        return {"across": self.between / 8 * PAYLOAD, "inside": self.access / 8 * PAYLOAD}

    def tcp(self, name: str, *endpoints: str) -> float:
        """Return bytes/s of a bare TCP connection between two endpoints."""
        job = {
            "name": name,
            "count": 2,
            "image": "ll-probe:latest",
            "command": ["python3", "-c", TCP],
            "endpoints": endpoints,
        }
        self.controller.post("/jobs", job)
        until = time.monotonic() + 60
        while (view := self.controller.get(f"/jobs/{name}"))["state"] not in ENDED:
            if time.monotonic() > until:
                raise SystemExit(f"{name} does not end")
            time.sleep(0.2)
        if view["state"] != "completed":
            raise SystemExit(f"{name}: {view['reason']}")
        texts = [text for rank, text in self.controller.logs(name, follow=False) if rank == 1]
        return float(json.loads(texts[-1])["bytes_per_s"])

    @contextmanager
    def slowed(self, endpoint: str) -> Iterator[None]:
        """Let a fiber carry less towards its endpoint."""
        link = f"o-{endpoint}"
        run_tc(OCS_NETNS, [htb_class(link, int(self.access * SLOWED), verb="change")])
        try:
            yield
        finally:
            run_tc(OCS_NETNS, [htb_class(link, self.access, verb="change")])

    @contextmanager
    def late(self, endpoint: str) -> Iterator[None]:
        """Let a fiber delay what goes to its endpoint. RackError without netem."""
        leaf = f"qdisc replace dev o-{endpoint} parent 1:1 handle 10:"
        run_tc(OCS_NETNS, [f"{leaf} netem delay {LATE} limit 100"])
        try:
            yield
        finally:
            run_tc(OCS_NETNS, [f"{leaf} pfifo limit 100"])


def groups_right(result: Document) -> bool:
    """Say whether the groups are {inside, across} at every size from 64 KiB."""
    by_size: dict[int, list[set[str]]] = {}
    for group in result["groups"]:
        if group["size"] >= 65536:
            by_size.setdefault(group["size"], []).append(set(group["classes"]))
    return bool(by_size) and all(
        len(groups) == 2
        and all("same" in name for name in groups[0])
        and not any("same" in name for name in groups[1])
        for groups in by_size.values()
    )


def betas(result: Document, rates: dict[str, float]) -> dict[str, float]:
    """Return beta over the link's own rate, less 1, by class."""
    return {
        fit["class"]: fit["beta"] / rates["inside" if "same" in fit["class"] else "across"] - 1
        for fit in result["fits"]
    }


def main() -> int:
    """Run; return 1 unless all goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8470")
    parser.add_argument("--runs", type=int, default=20, help="clean runs, each pair alone")
    parser.add_argument("--slowed", type=int, default=20, help="runs with a slowed fiber")
    parser.add_argument("--late", type=int, default=0, help="runs with a late fiber: needs netem")
    parser.add_argument("--together", type=int, default=3, help="clean runs, rounds at once")
    given = parser.parse_args()
    with Controller(given.url) as controller:
        bench = Bench(controller)
        kinds = [
            *("clean" for _ in range(given.runs)),
            *("slowed" for _ in range(given.slowed)),
            *("late" for _ in range(given.late)),
            *("together" for _ in range(given.together)),
        ]
        order = sorted(range(len(kinds)), key=lambda i: (i * 7919) % max(len(kinds), 1))
        runs = [run(bench, kinds[i], seed) for seed, i in enumerate(order)]
        rivals = rival(bench)
    told = summary(runs, rivals)
    print(json.dumps(told, indent=1))
    return 0 if told["met"] else 1


def run(bench: Bench, kind: str, seed: int) -> dict[str, Any]:
    """Measure once; print and return what came of it."""
    names = [endpoint.name for endpoint in bench.site.endpoints]
    target = names[seed % len(names)]
    if kind == "slowed":
        with bench.slowed(target):
            result = bench.measure(seed)
    elif kind == "late":
        with bench.late(target):
            result = bench.measure(seed)
    else:
        result = bench.measure(seed, together=kind == "together")
    wanted = {"slowed": f"{target} (receives)", "late": f"{target} (latency)"}.get(kind)
    found = [anomaly["object"] for anomaly in result["anomalies"]]
    off = betas(result, bench.rates())
    told = {
        "kind": kind,
        "took_s": round(result["took_s"], 1),
        "valid": result["valid"],
        "why": result["invalid_because"],
        "load_1m": result["environment"]["load_1m"],
        "groups_right": groups_right(result),
        "beta_off": {name: round(value, 4) for name, value in off.items()},
        "beta_right": all(abs(value) <= TOLERANCE for value in off.values()),
        "target": wanted,
        "found": wanted in found,
        "false": [name for name in found if name != wanted],
        "loopback_s": result["summary"]["loopback_s"],
    }
    print(json.dumps(told), flush=True)
    return told


def rival(bench: Bench) -> dict[str, float]:
    """Return a bare TCP connection's rate over the link's own, less 1."""
    site = bench.controller.items("/endpoints")
    first, *others = [e["name"] for e in site]
    homes = {e["name"]: e["home"] for e in site}
    rates = bench.rates()
    picked = {
        "inside": next(name for name in others if homes[name] == homes[first]),
        "across": next(name for name in others if homes[name] != homes[first]),
    }
    stamp = f"{os.getpid()}"
    return {
        where: round(bench.tcp(f"tcp-{where}-{stamp}", first, other) / rates[where] - 1, 4)
        for where, other in picked.items()
    }


def summary(runs: Sequence[dict[str, Any]], rivals: dict[str, float]) -> dict[str, Any]:
    """Return the counts that the goals speak of."""
    clean = [one for one in runs if one["kind"] == "clean"]
    slow = [one for one in runs if one["kind"] in ("slowed", "late")]
    both = [one for one in runs if one["kind"] == "together"]
    told: dict[str, Any] = {
        "machine": subprocess.run(
            ["uname", "-rm"], capture_output=True, text=True, check=True, timeout=5
        ).stdout.strip(),
        "valid": f"{sum(one['valid'] for one in runs)} of {len(runs)}",
        "groups_right": f"{sum(one['groups_right'] for one in clean)} of {len(clean)}",
        "beta_right": f"{sum(one['beta_right'] for one in clean)} of {len(clean)}",
        "false_in_clean_runs": sum(len(one["false"]) for one in clean),
        "found": f"{sum(one['found'] for one in slow)} of {len(slow)}",
        "alone_s_most": max((one["took_s"] for one in clean + slow), default=None),
        "together_s_most": max((one["took_s"] for one in both), default=None),
        "bare_tcp_off": rivals,
        "loopback_s": min((one["loopback_s"] or 1.0 for one in runs), default=None),
    }
    told["met"] = (
        all(one["groups_right"] and one["beta_right"] for one in clean)
        and all(one["found"] for one in slow)
        and told["false_in_clean_runs"] <= max(len(clean) / 20, 1)
        and (told["alone_s_most"] or 0) <= 180
        and (told["together_s_most"] or 0) <= 60
    )
    return told


if __name__ == "__main__":
    sys.exit(main())

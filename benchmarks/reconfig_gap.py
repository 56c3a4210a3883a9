"""Measures the traffic gap of a job while its light moves, compared with its dark time.

``sudo python -m benchmarks.reconfig_gap`` prints one JSON document; ``--mirror-s`` sets other
mirror times, ``--arms`` selects arms. Two jobs of two ranks run the ring of TCP senders
(``testbed.ring_rank``) on the emulated rack, with several mirror times of the optical switch.
The same run has three arms:

- ``pause``: the controller regroups, containers are frozen meanwhile;
- ``live``: the controller regroups, the program continues, aggregators hold its traffic;
- ``undrained``: without a controller, the switch's driver removes and makes the circuit of one
  rank under full traffic, like a script.

``dark_s`` is the transaction's longest dark time (first pair broken to last path qualified), for
``undrained`` the time of the driver's call; ``gap_s`` the longest time in which a rank received
nothing; ``over_s`` the difference. ``idle_gap_s`` is the longest gap while nothing moves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ocs_driver
import testbed
from ocs_driver import CircuitRequest
from sitefile import load_site
from testbed import ring
from testbed.mortal import Mortal, taken_over
from testbed.rack import down, up
from testbed.rack.programs import passwords

PAPER = Path(testbed.__file__).parent / "sites" / "paper.yaml"
RINGS = {"red": ["gpu0", "gpu2"], "blue": ["gpu1", "gpu3"]}
CUT = "gpu2"
MIRROR_S = (0.05, 0.25, 0.5, 1.0)
ARMS = ("pause", "live", "undrained")
REST_S = 1.0
"""Pause before and after every move: ranks report gaps at their end, counts four times a second."""

Document = dict[str, Any]


@contextmanager
def rack(mirror_s: float) -> Iterator[Mortal]:
    """Bring up the paper's rack with an optical switch of this mirror time."""
    run_dir = Path(f"/run/lightloom/gap-{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site.yaml"
        text = PAPER.read_text(encoding="utf-8")
        for name in ("mirror_time_s", "bulk_time_s"):
            line = next(ln for ln in text.splitlines() if ln.strip().startswith(name))
            text = text.replace(line, f"  {name}: {mirror_s}")
        site.write_text(text, encoding="utf-8")
        try:
            with taken_over(up(site, run_dir, progress=lambda _: None), run_dir) as mortal:
                yield mortal
        finally:
            down(run_dir, progress=lambda _: None)


def start_rings(mortal: Mortal, policy: str) -> None:
    """Start both rings and wait for traffic."""
    for name, ends in RINGS.items():
        mortal.post("/jobs", ring.request(name, ends, policy))
    mortal.until(lambda: all(len(seen(mortal, name)) == 2 for name in RINGS))
    mortal.until(lambda: all(s.rx_bytes for n in RINGS for s in seen(mortal, n).values()))
    time.sleep(REST_S)


def seen(mortal: Mortal, name: str) -> dict[int, ring.RankSeen]:
    """Return the reports of a ring's ranks so far."""
    return ring.read(mortal.log_lines(name))


def gap_s(mortal: Mortal, since: float, names: tuple[str, ...]) -> float:
    """Return the longest gap of the rings that ended after ``since``."""
    time.sleep(REST_S)
    return max(ring.longest_gap_s(seen(mortal, n), since, time.time()) for n in names)


def end_rings(mortal: Mortal) -> None:
    """Cancel both rings and wait until they are removed."""
    for name in RINGS:
        mortal.post(f"/jobs/{name}/cancel")
    mortal.until(lambda: not mortal.get("/containers")["items"])


def moved(mortal: Mortal, policy: str, rounds: int) -> list[Document]:
    """Regroup and scatter again, ``rounds`` times; every move is a sample."""
    start_rings(mortal, policy)
    home = homes(mortal)
    began = time.time()
    time.sleep(2.0)
    idle = gap_s(mortal, began, tuple(RINGS))
    samples = []
    for _ in range(rounds):
        for target in ("together", "apart"):
            plan = mortal.post("/plans", {})
            if target == "apart":
                now = homes(mortal)
                moves = [
                    {"endpoint": e, "from": now[e], "to": home[e]}
                    for e in home
                    if now[e] != home[e]
                ]
                plan |= {"moves": moves, "circuits": {}, "homes_after": home, "basis": None}
            began = time.time()
            done = mortal.post("/transactions", {"plan": plan}, wait_s=60)
            if done["state"] != "committed":
                raise SystemExit(f"{done['id']}: {done['state']}: {done['error']}")
            dark_s = max(done["dark_time_s"].values())
            phases = {
                p["name"]: round(p["finished_at"] - p["started_at"], 4) for p in done["phases"]
            }
            samples.append(
                row(policy, dark_s, gap_s(mortal, began, tuple(RINGS)), idle) | {"phases": phases}
            )
    end_rings(mortal)
    return samples


def homes(mortal: Mortal) -> dict[str, str | None]:
    """Return every endpoint's home."""
    return {e["name"]: e["home"] for e in mortal.get("/endpoints")["items"]}


def undrained(mortal: Mortal, rounds: int) -> list[Document]:
    """Remove and make the same circuit under full traffic, without a controller."""
    start_rings(mortal, "live")
    site = load_site(PAPER)
    port = site.endpoint(CUT).fiber.port
    circuit = next(c for c in mortal.get("/circuits")["items"] if port in (c["a"], c["b"]))
    ends = CircuitRequest(circuit["a"], circuit["b"], name=CUT)
    took = []
    for _ in range(rounds):
        mortal.kill()
        began = time.time()
        dark_s = asyncio.run(cut_and_make(site.switches[0].url, password(), ends))
        time.sleep(REST_S + 2 * dark_s)
        mortal.start()
        took.append((dark_s, gap_s(mortal, began, ("red",))))
    end_rings(mortal)
    return [row("undrained", dark_s, gap, None) for dark_s, gap in took]


def password() -> str:
    """Return the password of the rack's emulated switch."""
    (value,) = passwords(load_site(PAPER), os.environ).values()
    return value


async def cut_and_make(url: str, secret: str, ends: CircuitRequest) -> float:
    """Delete and make one circuit; return the seconds in between."""
    async with ocs_driver.open(url, password=secret) as driver:
        began = time.monotonic()
        await driver.apply([ends], [], deadline_s=30)
        await driver.apply([], [ends], deadline_s=30)
        return time.monotonic() - began


def row(arm: str, dark_s: float, gap: float, idle_s: float | None) -> Document:
    """Return one sample."""
    return {
        "arm": arm,
        "dark_s": round(dark_s, 4),
        "gap_s": round(gap, 4),
        "over_s": round(gap - dark_s, 4),
        "idle_gap_s": idle_s,
    }


def summary(samples: list[Document]) -> Mapping[str, Document]:
    """Return medians per arm."""
    arms: dict[str, Document] = {}
    for arm in ARMS:
        mine = [s for s in samples if s["arm"] == arm]
        if mine:
            over = [s["over_s"] for s in mine]
            ratio = [s["gap_s"] / s["dark_s"] for s in mine]
            arms[arm] = {
                "samples": len(mine),
                "over_s_min": min(over),
                "over_s_median": round(statistics.median(over), 4),
                "over_s_max": max(over),
                "gap_over_dark_median": round(statistics.median(ratio), 3),
            }
    return arms


def main() -> None:
    """Run all arms at all mirror times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--mirror-s", type=float, nargs="+", default=list(MIRROR_S))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    options = parser.parse_args()
    results = []
    for mirror_s in options.mirror_s:
        with rack(mirror_s) as mortal:
            samples = []
            for arm in options.arms:
                samples += (
                    undrained(mortal, options.rounds)
                    if arm == "undrained"
                    else moved(mortal, arm, options.rounds)
                )
        results.append({"mirror_s": mirror_s, "arms": summary(samples), "samples": samples})
    machine = {"cores": os.cpu_count(), "kernel": platform.release()}
    print(json.dumps({"machine": machine, "emulated": ["ocs0", "as0", "as1"], "results": results}))


if __name__ == "__main__":
    main()

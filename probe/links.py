"""Measures pairs of ranks with ucx_perftest: latency of messages, and bandwidth both ways.

Usage: ``python3 -m probe.links PLAN``; PLAN is JSON, see ``LinksPlan``. Every rank runs it; rank 0
decides which pairs measure when. A pass measures every pair once; repetitions are passes, each in
an order of its own, so that what disturbs the machine for seconds spoils one repetition of a few
pairs and not all repetitions of one.

ucx_perftest (openucx/ucx, src/tools/perf) serves one client and ends. Its latency is half of a
round trip, its megabyte 2^20 bytes. A batch file on both sides runs many tests over one process.
A first, short batch of a pair shows how many messages fill a repetition. On a shaped link the
first bytes pass faster than the link (the bucket's 32 kB on the rack): every test sends WARM_BYTES
before it counts, and LEAST_BYTES that count.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import common

PORT = 23500
"""First port of the servers; each test of a rank has one of PORTS."""
PORTS = 64
MEBI = float(2**20)
GRACE_S = 15.0
LISTEN_S = 10.0
POLL_S = 0.02
TEST_S = 0.2
"""Cost of one test of a batch beside its messages."""
FIRST_SIZE = 65536
LATENCY_SHARE = 0.2
"""Seconds of messages in a repetition of latency."""
WARM_BYTES = 2**18
LEAST_BYTES = 2**19
MOST_MESSAGES = 20_000

_ROW = 9
"""Columns of a row of ucx_perftest's CSV, the test's name first."""


@dataclass(slots=True, frozen=True)
class LinksPlan:
    """What to measure; sizes in bytes."""

    rounds: Sequence[Sequence[Sequence[int]]]
    """Disjoint pairs of ranks, the one that sends first before the other."""
    latency_sizes: Sequence[int]
    bandwidth_sizes: Sequence[int]
    repetitions: int
    seconds: float
    """Seconds of one repetition of one size."""
    seed: int
    transport: str
    """Value of UCX_TLS."""
    wait: str = "poll"
    """With ``sleep`` a waiting side leaves its core to others."""
    together: bool = False
    """All pairs of a round at once, all repetitions in a row: pairs pause between tests, and leave
    the links to the others then."""


@dataclass(slots=True, frozen=True)
class Speed:
    """A first measurement of a path: seconds of a small message, bytes/s of large ones."""

    latency_s: float
    bandwidth: float


class Ends:
    """This rank's side of tests: servers that wait for their client, and clients."""

    def __init__(self, me: common.Rank, transport: str) -> None:
        self._me = me
        self._env = {"UCX_TLS": transport, "UCX_LOG_LEVEL": "error"}
        if Path(f"/sys/class/net/{common.NIC}").exists():
            self._env["UCX_NET_DEVICES"] = common.NIC
        self._servers: dict[int, tuple[common.ToolProcess, str]] = {}
        self._lock = threading.Lock()

    def handlers(self) -> dict[str, common.Handler]:
        """Return what rank 0 may ask."""
        return {"listen": self.listen, "connect": self.connect, "finish": self.finish}

    def listen(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Start a server for one batch; return once it listens: a client tries once only."""
        port = int(given["port"])
        path = _written(str(given["batch"]))
        tool = common.ToolProcess(
            ["ucx_perftest", "-p", str(port), "-b", path, "-f"], env=self._env
        )
        with self._lock:
            self._servers[port] = tool, path
        until = time.monotonic() + LISTEN_S
        while not listens(port):
            if not tool.running:
                raise common.PeerError(self._me.rank, f"no server: {_said(tool.finish(0.0))}")
            if time.monotonic() > until:
                raise common.PeerError(self._me.rank, f"no server within {LISTEN_S:g} s")
            time.sleep(POLL_S)
        return {}

    def connect(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run a batch against another rank's server; return its lines and its problem."""
        path = _written(str(given["batch"]))
        argv = [
            *("ucx_perftest", self._me.addresses[int(given["rank"])]),
            *("-p", str(int(given["port"])), "-b", path, "-f", "-v"),
        ]
        try:
            result = common.run_tool(argv, float(given["timeout_s"]), env=self._env)
        finally:
            Path(path).unlink()
        return {"lines": result.stdout.splitlines()[:2000], "problem": _said(result)}

    def finish(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """End a server, whether its client came or not."""
        with self._lock:
            tool, path = self._servers.pop(int(given["port"]))
        tool.kill()
        with contextlib.suppress(OSError):
            Path(path).unlink()
        return {}


def _written(text: str) -> str:
    with tempfile.NamedTemporaryFile("w", prefix="ll-batch-", delete=False) as file:
        file.write(text)
    return file.name


def _said(result: common.ToolResult) -> str:
    """Return why a tool's output does not count: UCX writes its errors to stdout."""
    errors = [line for line in result.stdout.splitlines() if " ERROR " in line]
    told = errors[-1].partition(" ERROR ")[2].strip()[:200] if errors else ""
    return ": ".join(filter(None, (result.problem, told))) if result.problem else ""


def listens(port: int, table: Path = Path("/proc/net/tcp")) -> bool:
    """Return whether a process of this network namespace listens on a TCP port (proc(5))."""
    rows = (line.split() for line in table.read_text().splitlines()[1:])
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def batch(
    latency: Sequence[tuple[int, int]],
    bandwidth: Sequence[tuple[int, int]],
    *,
    wait: str,
    repetitions: int = 1,
) -> str:
    """Return a batch file: each (size, messages), all sizes before the next repetition."""
    lines = []
    for number in range(repetitions):
        for letter, test, points in (
            ("l", "tag_lat", latency),
            ("b", "tag_bw", bandwidth),
        ):
            for size, messages in points:
                warm = warm_up(size, messages) if letter == "b" else max(1, messages // 10)
                lines.append(
                    f"{letter}{size}.{number} -t {test} -E {wait} -s {size} -n {messages} -w {warm}"
                )
    return "\n".join(lines) + "\n"


def warm_up(size: int, messages: int) -> int:
    """Return the messages that a test of bandwidth sends before it counts."""
    return max(1, messages // 10, -(-WARM_BYTES // size))


def figures(lines: Sequence[str]) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Return latencies (s) and bandwidths (bytes/s) by size, from a client's CSV.

    Lines that are not results are left out.
    """
    latency: dict[int, list[float]] = {}
    bandwidth: dict[int, list[float]] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != _ROW or cells[0][:1] not in {"l", "b"}:
            continue
        try:
            size = int(cells[0][1:].partition(".")[0])
            seconds, rate = float(cells[4]) * 1e-6, float(cells[6]) * MEBI
        except ValueError:
            continue
        if cells[0][0] == "l" and seconds > 0:
            latency.setdefault(size, []).append(seconds)
        elif cells[0][0] == "b" and rate > 0:
            bandwidth.setdefault(size, []).append(rate)
    return latency, bandwidth


class Measuring:
    """Rank 0's side: runs the plan and prints a line per direction and pass."""

    def __init__(self, plan: LinksPlan, ranks: common.Coordinator) -> None:
        self._plan = plan
        self._ranks = ranks
        self._ports = iter(_ports())
        self._lock = threading.Lock()
        self._speeds: dict[tuple[int, int], Speed] = {}
        self._silent: dict[int, str] = {}
        """Ranks that did not answer, and why: they are not awaited again."""

    def run(self) -> None:
        """Measure all pairs, once a pass."""
        order = random.Random(self._plan.seed)  # noqa: S311 - an order, not a secret
        rounds = list(self._plan.rounds)
        if self._plan.together:
            for pairs in rounds:
                self._at_once(pairs)
            return
        for number in range(self._plan.repetitions):
            order.shuffle(rounds)
            for pairs in rounds:
                for a, b in pairs:
                    self._way(a, b, number)
                    self._way(b, a, number)

    def loopback(self) -> None:
        """Print what this server's processor alone costs: rank 0 against itself."""
        sizes = [(size, 200) for size in self._plan.latency_sizes or (8,)]
        text = batch(sizes, [], wait=self._plan.wait, repetitions=3)
        try:
            latency, _ = self._test(0, 0, text, 30.0)
        except common.PeerError as error:
            common.emit("loopback", reason=error.reason)
            return
        found = [[size, min(values)] for size, values in sorted(latency.items())]
        common.emit("loopback", latency_s=found)

    def _at_once(self, pairs: Sequence[Sequence[int]]) -> None:
        """Measure all pairs of a round at once, first one way and then the other."""
        with ThreadPoolExecutor(max_workers=max(len(pairs), 1)) as threads:
            for a, b in pairs:
                with contextlib.suppress(common.PeerError):
                    self._speed(a, b)
            for ways in (pairs, [(b, a) for a, b in pairs]):
                list(threads.map(lambda ends: self._way(ends[0], ends[1], None), ways))

    def _way(self, sender: int, receiver: int, number: int | None) -> None:
        """Measure one direction of a pair: repetition ``number``, or all of them in a row."""
        first = sender < receiver
        if not first and not self._plan.bandwidth_sizes:
            return
        numbers = range(self._plan.repetitions) if number is None else (number,)
        try:
            speed = self._speed(*sorted((sender, receiver)))
            latency, rates = self._measured(
                sender,
                receiver,
                speed,
                latency=first,
                repetitions=len(numbers),
            )
        except common.PeerError as error:
            common.emit(
                "pair",
                sender=sender,
                receiver=receiver,
                number=numbers[0],
                reason=f"rank {error.rank}: {error.reason}"[:300],
            )
            return
        for place, one in enumerate(numbers):
            common.emit(
                "pair",
                sender=sender,
                receiver=receiver,
                number=one,
                latency_s=[[s, found[place]] for s, found in latency.items() if place < len(found)],
                bandwidth=[[s, found[place]] for s, found in rates.items() if place < len(found)],
            )

    def _speed(self, a: int, b: int) -> Speed:
        """Return the first measurement of a pair, made once."""
        found = self._speeds.get((a, b))
        if found is None:
            text = batch([(8, 20)], [(FIRST_SIZE, 16)], wait=self._plan.wait, repetitions=2)
            latency, rates = self._test(a, b, text, GRACE_S)
            if not latency or not rates:
                raise common.PeerError(b, "the first measurement had no result")
            found = self._speeds[a, b] = Speed(min(latency[8]), max(rates[FIRST_SIZE]))
        return found

    def _measured(
        self, a: int, b: int, speed: Speed, *, latency: bool, repetitions: int
    ) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        plan = self._plan
        small = [
            (
                size,
                _messages(plan.seconds * LATENCY_SHARE, speed.latency_s + size / speed.bandwidth),
            )
            for size in (plan.latency_sizes if latency else ())
        ]
        large = [
            (size, max(_messages(plan.seconds, size / speed.bandwidth), -(-LEAST_BYTES // size)))
            for size in plan.bandwidth_sizes
        ]
        took = sum(2.2 * n * (speed.latency_s + s / speed.bandwidth) for s, n in small)
        took += sum((n + warm_up(s, n)) * s / speed.bandwidth for s, n in large)
        limit = 5 * repetitions * (took + (len(small) + len(large)) * TEST_S) + GRACE_S
        text = batch(small, large, wait=plan.wait, repetitions=repetitions)
        return self._test(a, b, text, limit)

    def _test(
        self, a: int, b: int, text: str, timeout_s: float
    ) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Make rank ``a`` send to ``b``. Raises PeerError."""
        with self._lock:
            port = next(self._ports)
        asked = {"rank": b, "port": port, "batch": text, "timeout_s": timeout_s}
        for rank in (a, b):
            if rank in self._silent:
                raise common.PeerError(rank, self._silent[rank])
        self._call(b, "listen", {"port": port, "batch": text}, GRACE_S)
        try:
            told = self._call(a, "connect", asked, timeout_s + GRACE_S)
        finally:
            with contextlib.suppress(common.PeerError):
                self._call(b, "finish", {"port": port}, GRACE_S)
        if told["problem"]:
            raise common.PeerError(a, str(told["problem"]))
        return figures([str(line) for line in told["lines"]])

    def _call(
        self, rank: int, command: str, given: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        try:
            return self._ranks.call(rank, command, given, timeout_s)
        except common.PeerError as error:
            if error.silent:
                self._silent[rank] = error.reason
            raise


def version() -> str:
    """Return UCX's version; empty where it is not printed."""
    said = common.run_tool(["ucx_info", "-v"], GRACE_S).stdout
    found = re.search(r"version:? *([0-9][0-9.]*)", said, re.IGNORECASE)
    return found[1][:20] if found else ""


def _messages(seconds: float, each_s: float) -> int:
    return max(1, min(round(seconds / each_s), MOST_MESSAGES))


def _ports() -> Iterator[int]:
    while True:
        yield from range(PORT, PORT + PORTS)


def main(plan: LinksPlan) -> None:
    """Measure as rank 0, or serve it."""
    me = common.identity()
    ends = Ends(me, plan.transport)
    if me.rank:
        common.serve(me, ends.handlers())
        return
    with common.Coordinator(me, ends.handlers()) as ranks:
        common.emit("tool", version=version())
        measuring = Measuring(plan, ranks)
        measuring.loopback()
        measuring.run()


def plan_of(text: str) -> LinksPlan:
    """Read a plan. Raises ValueError, TypeError."""
    return LinksPlan(**json.loads(text))


if __name__ == "__main__":
    asked = plan_of(sys.argv[1])
    common.run_probe(lambda: main(asked))

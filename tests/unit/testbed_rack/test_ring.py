"""Tests the ring of TCP senders on two loopback addresses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from testbed import ring, ring_rank

ADDRESSES = "127.0.71.1,127.0.71.2"


@pytest.fixture
def pair() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield both running ranks."""
    env = {**os.environ, "LIGHTLOOM_ADDRESSES": ADDRESSES}
    ranks = [
        subprocess.Popen(
            [sys.executable, *ring.COMMAND[1:]],
            env={**env, "LIGHTLOOM_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    yield ranks
    for process in ranks:
        process.kill()
        process.wait()


def told(process: subprocess.Popen[str], event: str) -> dict[str, float]:
    """Return the next line with ``event``."""
    assert process.stdout is not None
    for line in process.stdout:
        document = json.loads(line)
        if document["event"] == event:
            return document
    raise AssertionError("the rank has ended")


def test_a_frozen_rank_is_a_gap_at_its_neighbour(pair: list[subprocess.Popen[str]]) -> None:
    first, second = pair
    while told(second, "count")["rx_bytes"] == 0:
        pass
    first.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    first.send_signal(signal.SIGCONT)
    gap = told(second, "gap")
    while gap["gap_s"] < 0.25:  # a busy machine may cause small gaps
        gap = told(second, "gap")
    first.kill()
    text = (second.stdout.readline() for _ in range(3)) if second.stdout else ()
    ranks = ring.read([{"text": json.dumps(gap)}, {"text": "noise"}, *({"text": t} for t in text)])
    assert ranks[1].rx_bytes > 0
    assert (ranks[1].strangers, ranks[1].lost, ranks[1].repeated) == (0, 0, 0)
    assert ring.longest_gap_s(ranks, 0, time.time()) >= 0.25
    assert ring.longest_gap_s(ranks, 0, 1) == 0


def test_a_rank_that_reports_only_gaps_still_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow machine, on which every message is late."""
    monkeypatch.setattr(ring_rank, "COUNT_EVERY_S", 3600)
    monkeypatch.setattr(ring_rank, "GAP_S", 0.0)
    ours, theirs = socket.socketpair()
    seen = ring_rank.ReceivedCounts(1)
    with theirs:
        for number in (1, 2, 3):
            ours.sendall(ring_rank.HEAD.pack(0, number).ljust(ring_rank.SIZE, b"."))
        ours.shutdown(socket.SHUT_WR)
        ring_rank.serve(theirs, 0, seen)
    ours.close()
    unused, closed = socket.socketpair()
    unused.close()
    with closed:
        ring_rank.serve(closed, 0, seen)
    ranks = ring.read({"text": line} for line in capsys.readouterr().out.splitlines())
    assert (ranks[1].rx_bytes, ranks[1].connections) == (3 * ring_rank.SIZE, 1)
    assert len(ranks[1].gaps) == 3


def test_skipped_and_repeated_messages_are_counted() -> None:
    seen = ring_rank.ReceivedCounts(0)
    for number in (7, 8, 11, 11, 9, 10):
        seen.follows(number)
    assert (seen.lost, seen.repeated) == (2, 2)


def test_a_ring_is_submitted_in_the_order_given() -> None:
    body = ring.request("red", ["gpu2", "gpu0"], "live")
    assert (body["count"], body["endpoints"], body["rank_order"]) == (2, ["gpu2", "gpu0"], "placed")
    assert body["policy"] == "live"
    assert sum(map(len, body["command"])) < 64 * 1024

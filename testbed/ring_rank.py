"""Runs one rank of a ring of small TCP senders: a job that detects every gap in its traffic.

It has no imports of the project, so that any image with Python runs it (``python3 -c`` with this
file's text). Each rank sends a numbered message to the next one, waits for the reply, pauses, and
sends again: the lock step of a synchronous training in 64 bytes. It reports on stdout, one JSON
document per line: ``{"event": "gap", ...}`` when nothing came from the previous rank for GAP_S or
longer, and ``{"event": "count", ...}`` every COUNT_EVERY_S. Every line has all counts, because on
a slow machine the latest lines may all be gaps. Lost connections are opened again.
"""

import json
import os
import signal
import socket
import struct
import threading
import time

PORT = 23456
PERIOD_S = 0.004
"""Pause between two messages; also the resolution of gaps."""
GAP_S = 0.02
COUNT_EVERY_S = 0.25
RETRY_S = 0.05
SIZE = 64
HEAD = struct.Struct("!IQ")
"""Sender's rank, number of the message."""


def main() -> None:
    """Run this rank until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # process 1 has no default action
    rank = int(os.environ["LIGHTLOOM_RANK"])
    addresses = os.environ["LIGHTLOOM_ADDRESSES"].split(",")
    threading.Thread(target=send, args=(rank, addresses), daemon=True).start()
    receive(rank, addresses)


def send(rank: int, addresses: list[str]) -> None:
    """Send to the next rank without end."""
    to = (addresses[(rank + 1) % len(addresses)], PORT)
    number = 0
    while True:
        try:
            with socket.create_connection(to, timeout=2) as sock:
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    number += 1
                    sock.sendall(HEAD.pack(rank, number).ljust(SIZE, b"."))
                    whole(sock, SIZE)
                    time.sleep(PERIOD_S)
        except OSError:
            time.sleep(RETRY_S)


def receive(rank: int, addresses: list[str]) -> None:
    """Reply to the previous rank without end, and report its messages."""
    before = (rank - 1) % len(addresses)
    seen = ReceivedCounts(rank)
    with socket.create_server((addresses[rank], PORT)) as server:
        server.settimeout(COUNT_EVERY_S)
        while True:
            try:
                sock, _ = server.accept()
            except TimeoutError:
                seen.nothing()
                continue
            with sock:
                sock.settimeout(COUNT_EVERY_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    serve(sock, before, seen)
                except OSError:
                    continue


def serve(sock: socket.socket, before: int, seen: "ReceivedCounts") -> None:
    """Reply on one connection until it ends."""
    fresh, data = True, b""
    while True:
        try:
            piece = sock.recv(SIZE - len(data))
        except TimeoutError:
            seen.nothing()
            continue
        if not piece:
            return
        data += piece
        if len(data) < SIZE:
            continue
        seen.connections += fresh
        fresh = False
        sender, number = HEAD.unpack_from(data)
        if sender != before:
            seen.strangers += 1
        else:
            seen.follows(number)
        sock.sendall(data)
        seen.message(len(data))
        data = b""


def whole(sock: socket.socket, size: int) -> None:
    """Read ``size`` bytes. Raises OSError when the connection ends first."""
    while size:
        piece = sock.recv(size)
        if not piece:
            raise ConnectionError("the peer closed the connection")
        size -= len(piece)


class ReceivedCounts:
    """Counts of the received messages."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rx_bytes = 0
        self.connections = 0
        """Connections that carried a message; a caller may give up others without using them."""
        self.strangers = 0
        """Messages from other ranks than the previous one."""
        self.number = 0
        """Number of the previous rank's latest message; 0 before the first one."""
        self.lost = 0
        self.repeated = 0
        self.last = 0.0
        """Time of the last message (monotonic); 0 before the first one."""
        self.told = time.monotonic()

    def follows(self, number: int) -> None:
        """Compare a message's number with the previous one."""
        if self.number:
            self.lost += max(0, number - self.number - 1)
            self.repeated += number <= self.number
        self.number = number

    def message(self, size: int) -> None:
        """Handle one message."""
        now = time.monotonic()
        gap = now - self.last if self.last else 0.0
        self.last = now
        self.rx_bytes += size
        if gap >= GAP_S:
            self.report("gap", gap_s=round(gap, 6), ended_at=round(time.time(), 6))
        self.nothing()

    def nothing(self) -> None:
        """Report the counts when they are due."""
        now = time.monotonic()
        if now - self.told >= COUNT_EVERY_S:
            self.told = now
            self.report("count")

    def report(self, event: str, **fields: object) -> None:
        """Write one line."""
        counts = {
            "at": round(time.time(), 6),
            "rx_bytes": self.rx_bytes,
            "silent_s": round(time.monotonic() - self.last, 6) if self.last else None,
            "connections": self.connections,
            "strangers": self.strangers,
            "lost": self.lost,
            "repeated": self.repeated,
        }
        print(json.dumps({"event": event, "rank": self.rank, **fields, **counts}), flush=True)


if __name__ == "__main__":
    main()

"""Runs one rank of a ring that reduces arrays over plain sockets: a training without a framework.

It has no imports of the project, so that any image with Python runs it (``python3 -c`` with this
file's text). Arguments: seconds of compute (it sleeps), bytes of the array, number of steps. A
step computes, then passes 2 (N - 1) parts of the array to the next rank, as a ring all-reduce
does; nothing is added up. It starts in a second and prints what ``testbed.trainer`` prints of its
steps, one JSON document per line: ``start`` with ``gradient_bytes``, ``step`` with ``step_s``,
``compute_s`` and ``comm_s``.
"""

import json
import os
import signal
import socket
import sys
import threading
import time

PORT = 23456
CONNECT_S = 60.0


def main() -> None:
    """Run this rank."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # process 1 has no default action
    compute_s, size, steps = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rank = int(os.environ["LIGHTLOOM_RANK"])
    ring = os.environ["LIGHTLOOM_ADDRESSES"].split(",")
    part = bytes(size // len(ring))
    server = socket.create_server((ring[rank], PORT))
    out = connected(ring[(rank + 1) % len(ring)])
    inp, _ = server.accept()
    report("start", gradient_bytes=size)
    for step in range(steps):
        begin = time.perf_counter()
        time.sleep(compute_s)
        computed = time.perf_counter()
        for _ in range(2 * (len(ring) - 1)):
            sender = threading.Thread(target=out.sendall, args=(part,))
            sender.start()
            receive(inp, len(part))
            sender.join()
        end = time.perf_counter()
        parts = {"compute_s": computed - begin, "comm_s": end - computed}
        report("step", step=step, step_s=end - begin, **parts)


def connected(address: str) -> socket.socket:
    """Connect to the next rank, which may start later."""
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            made = socket.create_connection((address, PORT), timeout=2)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            made.settimeout(None)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made


def receive(sock: socket.socket, size: int) -> None:
    """Read so many bytes. Raises OSError when the other side is gone."""
    while size:
        got = len(sock.recv(min(size, 65536)))
        if not got:
            raise ConnectionError("the previous rank is gone")
        size -= got


def report(event: str, **fields: float) -> None:
    """Print one document."""
    print(json.dumps({"event": event, **fields}), flush=True)


if __name__ == "__main__":
    main()

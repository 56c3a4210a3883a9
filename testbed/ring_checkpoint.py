"""Runs one rank of a ring that writes checkpoints: a training without a framework.

It has no imports of the project, so that any image with Python runs it (``python3 -c`` with this
file's text). Arguments: seconds of compute (it sleeps), bytes of a checkpoint, number of steps,
steps between checkpoints.

A rank's state is 32 bytes. In every step it sends its state to the next rank and hashes its own
with that of the previous rank and the step's number. So each state depends on all earlier states
of all ranks: after a restore of a torn file, of another rank's part or of unequal steps the last
digests differ from :func:`expected`, or ranks find out at once and exit with 3.

It keeps the rule ``rename`` (``step-N.tmp``, then ``step-N``; N steps are trained) and prints one
JSON document per line: ``begin``, ``start`` with the ``step`` that it goes on from, ``ready``,
``step``, ``checkpoint``, ``fault`` and ``end`` with its ``digest``. ``t`` is seconds since 1970.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import NoReturn

PORT = 23457
CONNECT_S = 60.0
KEEP = 2
HEAD = struct.Struct("!QQQ32sI")
"""Step, rank, size of the padding, state, CRC-32 of all that follows the head."""
MESSAGE = struct.Struct("!Q32s")
FAULT = 3
"""Exit status when a checkpoint or a neighbour is not what it must be."""


def main() -> None:
    """Run this rank."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # process 1 has no default action
    report("begin")
    compute_s, size = float(sys.argv[1]), int(sys.argv[2])
    steps, every = int(sys.argv[3]), int(sys.argv[4])
    rank = int(os.environ["LIGHTLOOM_RANK"])
    ring = os.environ["LIGHTLOOM_ADDRESSES"].split(",")
    done, state = restored(rank)
    report("start", step=done, ranks=len(ring))
    server = socket.create_server((ring[rank], PORT))
    out = connected(ring[(rank + 1) % len(ring)])
    inp, _ = server.accept()
    report("ready")
    folder = os.environ.get("LIGHTLOOM_CHECKPOINT_DIR")
    for step in range(done, steps):
        begin = time.time()
        time.sleep(compute_s)
        out.sendall(MESSAGE.pack(step, state))
        their_step, theirs = MESSAGE.unpack(received(inp, MESSAGE.size))
        if their_step != step:
            fault(f"the previous rank trains step {their_step}, this one {step}")
        state = mixed(state, theirs, step)
        report("step", step=step, step_s=time.time() - begin, loss=0.0)
        if folder and (step + 1) % every == 0:
            begin = time.time()
            failed = write(Path(folder), step + 1, rank, state, size)
            report("checkpoint", step=step + 1, blocked_s=time.time() - begin, **failed)
    report("end", digest=state.hex(), final_loss=float(int(state.hex()[:12], 16)))
    out.shutdown(socket.SHUT_WR)
    inp.recv(1)  # the previous rank has ended too


def first_state(rank: int) -> bytes:
    """Return the state of a rank before the first step."""
    return hashlib.sha256(f"rank {rank}".encode()).digest()


def mixed(own: bytes, theirs: bytes, step: int) -> bytes:
    """Return the state after a step."""
    return hashlib.sha256(own + theirs + step.to_bytes(8, "big")).digest()


def expected(ranks: int, steps: int) -> list[str]:
    """Return the last digests of an undisturbed run, by rank."""
    states = [first_state(rank) for rank in range(ranks)]
    for step in range(steps):
        states = [mixed(states[r], states[(r - 1) % ranks], step) for r in range(ranks)]
    return [state.hex() for state in states]


def encode(step: int, rank: int, state: bytes, size: int) -> bytes:
    """Return a checkpoint file of about ``size`` bytes; its padding follows from the state."""
    padding = (state * (size // len(state) + 1))[:size]
    return HEAD.pack(step, rank, len(padding), state, zlib.crc32(padding, zlib.crc32(state))) + (
        padding
    )


def decode(data: bytes, step: int, rank: int) -> bytes:
    """Return the state in a file. Raises ValueError when it is torn or of another step or rank."""
    if len(data) < HEAD.size:
        raise ValueError(f"{len(data)} bytes")
    its_step, its_rank, size, state, crc = HEAD.unpack_from(data)
    if (its_step, its_rank) != (step, rank):
        raise ValueError(f"step {its_step} of rank {its_rank} instead of {step} of {rank}")
    whole = encode(step, rank, state, min(size, len(data)))
    if data != whole or HEAD.unpack_from(whole)[4] != crc:
        raise ValueError("torn")
    return bytes(state)


def restored(rank: int) -> tuple[int, bytes]:
    """Return the number of trained steps and the state to go on from."""
    step = int(os.environ.get("LIGHTLOOM_RESTORE_STEP") or 0)
    if not step:
        return 0, first_state(rank)
    try:
        data = (Path(os.environ["LIGHTLOOM_RESTORE_DIR"]) / f"step-{step}").read_bytes()
        return step, decode(data, step, rank)
    except (OSError, ValueError) as error:
        fault(f"the checkpoint of step {step} cannot be restored: {error}")


def write(folder: Path, step: int, rank: int, state: bytes, size: int) -> dict[str, str]:
    """Write a step as a whole and remove the oldest; return what failed."""
    part = folder / f"step-{step}.tmp"
    try:
        with part.open("wb") as file:
            file.write(encode(step, rank, state, size))
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / f"step-{step}")
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        return {"error": str(error)}
    names = (path.name.removeprefix("step-") for path in folder.glob("step-*"))
    for old in sorted(int(name) for name in names if name.isdecimal())[:-KEEP]:
        (folder / f"step-{old}").unlink(missing_ok=True)
    return {}


def fault(why: str) -> NoReturn:
    """Return what must never happen, and end."""
    report("fault", why=why)
    os._exit(FAULT)


def connected(address: str) -> socket.socket:
    """Connect to the next rank, which may start later."""
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            made = socket.create_connection((address, PORT), timeout=2)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            made.settimeout(None)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made


def received(sock: socket.socket, size: int) -> bytes:
    """Read so many bytes. Raises OSError when the other side is gone."""
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError("the previous rank is gone")
        data += piece
    return data


def report(event: str, **fields: object) -> None:
    """Print one document."""
    print(json.dumps({"event": event, "t": round(time.time(), 6), **fields}), flush=True)


if __name__ == "__main__":
    main()

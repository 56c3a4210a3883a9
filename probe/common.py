"""What all probes share: identity, lines of results, a rendezvous of the ranks, running tools.

Probes run in containers with the standard library only. Each result is one line of JSON on stdout
with the key ``probe``; the controller ignores every other line. Rank 0 coordinates: it calls the
other ranks over TCP, and every wait has an end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PORT = 23457
"""Where the ranks above 0 listen for rank 0."""
MOST_MESSAGE = 2**20
"""Bytes of one message between ranks."""
MOST_LINE = 60 * 2**10
"""Bytes of one line of results; the controller drops longer ones than 64 KiB."""
CONNECT_S = 60.0
"""Longest time until a peer listens: its container may start later."""
RETRY_S = 0.1
SILENCE_S = 900.0
"""Longest time without a call of rank 0, after which a rank ends by itself."""
BYE_S = 5.0
NIC = "e0"
"""The data NIC in every container."""
_HEAD = struct.Struct("!I")

Fields = dict[str, Any]
Handler = Callable[[Fields], Mapping[str, Any]]


class PeerError(Exception):
    """A rank that does not answer (``silent``), or answers with an error."""

    def __init__(self, rank: int, reason: str, *, silent: bool = False) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.rank = rank
        self.reason = reason
        self.silent = silent


@dataclass(slots=True, frozen=True)
class Rank:
    """Who this process is; ``addresses`` of all ranks, in rank order."""

    rank: int
    size: int
    addresses: tuple[str, ...]
    job: str


def identity(environment: Mapping[str, str] = os.environ) -> Rank:
    """Return this rank from lightloom's variables. Raises ValueError without them."""
    try:
        addresses = tuple(environment["LIGHTLOOM_ADDRESSES"].split(","))
        rank, job = int(environment["LIGHTLOOM_RANK"]), environment["LIGHTLOOM_JOB"]
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is not set: this is not a rank of a job") from None
    if not 0 <= rank < len(addresses):
        raise ValueError(f"rank {rank} is not one of {len(addresses)} ranks")
    return Rank(rank, len(addresses), addresses, job)


# --- lines ----------------------------------------------------------------------------------

_printing = threading.Lock()


def emit(event: str, **fields: Any) -> None:
    """Print one line of results at once. Numbers that are not finite become null.

    Raises ValueError for a line above MOST_LINE.
    """
    text = json.dumps({"probe": event, **_finite(fields)}, separators=(",", ":"), allow_nan=False)
    if len(text) > MOST_LINE:
        raise ValueError(f"a line of {len(text)} bytes is longer than {MOST_LINE}")
    with _printing:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_finite(item) for item in value]
    return value


def environment(phase: str, *, threads: int = 1) -> None:
    """Print where this rank runs; ``phase`` is ``begin`` or ``end``.

    ``threads`` is the largest number of threads that this rank keeps busy or waiting for a disk:
    the controller subtracts them from the server's load.
    """
    emit(
        "environment",
        phase=phase,
        at=time.time(),
        kernel=os.uname().release,
        cores=os.cpu_count(),
        load_1m=os.getloadavg()[0],
        mtu=_mtu(),
        threads=threads,
    )


def _mtu() -> int | None:
    try:
        return int(Path(f"/sys/class/net/{NIC}/mtu").read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def surroundings(*, threads: int = 1) -> Iterator[None]:
    """Print the environment before and after."""
    environment("begin", threads=threads)
    try:
        yield
    finally:
        environment("end", threads=threads)


def run_probe(main: Callable[[], None], *, threads: int = 1) -> None:
    """Run a probe's ``main`` as the first process of a container, and exit.

    SIGTERM ends it at once; an exception becomes a line ``error`` and exit code 1.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # process 1 has no default action
    try:
        with surroundings(threads=threads):
            main()
    except Exception as error:
        emit("error", message=f"{type(error).__name__}: {error}"[:2000])
        sys.exit(1)


# --- tools ----------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class ToolResult:
    """How a program ended; its output is cut at the limit."""

    code: int | None
    """None if it was killed at its time limit, or could not be started."""
    stdout: str
    stderr: str
    seconds: float

    @property
    def problem(self) -> str:
        """Why its output does not count; empty if it does."""
        if self.code == 0:
            return ""
        if self.code is None and not self.seconds:
            return self.stderr
        said = self.stderr.strip().splitlines()
        how = f"no end after {self.seconds:.0f} s" if self.code is None else f"exit {self.code}"
        return f"{how}: {said[-1][:300]}" if said else how


class ToolProcess:
    """A running program in a process group of its own, whose output is bounded."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, most: int = 4 * 2**20
    ) -> None:
        """Start it. Raises OSError when it cannot be started."""
        self._began = time.monotonic()
        own = None if env is None else {**os.environ, **env}
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=own,
        )
        self._kept: tuple[bytearray, bytearray] = bytearray(), bytearray()
        pipes = (self._process.stdout, self._process.stderr)
        self._readers = [
            threading.Thread(target=_keep, args=(pipe, kept, most), daemon=True)
            for pipe, kept in zip(pipes, self._kept, strict=True)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def finish(self, timeout_s: float) -> ToolResult:
        """Wait for its end; kill it and its children after ``timeout_s``."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(max(timeout_s, 0.0))
        self.kill()
        seconds = max(time.monotonic() - self._began, 1e-9)
        for reader in self._readers:
            reader.join(1.0)
        out, err = (bytes(kept).decode("utf-8", "replace") for kept in self._kept)
        return ToolResult(code, out, err, seconds)

    def kill(self) -> None:
        """Kill it with its process group; nothing happens when all of that has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _keep(pipe: IO[bytes] | None, kept: bytearray, most: int) -> None:
    if pipe is None:
        return
    with pipe, contextlib.suppress(OSError, ValueError):
        while piece := os.read(pipe.fileno(), 65536):
            kept += piece[: max(most - len(kept), 0)]


def run_tool(
    argv: Sequence[str], timeout_s: float, *, env: Mapping[str, str] | None = None
) -> ToolResult:
    """Run a program to its end; never raises for what the program does."""
    try:
        return ToolProcess(argv, env=env).finish(timeout_s)
    except OSError as error:
        return ToolResult(None, "", f"{argv[0]} does not start: {error.strerror}", 0.0)


# --- rendezvous -----------------------------------------------------------------------------


class Coordinator:
    """Rank 0: calls the others, and itself, by rank. Calls to different ranks may overlap."""

    def __init__(
        self,
        me: Rank,
        handlers: Mapping[str, Handler],
        *,
        connect_s: float = CONNECT_S,
        port: int = PORT,
    ) -> None:
        """``handlers`` answer calls to rank 0 itself."""
        self._me = me
        self._handlers = handlers
        self._connect_s = connect_s
        self._port = port
        self._locks = [threading.Lock() for _ in range(me.size)]
        self._sockets: dict[int, socket.socket] = {}

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, rank: int, command: str, arguments: Mapping[str, Any], timeout_s: float
    ) -> Fields:
        """Send a rank a command and return its answer. Raises PeerError."""
        if rank == self._me.rank:
            return _handled(self._handlers, command, dict(arguments), rank)
        request = {"command": command, "arguments": dict(arguments)}
        with self._locks[rank]:
            try:
                answer = self._exchange(rank, request, timeout_s)
            except TimeoutError:
                self._drop(rank)
                why = f"no answer to {command} within {timeout_s:g} s"
                raise PeerError(rank, why, silent=True) from None
            except (OSError, ValueError) as error:
                self._drop(rank)
                raise PeerError(rank, f"{command}: {error}", silent=True) from None
        if "error" in answer:
            raise PeerError(rank, str(answer["error"])[:2000])
        result = answer.get("result")
        if not isinstance(result, dict):
            raise PeerError(rank, f"{command}: an answer without a result")
        return result

    def call_all(
        self, calls: Mapping[int, tuple[str, Mapping[str, Any]]], timeout_s: float
    ) -> dict[int, Fields | PeerError]:
        """Call several ranks at once; an error stands in the place of the answer."""

        def one(rank: int) -> Fields | PeerError:
            command, arguments = calls[rank]
            try:
                return self.call(rank, command, arguments, timeout_s)
            except PeerError as error:
                return error

        with ThreadPoolExecutor(max_workers=max(len(calls), 1)) as threads:
            return dict(zip(calls, threads.map(one, calls), strict=True))

    def close(self) -> None:
        """End every rank that still listens."""

        def bye(rank: int) -> None:
            with contextlib.suppress(OSError, ValueError):
                self._exchange(rank, {"command": "bye"}, BYE_S)
            self._drop(rank)

        others = [rank for rank in range(self._me.size) if rank != self._me.rank]
        self._connect_s = min(self._connect_s, BYE_S)
        with ThreadPoolExecutor(max_workers=max(min(len(others), 64), 1)) as threads:
            list(threads.map(bye, others))

    def _exchange(self, rank: int, request: Fields, timeout_s: float) -> Fields:
        sock = self._sockets.get(rank)
        if sock is None:
            sock = self._sockets[rank] = self._connected(rank)
        until = time.monotonic() + timeout_s
        send(sock, request, until)
        return receive(sock, until)

    def _connected(self, rank: int) -> socket.socket:
        """Connect to a rank whose container may not have started yet."""
        until = time.monotonic() + self._connect_s
        while True:
            left = until - time.monotonic()
            try:
                peer = (self._me.addresses[rank], self._port)
                sock = socket.create_connection(peer, timeout=max(min(left, 5.0), RETRY_S))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                if time.monotonic() + RETRY_S >= until:
                    raise ConnectionError(f"not reached in {self._connect_s:g} s") from None
                time.sleep(RETRY_S)
                continue
            return sock

    def _drop(self, rank: int) -> None:
        if (sock := self._sockets.pop(rank, None)) is not None:
            sock.close()


def serve(
    me: Rank,
    handlers: Mapping[str, Handler],
    *,
    silence_s: float = SILENCE_S,
    port: int = PORT,
) -> None:
    """Answer rank 0 until it sends ``bye``. Raises PeerError when it is silent too long."""
    until = time.monotonic() + silence_s
    with socket.create_server((me.addresses[me.rank], port), backlog=8) as listening:
        while (left := until - time.monotonic()) > 0:
            listening.settimeout(left)
            try:
                sock, address = listening.accept()
            except TimeoutError:
                break
            with sock:
                if address[0] != me.addresses[0]:
                    continue
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if _serve_one(sock, me.rank, handlers, silence_s):
                    return
            until = time.monotonic() + silence_s
    raise PeerError(0, f"no call within {silence_s:g} s")


def _serve_one(
    sock: socket.socket, rank: int, handlers: Mapping[str, Handler], silence_s: float
) -> bool:
    """Answer on one connection until it ends; return whether rank 0 sent ``bye``."""
    try:
        while True:
            request = receive(sock, time.monotonic() + silence_s)
            command, arguments = request.get("command"), request.get("arguments", {})
            if command == "bye":
                with contextlib.suppress(OSError):  # rank 0 may have left meanwhile
                    send(sock, {"result": {}}, time.monotonic() + BYE_S)
                return True
            try:
                answer: Fields = {"result": _handled(handlers, str(command), arguments, rank)}
            except PeerError as error:
                answer = {"error": error.reason}
            send(sock, answer, time.monotonic() + silence_s)
    except (OSError, ValueError):
        return False


def _handled(handlers: Mapping[str, Handler], command: str, arguments: Fields, rank: int) -> Fields:
    handler = handlers.get(command)
    if handler is None:
        raise PeerError(rank, f"unknown command {command}")
    try:
        return dict(handler(arguments))
    except PeerError:
        raise
    except Exception as error:
        raise PeerError(rank, f"{command}: {type(error).__name__}: {error}") from error


def send(sock: socket.socket, message: Mapping[str, Any], until: float) -> None:
    """Send a message until a time on the monotonic clock.

    Raises OSError (TimeoutError as well), and ValueError for a message that is too long.
    """
    data = json.dumps(_finite(message), separators=(",", ":"), allow_nan=False).encode()
    if len(data) > MOST_MESSAGE:
        raise ValueError(f"a message of {len(data)} bytes is longer than {MOST_MESSAGE}")
    sock.settimeout(_left(until))
    sock.sendall(_HEAD.pack(len(data)) + data)


def receive(sock: socket.socket, until: float) -> Fields:
    """Receive a message until a time on the monotonic clock.

    Raises OSError (TimeoutError as well), and ValueError for an invalid message.
    """
    (size,) = _HEAD.unpack(_exactly(sock, _HEAD.size, until))
    if size > MOST_MESSAGE:
        raise ValueError(f"a message of {size} bytes is longer than {MOST_MESSAGE}")
    try:
        message = json.loads(_exactly(sock, size, until))
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message is not a JSON object")
    return message


def _exactly(sock: socket.socket, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        sock.settimeout(_left(until))
        piece = sock.recv(min(size - len(data), 65536))
        if not piece:
            raise ConnectionError("the peer closed the connection")
        data += piece
    return bytes(data)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("time-out")
    return left

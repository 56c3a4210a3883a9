"""Asks the profiler of one TensorFlow worker, in a process of its own: the worker may be hostile.

``python -m container_mgr.recordings.profiler PIDFD ADDRESS SECONDS`` enters the network namespace
of the process behind the descriptor, gives up root and most memory, asks
``/tensorflow.ProfilerService/Profile`` at ``ADDRESS`` and prints one JSON object: a profile in the
fields of :class:`~container_mgr.recordings.xspace.Profile`, or ``{"failure": …}`` with one of

* ``busy``: the program profiles itself, and a process has one profiler;
* ``none``: what listens there has no profiler;
* ``closed``: nothing listens there, or it ended meanwhile;
* ``silent``: it did not answer in time;
* ``invalid``: the answer is not a profile, or too long.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from importlib import import_module

import grpc

from container_mgr.recordings import xspace
from protos import profiler_pb2 as pb

METHOD = "/tensorflow.ProfilerService/Profile"
MOST_REPLY = 16 * 2**20
LATE_S = 8.0
"""Time for connecting, and for the worker to collect and send what it has seen."""
HOST_LEVEL = 2
"""Operations and kernels; level 3 adds TensorFlow's own inner work."""
NOBODY = 65534
_LATE = ("grpc._channel", "grpc.experimental")
"""What gRPC imports with the first channel, when ``nobody`` may not be able to read it."""
_MEMORY = 1 << 30
_CPU_S = 10
_CLONE_NEWNET = 0x40000000
_SET_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38  # PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS


def main(arguments: list[str]) -> int:
    """Ask once and print what came of it."""
    pidfd, address, seconds = int(arguments[0]), arguments[1], float(arguments[2])
    for late in _LATE:
        import_module(late)
    confine(pidfd)
    sys.stdout.write(json.dumps(ask(address, seconds)))
    return 0


def confine(pidfd: int) -> None:
    """Enter the network of the process behind ``pidfd``; lose all rights. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(pidfd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "its network namespace cannot be entered")
    os.close(pidfd)
    for limit, value in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    os.nice(10)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    for option, value in ((_NO_NEW_PRIVILEGES, 1), (_SET_DEATH_SIGNAL, signal.SIGKILL)):
        if libc.prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "its rights cannot be given up")


def ask(address: str, seconds: float) -> Mapping[str, object]:
    """Return what the worker at ``HOST:PORT`` did in the next ``seconds``, or why it is unknown."""
    options = pb.ProfileOptions(
        version=1,
        device_type=pb.ProfileOptions.CPU,
        host_tracer_level=HOST_LEVEL,
        duration_ms=round(1000 * seconds),
    )
    request = pb.ProfileRequest(opts=options, emit_xspace=True)
    channel = grpc.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", MOST_REPLY),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ],
    )
    try:
        call = channel.unary_unary(METHOD, request_serializer=pb.ProfileRequest.SerializeToString)
        data: bytes = call(request, timeout=seconds + LATE_S)
        return dataclasses.asdict(xspace.read(data))
    except grpc.RpcError as error:
        return {"failure": _failure(error.code(), error.details() or "")}
    except (xspace.InvalidError, MemoryError):
        return {"failure": "invalid"}
    finally:
        channel.close()


def _failure(code: grpc.StatusCode, text: str) -> str:
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return "busy"
    if code is grpc.StatusCode.INTERNAL and "profil" in text and "active" in text:
        return "busy"  # "Another profiling session active."
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED):
        return "none"
    if code is grpc.StatusCode.UNAVAILABLE:
        return "closed"
    return "silent" if code is grpc.StatusCode.DEADLINE_EXCEEDED else "invalid"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

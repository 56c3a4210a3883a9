from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_mgr.recordings import asking, profiler, xspace
from container_mgr.recordings.asking import AskError, profile_of
from protos import profiler_pb2 as pb
from tests.parts.agent import profiles
from tests.parts.agent.profiler import worker
from tests.parts.agent.profiles import made

GOOD = dataclasses.asdict(xspace.read(made(("a:CollectiveReduceV2", 5, 7))))


def failing(code: grpc.StatusCode, text: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, text)
        return b""

    return answer


def test_a_worker_is_asked_for_a_profile() -> None:
    asked = []

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        asked.append(pb.ProfileRequest.FromString(request))
        return profiles.golden()

    with worker(answer) as address:
        found = profiler.ask(address, 0.5)
    (request,) = asked
    assert request.emit_xspace, "else the worker writes a file"
    assert (request.opts.duration_ms, request.opts.host_tracer_level) == (500, 2)
    assert profile_of(json.dumps(found).encode()) == xspace.read(profiles.golden())


@pytest.mark.parametrize(
    ("code", "text", "failure"),
    [
        (grpc.StatusCode.INTERNAL, "Another profiling session active.", "busy"),
        (grpc.StatusCode.ALREADY_EXISTS, "Another profiler session is active.", "busy"),
        (grpc.StatusCode.INTERNAL, "out of luck", "invalid"),
        (grpc.StatusCode.UNAVAILABLE, "", "closed"),
        (grpc.StatusCode.DATA_LOSS, "x" * 4000, "invalid"),
    ],
)
def test_refusals_are_told_apart(code: grpc.StatusCode, text: str, failure: str) -> None:
    with worker(failing(code, text)) as address:
        assert profiler.ask(address, 0.1) == {"failure": failure}


def test_another_servers_port_has_no_profiler() -> None:
    with worker(failing(grpc.StatusCode.OK, ""), method="Monitor") as address:
        assert profiler.ask(address, 0.1) == {"failure": "none"}


@pytest.mark.real_time
def test_a_worker_that_does_not_answer_costs_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiler, "LATE_S", 0.2)

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        while context.is_active():
            time.sleep(0.02)
        return b""

    with worker(answer) as address:
        assert profiler.ask(address, 0.1) == {"failure": "silent"}


@pytest.mark.parametrize("data", [b"lies", bytes(profiler.MOST_REPLY + 1)])
def test_an_answer_that_is_no_profile_or_too_long_is_invalid(data: bytes) -> None:
    with worker(lambda request, context: data) as address:
        assert profiler.ask(address, 0.1) == {"failure": "invalid"}


def test_a_worker_that_has_ended_is_closed() -> None:
    with worker(lambda request, context: b"") as address:
        pass
    assert profiler.ask(address, 0.1) == {"failure": "closed"}


@pytest.mark.parametrize(
    "change",
    [
        {"calls": [["all_reduce", 1]]},
        {"calls": [["rm", 1, 2]]},
        {"calls": [["all_reduce", 3, 2]]},
        {"calls": [["all_reduce", -1, 2]]},
        {"calls": [["all_reduce", 1, 1e400]]},
        {"calls": [["all_reduce", True, 2]]},
        {"calls": None},
        {"calls": [["all_reduce", 1, 2]] * (xspace.MOST_CALLS + 1)},
        {"length": 0},
        {"exposed": GOOD["comm"] + 1},
        {"waits": "many"},
        {"began_at": 1 << 70},
    ],
)
def test_what_a_process_prints_is_checked(change: dict[str, Any]) -> None:
    assert profile_of(json.dumps(GOOD).encode())
    with pytest.raises(AskError, match="invalid"):
        profile_of(json.dumps({**GOOD, **change}).encode())


@given(
    st.binary(max_size=50)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*GOOD, "failure"]), inner, max_size=4)
        ),
        max_leaves=10,
    ).map(lambda value: json.dumps(value).encode())
)
def test_nothing_that_is_printed_raises_another_error(printed: bytes) -> None:
    with pytest.raises(AskError):
        profile_of(printed)


def test_nothing_is_imported_once_the_rights_are_gone() -> None:
    """The program's files need not be readable by every user."""
    code = (
        "import sys\n"
        "from container_mgr.recordings import profiler\n"
        "before = set()\n"
        "profiler.confine = lambda pidfd: before.update(sys.modules)\n"
        "profiler.main(['0', '127.0.0.1:9', '0.1'])\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == '{"failure": "closed"}[]\n'


def test_deep_nesting_is_invalid() -> None:
    with pytest.raises(AskError):
        profile_of(b"[" * asking.MOST_PRINTED)

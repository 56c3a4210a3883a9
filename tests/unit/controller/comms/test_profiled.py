"""What windows of TensorFlow's profiler become, from the agent's values to the document."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentlink.ranks import RankKey
from agentlink.values import Record
from container_mgr.recordings import profiled as agents
from container_mgr.recordings import recording as agent
from container_mgr.recordings import xspace
from container_mgr.recordings.bursts import Bursts
from container_mgr.recordings.profiled import Profiled
from container_mgr.rpc import messages
from controller.comms.ledger import advance
from controller.comms.views import view_of
from controller.devices.agents.messages import recordings_of
from controller.devices.engine import Recording
from controller.schema.insight.comms import CommsView
from protos import agent_pb2 as pb
from tests.parts.agent.profiles import BEGAN_AT, made
from tests.unit.controller.comms.recordings import JOB

NOW = BEGAN_AT / 1e9 + 2
FULL = replace(JOB, request=replace(JOB.request, record=Record.FULL))
WIRE = Bursts(window_s=5.0, bursts=20, period_s=0.2, burst_s=0.05, sent_bytes=2e6, spread=0.01)


def seen(rank: int = 0, *, wire: Bursts | None = WIRE, on_gpu: bool = False) -> agent.RankRecording:
    """Steps of 0.2 s: 80 ms of communication, 20 ms of it covered by a kernel; 10 ms of waiting."""
    events = []
    for begin in range(0, 2000, 200):
        events += [
            ("It:IteratorGetNext", begin, begin + 10),
            ("a:CollectiveReduceV2", begin + 50, begin + 100),
            ("b:CollectiveReduceV2", begin + 100, begin + 130),
            ("c:MatMul", begin + 20, begin + 70),
        ]
    known = agents.added(
        Profiled(since_s=0.0),
        xspace.read(made(*events)),
        name=f"ll-red-{rank}-1",
        now=NOW,
        now_s=50.0,
        on_gpu=on_gpu,
    )
    return agent.RankRecording(
        key=RankKey("red", rank, 1),
        read=agents.shown(agent.RecordingState(state="absent"), known),
        wire=wire,
        wire_time=NOW,
        profiler=known.latest,
        coverage=known.coverage(50.0),
    )


def sent(*of_ranks: agent.RankRecording) -> list[Recording]:
    reply = pb.RecordingsReply.FromString(messages.recordings_of(of_ranks).SerializeToString())
    return recordings_of("srv0", reply, NOW)


def view(*of_ranks: agent.RankRecording) -> CommsView:
    return view_of(FULL, advance(None, sent(*of_ranks), 1, 2, NOW), None, None, NOW)


def test_a_window_becomes_rows_and_an_overlap() -> None:
    shown = view(seen(0), seen(1))
    (row,) = shown.rows
    assert (row.op, row.source, row.calls, row.exact) == ("all_reduce", "tf", 40, True)
    assert (row.bytes, row.busbw, row.skew_s) == (0, None, None)
    assert row.coverage == pytest.approx(2 / 50)
    overlap = shown.overlap
    assert overlap is not None
    assert (overlap.source, overlap.definition, overlap.calls_per_step) == ("tf", "timeline", 2)
    assert overlap.step_s == pytest.approx(0.2)
    assert overlap.comm_s == pytest.approx(0.08)
    assert overlap.exposed_s == pytest.approx(0.06)
    assert overlap.overlap == pytest.approx(0.25)
    assert overlap.bytes_per_step == pytest.approx(2e6 * 1448 / 1514)
    assert [r.recorder for r in shown.ranks] == ["recording", "recording"]
    assert any("windows" in note for note in shown.notes)
    facts = advance(None, sent(seen(0), seen(1)), 1, 2, NOW).facts
    assert facts is not None
    assert facts.wait_s == pytest.approx(0.01)


def test_without_the_wire_bytes_are_not_invented() -> None:
    overlap = view(seen(wire=None)).overlap
    assert overlap is not None
    assert overlap.bytes_per_step == 0


def test_on_a_gpu_the_overlap_follows_from_issues_and_ends() -> None:
    overlap = view(seen(on_gpu=True)).overlap
    assert overlap is not None
    assert overlap.exposed_s == pytest.approx(0.08)


def test_a_job_that_profiles_itself_shows_what_was_seen_before() -> None:
    known = agents.failed(Profiled(since_s=0.0), "busy")
    read = agents.shown(agent.RecordingState(state="absent"), known)
    shown = view(agent.RankRecording(key=RankKey("red", 0, 1), read=read, wire=WIRE, wire_time=NOW))
    assert shown.ranks[0].recorder == "refused"
    assert "profiles itself" in shown.ranks[0].reason
    assert [row.source for row in shown.rows] == ["wire"]


@pytest.mark.parametrize(
    "lie",
    [
        {"comm_s": float("nan")},
        {"comm_s": -1.0},
        {"exposed_s": 7.0},
        {"exposed_s": float("inf")},
        {"length_s": 1e30},
    ],
)
def test_an_agent_that_lies_about_a_window_has_none(lie: dict[str, float]) -> None:
    message = messages.recordings_of([seen()])
    for name, value in lie.items():
        setattr(message.recordings[0].profiler, name, value)
    message.recordings[0].coverage = -3.0
    (found,) = recordings_of("srv0", message, NOW)
    assert found.profiler is None
    assert found.coverage == 0.0
    json.dumps(view_of(FULL, advance(None, [found], 1, 2, NOW), None, None, NOW).model_dump())

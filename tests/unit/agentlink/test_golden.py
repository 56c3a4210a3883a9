"""Messages of the release before ``agentlink``: read, refused and written as that release did.

``golden.json`` has messages, hostile ones among them, and what that release made of them.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from agentlink import readings
from agentlink.checkpoints import FetchProgress, Holding, Keeps, Verified
from agentlink.codec import read, write
from agentlink.ranks import RankSpec
from agentlink.values import DataKey, RegistryLogin
from container_mgr.ranks.execs import ExecCommand
from container_mgr.rpc import checkpoint_messages as agent_checkpoints
from container_mgr.rpc import messages as agent
from container_mgr.values import AgentError, ServedEndpoint, ServerFacts
from controller.devices.agents import checkpoint_messages as controller_checkpoints
from controller.devices.agents import messages as controller
from controller.devices.engine import EngineFault, RankSample, RankStatus, RecordingLimit
from protos import agent_pb2 as pb
from readings.reading import Object

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))
FACTS = ServerFacts(cores=4, memory_bytes=8 << 30)
SERVED = {name: ServedEndpoint(name, f"e-{name}") for name in ("gpu0", "gpu1")}
LIMITS = {"red": RecordingLimit(2, frozenset({0}))}
NOW = 2000.0


def spec(message: pb.Rank) -> list[object]:
    found = agent.spec_of(message)
    return [found, found.digest(), found.labels("srv0", 3, "mlx5_0")]


def gpu_of(message: pb.Gpu) -> dict[str, Any]:
    return readings.read(pb.Readings(), Object.GPU, older=(message,))


def before(sample: RankSample) -> dict[str, Any]:
    """Return a sample with the figures of that release, each in a field of its own."""
    known = {name: getattr(sample, name) for name in ("job", "rank", "endpoint", "time", "source")}
    known |= {name: sample.values.get(name) for name in ("utilisation", "memory_bytes")}
    gpu = {field.name: sample.values.get(field.name) for field in pb.Gpu.DESCRIPTOR.fields}
    return {**known, "gpu": gpu if sample.real else None}


READERS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "keeps": (pb.KeepRequest, agent_checkpoints.keeps_of),
    "fetch": (pb.FetchRequest, lambda m: agent_checkpoints.fetch_of(m, FACTS, SERVED)),
    "drops": (pb.DropStepsRequest, agent_checkpoints.drops_of),
    "close": (pb.CloseStepRequest, agent_checkpoints.step_of),
    "spec": (pb.Rank, spec),
    "data": (pb.RemoveDataRequest, agent.data_key_of),
    "login": (pb.ImageRequest, agent.login_of),
    "start": (pb.ExecStart, lambda m: read(ExecCommand, m)),
    "holdings": (
        pb.HoldingsBatch,
        lambda m: controller_checkpoints.holdings_of("srv0", m, SERVED.__contains__, NOW),
    ),
    "verified": (
        pb.VerifyBatch,
        lambda m: controller_checkpoints.verified_of("srv0", m, SERVED.__contains__),
    ),
    "progress": (pb.FetchProgress, lambda m: read(FetchProgress, m)),
    "status": (pb.RankStatus, lambda m: read(RankStatus, m, server="srv0")),
    "fault": (pb.Fault, lambda m: read(EngineFault, m)),
    "image": (pb.ImageReply, lambda m: controller.image_of("srv0", m)),
    "held": (pb.ImagesReply, lambda m: controller.held_of("srv0", m)),
    "pull": (pb.PullProgress, lambda m: controller.progress_of("srv0", m)),
    "volumes": (pb.VolumesReply, lambda m: controller.volumes_of(m, NOW)),
    "samples": (pb.TelemetryBatch, lambda m: [*map(before, controller.samples_of(m, NOW))]),
    "recordings": (pb.RecordingsReply, lambda m: controller.recordings_of("srv0", m, NOW)),
    "recordings3": (
        pb.RecordingsReply,
        lambda m: controller.recordings_of("srv0", m, NOW, LIMITS),
    ),
    "output": (pb.ExecOutput, controller.output_of),
    "lines": (pb.LogBatch, lambda m: controller.lines_of(0, m)),
}


def plain(value: Any) -> Any:
    """Return a value as JSON has it; where a value is from, its reader says."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        if isinstance(value, Holding | Verified | RankSpec):
            names.remove("server")
        if isinstance(value, RankSpec):
            names[names.index("devices")] = "gpu_uuid"
            names.remove("further_nics")
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


@pytest.mark.parametrize("name", READERS)
def test_messages_are_read_and_refused_as_before(name: str) -> None:
    kind, reader = READERS[name]
    for raw, before in GOLDEN["read"][name]:
        try:
            found = plain(reader(kind.FromString(base64.b64decode(raw))))
        except AgentError as error:
            found = {"refused": [error.code, error.obj, error.message, error.hint]}
        assert found == before


def rank_of_before(message: pb.Rank) -> pb.Rank:
    """Read a rank and write it again, without the field that this release has more."""
    written = controller.rank_message(agent.spec_of(message))
    written.ClearField("devices")
    return written


WRITERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "keep": (pb.KeepRequest, lambda m: write(pb.KeepRequest, read(Keeps, m))),
    "rank": (pb.Rank, rank_of_before),
    "data": (pb.RemoveDataRequest, lambda m: write(pb.RemoveDataRequest, read(DataKey, m))),
    "login": (pb.RegistryLogin, lambda m: write(pb.RegistryLogin, read(RegistryLogin, m))),
    "start": (pb.ExecStart, lambda m: write(pb.ExecStart, read(ExecCommand, m))),
    "progress": (
        pb.FetchProgress,
        lambda m: agent_checkpoints.progress_message(read(FetchProgress, m)),
    ),
    "gpu": (pb.Gpu, lambda m: pb.Gpu(**readings.fields(pb.Gpu, gpu_of(m)))),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_read_is_written_as_before(name: str) -> None:
    kind, through = WRITERS[name]
    for before in GOLDEN["written"][name]:
        raw = base64.b64decode(before)
        assert through(kind.FromString(raw)).SerializeToString(deterministic=True) == raw

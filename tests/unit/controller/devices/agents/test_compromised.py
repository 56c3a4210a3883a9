"""S17: an agent that reports for others, or reports unrequested starts, is not trusted any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from controller.base.errors import ServiceError
from controller.daemon.trust import read_trust
from controller.devices.agents.messages import lines_of
from controller.devices.engine import EngineError, RankSample
from pki import CONTROLLER, Authority
from protos import agent_pb2 as pb
from sitefile import load_site
from tests.parts.agent.rig import now
from tests.unit.controller.devices.agents.liars import OWN, Liar, believing, rank
from tests.unit.controller.devices.agents.specs import SPEC


async def test_jobs_that_an_agent_makes_up_do_not_pile_up() -> None:
    liar = Liar()
    async with believing(liar) as engine:
        for number in range(20):
            liar.reply = pb.RanksReply(
                ranks=[rank("gpu0", job=f"j{number}-{n}") for n in range(99)]
            )
            await engine.observe()
        assert sum(len(jobs) for jobs in engine._seen.values()) == 99
        assert not engine._places


@pytest.mark.parametrize("kind", ["ranks", "faults", "health"])
async def test_who_answers_without_end_is_not_listened_to(kind: str) -> None:
    """To read a hundred thousand entries holds the controller's loop up for a second."""
    liar = Liar()
    entries = getattr(liar.reply, kind)
    for _ in range(2_000):
        entries.add(**({} if kind == "faults" else {"endpoint": "gpu0"}))
    async with believing(liar) as engine:
        assert await engine.observe() == []
        assert engine.reachable() == {"srv0": False}
        assert "2000" in engine.unfit()["gpu0"]


class Flood(Liar):
    """Sends telemetry as fast as it is taken."""

    sent = 0

    async def Telemetry(  # noqa: N802
        self, request: pb.TelemetryRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.TelemetryBatch]:
        samples = [pb.Sample(endpoint="gpu0", source="nvml") for _ in range(20_000)]
        while True:
            self.sent += 1
            yield pb.TelemetryBatch(time=1.0, samples=samples)


async def test_a_flood_of_figures_waits_in_the_servers_own_memory() -> None:
    flood = Flood()
    async with believing(flood) as engine, asyncio.timeout(60):
        stream = engine.telemetry()
        for _ in range(600):  # of three batches
            await anext(stream)
        assert flood.sent < 100
        await stream.aclose()  # type: ignore[attr-defined]


def test_a_message_of_empty_lines_is_cut() -> None:
    batch = pb.LogBatch(lines=[pb.LogLine()] * 100_000)
    assert len(lines_of(0, batch)) == 2048


async def test_who_claims_a_rank_of_a_placed_job_gets_no_say_in_it() -> None:
    """Else one server could keep all others' jobs from being frozen, thawed and ended."""
    liar = Liar(rank("gpu0"))
    async with believing(liar) as engine:
        engine.placed("red", [])
        engine._places["red"] = {"srv9"}  # where its allocation has it
        await engine.observe()
        assert engine._servers_of("red") == {"srv9"}


@pytest.mark.parametrize(
    "liar", [Liar(rank("gpu0"), rank("gpu5")), Liar(rank("gpu0"), health="gpu5")]
)
async def test_who_speaks_for_anothers_endpoint_is_not_listened_to(liar: Liar) -> None:
    async with believing(liar) as engine:
        assert await engine.observe() == []
        assert engine.reachable() == {"srv0": False}
        assert set(engine.unfit()) == OWN["srv0"]
        assert "gpu5" in engine.unfit()["gpu0"]
        liar.reply = pb.RanksReply(ranks=[rank("gpu0")])
        assert await engine.observe() == []  # for good


async def test_an_agent_that_reports_an_unrequested_start_is_ignored() -> None:
    async with believing(Liar(rank("gpu0"), rank("gpu1", job="blue"))) as engine:
        with pytest.raises(EngineError) as refused:
            await engine.start([SPEC], 60)
        assert refused.value.code == "forbidden"
        assert set(engine.unfit()) == OWN["srv0"]


async def test_an_honest_agent_is_believed() -> None:
    async with believing(Liar(rank("gpu0"))) as engine:
        assert len(await engine.start([SPEC], 60)) == 1
        assert len(await engine.observe()) == 1
        assert engine.unfit() == {}


async def test_figures_of_anothers_endpoint_are_dropped() -> None:
    async with believing(Liar()) as engine, asyncio.timeout(60):
        stream = engine.telemetry()
        first: RankSample = await anext(stream)
        assert first.endpoint == "gpu0"
        await stream.aclose()  # type: ignore[attr-defined]


def test_an_agent_elsewhere_needs_certificates(tmp_path: Path) -> None:
    from dataclasses import replace

    site = load_site("testbed/sites/paper.yaml")
    assert not read_trust(site, None).secure
    far = replace(site, servers=(replace(site.servers[0], agent="10.0.0.7:7701"),))
    with pytest.raises(ServiceError) as refused:
        read_trust(far, None)
    assert refused.value.code == "forbidden"
    assert "--agent-tls" in refused.value.hint
    Authority.create(tmp_path / "ca", "test", now=now()).issue_controller(tmp_path / "c", now=now())
    assert read_trust(far, tmp_path / "c").secure
    with pytest.raises(ServiceError) as missing:
        read_trust(far, tmp_path / "ca")
    assert CONTROLLER not in str(missing.value)
    assert missing.value.hint

"""An agent that says what a test gives it, and an engine that listens to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import grpc

from controller.devices.agents.engine import AgentEngine
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc

OWN: Mapping[str, frozenset[str]] = {"srv0": frozenset({"gpu0", "gpu1"})}


class Liar(agent_pb2_grpc.AgentServicer):
    """Says what it is told to say."""

    def __init__(self, *ranks: pb.RankStatus, health: str = "") -> None:
        self.reply = pb.RanksReply(ranks=ranks)
        if health:
            self.reply.health.add(endpoint=health, ok=False, reason="lost")

    async def Observe(  # noqa: N802
        self, request: pb.ObserveRequest, context: grpc.aio.ServicerContext
    ) -> pb.RanksReply:
        return self.reply

    Start = Stop = Observe

    async def Telemetry(  # noqa: N802
        self, request: pb.TelemetryRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.TelemetryBatch]:
        for endpoint in ("gpu5", "gpu0"):
            yield pb.TelemetryBatch(samples=[pb.Sample(endpoint=endpoint, source="nvml")])
        await asyncio.sleep(60)


@contextlib.asynccontextmanager
async def believing(liar: Liar) -> AsyncIterator[AgentEngine]:
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServicer_to_server(liar, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = AgentEngine({"srv0": f"127.0.0.1:{port}"}, endpoints=OWN)
    try:
        yield engine
    finally:
        await engine.close()
        await server.stop(0)


def rank(endpoint: str, job: str = "red", number: int = 0) -> pb.RankStatus:
    return pb.RankStatus(job=job, rank=number, epoch=1, endpoint=endpoint, state=pb.STATE_RUNNING)

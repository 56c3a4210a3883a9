"""Which callers an agent and a controller refuse, and with which message. No refusal hangs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from container_mgr.fence import TERM_KEY
from container_mgr.rpc.gate import READING
from controller.devices.agents.engine import AgentEngine
from controller.devices.agents.trust import AgentTrust
from controller.devices.engine import EngineError
from pki import CONTROLLER, Authority, Credentials
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from tests.parts.agent.ranks import SLEEP, until
from tests.parts.agent.rig import AgentRig, agent_rig, now, raw

METHODS = pb.DESCRIPTOR.services_by_name["Agent"].methods
EVERY = [
    *(method.name for method in METHODS),
    pytest.param("Start", marks=pytest.mark.real_time, id="Start, over TLS"),
]


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AgentRig]:
    async with agent_rig(tmp_path) as one:
        yield one


async def refusal(rig: AgentRig, credentials: Credentials | None) -> str:
    """Return the final answer to a controller with these certificates."""
    async with rig.controller(credentials) as engine, asyncio.timeout(60):
        while True:
            try:
                await engine.stop("red", 0)
            except EngineError as error:
                if error.code == "forbidden" or credentials is None:
                    assert not engine.reachable()["srv0"]
                    return str(error)
            else:
                return "accepted"
            await asyncio.sleep(0.05)


@pytest.mark.real_time
async def test_a_controller_of_the_same_authority_is_accepted(rig: AgentRig) -> None:
    rig.authority.issue_controller(rig.directory / "c", now=now())
    mine = Credentials.load(rig.directory / "c", CONTROLLER, now=now())
    assert await refusal(rig, mine) == "accepted"


@pytest.mark.real_time
async def test_a_caller_without_a_certificate_is_refused(rig: AgentRig) -> None:
    assert await refusal(rig, None) != "accepted"
    async with rig.controller(None) as engine:
        with pytest.raises(EngineError) as refused:
            await engine.stop("red", 0)
    assert "--agent-tls" in refused.value.hint


@pytest.mark.real_time
async def test_a_certificate_of_another_authority(rig: AgentRig, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "test", now=now())
    other.issue_controller(tmp_path / "c", now=now())
    # It trusts the agent's authority, so the agent is the one that refuses.
    (tmp_path / "c" / "ca.pem").write_bytes((tmp_path / "ca" / "ca.pem").read_bytes())
    assert "authority" in await refusal(rig, raw(tmp_path / "c", CONTROLLER))


@pytest.mark.real_time
async def test_an_expired_certificate(rig: AgentRig, tmp_path: Path) -> None:
    rig.authority.issue_controller(tmp_path / "c", now=now() - timedelta(days=2), days=1)
    assert "expired" in await refusal(rig, raw(tmp_path / "c", CONTROLLER))


@pytest.mark.real_time
async def test_an_agent_of_another_authority_is_refused(tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "test", now=now())
    other.issue_agent("srv0", tmp_path / "fake", now=now())
    async with agent_rig(tmp_path, tmp_path / "fake") as rig:
        rig.authority.issue_controller(tmp_path / "c", now=now())
        text = await refusal(rig, raw(tmp_path / "c", CONTROLLER))
    assert "its certificate is refused" in text


@pytest.mark.real_time
async def test_an_agent_with_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    async with agent_rig(tmp_path / "first") as first:
        pass
    first.authority.issue_agent("srv0", tmp_path / "old", now=now() - timedelta(days=2), days=1)
    async with agent_rig(tmp_path / "second", tmp_path / "old") as rig:
        first.authority.issue_controller(tmp_path / "c", now=now())
        text = await refusal(rig, raw(tmp_path / "c", CONTROLLER))
    assert "expired" in text


@pytest.mark.real_time
async def test_the_agent_of_another_server_is_refused(tmp_path: Path) -> None:
    async with agent_rig(tmp_path / "first") as first:
        pass
    first.authority.issue_agent("srv1", tmp_path / "srv1", now=now())
    async with agent_rig(tmp_path / "second", tmp_path / "srv1") as rig:
        first.authority.issue_controller(tmp_path / "c", now=now())
        text = await refusal(rig, raw(tmp_path / "c", CONTROLLER))
    assert "srv0.agent.lightloom" in text


@pytest.mark.real_time
async def test_a_servers_reason_is_found_while_another_server_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs in the handshake takes seconds, and the next call asks it again."""
    other = Authority.create(tmp_path / "other", "test", now=now())
    other.issue_controller(tmp_path / "c", now=now())
    trust = AgentTrust(raw(tmp_path / "c", CONTROLLER))
    ask = trust.why_refused

    async def slow(server: str, address: str) -> str | None:
        if server == "srv0":
            await asyncio.sleep(3600)
        return await ask(server, address)

    monkeypatch.setattr(trust, "why_refused", slow)
    async with agent_rig(tmp_path) as rig:
        engine = AgentEngine({"srv0": rig.address, "srv1": rig.address}, trust=trust)

        async def codes() -> dict[str, str]:
            with pytest.raises(EngineError) as failed:
                await engine.stop("red", 0)
            return {fault.obj: fault.code for fault in failed.value.faults}

        both = {"server/srv0": "unavailable", "server/srv1": "forbidden"}
        await until(codes, lambda found: found == both)
        await engine.close()


@pytest.mark.parametrize("method", EVERY)
async def test_an_agents_certificate_gives_no_access_to_agents(rig: AgentRig, method: str) -> None:
    """Tests every method of the service, so also a new one."""
    rig.authority.issue_agent("srv1", rig.directory / "srv1", now=now())
    trust = AgentTrust(raw(rig.directory / "srv1", "srv1"))
    async with trust.channel("srv0", rig.address) as channel:
        code = await refused_with(channel, method, 0)
    assert code is grpc.StatusCode.PERMISSION_DENIED


async def refused_with(
    channel: grpc.aio.Channel, method: str, term: int | str, deadline_s: float = 60
) -> object:
    stub = agent_pb2_grpc.AgentStub(channel)
    descriptor = next(m for m in METHODS if m.name == method)
    request = getattr(pb, descriptor.input_type.name)()
    if descriptor.client_streaming:
        request = _stream_of(request)
    call = getattr(stub, method)(request, timeout=deadline_s, metadata=((TERM_KEY, str(term)),))
    try:
        if descriptor.server_streaming:
            await call.read()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        call.cancel()
    return None


async def _stream_of(request: object) -> AsyncIterator[object]:
    yield request


@pytest.mark.parametrize("method", sorted({m.name for m in METHODS} - READING))
async def test_an_old_controller_changes_nothing(rig: AgentRig, method: str) -> None:
    rig.engine.command(7)
    await rig.engine.start([rig.spec(0, *SLEEP)], 30)
    async with rig.trust.channel("srv0", rig.address) as channel:
        assert await refused_with(channel, method, 6) is grpc.StatusCode.FAILED_PRECONDITION
    assert [s.state.value for s in await rig.engine.observe()] == ["running"]


async def test_an_old_controller_may_read(rig: AgentRig) -> None:
    rig.engine.command(7)
    await rig.engine.start([rig.spec(0, *SLEEP)], 30)
    rig.engine.command(6)
    assert len(await rig.engine.observe()) == 1
    with pytest.raises(EngineError) as fenced:
        await rig.engine.stop("red", 0)
    assert fenced.value.code == "forbidden"
    assert "term 7" in str(fenced.value)


@pytest.mark.parametrize("term", ["x", "-1", "9" * 30, ""])
async def test_an_invalid_term(rig: AgentRig, term: str) -> None:
    async with rig.trust.channel("srv0", rig.address) as channel:
        code = await refused_with(channel, "Observe", term)
    assert code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", sorted(READING))
async def test_a_read_never_raises_the_fence(rig: AgentRig, method: str) -> None:
    """Not even the current controller's reads: only a command raises it."""
    rig.engine.command(7)
    await rig.engine.start([rig.spec(0, *SLEEP)], 30)
    async with rig.trust.channel("srv0", rig.address) as channel:
        await refused_with(channel, method, 2**62, deadline_s=1)
    assert rig.fence.term == 7
    await rig.engine.stop("red", 0)


@pytest.mark.parametrize("method", EVERY)
async def test_a_local_account_without_a_certificate_has_no_access(
    rig: AgentRig, method: str
) -> None:
    async with grpc.aio.insecure_channel(rig.address) as channel:
        code = await refused_with(channel, method, 2**62)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert rig.fence.term == 0


async def test_a_controller_whose_term_cannot_be_stored_changes_nothing(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(term: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(rig.fence, "raise_to", full)
    rig.engine.command(7)
    with pytest.raises(EngineError) as failed:
        await rig.engine.start([rig.spec(0, *SLEEP)], 30)
    assert failed.value.code == "unavailable"
    assert rig.docker.containers == {}

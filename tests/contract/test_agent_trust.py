"""Who is refused by an agent, who by the controller, and what they are told. No refusal hangs."""

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
from tests.contract.agent_rig import AgentRig, agent_rig, now, raw
from tests.contract.engine_contract import SLEEP, until

METHODS = pb.DESCRIPTOR.services_by_name["Agent"].methods


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AgentRig]:
    async with agent_rig(tmp_path) as one:
        yield one


async def refusal(rig: AgentRig, credentials: Credentials | None) -> str:
    """What a controller with these certificates is told in the end."""
    async with rig.controller(credentials) as engine, asyncio.timeout(60):
        while True:
            try:
                await engine.stop("red", 0)
            except EngineError as error:
                if error.code == "forbidden" or credentials is None:
                    assert not engine.reachable()["srv0"]
                    return str(error)
            else:
                return "let in"
            await asyncio.sleep(0.05)


async def test_a_controller_of_the_same_authority_is_let_in(rig: AgentRig) -> None:
    rig.authority.issue_controller(rig.directory / "c", now=now())
    mine = Credentials.load(rig.directory / "c", CONTROLLER, now=now())
    assert await refusal(rig, mine) == "let in"


async def test_without_a_certificate_no_caller_is_let_in(rig: AgentRig) -> None:
    assert "let in" not in await refusal(rig, None)
    async with rig.controller(None) as engine:
        with pytest.raises(EngineError) as refused:
            await engine.stop("red", 0)
    assert "--agent-tls" in refused.value.hint


async def test_a_certificate_of_another_authority(rig: AgentRig, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "test", now=now())
    other.issue_controller(tmp_path / "c", now=now())
    # Believes the agent, so that it is the agent that refuses.
    (tmp_path / "c" / "ca.pem").write_bytes((tmp_path / "ca" / "ca.pem").read_bytes())
    assert "authority" in await refusal(rig, raw(tmp_path / "c", CONTROLLER))


async def test_an_expired_certificate(rig: AgentRig, tmp_path: Path) -> None:
    rig.authority.issue_controller(tmp_path / "c", now=now() - timedelta(days=2), days=1)
    assert "expired" in await refusal(rig, raw(tmp_path / "c", CONTROLLER))


async def test_an_agent_of_another_authority_is_not_believed(tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "test", now=now())
    other.issue_agent("srv0", tmp_path / "fake", now=now())
    async with agent_rig(tmp_path, tmp_path / "fake") as rig:
        rig.authority.issue_controller(tmp_path / "c", now=now())
        text = await refusal(rig, raw(tmp_path / "c", CONTROLLER))
    assert "its certificate is refused" in text


async def test_an_agent_with_an_expired_certificate_is_not_believed(tmp_path: Path) -> None:
    async with agent_rig(tmp_path / "first") as first:
        pass
    first.authority.issue_agent("srv0", tmp_path / "old", now=now() - timedelta(days=2), days=1)
    async with agent_rig(tmp_path / "second", tmp_path / "old") as rig:
        first.authority.issue_controller(tmp_path / "c", now=now())
        text = await refusal(rig, raw(tmp_path / "c", CONTROLLER))
    assert "expired" in text


async def test_another_servers_agent_cannot_stand_in(tmp_path: Path) -> None:
    async with agent_rig(tmp_path / "first") as first:
        pass
    first.authority.issue_agent("srv1", tmp_path / "srv1", now=now())
    async with agent_rig(tmp_path / "second", tmp_path / "srv1") as rig:
        first.authority.issue_controller(tmp_path / "c", now=now())
        text = await refusal(rig, raw(tmp_path / "c", CONTROLLER))
    assert "srv0.agent.lightloom" in text


async def test_why_one_server_refuses_is_found_out_while_another_is_slow_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs in the handshake takes seconds, and is asked again at once."""
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


@pytest.mark.parametrize("method", [m.name for m in METHODS])
async def test_an_agents_certificate_commands_no_agent(rig: AgentRig, method: str) -> None:
    """Every method there is, so that a new one cannot be forgotten."""
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


@pytest.mark.parametrize("method", sorted({m.name for m in METHODS} - READING))
async def test_an_old_controller_changes_nothing(rig: AgentRig, method: str) -> None:
    rig.engine.command(7)
    await rig.engine.start([rig.spec(0, *SLEEP)], 30)
    async with rig.trust.channel("srv0", rig.address) as channel:
        assert await refused_with(channel, method, 6) is grpc.StatusCode.FAILED_PRECONDITION
    assert [s.state.value for s in await rig.engine.observe()] == ["running"]


async def test_an_old_controller_may_look(rig: AgentRig) -> None:
    rig.engine.command(7)
    await rig.engine.start([rig.spec(0, *SLEEP)], 30)
    rig.engine.command(6)
    assert len(await rig.engine.observe()) == 1
    with pytest.raises(EngineError) as fenced:
        await rig.engine.stop("red", 0)
    assert fenced.value.code == "forbidden"
    assert "term 7" in str(fenced.value)


@pytest.mark.parametrize("term", ["x", "-1", "9" * 30, ""])
async def test_a_term_that_is_none(rig: AgentRig, term: str) -> None:
    async with rig.trust.channel("srv0", rig.address) as channel:
        code = await refused_with(channel, "Observe", term)
    assert code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", sorted(READING))
async def test_a_read_never_raises_the_fence(rig: AgentRig, method: str) -> None:
    """Not even the controller's own: only a command says who commands."""
    rig.engine.command(7)
    await rig.engine.start([rig.spec(0, *SLEEP)], 30)
    async with rig.trust.channel("srv0", rig.address) as channel:
        await refused_with(channel, method, 2**62, deadline_s=1)
    assert rig.fence.term == 7
    await rig.engine.stop("red", 0)


@pytest.mark.parametrize("method", [m.name for m in METHODS])
async def test_a_local_account_without_a_certificate_neither_looks_nor_commands(
    rig: AgentRig, method: str
) -> None:
    async with grpc.aio.insecure_channel(rig.address) as channel:
        code = await refused_with(channel, method, 2**62)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert rig.fence.term == 0


async def test_a_term_that_cannot_be_written_down_commands_nothing(
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

"""Tests the TL1 session with a switch whose faults are scripted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from ocs_driver import OcsDenied, OcsLogin, OcsTimeout, OcsUnreachable
from ocs_driver.tl1.messages import Tl1Command
from ocs_driver.tl1.session import Login, Tl1Session, Tl1Timing
from tests.parts.ocs.rig import PATIENCE_S, reserved

READ = Tl1Command("RTRV-HDR")
WRITE = Tl1Command("ENT-CRS", aid="1.1.1,1.1.2", tail="::lightloom,2WAY")

Reply = bytes | None
"""None closes the connection; empty bytes mean no response."""


def answer(ctag: str, completion: str = "COMPLD", body: str = "") -> bytes:
    return f"\r\n\n   SW 16-10-31 15:01:34\r\nM  {ctag} {completion}\r\n{body};".encode()


NOT_ACTIVE = "   PLNA\r\n   /* Login Not Active */\r\n"


class ScriptedSwitch:
    """Responds to each command with ``script(verb, ctag)``, and records the commands."""

    def __init__(self, script: Callable[[str, str], Reply]) -> None:
        self.script = script
        self.verbs: list[str] = []
        self.connections = 0
        self.address = ("", 0)
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                text = (await reader.readuntil(b";")).decode().strip()
                parts = text.rstrip(";").split(":")
                self.verbs.append(parts[0])
                reply = self.script(parts[0], parts[3])
                if reply is None:
                    break
                writer.write(reply)
        writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedSwitch]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = server.sockets[0].getsockname()[:2]
        try:
            yield self
        finally:
            server.close()
            self.cut()


@contextlib.asynccontextmanager
async def session_with(
    script: Callable[[str, str], Reply],
) -> AsyncIterator[tuple[Tl1Session, ScriptedSwitch]]:
    async with ScriptedSwitch(script).running() as switch:
        session = Tl1Session(*switch.address, Login("admin", "pw"))
        try:
            yield session, switch
        finally:
            await session.close()


def obedient(verb: str, ctag: str) -> Reply:
    del verb
    return answer(ctag)


async def test_login_and_logout() -> None:
    async with session_with(obedient) as (session, switch):
        await session.open()
        await session.close()
        assert switch.verbs == ["ACT-USER", "CANC-USER"]


async def test_already_logged_in_is_success() -> None:
    def script(verb: str, ctag: str) -> Reply:
        if verb == "ACT-USER":
            return answer(ctag, "DENY", "   SNVS\r\n   /* Already logged in */\r\n")
        return answer(ctag)

    async with session_with(script) as (session, _):
        await session.open()
        assert (await session.ask(READ)).ok


async def test_the_session_waits_for_the_end_of_the_login_race_even_for_writes() -> None:
    seen: list[str] = []

    def script(verb: str, ctag: str) -> Reply:
        seen.append(verb)
        if verb == "ENT-CRS" and seen.count(verb) == 1:
            return answer(ctag, "DENY", NOT_ACTIVE)
        return answer(ctag)

    async with session_with(script) as (session, switch):
        (reply,) = await session.bulk([WRITE])
        assert reply.ok
        assert switch.connections == 1


async def test_a_session_logged_out_by_the_switch_logs_in_again() -> None:
    async with session_with(obedient) as (session, switch):

        def script(verb: str, ctag: str) -> Reply:
            if verb == "ENT-CRS" and switch.connections == 1:
                return answer(ctag, "DENY", NOT_ACTIVE)
            return answer(ctag)

        switch.script = script
        (reply,) = await session.bulk([WRITE])
        assert reply.ok
        assert switch.connections == 2


async def test_a_refused_login_is_not_retried_immediately() -> None:
    async with session_with(lambda _, ctag: answer(ctag, "DENY", "   PIUI\r\n")) as (s, switch):
        for _ in range(3):
            with pytest.raises(OcsLogin, match="PIUI"):
                await s.open()
        assert switch.connections == 1


async def test_answers_are_matched_by_ctag() -> None:
    held: list[str] = []

    def script(verb: str, ctag: str) -> Reply:
        if verb != "RTRV-NE":
            return answer(ctag)
        held.append(ctag)
        if len(held) < 3:
            return b""
        return b"".join(answer(tag, body=f'   "{tag}"\r\n') for tag in reversed(held))

    async with session_with(script) as (session, _):
        replies = await session.bulk([Tl1Command("RTRV-NE")] * 3)
        assert [reply.rows[0] for reply in replies] == held


async def test_silence_leaves_a_write_unknown_and_is_not_repeated() -> None:
    async with session_with(lambda v, c: b"" if v == "ENT-CRS" else answer(c)) as (s, switch):
        with pytest.raises(OcsTimeout, match="no_answer"):
            await s.bulk([WRITE], PATIENCE_S)
        assert switch.verbs.count("ENT-CRS") == 1
        assert (await s.ask(READ)).ok
        assert switch.connections == 2


async def test_a_cut_connection_leaves_a_write_unknown_and_is_not_repeated() -> None:
    async with session_with(lambda v, c: None if v == "ENT-CRS" else answer(c)) as (s, switch):
        with pytest.raises(OcsTimeout, match="connection_lost"):
            await s.bulk([WRITE])
        assert switch.verbs.count("ENT-CRS") == 1


async def test_a_read_survives_one_cut() -> None:
    async with session_with(obedient) as (session, switch):
        await session.open()
        switch.script = lambda v, c: (
            None if v == "RTRV-NE" and switch.connections == 1 else answer(c)
        )
        assert (await session.ask(Tl1Command("RTRV-NE"))).ok


async def test_refusals_have_the_code_and_text_of_the_switch() -> None:
    def script(verb: str, ctag: str) -> Reply:
        if verb == "RTRV-NE":
            return answer(ctag, "DENY", "   ZZZZ\r\n   /* no; never */\r\n")
        return answer(ctag)

    async with session_with(script) as (session, _):
        with pytest.raises(OcsDenied, match="no; never") as caught:
            await session.ask(Tl1Command("RTRV-NE"))
        assert caught.value.code == "ZZZZ"


async def test_repeat_later_is_a_refusal_and_delay_is_not_an_answer() -> None:
    replies = {
        "ENT-CRS": lambda ctag: f"RL {ctag}\r\n<".encode(),
        "ACT-CRS": lambda ctag: answer(ctag, "DELAY") + f"IP {ctag}\r\n<".encode() + answer(ctag),
    }
    async with session_with(lambda v, c: replies.get(v, answer)(c)) as (session, _):
        later, delayed = await session.bulk([WRITE, Tl1Command("ACT-CRS")])
        assert (later.ok, later.code) == (False, "RL")
        assert delayed.completion == "COMPLD"


async def test_an_endless_answer_ends_the_connection() -> None:
    endless = b"M  2 COMPLD\r\n/*" + b"x" * 2_000_000
    async with session_with(lambda v, c: endless if v == "ENT-CRS" else answer(c)) as (s, _):
        with pytest.raises(OcsTimeout, match="connection_lost"):
            await s.bulk([WRITE])


async def test_idle_sessions_are_kept_alive() -> None:
    pinged = asyncio.Event()

    def script(verb: str, ctag: str) -> Reply:
        if verb == "RTRV-HDR":
            pinged.set()
        return answer(ctag, "DENY" if verb == "RTRV-HDR" else "COMPLD")

    async with session_with(script) as (session, switch):
        await session.open()
        async with asyncio.timeout(PATIENCE_S):
            await pinged.wait()
        assert switch.connections == 1


async def test_a_lost_session_reconnects_automatically() -> None:
    heard: asyncio.Queue[bool] = asyncio.Queue()
    async with ScriptedSwitch(obedient).running() as switch:
        session = Tl1Session(*switch.address, Login("admin", "pw"), on_link=heard.put_nowait)
        await session.open()
        switch.cut()
        async with asyncio.timeout(PATIENCE_S):
            assert [await heard.get() for _ in range(3)] == [True, False, True]
        await session.close()


async def test_short_calls_fail_immediately_during_a_backoff() -> None:
    short_s = Tl1Timing().backoff_first_s / 2
    with reserved(1) as (address,):
        session = Tl1Session(*address, Login("admin", "pw"))
        with pytest.raises(OcsUnreachable, match="unreachable"):
            await session.bulk([READ], short_s)
        with pytest.raises(OcsUnreachable, match="next attempt in"):
            await session.bulk([READ], short_s)
        await session.close()

"""Implements a NETCONF session without SSH: passes the driver's XML to the emulator's dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ocs_driver.errors import OcsDenied, OcsTimeout, OcsUnreachable
from testbed.ocs_emulator.emulator import Emulator
from testbed.ocs_emulator.faults import Trick
from testbed.ocs_emulator.netconf_rpc import NetconfDialect
from testbed.ocs_emulator.netconf_xml import OPTICAL, Element, RpcError, parse, reply
from testbed.ocs_emulator.sessions import SessionRules

_NC = "urn:ietf:params:xml:ns:netconf:base:1.0"


class LocalNetconf:
    """Has the calls of ``NetconfSession``; a cut connection is one error and then works again."""

    def __init__(
        self, dialect: NetconfDialect, emulator: Emulator, rules: SessionRules | None = None
    ) -> None:
        """``rules`` are the session rules of a switch with a session limit."""
        self._dialect = dialect
        self._faults = emulator.switch.faults
        self._rules = rules
        self._entered = False
        self.capabilities = (f"{OPTICAL}?module=optical-switch&revision=2018-03-22",)

    async def open(self) -> None:
        if self._rules is not None and not self._rules.enter():
            raise OcsUnreachable("session_limit", "netconf", "no free session")
        self._entered = True

    async def close(self) -> None:
        if self._rules is not None and self._entered:
            self._rules.leave()
        self._entered = False

    async def get(self, filter_: str) -> str:
        rpc = parse(f'<get xmlns="{_NC}"><filter>{filter_}</filter></get>'.encode())
        for _ in range(2):
            try:
                return await self._ask("get", rpc, 30.0)
            except OcsTimeout as error:
                if error.code != "connection_lost":
                    raise
        raise OcsTimeout("connection_lost", "netconf", "the session broke twice")

    async def edit(self, config: str, timeout_s: float) -> None:
        rpc = parse(f'<edit-config xmlns="{_NC}">{config}</edit-config>'.encode())
        await self._ask("edit-config", rpc, timeout_s)

    async def _ask(self, verb: str, rpc: Element, timeout_s: float) -> str:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._mistreated(verb, lambda: self._carry_out(verb, rpc))
        except TimeoutError:
            raise OcsTimeout("no_answer", "netconf", "no response in time") from None

    async def _carry_out(self, verb: str, rpc: Element) -> str:
        try:
            content = await self._dialect.carry_out(verb, rpc, "admin")
        except RpcError as error:
            raise OcsDenied(error.tag, "netconf", error.message) from None
        return reply("1", content).decode()

    async def _mistreated(self, verb: str, work: Callable[[], Awaitable[str]]) -> str:
        rule = self._faults.trick(verb, changes=verb == "edit-config")
        trick = rule.trick if rule else None
        await asyncio.sleep(self._faults.delay_s)
        cut = OcsTimeout("connection_lost", "netconf", "cut by script")
        if trick is Trick.CUT_BEFORE:
            raise cut
        if rule is not None and trick is Trick.DENY:
            raise OcsDenied("operation-failed", "netconf", rule.code)
        answer = reply("1").decode() if trick is Trick.NO_EFFECT else await work()
        if trick in (Trick.CUT_AFTER, Trick.HALF_REPLY):
            raise cut
        if trick is Trick.NO_REPLY:
            await asyncio.sleep(3600)
        return answer

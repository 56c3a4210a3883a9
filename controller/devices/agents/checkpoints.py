"""What agents do with checkpoints: they report what they hold, and keep, fetch and drop it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import structlog

from agentlink.checkpoints import FetchProgress, Folder, GetPart, Keep, Keeps, Source, Verified
from agentlink.codec import read, write
from base import clock
from base.addresses import join_address
from checkpoints.ledger import Key
from controller.devices.agents import checkpoint_messages as messages
from controller.devices.agents.connections import BACKOFF_S, AgentConnections
from controller.devices.checkpoints import HoldingsNews
from controller.devices.engine import EngineError, EngineFault
from protos import agent_pb2 as pb

MAX_VERIFIED = 65_536
"""Entries of one verification."""
_QUEUE_NEWS = 16
"""Batches that wait for their reader; then agents wait."""
_BETWEEN_BATCHES_S = 0.05
_MAX_FAULTS = 1000
_LOG_EVERY_S = 60.0
_T = TypeVar("_T")

_log = structlog.get_logger("controller.agents.checkpoints")


class AgentCheckpoints:
    """Implements :class:`controller.devices.checkpoints.CheckpointEngine`.

    A call that fails says nothing about the agent as a whole, whose disk may be slow or full:
    observations show whether it answers.
    """

    def __init__(self, agents: AgentConnections) -> None:
        self._agents = agents
        self._ports: dict[str, int] = {}
        """Where each server gives parts to others, as it said last."""
        self._dropped = dict.fromkeys(agents.servers, 0)
        self._logged_at: dict[str, float] = {}

    def dropped(self) -> dict[str, int]:
        """Return for each server how many of its entries could not be true."""
        return dict(self._dropped)

    async def holdings(self) -> AsyncIterator[HoldingsNews]:
        """Tell what all servers hold, merged; a lost server is tried again with back-off."""
        # Nothing is lost: while the reader is slow, agents wait, one batch each in turn.
        queue: asyncio.Queue[HoldingsNews] = asyncio.Queue(_QUEUE_NEWS)
        pumps = [asyncio.create_task(self._pump_news(s, queue)) for s in self._agents.servers]
        try:
            while True:
                yield await queue.get()
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump_news(self, server: str, queue: asyncio.Queue[HoldingsNews]) -> None:
        shortest, longest = BACKOFF_S
        wait_s = shortest
        while True:
            if server not in self._agents.liars and await self._read_news(server, queue):
                wait_s = shortest
            # Random, so that not all agents are called at once after an outage.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
            wait_s = min(longest, wait_s * 2)

    async def _read_news(self, server: str, queue: asyncio.Queue[HoldingsNews]) -> bool:
        """Read one stream to its end; return whether it told anything."""
        owns = partial(self._agents.owns, server)
        told = False
        stream = self._agents.stream(server, "Holdings", pb.HoldingsRequest(), None)
        try:
            async for batch in stream:
                if server in self._agents.liars:
                    break
                if (port := messages.port_of(batch)) is not None:
                    self._ports[server] = port
                # A batch of an agent that lies may be much to read.
                held, left_out = await asyncio.to_thread(
                    messages.holdings_of, server, batch, owns, clock.time()
                )
                self._count(server, left_out)
                news = HoldingsNews(
                    server,
                    held,
                    began=not told,
                    caught_up=batch.caught_up,
                    boot_id="" if told else messages.boot_id_of(batch),
                )
                told = True
                await queue.put(news)
                # Flow control then slows a server that sends without end.
                await asyncio.sleep(_BETWEEN_BATCHES_S)
        except EngineError as error:
            _log.debug("holdings broken off", server=server, reason=str(error))
        finally:
            await stream.aclose()
        return told

    def _count(self, server: str, left_out: int) -> None:
        """Count entries that cannot be true; say so once a minute at most."""
        if not left_out:
            return
        self._dropped[server] += left_out
        now, last = clock.monotonic(), self._logged_at.get(server)
        if last is None or now >= last + _LOG_EVERY_S:
            self._logged_at[server] = now
            _log.warning(
                "an agent reports checkpoints that it cannot have",
                server=server,
                dropped=self._dropped[server],
            )

    async def keep(
        self, server: str, folder: str, keeps: Sequence[Keep], pace_bps: int, deadline_s: float
    ) -> None:
        """Say which copies and parities a server is to make now. Raises EngineError."""
        asked = Keeps(folder, tuple(keeps), pace_bps)
        request = await _written(server, lambda: write(pb.KeepRequest, asked))
        reply: pb.KeepReply = await self._ask(server, "Keep", request, deadline_s)
        if reply.faults:
            raise EngineError([read(EngineFault, fault) for fault in reply.faults[:_MAX_FAULTS]])

    async def close_step(self, server: str, folder: str, key: Key, deadline_s: float) -> None:
        """Sum a step that awaited its coordinator. Raises EngineError."""
        request = await _written(
            server, lambda: pb.CloseStepRequest(folder=folder, step=write(pb.StepKey, key))
        )
        await self._ask(server, "CloseStep", request, deadline_s)

    async def fetch(
        self, server: str, folder: Folder, key: Key, gets: Sequence[GetPart], deadline_s: float
    ) -> AsyncGenerator[FetchProgress]:
        """Put parts where ranks will start; the last item has ``done``. Raises EngineError."""
        request = await _written(
            server, lambda: messages.fetch_request(folder, key, gets, self._transfers_at)
        )
        self._check(server)
        stream = self._agents.stream(server, "Fetch", request, deadline_s)
        async with aclosing(stream):
            async for message in stream:
                progress = read(FetchProgress, message)
                yield progress
                if progress.done:
                    return
        raise EngineError([EngineFault("failed", f"server/{server}", "its agent told no end")])

    async def drop_steps(
        self, server: str, folder: str, keys: Sequence[Key], deadline_s: float
    ) -> None:
        """Remove steps from a server, the oldest first. Raises EngineError."""
        request = await _written(
            server,
            lambda: pb.DropStepsRequest(folder=folder, steps=[write(pb.StepKey, k) for k in keys]),
        )
        await self._ask(server, "DropSteps", request, deadline_s)

    async def verify_steps(
        self, server: str, folder: str, key: Key | None, deadline_s: float
    ) -> AsyncGenerator[Verified]:
        """Read a step (all with None) of a server again. Raises EngineError."""
        step = None if key is None else write(pb.StepKey, key)
        request = pb.VerifyStepsRequest(folder=folder, step=step)
        owns = partial(self._agents.owns, server)
        seen = 0
        self._check(server)
        stream = self._agents.stream(server, "VerifySteps", request, deadline_s)
        async with aclosing(stream):
            async for batch in stream:
                found, left_out = await asyncio.to_thread(messages.verified_of, server, batch, owns)
                self._count(server, left_out)
                seen += len(batch.verified)
                if seen > MAX_VERIFIED:
                    text = f"its agent reports more than {MAX_VERIFIED} parts"
                    raise EngineError([EngineFault("failed", f"server/{server}", text)])
                for one in found:
                    yield one

    async def forget_checkpoints(self, server: str, folder: str, deadline_s: float) -> bool:
        """Remove all of a job's folders on a server. Raises EngineError."""
        request = pb.ForgetCheckpointsRequest(folder=folder)
        reply: pb.ForgetCheckpointsReply = await self._ask(
            server, "ForgetCheckpoints", request, deadline_s
        )
        return bool(reply.removed)

    def _transfers_at(self, source: Source) -> str:
        """Return where the agent of a source gives its parts. Raises EngineError."""
        host, port = self._agents.host(source.server), self._ports.get(source.server)
        if port is None:
            raise EngineError(
                [
                    EngineFault(
                        "unavailable",
                        f"server/{source.server}",
                        "its agent has not told where it gives parts of checkpoints",
                        "is the agent running on this server?",
                    )
                ]
            )
        return join_address(host, port)

    async def _ask(self, server: str, method: str, request: Any, deadline_s: float) -> Any:
        self._check(server)
        return await self._agents.ask_storage(server, method, request, deadline_s)

    def _check(self, server: str) -> None:
        """Raise EngineError for a server of another site, and for one that is not trusted."""
        self._agents.check(server)
        if why := self._agents.liars.get(server):
            raise EngineError([EngineFault("forbidden", f"server/{server}", why)])


async def _written(server: str, write: Callable[[], _T]) -> _T:
    """Return a request, which may be much to write. EngineError for what cannot be sent."""
    try:
        return await asyncio.to_thread(write)
    except ValueError as error:  # a text that is none, or a figure that no field holds
        fault = EngineFault("invalid", f"server/{server}", f"the request cannot be sent: {error}")
        raise EngineError([fault]) from error

"""Merges the output of a job's ranks from several servers, and says which output is missing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

from base import clock
from controller.devices.agents.messages import lines_of, missing_line
from controller.devices.engine import EngineError, EngineFault, LogLine
from protos import agent_pb2 as pb

_QUEUED_BATCHES = 8
_AWAY = frozenset({"unavailable", "timeout", "forbidden"})
"""Faults of a server that may still have the output."""

Read = Callable[[str, int], AsyncIterator[pb.LogBatch]]
"""Reads one rank from one server. Raises EngineError."""


async def merge(job: str, where: Sequence[tuple[str, int]], read: Read) -> AsyncGenerator[LogLine]:
    """Yield the lines of all ranks as they come; ``where`` lists server and rank of each reader.

    A rank may be looked for on several servers. One that none of them could give is a line of the
    stream ``missing``. Raises EngineError when all servers answer and none has output of the job.
    """
    # Batches, not lines: an agent keeps each below 1 MiB of text.
    room = asyncio.Semaphore(_QUEUED_BATCHES)
    queue: asyncio.Queue[list[LogLine] | None] = asyncio.Queue()
    places = Counter(rank for _, rank in where)
    away: set[int] = set()
    refused: dict[int, EngineFault] = {}

    async def pump(server: str, rank: int) -> None:
        try:
            async for batch in read(server, rank):
                await room.acquire()
                queue.put_nowait(lines_of(rank, batch))
        except EngineError as error:
            fault = error.faults[0]
            places[rank] -= 1
            if fault.code in _AWAY:
                away.add(rank)
            else:
                refused[rank] = fault
            if rank in away and not places[rank]:
                await room.acquire()
                queue.put_nowait([missing_line(rank, fault, clock.time())])
        finally:
            queue.put_nowait(None)

    pumps = [asyncio.create_task(pump(*place)) for place in where]
    left, seen = len(pumps), False
    try:
        while left:
            lines = await queue.get()
            if lines is None:
                left -= 1
                continue
            room.release()
            for line in lines:
                seen = True
                yield line
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
    lost = sorted(rank for rank, servers in places.items() if not servers and rank not in away)
    if not seen and len(lost) == len(places):
        others = [fault for fault in refused.values() if fault.code != "not_found"]
        nothing = EngineFault("not_found", f"job/{job}", "it has no logs")
        raise EngineError(others or [nothing])
    for rank in lost:
        yield missing_line(rank, refused[rank], clock.time())

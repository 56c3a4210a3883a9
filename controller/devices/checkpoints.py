"""What an execution engine can do with jobs' checkpoints: the contract, apart from the ranks' own.

Servers hold parts, copies and parities, and report them; the controller orders what to keep, fetch
and drop. The implementation built in is :class:`controller.devices.agents.engine.AgentEngine`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentlink.checkpoints import FetchProgress, Folder, GetPart, Holding, Keep, Verified
from checkpoints.ledger import Key


@dataclass(slots=True, frozen=True)
class HoldingsNews:
    """News of one server. Holdings may repeat."""

    server: str
    holdings: tuple[Holding, ...] = ()
    began: bool = False
    """The server lists everything again: its earlier reports no longer count."""
    caught_up: bool = False
    """It has reported everything that it held when it began."""
    boot_id: str = ""
    """With ``began``: changes with every start of the server's machine."""


class CheckpointEngine(Protocol):
    """Keeps, fetches and drops parts of checkpoints on servers. Every call is idempotent.

    Calls raise EngineError; one without an answer is repeated, and does not count as done.
    """

    def holdings(self) -> AsyncIterator[HoldingsNews]:
        """Yield what all servers hold, each first everything, then changes, until closed.

        A server that was away reports everything again when it is back. Its reports about
        other servers' endpoints are dropped.
        """
        ...

    async def keep(
        self, server: str, folder: str, keeps: Sequence[Keep], pace_bps: int, deadline_s: float
    ) -> None:
        """Order a server to make copies and parities now, and to write to a store.

        Returns when they are queued; ``holdings`` reports what became of them. ``pace_bps`` limits
        each transfer in bits per second; 0 means unlimited. An empty ``keeps`` ends what is queued.
        """
        ...

    async def close_step(self, server: str, folder: str, key: Key, deadline_s: float) -> None:
        """Sum a step that awaited its coordinator (rule ``dcp``)."""
        ...

    def fetch(
        self, server: str, folder: Folder, key: Key, gets: Sequence[GetPart], deadline_s: float
    ) -> AsyncGenerator[FetchProgress]:
        """Put parts of one step where ranks will start on a server; the last item has ``done``."""
        ...

    async def drop_steps(
        self, server: str, folder: str, keys: Sequence[Key], deadline_s: float
    ) -> None:
        """Remove steps from a server, the oldest first; absent ones are not errors."""
        ...

    def verify_steps(
        self, server: str, folder: str, key: Key | None, deadline_s: float
    ) -> AsyncGenerator[Verified]:
        """Read a step (all with None) of a server again, and compare it with its manifests."""
        ...

    async def forget_checkpoints(self, server: str, folder: str, deadline_s: float) -> bool:
        """Remove all of a job's folders on a server; return whether there were any.

        ``conflict`` while one of its ranks runs there.
        """
        ...

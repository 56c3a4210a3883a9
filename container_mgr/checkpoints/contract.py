"""The two halves of checkpoints on a server: who holds parts, and who transfers them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentlink.checkpoints import FetchProgress, Folder, GetPart, Holding, Keep, Verified
from checkpoints.ledger import Key
from checkpoints.manifest import Manifest
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.users import RankUser
from container_mgr.values import AgentError


@dataclass(slots=True, frozen=True)
class News:
    """Holdings of this server; the first batches are everything, up to ``caught_up``."""

    holdings: tuple[Holding, ...] = ()
    caught_up: bool = False


class Receiving(Protocol):
    """A part that arrives: files are written below ``root``, then it is kept or given up.

    All methods block: they run in a worker thread.
    """

    @property
    def root(self) -> int:
        """A descriptor of the directory for its files; they are opened below it, never by path."""
        ...

    def keep(self, part: HeldPart | Manifest) -> None:
        """Compare the files with the manifest, make them durable and report them.

        Raises AgentError ``failed`` when they differ; then nothing is kept.
        """
        ...

    def give_up(self) -> None:
        """Remove what arrived; also after ``keep``, where it does nothing."""
        ...


class Holder(Protocol):
    """Holds parts on this server: folders, watch, inventory. ``Checkpoints`` implements it."""

    def news(self) -> AsyncIterator[News]:
        """Yield everything that is held, then changes. A second caller ends the first one's."""
        ...

    def folder(self, name: str) -> Folder | None:
        """Return the description of a job's folders; None without any on this server."""
        ...

    async def make(self, folder: Folder) -> None:
        """Make a job's folders unless they are there. AgentError ``conflict`` for another key."""
        ...

    async def expect(self, folder: str, endpoints: Collection[str]) -> None:
        """Set the endpoints of this server whose ranks will start from what is fetched now.

        What came for one of them stays until all have loaded it. An earlier fetch of the job no
        longer counts.
        """
        ...

    def find(self, place: PartPlace) -> HeldPart | None:
        """Return a whole part; None where it is not held."""
        ...

    def owner(self, folder: str, endpoint: str) -> RankUser:
        """Return the user that writes in a rank's folder, as it is outside the container; blocks.

        Raises AgentError when the engine's remapping is unknown.
        """
        ...

    def receive(self, place: PartPlace, size_bytes: int) -> Receiving:
        """Begin to receive a copy, parity or rebuilt part; blocks. AgentError ``failed``: full."""
        ...

    def came(self, folder: str, key: Key, get: GetPart) -> bool:
        """Return whether an earlier fetch brought a part that a rank will start from; blocks.

        It is compared. AgentError.
        """
        ...

    def receive_restore(self, folder: str, key: Key, get: GetPart) -> Receiving:
        """Begin to receive a part that a rank will start from; blocks. AgentError."""
        ...

    def restore_from(self, part: HeldPart, get: GetPart) -> None:
        """Show a part of this server to a rank that will start; blocks, and compares it first."""
        ...

    def report(self, holding: Holding) -> None:
        """Report a holding that is not in a folder: in a store, or one that failed."""
        ...

    def damaged(self, place: PartPlace, why: str) -> None:
        """Remove a part that was found damaged from what is held, and report it."""
        ...

    async def close_step(self, folder: str, key: Key) -> None:
        """Sum the parts of a step that awaited their coordinator."""
        ...

    async def drop(self, folder: str, keys: Collection[Key]) -> None:
        """Remove steps, the oldest first."""
        ...

    def verify(self, folder: str, key: Key | None) -> AsyncIterator[tuple[Verified, ...]]:
        """Read parts again and compare them."""
        ...

    async def forget(self, folder: str) -> bool:
        """Remove all of a job's folders. AgentError ``conflict`` while a rank uses them."""
        ...


class Transfers(Protocol):
    """Moves parts between servers and stores. ``Mover`` implements it."""

    @property
    def port(self) -> int:
        """TCP port of the management network at which parts are given to other agents."""
        ...

    async def keep(self, folder: str, keeps: Sequence[Keep], pace_bps: int) -> list[AgentError]:
        """Queue copies, parities and writes to stores, in place of what was queued for the job."""
        ...

    def fetch(
        self, folder: Folder, key: Key, gets: Sequence[GetPart]
    ) -> AsyncIterator[FetchProgress]:
        """Put parts where ranks will start; joins an equal fetch that runs."""
        ...

    async def pause(self, job: str) -> None:
        """Stop sending in the network of a job's ranks; return when all is acknowledged.

        Called before a freeze (ADR 0027). Takes 0.2 s at most.
        """
        ...

    def resume(self, job: str) -> None:
        """Send again."""
        ...

    def ranks_changed(self, running: Callable[[], Collection[tuple[str, int, str, str]]]) -> None:
        """Note the ranks that run with checkpoints: folder, rank, endpoint, network namespace."""
        ...

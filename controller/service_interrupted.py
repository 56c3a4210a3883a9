"""What a restarted controller still owes: the transactions that its predecessor left unfinished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from controller import failpoints
from controller.circuits import changes_between
from controller.engine import ExecutionEngine
from controller.flows import AttachPoint
from controller.observe import look
from controller.service_transactions import recovered_view
from controller.state import State
from controller.store import Intent, Loaded, PutTransaction
from controller.views import TransactionView

Containers = frozenset[tuple[str, int]]


class Interrupted:
    """Remembers where endpoints belong and which jobs wait, until all of it is right."""

    def __init__(self, state: State, engine: ExecutionEngine) -> None:
        self._state = state
        self._engine = engine
        self._entries: list[tuple[TransactionView, Intent]] = []
        self.owed: dict[str, AttachPoint | None] = {}
        """Where the endpoints of unfinished transactions belong: all old or all new."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def restore(self, loaded: Loaded) -> None:
        """Take the unfinished transactions from the intent log.

        Their endpoints are drained until their switch was read (``Adopter.adopt``): nobody knows
        yet where their light is, and rules for where it was would lead frames to strangers.
        """
        self._entries = [(v, i) for v, i in loaded.transactions if v.finished_at is None]
        for _, intent in self._entries:
            self.owed.update(intent.after if intent.proven else intent.before)
            self._state.owed_jobs.update(intent.quiesced_jobs)
        self._state.held.update(dict.fromkeys(self.owed))

    async def close(self, wake_up: Callable[[str, Containers], Awaitable[None]]) -> None:
        """Every endpoint is where it belongs: jobs go on, the transactions end. ServiceError.

        ``wake_up`` takes a job and the (job, epoch) of all containers that there are.
        """
        await look(self._state, self._engine)
        there = frozenset((status.job, status.epoch) for status in self._state.statuses)
        await asyncio.gather(*(wake_up(name, there) for name in sorted(self._state.owed_jobs)))
        self._state.owed_jobs.clear()
        now = self._state.clock()
        for view, intent in self._entries:
            ended = recovered_view(view, proven=intent.proven, now=now)
            changes = changes_between(self._state.site, intent.before, intent.after)
            self._state.finish(ended, changes)
            self._state.events.add("warning", f"transaction/{view.id}", "Recovered", ended.result)
            async with failpoints.around("log-recovered"):
                await self._state.commit(PutTransaction(ended, intent))
        self._entries.clear()
        self.owed.clear()

"""What a restarted controller still owes: the transactions that its predecessor left unfinished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from controller.base import failpoints
from controller.devices.aggregators import AttachPoint
from controller.state.records import TransactionRecord
from controller.state.state import State
from controller.state.transactions import recovered_record
from controller.state.writes import Intent, Loaded, PutTransaction
from controller.transaction.circuits import changes_between
from controller.transaction.model import Cause


class Interrupted:
    """Remembers where endpoints belong and which jobs wait, until all of it is right."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._entries: list[tuple[TransactionRecord, Intent]] = []
        self.owed: dict[str, AttachPoint | None] = {}
        """Where the endpoints of unfinished transactions belong: all old or all new."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def restore(self, loaded: Loaded) -> None:
        """Take the unfinished transactions from the intent log.

        Their endpoints are drained until their switch was read (``Adopter.adopt``): nobody knows
        yet where their light is, and rules for where it was would lead frames to strangers.
        """
        for record, intent in loaded.transactions:
            if record.finished_at is not None:
                continue
            moved, touched = touched_since(record, loaded)
            if moved >= intent.after.keys():
                self._void(record, intent)
                continue
            self._entries.append((record, intent))
            places = intent.after if intent.proven else intent.before
            self.owed.update({e: at for e, at in places.items() if e not in moved})
            self._state.owed_jobs.update(set(intent.quiesced_jobs) - touched)
        self._state.held.update(dict.fromkeys(self.owed))

    def _void(self, record: TransactionRecord, intent: Intent) -> None:
        """End a transaction whose end was never written, and which later ones have overtaken."""
        now = self._state.clock()
        ended = recovered_record(record, proven=intent.proven, now=now)
        ended = replace(ended, result="its end was not written; later ones overtook it")
        self._state.finish(ended, changes_between(self._state.site, intent.before, intent.after))
        self._state.journal.owe(PutTransaction(ended, intent))
        self._state.events.add("warning", f"transaction/{record.id}", "Overtaken", ended.result)

    async def close(self, wake_up: Callable[[str, int], Awaitable[bool]]) -> None:
        """Every endpoint is where it belongs: jobs go on, the transactions end. ServiceError.

        ``wake_up`` takes a job and the epoch in which its transaction began, and says whether the
        job goes on or has ended; while one does neither, this has to be called again.
        """
        owed = self._state.owed_jobs
        since: dict[str, int] = {}
        for record, intent in self._entries:
            since.update(dict.fromkeys(intent.quiesced_jobs, record.epoch_before))
        names = sorted(owed)
        went_on = await asyncio.gather(*(wake_up(name, since[name]) for name in names))
        owed.difference_update(name for name, done in zip(names, went_on, strict=True) if done)
        if owed:
            return
        now = self._state.clock()
        while self._entries:
            record, intent = self._entries[0]
            ended = recovered_record(record, proven=intent.proven, now=now)
            changes = changes_between(self._state.site, intent.before, intent.after)
            async with failpoints.around("log-recovered"):
                await self._state.record(PutTransaction(ended, intent))
            del self._entries[0]
            self._state.finish(ended, changes)
            self._state.events.add("warning", f"transaction/{record.id}", "Recovered", ended.result)
        self.owed.clear()


def touched_since(record: TransactionRecord, loaded: Loaded) -> tuple[set[str], set[str]]:
    """Return the endpoints and jobs that transactions begun after ``record`` have touched.

    An endpoint is in one transaction at a time, so those began after this one had left it. Repairs
    do not count: they only bring endpoints to where an interrupted transaction wants them.
    """
    later = [
        intent
        for other, intent in loaded.transactions
        if other.started_at > record.started_at and other.cause != Cause.HOMES.value
    ]
    endpoints = {endpoint for intent in later for endpoint in intent.after}
    return endpoints, {job for intent in later for job in intent.quiesced_jobs}

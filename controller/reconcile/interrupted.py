"""Transactions that the previous controller process left unfinished, until they are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from controller.base import failpoints
from controller.devices.aggregators import AttachPoint
from controller.state.records import TransactionRecord
from controller.state.state import State
from controller.state.transactions import recovered_record
from controller.state.writes import Intent, Loaded, PutTransaction, ReservedRoom
from controller.transaction.circuits import End, changes_between, of_endpoints
from controller.transaction.model import Cause

ROOM_S = 60.0
"""For how long after a recovery what was made free for a job is kept for it."""


class Interrupted:
    """Keeps where their endpoints belong and which jobs wait, until all is restored."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._entries: list[tuple[TransactionRecord, Intent]] = []
        self._rooms: list[ReservedRoom] = []
        self._closed_at = 0.0
        self.owed: dict[str, AttachPoint | None] = {}
        """Where the endpoints of unfinished transactions belong: all old places or all new ones."""
        self.dark: set[str] = set()
        """Those of them that belong in the dark: one left lit could take the port of another one.
        The first homes of a site are not among these: an endpoint of theirs may stay lit."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def restore(self, loaded: Loaded) -> None:
        """Load the unfinished transactions from the intent log.

        Their endpoints are drained until their switch has been read (``Adopter.adopt``): until
        then the place of their light is unknown, and rules for the old place would deliver frames
        to other endpoints.
        """
        for record, intent in loaded.transactions:
            if record.finished_at is not None:
                continue
            moved, touched = touched_since(record, loaded)
            if moved >= intent.after.keys():
                self._void(record, intent)
                continue
            self._entries.append((record, intent))
            self._reserve(intent)
            places = intent.after if intent.proven else intent.before
            mine = of_endpoints({end: at for end, at in places.items() if end not in moved})
            self.owed.update(mine)
            if record.cause != Cause.HOMES.value:
                self.dark.update(e for e, at in mine.items() if at is None)
            self._state.jobs.owed.update(set(intent.quiesced_jobs) - touched)
        self._state.light.held.update(dict.fromkeys(self.owed))
        self._state.transactions.interrupted = bool(self._entries)

    def _reserve(self, intent: Intent) -> None:
        """Keep what becomes free for the waiting job for which the light was moved."""
        room = intent.room
        if room is not None and self._waits(room.job):
            self._state.jobs.promised[room.job] = room.endpoints
            self._rooms.append(room)

    def _waits(self, name: str) -> bool:
        job = self._state.jobs.get(name)
        return job is not None and job.state in ("pending", "waiting")

    def release(self) -> None:
        """Let the queue have what was made free for a job, once all of it can be used.

        Until then another job would take the rest.
        """
        if self._entries or not self._rooms:
            return
        state = self._state
        out = state.unavailable()
        over = state.clock() - self._closed_at > ROOM_S
        for room in list(self._rooms):
            if over or not self._waits(room.job) or out.keys().isdisjoint(room.endpoints):
                self._rooms.remove(room)
                state.jobs.promised.pop(room.job, None)
                state.jobs.wake.set()

    def _void(self, record: TransactionRecord, intent: Intent) -> None:
        """End a transaction whose end was never written, and which later ones have overtaken."""
        now = self._state.clock()
        ended = recovered_record(record, proven=intent.proven, now=now)
        ended = replace(ended, result="its end was not written; later transactions overtook it")
        self._state.transactions.finish(
            ended, changes_between(self._state.site, intent.before, intent.after)
        )
        self._state.journal.owe(PutTransaction(ended, intent))
        self._state.events.add("warning", f"transaction/{record.id}", "Overtaken", ended.result)

    async def close(self, wake_up: Callable[[str, int], Awaitable[bool]]) -> None:
        """Resume the jobs and end the transactions, once every endpoint is where it belongs.

        ``wake_up`` takes a job and the epoch at which its transaction began, and returns whether
        the job has resumed or ended; while one has not, call this again. ServiceError.
        """
        owed = self._state.jobs.owed
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
            self._state.transactions.finish(ended, changes)
            self._state.events.add("warning", f"transaction/{record.id}", "Recovered", ended.result)
        self._closed_at = now
        self.owed.clear()
        self.dark.clear()
        self._state.transactions.interrupted = False


def touched_since(record: TransactionRecord, loaded: Loaded) -> tuple[set[End], set[str]]:
    """Return the ends and jobs that transactions begun after ``record`` have touched.

    An end is in one transaction at a time, so a later one began after ``record`` had released
    it. Repairs do not count: they only bring endpoints to where an interrupted transaction wants
    them.
    """
    later = [
        intent
        for other, intent in loaded.transactions
        if other.started_at > record.started_at and other.cause != Cause.HOMES.value
    ]
    ends = {end for intent in later for end in intent.after}
    return ends, {job for intent in later for job in intent.quiesced_jobs}

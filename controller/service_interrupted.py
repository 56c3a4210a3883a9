"""What a restarted controller still owes: the transactions that its predecessor left unfinished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from controller import failpoints
from controller.circuits import changes_between
from controller.flows import AttachPoint
from controller.service_transactions import recovered_view
from controller.state import State
from controller.store import Intent, Loaded, PutTransaction
from controller.views import TransactionView


class Interrupted:
    """Remembers where endpoints belong and which jobs wait, until all of it is right."""

    def __init__(self, state: State) -> None:
        self._state = state
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
        unfinished = [entry for entry in loaded.transactions if entry[0].finished_at is None]
        self._entries = [entry for entry in unfinished if not overtaken(entry, loaded)]
        for view, intent in unfinished:
            if (view, intent) not in self._entries:
                self._void(view, intent)
        for _, intent in self._entries:
            self.owed.update(intent.after if intent.proven else intent.before)
            self._state.owed_jobs.update(intent.quiesced_jobs)
        self._state.held.update(dict.fromkeys(self.owed))

    def _void(self, view: TransactionView, intent: Intent) -> None:
        """End a transaction whose end was never written, and which later ones have overtaken."""
        now = self._state.clock()
        ended = recovered_view(view, proven=intent.proven, now=now)
        ended = ended.model_copy(
            update={"result": "its end was not written; later ones overtook it"}
        )
        self._state.finish(ended, changes_between(self._state.site, intent.before, intent.after))
        self._state.journal.owe(PutTransaction(ended, intent))
        self._state.events.add("warning", f"transaction/{view.id}", "Overtaken", ended.result)

    async def close(self, wake_up: Callable[[str, int], Awaitable[bool]]) -> None:
        """Every endpoint is where it belongs: jobs go on, the transactions end. ServiceError.

        ``wake_up`` takes a job and the epoch in which its transaction began, and says whether the
        job goes on or has ended; while one does neither, this has to be called again.
        """
        owed = self._state.owed_jobs
        since: dict[str, int] = {}
        for view, intent in self._entries:
            since.update(dict.fromkeys(intent.quiesced_jobs, view.epoch_before))
        names = sorted(owed)
        went_on = await asyncio.gather(*(wake_up(name, since[name]) for name in names))
        owed.difference_update(name for name, done in zip(names, went_on, strict=True) if done)
        if owed:
            return
        now = self._state.clock()
        while self._entries:
            view, intent = self._entries[0]
            ended = recovered_view(view, proven=intent.proven, now=now)
            changes = changes_between(self._state.site, intent.before, intent.after)
            async with failpoints.around("log-recovered"):
                await self._state.record(PutTransaction(ended, intent))
            del self._entries[0]
            self._state.finish(ended, changes)
            self._state.events.add("warning", f"transaction/{view.id}", "Recovered", ended.result)
        self.owed.clear()


def overtaken(entry: tuple[TransactionView, Intent], loaded: Loaded) -> bool:
    """Whether an unfinished transaction is void: something newer has moved its endpoints.

    An endpoint is in one transaction at a time, so a later one that has it began after this one
    had ended. Where the log no longer reaches, an endpoint that stands neither where it was nor
    where it was going says the same.
    """
    view, intent = entry
    later = (i for v, i in loaded.transactions if v.started_at > view.started_at)
    if any(not i.after.keys().isdisjoint(intent.after) for i in later):
        return True
    places = loaded.attachments
    return any(
        places.get(endpoint) not in (intent.before.get(endpoint), intent.after[endpoint])
        for endpoint in intent.after
    )

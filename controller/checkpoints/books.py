"""The books of all jobs, and the durable records that they begin from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from base.pools import Pool
from checkpoints.ledger import Spoiled
from checkpoints.schemes import Layout
from checkpoints.values import Place, Places
from controller.checkpoints import runs
from controller.checkpoints.book import CheckpointBook
from controller.state.kept.checkpoints import CheckpointRecord, RunEnd, SpoiledStep
from controller.state.kept.kinds import row_of
from controller.state.records import CheckpointSpec, JobRecord
from controller.state.state import State


class CheckpointBooks:
    """One book for each record of the state. Belongs to the loop."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pool = Pool("checkpoints")
        self._books: dict[str, CheckpointBook] = {}
        endpoints: dict[str, set[str]] = {server.name: set() for server in state.site.servers}
        for cable in state.cables.values():
            endpoints.setdefault(cable.server, set()).add(cable.name)
        self.endpoints = {server: frozenset(names) for server, names in endpoints.items()}
        """By server."""
        self._silent: dict[str, float] = {}
        """By server that does not answer: since when, as far as it was noticed."""

    def get(self, folder: str) -> CheckpointBook | None:
        """Return the book of a folder; None when nothing is known of such a folder."""
        record = self._state.checkpoints.get(folder)
        if record is None:
            self._books.pop(folder, None)
            return None
        book = self._books.get(folder)
        if book is None:
            book = self._books[folder] = CheckpointBook(record, self._pool)
        book.read(record)
        return book

    def __iter__(self) -> Iterator[tuple[CheckpointRecord, CheckpointBook]]:
        """Yield all records with their books, as they are when their turn comes."""
        for folder in list(self._state.checkpoints):
            book, record = self.get(folder), self._state.checkpoints.get(folder)
            if book is not None and record is not None:
                yield record, book

    def of(self, job: str) -> tuple[CheckpointRecord, CheckpointBook] | None:
        """Return the record and the book of a job; None when it has no checkpoints (any more)."""
        known = self._state.jobs.get(job)
        record = None if known is None else self._state.checkpoints.get(known.folder)
        book = None if record is None else self.get(record.folder)
        return None if record is None or book is None else (record, book)

    def job(self, record: CheckpointRecord) -> tuple[JobRecord, CheckpointSpec] | None:
        """Return the job of a record; None when it is forgotten, or its name is another job's."""
        job = self._state.jobs.get(record.job)
        if job is None or job.folder != record.folder or job.request.checkpoint is None:
            return None
        return job, job.request.checkpoint

    def forget(self, folder: str) -> None:
        """Forget a book."""
        self._books.pop(folder, None)

    def places(self) -> Places:
        """Return where every endpoint of the site is now."""
        homes = self._state.light.homes()
        return {
            cable.name: Place(cable.name, cable.server, homes.get(cable.name) or "")
            for cable in self._state.cables.values()
        }

    def answering(self) -> frozenset[str]:
        """Return the servers that answer now."""
        reached = self._state.connections.servers()
        return frozenset(name for name in self.endpoints if reached.get(name, False))

    def note_silence(self, now: float) -> None:
        """Notice which servers do not answer; ``now`` is monotonic."""
        answering = self.answering()
        self._silent = {
            name: self._silent.get(name, now) for name in self.endpoints if name not in answering
        }

    def awaited(self, now: float) -> frozenset[str]:
        """Return the silent servers that are not silent for long enough to count as lost."""
        self.note_silence(now)
        limit_s = self._state.site.recovery.lost_after_s
        return frozenset(name for name, since in self._silent.items() if now - since < limit_s)

    # --- what is durable ------------------------------------------------------------------

    def change(self, folder: str, **fields: object) -> CheckpointRecord:
        """Change a record; it is durable with the next commit, which is within a second."""
        record = self._state.checkpoints.change(folder, **fields)
        self._state.journal.owe(row_of(record))
        return record

    def lay_out(self, record: CheckpointRecord, epoch: int, layout: Layout) -> None:
        """Note that a run's steps are protected in another way from now on."""
        known = tuple(
            replace(run, run=replace(run.run, layout=layout)) if run.epoch == epoch else run
            for run in record.runs
        )
        self.change(record.folder, runs=known)

    def step_seen(self, record: CheckpointRecord) -> None:
        """Note that the newest run of a record made a step after what it had loaded."""
        now = runs.marked(record, record.runs[-1].epoch, stepped=True)
        self.change(record.folder, runs=now.runs)

    def stepped(self, job: str) -> None:
        """Note that a job's present run made a step after what it had loaded."""
        self._mark(job, stepped=True, end="")

    def ended(self, job: str, end: RunEnd) -> None:
        """Note how a job's present run ended; the first end counts.

        A step that two such runs loaded and died of is never restored again.
        """
        record = self._mark(job, stepped=False, end=end)
        key = None if record is None else runs.killer(record)
        if record is None or key is None:
            return
        self.change(record.folder, spoiled=(*record.spoiled, SpoiledStep(*key, runs.SPOILED)))
        text = f"step {key.step} of run {key.epoch} is not restored again: {runs.SPOILED}"
        self._state.events.add("warning", f"job/{job}", "CheckpointSpoiled", text)

    def _mark(self, job: str, *, stepped: bool, end: RunEnd) -> CheckpointRecord | None:
        found, known = self.of(job), self._state.jobs.get(job)
        if found is None or known is None:
            return None
        record, _ = found
        now = runs.marked(record, known.epoch, stepped=stepped, end=end)
        return record if now == record else self.change(record.folder, runs=now.runs)

    async def up_to_date(self, folder: str) -> CheckpointBook | None:
        """Return a book with all spoiled steps of its record."""
        record, book = self._state.checkpoints.get(folder), self.get(folder)
        if record is not None and book is not None:
            known = book.ledger.spoiled
            new = (one for one in record.spoiled if one.key not in known)
            await book.fold([Spoiled(one.key, one.why) for one in new])
        return book

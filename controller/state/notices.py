"""The notices of ended jobs that their receivers do not have yet. Part of the state."""

from __future__ import annotations

import asyncio
import hashlib
import json

from controller.base.texts import clipped
from controller.state.kinds.kind import Records
from controller.state.kinds.shares import one
from controller.state.records import NOTICES, JobRecord, Notice
from sitefile import CabledSite
from sitefile.notices import Receiver

KEPT_NOTICES = 1000
"""Notices that wait at once; beyond this the oldest of the project that has most are given up."""
_REASON_CHARS = 1000


class Outbox(Records[Notice]):
    """Waiting notices by id, oldest first.

    An id is that of one end of one job for one receiver, so it is the same after a restart.
    """

    def __init__(self, site: CabledSite) -> None:
        super().__init__(NOTICES)
        self._site = site
        self.wake = {identity(receiver): asyncio.Event() for receiver in site.notices}
        """By receiver: set when there is a new notice for it."""
        self._projects = {identity(receiver): receiver.project for receiver in site.notices}

    def of(self, job: JobRecord) -> tuple[Notice, ...]:
        """Return the notices of a job that has ended; changes nothing."""
        return tuple(
            self._notice(job, receiver)
            for receiver in dict.fromkeys(self._site.notices)
            if receiver.project == job.request.project and job.state in receiver.states
        )

    def put(self, record: Notice) -> Notice:
        """Add a notice; its receiver may have left the site file."""
        if record.receiver in self.wake:
            self.wake[record.receiver].set()
        return super().put(record)

    def trim(self) -> tuple[Notice, ...]:
        """Forget notices beyond the limit, the oldest of the project with most; return them."""

        def project(notice: Notice) -> str:
            return self._projects.get(notice.receiver, notice.receiver)

        return self.share_out(project, (KEPT_NOTICES, one))

    def _notice(self, job: JobRecord, receiver: Receiver) -> Notice:
        known = identity(receiver)
        end = json.dumps([self._site.name, job.name, job.submitted_at, job.state, known])
        ident = hashlib.sha256(end.encode()).hexdigest()[:32]
        facts = {
            "id": ident,
            "site": self._site.name,
            "project": job.request.project,
            "job": job.name,
            "state": job.state,
            "reason": clipped(job.reason, _REASON_CHARS),
            "count": job.request.count,
            "restarts": job.restarts,
            "submitted_at": job.submitted_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
        }
        body = json.dumps(facts, ensure_ascii=True)
        return Notice(ident, known, job.name, body, job.finished_at or job.submitted_at)


def identity(receiver: Receiver) -> str:
    """Return what identifies a receiver after a restart with a changed site file."""
    text = json.dumps([receiver.project, receiver.url, receiver.command])
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""The spares of jobs: which ones a job may use, and which stand by in their place once used."""

from __future__ import annotations

from collections.abc import Callable, Collection

from controller.state.intend import keys
from controller.state.records import JobRecord
from controller.state.state import State
from controller.swaps import choice


class Spares:
    """Finds and replaces spares. A job reserves its own; those of the site are for all."""

    def __init__(self, state: State) -> None:
        self._state = state

    def usable(self, job: JobRecord, excluded: Collection[str] = ()) -> list[str]:
        """Return the spares that a job may use now: its own first, then those of the site."""
        state = self._state
        kept = state.usable_spares()
        names = [*job.spares, *(e.name for e in state.site.endpoints)]
        about = {e.name: e for e in state.planner_site.endpoints}
        return [
            name
            for name in dict.fromkeys(names)
            if name in kept
            and kept[name] in ("", job.name)
            and name not in excluded
            and choice.fits(job, about[name])
        ]

    def tend(self, recovering: Callable[[str], bool]) -> None:
        """Replace the spares that running jobs have used or lost, as far as endpoints are idle.

        ``recovering`` says whether a job is being recovered: its spares are spoken for.
        """
        state = self._state
        broken = state.light.quarantine.keys() | state.light.unfit.keys()
        for job in list(state.jobs.values()):
            if job.state != "running" or recovering(job.name) or not job.request.spares:
                continue
            if gone := [e for e in job.spares if e in broken]:
                left = tuple(e for e in job.spares if e not in gone)
                state.jobs.change(job.name, spares=left)
                state.journal.owe(keys.job(job.name))
                text = f"{', '.join(gone)} is out of use and stands by no more"
                state.events.add("warning", f"job/{job.name}", "SpareMissing", text)
            if len(job.spares) - len(gone) < job.request.spares:
                self.replace(job.name, report=False)

    def replace(self, name: str, *, report: bool = True) -> None:
        """Reserve other endpoints in the place of the spares that a job has used.

        ``report`` records an event about those that are missing.
        """
        state = self._state
        job = state.jobs[name]
        missing = job.request.spares - len(job.spares)
        if missing <= 0:
            return
        found = self._idle(job)[:missing]
        if found:
            state.jobs.change(name, spares=(*job.spares, *found))
            state.journal.owe(keys.job(name))
            text = f"{', '.join(found)} stands by"
            state.events.add("info", f"job/{name}", "SpareReplaced", text)
        if report and len(found) < missing:
            text = f"{missing - len(found)} of {job.request.spares} spares are missing"
            state.events.add("warning", f"job/{name}", "SpareMissing", text)

    def _idle(self, job: JobRecord) -> list[str]:
        """Return endpoints that can stand by for a job: idle ones, then spares of the site."""
        state = self._state
        idle = [
            e.name
            for e in state.fabric(ours=True).idle()
            if choice.fits(job, e) and e.name not in state.jobs.promised_endpoints()
        ]
        return idle + [e for e in self.usable(job) if e not in job.spares]

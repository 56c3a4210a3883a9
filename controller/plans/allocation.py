"""Allocation files: exports them, compares them, and restores one in an ordinary transaction."""

from __future__ import annotations

from controller.base.errors import ServiceError
from controller.plans.planner import Planner
from controller.schema.plans import AllocatedJob, Allocation, AllocationDiffView, MoveView
from controller.state.scheduling import no_longer_apart
from controller.state.state import State


class AllocationFiles:
    """Exports and imports which endpoint is connected to which aggregator."""

    def __init__(self, state: State, plans: Planner) -> None:
        self._state = state
        self._plans = plans

    def export(self) -> Allocation:
        """Return the current allocation."""
        state = self._state
        return Allocation(
            site=state.site.name,
            epoch=state.epoch,
            homes=state.light.homes(),
            jobs=[
                AllocatedJob(
                    name=job.name, project=job.request.project, endpoints=list(job.endpoints)
                )
                for job in state.jobs.values()
                if job.holding
            ],
        )

    def diff(self, wanted: Allocation) -> AllocationDiffView:
        """Return what ``wanted`` would change. ServiceError ``invalid`` names the first error.

        Touches no device; one invalid entry refuses the whole file.
        """
        state = self._state
        if wanted.site != state.site.name:
            raise ServiceError(
                "invalid",
                f"the file is for site {wanted.site}, this is {state.site.name}",
                object=f"site/{wanted.site}",
                hint="import it at the site that exported it",
            )
        homes = state.light.homes()
        aggregators = {a.name for a in state.site.aggregators}
        fixed = {e for a in state.site.aggregators for e in a.fixed.values()}
        moves = []
        for name, home in wanted.homes.items():
            if name not in homes:
                raise _wrong(f"the site has no endpoint {name}", f"endpoint/{name}")
            if home is not None and home not in aggregators:
                raise _wrong(f"the site has no aggregator {home}", f"aggregator/{home}")
            if homes[name] == home:
                continue
            if name in fixed:
                raise _wrong(f"{name} is cabled to its aggregator", f"endpoint/{name}")
            moves.append(MoveView(endpoint=name, source=homes[name], target=home))
        holders = state.jobs.holders()
        return AllocationDiffView(
            epoch=state.epoch,
            moves=moves,
            jobs=sorted({holders[m.endpoint].name for m in moves if m.endpoint in holders}),
            notes=self._notes(wanted),
            warnings=no_longer_apart(state.jobs.values(), homes, {**homes, **wanted.homes}),
        )

    async def bring_back(
        self, wanted: Allocation, *, dry_run: bool, wait_s: float
    ) -> AllocationDiffView:
        """Move every endpoint to its home in ``wanted``, in one transaction."""
        found = self.diff(wanted)
        if dry_run or not found.moves:
            return found
        moves = {move.endpoint: move.target for move in found.moves}
        transaction = await self._plans.move(moves, wait_s)
        return found.model_copy(update={"transaction": transaction})

    def _notes(self, wanted: Allocation) -> list[str]:
        now = {j.name: list(j.endpoints) for j in self._state.jobs.values() if j.holding}
        notes: list[str] = []
        if not wanted.jobs:
            return notes  # the file, or a move by hand, names no jobs
        for job in wanted.jobs:
            if job.name not in now:
                notes.append(f"job {job.name} is no longer running")
            elif now[job.name] != job.endpoints:
                notes.append(f"job {job.name} holds other endpoints now")
        then = {job.name for job in wanted.jobs}
        notes += [f"job {name} is not in the file" for name in now if name not in then]
        return notes


def _wrong(message: str, about: str) -> ServiceError:
    return ServiceError("invalid", message, object=about, hint="nothing was changed")

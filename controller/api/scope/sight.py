"""What a caller may see: to members of some projects, other projects' jobs do not exist.

The fabric (ports, homes, what is free) looks the same to all; jobs, their figures, their events
and the addresses of devices do not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from controller.api.scope.redact import Redactor
from controller.base.errors import not_found
from controller.base.slices import Turns, in_slices
from controller.people.authz import Owned, Principal
from controller.schema.base import View
from controller.schema.fabric import EventView, NodeView, SiteView
from controller.schema.jobs import ContainerView
from controller.stream.feed import Frame, FrameFilter

_EVENT_PAGE = 1000
Shown = TypeVar("Shown", bound=View)
Result = TypeVar("Result")
Owners = Callable[[], Mapping[str, Owned]]


class Sight:
    """Shows one caller what is theirs; operators and admins see everything as it is."""

    def __init__(self, principal: Principal, owners: Owners) -> None:
        """``owners`` returns the owner of every job, by name."""
        self._principal = principal
        self._owners = owners

    @property
    def whole(self) -> bool:
        """Whether nothing is hidden from the caller."""
        return self._principal.keeper

    def owners(self) -> Mapping[str, Owned]:
        """Return the owner of every job that the caller sees, by name, in order of submission."""
        owners, sees = self._owners(), self._principal.sees
        return owners if self.whole else {n: o for n, o in owners.items() if sees(o.project)}

    def projects(self) -> frozenset[str] | None:
        """Return the projects that the caller sees; None is all."""
        return None if self._principal.site_wide else self._principal.projects

    def jobs(self, names: Collection[str] | None = None) -> Collection[str] | None:
        """Return those of ``names`` (None is all) that the caller sees; None is all."""
        if self.whole:
            return names
        own = self.owners().keys()
        return own if names is None else own & set(names)

    def sees(self, project: str) -> bool:
        """Whether the caller sees a project."""
        return self._principal.sees(project)

    def require_job(self, name: str) -> None:
        """Refuse a job that the caller does not see as one that does not exist."""
        if not self.whole and name not in self.owners():
            raise not_found("job", name)

    async def of_job(self, name: str, work: Callable[[str], Awaitable[Result]]) -> Result:
        """Work on a job that the caller sees; no other job can get its name in between."""
        self.require_job(name)
        return await work(name)

    def show(self, view: Shown) -> Shown:
        """Return a view of what is the caller's own, or of the fabric, without others' jobs."""
        shown = self.show_if_seen(view)
        if shown is None:
            raise TypeError(f"{type(view).__name__} is hidden: call show_if_seen")
        return shown

    def require(self, view: Shown, kind: str, name: str) -> Shown:
        """Return a view without others' jobs. ServiceError ``not_found`` when all is hidden."""
        shown = self.show_if_seen(view)
        if shown is None:
            raise not_found(kind, name)
        return shown

    def show_if_seen(self, view: Shown) -> Shown | None:
        """Return a view without others' jobs; None when all of it is hidden."""
        return view if self.whole else self._redactor().view(view)

    async def show_all(self, views: Sequence[Shown]) -> list[Shown]:
        """Return what the caller sees of a list."""
        if self.whole:
            return list(views)
        shown = await in_slices(views, self._redactor().view)
        return [view for view in shown if view is not None]

    async def show_found(self, views: Awaitable[Sequence[Shown]]) -> list[Shown]:
        """Return what the caller sees of a list that is still to be read."""
        return await self.show_all(await views)

    async def site(self, found: Awaitable[SiteView]) -> SiteView:
        """Return the site without others' jobs."""
        site = await found
        if self.whole:
            return site
        lists = {
            "endpoints": await self.show_all(site.endpoints),
            "aggregators": await self.show_all(site.aggregators),
            "switches": await self.show_all(site.switches),
        }
        rest = self.show(site.model_copy(update=dict.fromkeys(lists, ())))
        return rest.model_copy(update=lists)

    async def nodes(
        self, nodes: list[NodeView], containers: Callable[[], Awaitable[list[ContainerView]]]
    ) -> list[NodeView]:
        """Return the servers; each counts the containers that the caller sees."""
        if self.whole:
            return nodes
        own = Counter(view.server for view in await self.show_all(await containers()))
        redact = self._redactor()
        return [redact.node(node, own[node.name]) for node in nodes]

    async def events(
        self, read: Callable[[int, int], list[EventView]], since: int, limit: int
    ) -> list[EventView]:
        """Return at most ``limit`` events above id ``since`` that the caller sees, oldest first."""
        if self.whole:
            return read(since, limit)
        redact = self._redactor()
        found: list[EventView] = []
        with Turns() as turns:
            while len(found) < limit:
                page = read(since, _EVENT_PAGE)
                cut = [redact.view(event) for event in page]
                found += [event for event in cut if event is not None]
                if len(page) < _EVENT_PAGE:
                    break
                await turns.breathe()
                since = page[-1].id
        return found[:limit]

    def cut(self) -> FrameFilter | None:
        """Return what reduces the live feed to what the caller sees; None is all of it."""
        return None if self.whole else ProjectsCut(self._principal.projects, self._owners)

    def _redactor(self) -> Redactor:
        return Redactor(self._principal.projects, self._owners())


class ProjectsCut:
    """Limits the feed to some projects; jobs come and go while it is read.

    The owners are read once for all frames that are published together.
    """

    def __init__(self, projects: frozenset[str], owners: Owners) -> None:
        self._projects = projects
        self._owners = owners
        self._known = owners()
        self._redactor: Redactor | None = None

    @property
    def key(self) -> frozenset[str]:
        """The projects."""
        return self._projects

    def frame(self, item: Frame) -> Frame | None:
        """Return the visible part of a frame, also that an own job is gone."""
        if self._redactor is None:
            before, self._known = self._known, self._owners()
            now = self._known
            gone = {} if before is now else {n: o for n, o in before.items() if n not in now}
            self._redactor = Redactor(self._projects, {**gone, **now} if gone else now)
            asyncio.get_running_loop().call_soon(self._forget)
        return self._redactor.frame(item)

    def _forget(self) -> None:
        self._redactor = None

"""Pulls images ahead of the jobs that need them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.base.texts import clipped, shown
from controller.devices.engine import PullProgress
from controller.images.keeper import ImageKeeper
from controller.images.pins import reference
from controller.schema.base import Severity
from controller.schema.images import PreparationView, PrepareRequest, PullState, ServerPullView
from controller.state.state import State

MAX_RUNNING = 8
"""Preparations under way."""
KEPT = 64
"""Preparations that can still be asked for."""
AT_ONCE = 16
"""Servers that pull at the same time for one preparation: a registry serves them all."""


@dataclass(slots=True, frozen=True)
class _ServerPull:
    state: PullState = "waiting"
    step: PullProgress = field(default_factory=PullProgress)
    message: str = ""


@dataclass(slots=True)
class _Preparation:
    id: str
    image: str
    started_at: float
    finished_at: float | None = None
    servers: dict[str, _ServerPull] = field(default_factory=dict)


class Preparations:
    """The preparations under way, and the last ones. A restart of the controller forgets them."""

    def __init__(
        self, state: State, images: ImageKeeper, tasks: Tasks, new_id: Callable[[], str]
    ) -> None:
        self._state = state
        self._images = images
        self._tasks = tasks
        self._new_id = new_id
        self._known: dict[str, _Preparation] = {}

    def begin(self, request: PrepareRequest) -> PreparationView:
        """Begin to pull an image, or return the same preparation that is under way. ServiceError.

        ``conflict`` when too many are under way, ``not_found`` for a server that is not the site's.
        """
        state = self._state
        state.require_command()
        servers = tuple(dict.fromkeys(request.servers or [s.name for s in state.site.servers]))
        known = {server.name for server in state.site.servers}
        unknown = next((name for name in servers if name not in known), None)
        if unknown is not None:
            raise ServiceError(
                "not_found",
                f"site {state.site.name} has no server {unknown}",
                object=f"server/{unknown}",
                hint="see `lightloom get nodes`",
            )
        running = [one for one in self._known.values() if one.finished_at is None]
        for one in running:
            if one.image == request.image and one.servers.keys() == set(servers):
                return _view(one)
        if len(running) >= MAX_RUNNING:
            raise ServiceError(
                "conflict",
                f"{MAX_RUNNING} images are being prepared already",
                object=f"image/{clipped(request.image)}",
                hint="wait for one of them",
            )
        made = _Preparation(self._new_id(), request.image, state.clock())
        made.servers = dict.fromkeys(servers, _ServerPull())
        self._known[made.id] = made
        for old in [k for k, one in self._known.items() if one.finished_at is not None]:
            if len(self._known) <= KEPT:
                break
            del self._known[old]
        self._add_event("info", made, "ImagePreparing", f"on {len(servers)} servers")
        self._tasks.spawn(self._run(made), f"prepare image {made.id}")
        return _view(made)

    def get(self, ident: str) -> PreparationView:
        """Return one preparation. ServiceError ``not_found``."""
        found = self._known.get(ident)
        if found is None:
            raise ServiceError(
                "not_found",
                f"preparation {ident} does not exist",
                object=f"preparation/{ident}",
                hint="a restarted controller forgets them: prepare the image again",
            )
        return _view(found)

    async def _run(self, made: _Preparation) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def pull(server: str) -> None:
            async with places:
                await self._pull(made, server)

        try:
            await asyncio.gather(*(pull(server) for server in made.servers))
        finally:
            made.finished_at = self._state.clock()
        failed = [name for name, one in made.servers.items() if one.state == "failed"]
        if failed:
            first = failed[0]
            text = f"failed on {len(failed)} servers; {first}: {made.servers[first].message}"
            self._add_event("warning", made, "ImageNotPrepared", text)
        else:
            self._add_event("info", made, "ImagePrepared", f"is on {len(made.servers)} servers")

    async def _pull(self, made: _Preparation, server: str) -> None:
        def note(name: str, step: PullProgress) -> None:
            made.servers[name] = _ServerPull("pulling", step)

        note(server, PullProgress())
        try:
            login = await self._images.login(made.image)
            last = await self._images.fetch(made.image, server, login, note, refresh=True)
            made.servers[server] = _ServerPull("done", last)
        except ServiceError as error:
            made.servers[server] = replace(
                made.servers[server], state="failed", message=error.message
            )

    def _add_event(self, severity: Severity, made: _Preparation, reason: str, text: str) -> None:
        self._state.events.add(severity, f"image/{clipped(made.image)}", reason, text)


def _view(made: _Preparation) -> PreparationView:
    failed = any(one.state == "failed" for one in made.servers.values())
    return PreparationView(
        id=made.id,
        image=shown(made.image),
        state="running" if made.finished_at is None else "failed" if failed else "done",
        started_at=made.started_at,
        finished_at=made.finished_at,
        servers=[_server_view(made.image, name, one) for name, one in made.servers.items()],
    )


def _server_view(image: str, server: str, pull: _ServerPull) -> ServerPullView:
    step, there = pull.step, pull.step.image
    return ServerPullView(
        server=server,
        state=pull.state,
        image_digest=shown(reference(image, there)) if there else "",
        size_bytes=there.size_bytes if there else None,
        layers_done=step.layers_done,
        layers=step.layers,
        bytes_done=step.bytes_done,
        bytes_total=step.bytes_total,
        message=shown(pull.message),
    )

"""Images of jobs: what a name means, at submit, and fetching, before the containers start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator

import structlog

from agentlink.values import RegistryLogin
from base import clock
from controller.base.errors import ErrorCode, ServiceError
from controller.devices.engine import EngineError, ExecutionEngine, Pull, PullProgress, ServerImage
from controller.images.access import ImageAccess
from controller.images.pins import decide, hosts, pinned
from controller.schema.submit.request import JobRequest
from controller.state.records import JobRecord
from controller.state.state import State

log = structlog.get_logger(__name__)

FIND_TIMEOUT_S = 2.0
"""For the servers' answers at submit: they come from memory of their engines."""
REGISTRY_TIMEOUT_S = 20.0
"""Longer than an agent waits for a registry."""
KNOWN_S = 10.0
"""For so long the answer of a server that has an image holds: many jobs are submitted at once."""
KNOWN_IMAGES = 64
"""Images whose answers are kept."""
SHOW_EVERY_S = 1.0
"""Between two changes of the reason of a job that waits for its image."""

_CODES: dict[str, ErrorCode] = {
    "invalid": "invalid",
    "not_found": "not_found",
    "unavailable": "unavailable",
    "timeout": "timeout",
}

Report = Callable[[str, PullProgress], None]
"""Takes a server and how far its pull is."""


class FetchStoppedError(ServiceError):
    """A job is being cancelled, so its image is not fetched."""

    def __init__(self, job: str) -> None:
        super().__init__("conflict", f"job {job} is being cancelled", object=f"job/{job}")


class NotFetchedError(ServiceError):
    """One server did not fetch a job's image.

    With ``elsewhere`` another server has it: the reason is this server's alone.
    """

    def __init__(self, server: str, error: ServiceError) -> None:
        text = f"server {server} did not fetch it: {error.message}"
        super().__init__(error.code, text, object=error.object, hint=error.hint)
        self.server = server
        self.elsewhere = False


class ImageKeeper:
    """Finds out what images names mean, and fetches images to servers."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        default_image: str,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._state = state
        self._engine = engine
        self._default = default_image
        self._monotonic = monotonic
        self._access = ImageAccess(state.site.registries)
        self._known: dict[str, dict[str, tuple[float, ServerImage]]] = {}
        """By image and server: until when the answer holds; the least recently asked first."""
        self._stopped: set[str] = set()
        self._fetches: dict[str, asyncio.Task[None]] = {}

    async def pin_request(self, request: JobRequest) -> str:
        """Return what all ranks of a new job start with; empty when no server answers.

        ServiceError when its project may not run the image, when it is missing, or when servers
        disagree about it.
        """
        image = request.image or self._default
        servers = hosts(self._state.site, request)
        return await self.pin(image, request.project, request.pull, servers)

    async def pin(self, image: str, project: str, pull: Pull, servers: Collection[str]) -> str:
        """Return the digest or the id that an image's name means. ServiceError."""
        self._access.check(image, project)
        try:
            found = await self._find(image, servers, refresh=pull is Pull.ALWAYS)
            for one in found:
                if one.present:
                    self._access.check_present(image, one.names, project)
            known = decide(image, pull, found)
            if known is not None:
                return known
            login = await self.login(image)
            asked = [one.server for one in found]
            digest = await self._engine.registry_digest(image, asked, login, REGISTRY_TIMEOUT_S)
        except EngineError as error:
            raise _refusal(image, error) from error
        return pinned(image, digest)

    async def _find(
        self, image: str, servers: Collection[str], *, refresh: bool
    ) -> list[ServerImage]:
        """Ask the servers whose answers are not known. Raises EngineError."""
        now = self._monotonic()
        known = {
            server: (until, answer)
            for server, (until, answer) in self._known.pop(image, {}).items()
            if until > now
        }
        held = {} if refresh else {s: known[s][1] for s in servers if s in known}
        asked = [server for server in servers if server not in held]
        new = (
            await self._engine.find_image(image, asked, refresh=refresh, timeout_s=FIND_TIMEOUT_S)
            if asked
            else []
        )
        if not refresh:
            known |= {one.server: (now + KNOWN_S, one) for one in new if one.present}
        self._known[image] = known
        while len(self._known) > KNOWN_IMAGES:
            del self._known[next(iter(self._known))]
        return sorted([*held.values(), *new], key=lambda one: one.server)

    async def login(self, image: str) -> RegistryLogin | None:
        """Return the login for an image's registry; None when the site file has none.

        ServiceError when the password cannot be read.
        """
        registry = self._access.registry(image)
        if registry is None or registry.username is None or registry.password is None:
            return None
        try:
            password = await asyncio.to_thread(registry.password.resolve)
        except (OSError, KeyError, ValueError) as error:
            log.error("registry_password_not_read", registry=registry.name, error=str(error))
            raise ServiceError(
                "failed",
                f"the password of registry {registry.name} cannot be read",
                object=f"registry/{registry.name}",
                hint="the operator sees why in the controller's log",
            ) from None
        return RegistryLogin(registry.username, password)

    async def ready(self, name: str, endpoints: Collection[str] | None = None) -> None:
        """Pin a job's image unless it is pinned, and fetch it to the servers of its endpoints.

        Other ``endpoints`` stand for those that it will have.

        ServiceError; FetchStoppedError when the job is cancelled meanwhile.
        """
        job = self._state.jobs[name]
        servers = sorted(
            {
                cable.server
                for e in (job.endpoints if endpoints is None else endpoints)
                if (cable := self._state.cables.get(e)) is not None
            }
        )
        if not job.image_digest:  # no server answered at submit
            pin = await self.pin(job.image, job.request.project, job.request.pull, servers)
            job = self._state.jobs.change(name, image_digest=pin)
        if job.request.pull is Pull.NEVER:
            return
        if name in self._stopped:
            raise FetchStoppedError(name)
        task = self._fetches[name] = asyncio.create_task(self._fetch(job, servers))
        try:
            await task
        except asyncio.CancelledError:
            if name not in self._stopped:
                raise
            raise FetchStoppedError(name) from None
        finally:
            del self._fetches[name]

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Stop fetching a job's image, now and until the end of the block.

        The servers complete what they have begun: the image may be of use to the next job.
        """
        self._stopped.add(name)
        if (task := self._fetches.get(name)) is not None:
            task.cancel()
        try:
            yield
        finally:
            self._stopped.discard(name)

    async def fetch(
        self,
        image: str,
        server: str,
        login: RegistryLogin | None,
        report: Report,
        *,
        refresh: bool = False,
    ) -> PullProgress:
        """Fetch an image to one server. Returns the last report. ServiceError.

        One that is there is fetched only with ``refresh``.

        ``report`` is called about once a second while the server pulls.
        """
        last = PullProgress()
        try:
            pull = self._engine.pull_image(server, image, login, refresh=refresh)
            async with contextlib.aclosing(pull) as steps:
                async for last in steps:
                    report(server, last)
        except EngineError as error:
            raise _refusal(image, error) from error
        if last.image is None or not last.image.present:
            raise ServiceError(
                "failed",
                f"{server} does not say that it has fetched image {image}",
                object=f"server/{server}",
                hint="see the log of the server's agent",
            )
        return last

    async def _fetch(self, job: JobRecord, servers: Collection[str]) -> None:
        image = job.image_digest or job.image
        login = await self.login(job.image)
        show_at = self._monotonic()
        began = False
        latest: dict[str, PullProgress] = {}

        def show(server: str, step: PullProgress) -> None:
            nonlocal began, show_at
            if step.image is not None:
                latest.pop(server, None)
                return
            latest[server] = step
            if not began:
                began = True
                self._add_event(job.name, "ImagePulling", f"{image}, first on {server}")
            now = self._monotonic()
            if now >= show_at:
                show_at = now + SHOW_EVERY_S
                self._state.jobs.annotate(job.name, reason=pulling(job.image, latest))

        async def fetch(server: str) -> None:
            try:
                await self.fetch(image, server, login, show)
            except ServiceError as error:
                raise NotFetchedError(server, error) from error.__cause__

        try:
            async with asyncio.TaskGroup() as group:
                for server in servers:
                    group.create_task(fetch(server))
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if isinstance(first, NotFetchedError):
                first.elsewhere = await self._is_elsewhere(image, first.server)
            raise first from first.__cause__
        if began:
            count = len(servers)
            where = f"{count} server{'' if count == 1 else 's'}"
            self._add_event(job.name, "ImagePulled", f"{image} is on {where}")

    async def _is_elsewhere(self, image: str, server: str) -> bool:
        others = [one.name for one in self._state.site.servers if one.name != server]
        try:
            return any(one.present for one in await self._find(image, others, refresh=False))
        except EngineError:
            return False

    def _add_event(self, name: str, reason: str, text: str) -> None:
        self._state.events.add("info", f"job/{name}", reason, text)


def pulling(image: str, latest: dict[str, PullProgress]) -> str:
    """Say how far the slowest of these servers is."""
    server, step = min(latest.items(), key=lambda item: (_left(item[1]), item[0]))
    more = f" and {len(latest) - 1} more" if len(latest) > 1 else ""
    return f"pulling {image} on {server}{more}: {how_far(step)}"


def how_far(step: PullProgress) -> str:
    """Say how far a pull is, in bytes where they are known."""
    if step.bytes_total:
        return f"{step.bytes_done / 1e9:.1f} of {step.bytes_total / 1e9:.1f} GB"
    return f"{step.layers_done} of {step.layers} layers"


def _left(step: PullProgress) -> float:
    return step.bytes_done / step.bytes_total if step.bytes_total else 0.0


def _refusal(image: str, error: EngineError) -> ServiceError:
    fault = error.faults[0]
    code = _CODES.get(fault.code, "failed")
    return ServiceError(code, fault.message, object=f"image/{image[:200]}", hint=fault.hint or HINT)


HINT = "see docs/images.md"

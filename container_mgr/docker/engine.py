"""The Docker Engine of this server, with a deadline on every call.

A hung daemon must not hang the agent (time-outs), and a late answer must not make a
second container (names are keys). :class:`EngineTimeoutError` therefore means that the
outcome is unknown: the caller inspects, it never just tries again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import docker
import docker.errors
import requests
import structlog

from container_mgr.docker.arguments import CPU_PERIOD_US, cpu_quota_us
from container_mgr.docker.inspection import container_of, is_ours
from container_mgr.values import LABEL, Container

_T = TypeVar("_T")

_log = structlog.get_logger("container_mgr.docker")

_THREADS = 32
_PULL_THREADS = 4
PULL_DEADLINE_S = 1800.0
"""From the request on, the wait for a free thread included."""
PULL_SILENCE_S = 120.0
"""After which an engine that says nothing of a pull has lost its registry."""


class EngineFailure(Exception):  # noqa: N818  (the base of the errors below, never raised itself)
    """The engine did not do what was asked."""


class EngineTimeoutError(EngineFailure):
    """No answer in time: the outcome is unknown."""


class EngineRefusedError(EngineFailure):
    """The engine answered no; the message is its own."""


class EngineUnavailableError(EngineFailure):
    """The engine cannot be reached."""


@dataclass(slots=True, frozen=True)
class EngineFacts:
    """What the engine says of itself."""

    version: str
    cgroup_driver: str
    memory_bytes: int
    cdi_directories: tuple[str, ...] = ()
    """Where it looks for CDI files; empty before version 25 and where CDI is off."""
    remapped_users: bool = False
    root: str = ""
    """Directory of its data."""


@dataclass(slots=True, frozen=True)
class Image:
    """An image the engine holds."""

    id: str
    size_bytes: int
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]


class DockerHost:
    """Calls of the Docker SDK, each in a thread and each with a deadline."""

    def __init__(self, url: str | None, timeout_s: int = 20) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._api: docker.APIClient | None = None
        self._seen: dict[str, Container] = {}
        self._foreign: set[str] = set()
        """Containers that carry our labels and are not ours."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")
        self._pulls = ThreadPoolExecutor(_PULL_THREADS, thread_name_prefix="docker-pull")

    async def facts(self) -> EngineFacts:
        """Connect where that has not happened, and say what the engine is."""
        info = await self._call(lambda api: api.info())
        return EngineFacts(
            info["ServerVersion"],
            info["CgroupDriver"],
            int(info["MemTotal"]),
            cdi_directories=tuple(info.get("CDISpecDirs") or ()),
            remapped_users=any("userns" in word for word in info.get("SecurityOptions") or ()),
            root=info.get("DockerRootDir", ""),
        )

    async def image(self, reference: str) -> Image | None:
        """Look an image up locally; None when the engine does not hold it."""
        try:
            found = await self._call(lambda api: _inspect_image(api, reference))
        except _AbsentError:
            return None
        config = found.get("Config") or {}
        return Image(
            id=found["Id"],
            size_bytes=int(found.get("Size", 0)),
            entrypoint=tuple(config.get("Entrypoint") or ()),
            command=tuple(config.get("Cmd") or ()),
        )

    async def pull(self, reference: str) -> None:
        """Fetch an image from its registry.

        In threads of their own: a slow registry must not hold up other calls.
        """

        def call(api: docker.APIClient) -> None:
            for step in api.pull(reference, stream=True, decode=True):
                if "error" in step:  # the status was sent before the engine knew
                    raise EngineRefusedError(str(step["error"]))

        await self._call(call, deadline_s=PULL_DEADLINE_S, pool=self._pulls)

    async def list(self, server: str, job: str | None = None) -> list[Container]:
        """All containers of ``server``, of one job or of all, as they are now."""
        labels = [f"{LABEL}server={server}"]
        if job is not None:
            labels.append(f"{LABEL}job={job}")
        rows = await self._call(
            lambda api: api.containers(all=True, filters={"label": labels}),
        )
        found = await asyncio.gather(*(self._cached(row["Id"], row["State"]) for row in rows))
        if job is None:
            self._seen = {c.id: c for c in found if c is not None}
            self._foreign &= {row["Id"] for row in rows}
        return sorted((c for c in found if c is not None), key=lambda c: c.key)

    async def inspect(self, name: str) -> Container | None:
        """One container as it is now; None when there is none of ours by that name."""
        try:
            raw = await self._call(lambda api: api.inspect_container(name))
        except _AbsentError:
            return None
        if not is_ours(raw):
            return None
        try:
            return container_of(raw)
        except ValueError as error:
            if raw["Id"] not in self._foreign:
                self._foreign.add(raw["Id"])
                _log.warning("container left alone", name=raw.get("Name"), reason=str(error))
            return None

    async def create(self, container: dict[str, Any], host: dict[str, Any]) -> None:
        """Create a container from what :mod:`container_mgr.docker.arguments` wrote."""

        def call(api: docker.APIClient) -> None:
            api.create_container(**container, host_config=api.create_host_config(**host))

        await self._call(call)

    async def start(self, name: str) -> None:
        """Start a created container."""
        await self._call(lambda api: api.start(name))

    async def stop(self, name: str, grace_s: float) -> None:
        """Ask politely, wait ``grace_s``, kill."""
        await self._call(
            lambda api: api.stop(name, timeout=math.ceil(grace_s)),
            deadline_s=self._timeout_s + grace_s + 1,
        )

    async def remove(self, name: str) -> None:
        """Remove a container, running or not; one that is gone is fine."""
        try:
            await self._call(lambda api: api.remove_container(name, force=True, v=True))
        except _AbsentError:
            return

    async def pause(self, name: str) -> None:
        """Freeze a container's processes."""
        await self._call(lambda api: api.pause(name))

    async def unpause(self, name: str) -> None:
        """Thaw a container's processes."""
        await self._call(lambda api: api.unpause(name))

    async def limit_cpu(self, name: str, share: float) -> None:
        """Hold a container to ``share`` cores."""
        await self._call(
            lambda api: api.update_container(
                name, cpu_period=CPU_PERIOD_US, cpu_quota=cpu_quota_us(share)
            )
        )

    def close(self) -> None:
        """Let go of the engine without waiting for calls it does not answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pulls.shutdown(wait=False, cancel_futures=True)
        if self._api is not None:
            self._api.close()

    async def _cached(self, id_: str, state: str) -> Container | None:
        # Ours never restart: while the state is the same, all that was inspected still holds.
        seen = self._seen.get(id_)
        return seen if seen is not None and seen.state == state else await self.inspect(id_)

    async def _call(
        self,
        function: Callable[[docker.APIClient], _T],
        deadline_s: float | None = None,
        pool: ThreadPoolExecutor | None = None,
    ) -> _T:
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(pool or self._pool, partial(self._in_thread, function))
        # The SDK's own time-out counts silence on the socket; this one counts all of it.
        limit = self._timeout_s + 1 if deadline_s is None else deadline_s
        try:
            return await asyncio.wait_for(work, limit)
        except TimeoutError:
            raise EngineTimeoutError(f"no answer from the engine within {limit:g} s") from None

    def _in_thread(self, function: Callable[[docker.APIClient], _T]) -> _T:
        try:
            if self._api is None:
                self._api = _Client(self._url, timeout=self._timeout_s, max_pool_size=_THREADS)
            return function(self._api)
        except docker.errors.NotFound as error:
            raise _AbsentError(_message(error)) from error
        except docker.errors.APIError as error:
            raise EngineRefusedError(_message(error)) from error
        except requests.exceptions.Timeout as error:
            raise EngineTimeoutError(
                f"no answer from the engine within {self._timeout_s:g} s"
            ) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            if "timed out" in str(error).lower():
                raise EngineTimeoutError(str(error)) from error
            raise EngineUnavailableError(f"the engine cannot be reached: {error}") from error


class _Client(docker.APIClient):
    """The SDK's client, which waits for a registry without any limit."""

    def send(self, request: Any, **kwargs: Any) -> Any:
        """Send a request; one without a limit to silence gets one."""
        kwargs["timeout"] = kwargs.get("timeout") or PULL_SILENCE_S
        return super().send(request, **kwargs)


class _AbsentError(EngineRefusedError):
    """The engine knows no such object."""


def _inspect_image(api: docker.APIClient, reference: str) -> dict[str, Any]:
    found: dict[str, Any] = api.inspect_image(reference)  # type: ignore[no-untyped-call]
    return found


def _message(error: docker.errors.APIError) -> str:
    return str(error.explanation or error).strip()

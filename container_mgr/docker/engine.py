"""Calls the Docker Engine of this server, with a deadline on every call.

Time-outs keep a hung engine from hanging the agent. Names are keys, so a late answer cannot
make a second container. :class:`EngineTimeoutError` means that the outcome is unknown: the
caller must inspect before it tries again.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import docker
import docker.errors
import requests
import structlog
from docker.utils import parse_host

from agentlink.ranks import LABEL
from agentlink.values import RegistryLogin
from container_mgr.docker import attached
from container_mgr.docker.arguments import CPU_PERIOD_US, cpu_quota_us
from container_mgr.docker.attached import Attached
from container_mgr.docker.inspection import container_of, is_ours
from container_mgr.users import RankUser
from container_mgr.values import Container

_T = TypeVar("_T")

_log = structlog.get_logger("container_mgr.docker")

_THREADS = 32
_PULL_THREADS = 4
PULL_DEADLINE_S = 1800.0
"""Counted from the request, including the wait for a free thread."""
REGISTRY_DEADLINE_S = 15.0
PULL_SILENCE_S = 120.0
"""A pull without progress for this long has lost its registry."""
_DETACH_KEYS = "ctrl-@,ctrl-_,ctrl-@,ctrl-_"
"""By default the engine removes Ctrl-P from the input of every terminal."""


class EngineFailure(Exception):  # noqa: N818  (the base of the errors below, never raised itself)
    """A call of the engine failed."""


class EngineTimeoutError(EngineFailure):
    """The engine did not answer in time: the outcome is unknown."""


class EngineRefusedError(EngineFailure):
    """The engine refused; the message is the engine's."""


class RegistryDeniedError(EngineRefusedError):
    """The image's registry refused the login, or the image is not this user's."""


class EngineUnavailableError(EngineFailure):
    """The engine cannot be reached."""


@dataclass(slots=True, frozen=True)
class EngineFacts:
    """What the engine reports about itself."""

    version: str
    cgroup_driver: str
    memory_bytes: int
    cdi_directories: tuple[str, ...] = ()
    """The directories of its CDI files; empty before version 25 and where CDI is off."""
    remapped_users: bool = False
    root: str = ""
    """The directory of its data."""

    @property
    def remapped_base(self) -> RankUser | None:
        """What user and group 0 of containers are outside them; None without ``userns-remap``.

        An engine that remaps users keeps its data in a directory named after them.
        """
        match = re.fullmatch(r"([0-9]{1,10})\.([0-9]{1,10})", Path(self.root).name)
        if not self.remapped_users or match is None:
            return None
        return RankUser(int(match[1]), int(match[2]))


@dataclass(slots=True, frozen=True)
class Image:
    """An image that the engine has."""

    id: str
    size_bytes: int
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    volumes: tuple[str, ...] = ()
    """Paths that the image declares as volumes."""
    names: tuple[str, ...] = ()
    """NAME:TAG and NAME@sha256:..., as the engine writes them."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ExecState:
    """A command in a container. ``exit_code`` is None before its end, and before its start."""

    running: bool
    exit_code: int | None = None
    pid: int = 0
    """Process number of its first process; 0 before its start."""


@dataclass(slots=True, frozen=True)
class ListedImage:
    """An image in the engine's list; ``names`` as in :class:`Image`."""

    id: str
    names: tuple[str, ...]
    size_bytes: int


@dataclass(slots=True, frozen=True)
class PullState:
    """Progress of a pull. The totals grow while the engine finds more layers."""

    layers_done: int = 0
    layers: int = 0
    bytes_done: int = 0
    bytes_total: int = 0


class DockerHost:
    """Calls the Docker SDK, each call in a thread and with a deadline."""

    def __init__(self, url: str | None, timeout_s: int = 20) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._api: docker.APIClient | None = None
        self._seen: dict[str, Container] = {}
        self._foreign: set[str] = set()
        """Ids of containers that have our labels but are not ours; each is logged once."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")
        self._pulls = ThreadPoolExecutor(_PULL_THREADS, thread_name_prefix="docker-pull")

    async def facts(self) -> EngineFacts:
        """Connect unless connected, and describe the engine."""
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
        """Return a local image; None when the engine does not have it."""
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
            volumes=tuple(sorted(config.get("Volumes") or ())),
            names=(*(found.get("RepoTags") or ()), *(found.get("RepoDigests") or ())),
            environment={
                name: value
                for name, _, value in (word.partition("=") for word in config.get("Env") or ())
            },
        )

    async def pull(
        self,
        reference: str,
        login: RegistryLogin | None = None,
        report: Callable[[PullState], None] = lambda state: None,
    ) -> None:
        """Fetch an image from its registry; ``report`` is called from another thread.

        Pulls have their own threads, so a slow registry does not delay other calls.
        """

        def call(api: docker.APIClient) -> None:
            layers = Layers()
            for step in api.pull(reference, stream=True, decode=True, auth_config=_auth(login)):
                if "error" in step:  # the engine had already sent its status
                    raise _refused(str(step["error"]))
                layers.apply(step)
                report(layers.state())

        await self._call(call, deadline_s=PULL_DEADLINE_S, pool=self._pulls)

    async def registry_digest(self, reference: str, login: RegistryLogin | None = None) -> str:
        """Return the digest (``sha256:...``) that the image's registry has for a name."""

        def call(api: docker.APIClient) -> str:
            found = _inspect_distribution(api, reference, login)
            return str(found["Descriptor"]["digest"])

        return await self._call(call, deadline_s=REGISTRY_DEADLINE_S, pool=self._pulls)

    async def images(self) -> list[ListedImage]:
        """Return the images that the engine has, sorted by their names."""
        rows = await self._call(lambda api: api.images())
        found = [
            ListedImage(
                row["Id"],
                (*(row.get("RepoTags") or ()), *(row.get("RepoDigests") or ())),
                int(row.get("Size", 0)),
            )
            for row in rows
        ]
        return sorted(found, key=lambda image: (image.names, image.id))

    async def images_in_use(self) -> dict[str, frozenset[str]]:
        """Return the ids of the images of all containers, and the jobs that use each.

        An image that only foreign containers use has no jobs.
        """
        rows = await self._call(lambda api: api.containers(all=True))
        found: dict[str, frozenset[str]] = {}
        for row in rows:
            job = (row.get("Labels") or {}).get(f"{LABEL}job")
            known = found.get(row["ImageID"], frozenset())
            found[row["ImageID"]] = known | ({job} if job else frozenset())
        return found

    async def remove_image(self, reference: str) -> None:
        """Remove a name, and its image when no other name and no container needs it.

        A missing one is not an error.
        """
        try:
            await self._call(lambda api: api.remove_image(reference))
        except _AbsentError:
            return

    async def list(self, server: str, job: str | None = None) -> list[Container]:
        """Return the containers of ``server``, of one job or of all, in their current state."""
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
        """Return one container in its current state; None when the agent has none of this name."""
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
        """Create a container with arguments of :mod:`container_mgr.docker.arguments`."""

        def call(api: docker.APIClient) -> None:
            api.create_container(**container, host_config=api.create_host_config(**host))

        await self._call(call)

    async def start(self, name: str) -> None:
        """Start a created container."""
        await self._call(lambda api: api.start(name))

    async def stop(self, name: str, grace_s: float) -> None:
        """Send SIGTERM, wait up to ``grace_s``, then send SIGKILL."""
        await self._call(
            lambda api: api.stop(name, timeout=math.ceil(grace_s)),
            deadline_s=self._timeout_s + grace_s + 1,
        )

    async def remove(self, name: str) -> None:
        """Remove a container, running or not. A missing one is not an error."""
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
        """Limit a container to ``share`` cores."""
        await self._call(
            lambda api: api.update_container(
                name, cpu_period=CPU_PERIOD_US, cpu_quota=cpu_quota_us(share)
            )
        )

    async def exec_create(self, name: str, command: Sequence[str], *, terminal: bool) -> str:
        """Prepare a command in a running container, with the container's user; return its id."""

        def call(api: docker.APIClient) -> str:
            made = api.exec_create(
                name,
                list(command),
                stdin=True,
                tty=terminal,
                detach_keys=_DETACH_KEYS,
            )
            return str(made["Id"])

        return await self._call(call)

    async def exec_attach(self, ident: str, *, terminal: bool) -> Attached:
        """Start a prepared command; return its streams."""
        version = await self._call(lambda api: api.api_version)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await attached.attach(
                    str(parse_host(self._url)), version, ident, terminal=terminal
                )
        except TimeoutError:
            raise EngineTimeoutError(
                f"no answer from the engine within {self._timeout_s:g} s"
            ) from None
        except attached.EngineRefusalError as error:
            raise EngineRefusedError(str(error)) from error
        except OSError as error:
            raise EngineUnavailableError(f"the engine cannot be reached: {error}") from error

    async def exec_resize(self, ident: str, rows: int, columns: int) -> None:
        """Set the size of a command's terminal. Refused before the command runs."""
        await self._call(lambda api: api.exec_resize(ident, height=rows, width=columns))

    async def exec_state(self, ident: str) -> ExecState | None:
        """Return a command's state; None when its container is gone."""
        try:
            found = await self._call(lambda api: api.exec_inspect(ident))
        except _AbsentError:
            return None
        return ExecState(bool(found["Running"]), found.get("ExitCode"), int(found.get("Pid") or 0))

    def close(self) -> None:
        """Close the connection without waiting for unanswered calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pulls.shutdown(wait=False, cancel_futures=True)
        if self._api is not None:
            self._api.close()

    async def _cached(self, id_: str, state: str) -> Container | None:
        # Our containers never restart: while the state is unchanged, the inspection still holds.
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
        # The SDK's own time-out limits silence on the socket; this one limits the whole call.
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
            raise _refused(_message(error)) from error
        except requests.exceptions.Timeout as error:
            raise EngineTimeoutError(
                f"no answer from the engine within {self._timeout_s:g} s"
            ) from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            if "timed out" in str(error).lower():
                raise EngineTimeoutError(str(error)) from error
            raise EngineUnavailableError(f"the engine cannot be reached: {error}") from error


class _Client(docker.APIClient):
    """The SDK's client, with a time-out for pulls, for which the SDK sets none."""

    def send(self, request: Any, **kwargs: Any) -> Any:
        """Send a request; one without a time-out gets one."""
        kwargs["timeout"] = kwargs.get("timeout") or PULL_SILENCE_S
        return super().send(request, **kwargs)


class _AbsentError(EngineRefusedError):
    """The engine has no such object."""


class Layers:
    """Adds up the steps of a pull, as the engine reports them per layer."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._done: set[str] = set()
        self._bytes: dict[str, tuple[int, int]] = {}

    def apply(self, step: Mapping[str, Any]) -> None:
        """Apply one report of the engine; one without a layer changes nothing."""
        layer, status = step.get("id"), str(step.get("status", ""))
        if not isinstance(layer, str) or status.startswith("Pulling from"):
            return
        self._known.add(layer)
        detail = step.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._bytes[layer] = int(detail.get("current", 0)), int(detail["total"])
        elif status in ("Download complete", "Pull complete") and layer in self._bytes:
            total = self._bytes[layer][1]
            self._bytes[layer] = total, total
        if status in ("Pull complete", "Already exists"):
            self._done.add(layer)

    def state(self) -> PullState:
        """Return the sums over all layers."""
        return PullState(
            layers_done=len(self._done),
            layers=len(self._known),
            bytes_done=sum(done for done, _ in self._bytes.values()),
            bytes_total=sum(total for _, total in self._bytes.values()),
        )


_DENIALS = ("unauthorized", "authentication required", "access denied", "resource is denied")
"""How engines and registries word a refused login."""


def _refused(message: str) -> EngineRefusedError:
    denied = any(word in message.lower() for word in _DENIALS)
    return RegistryDeniedError(message) if denied else EngineRefusedError(message)


def _auth(login: RegistryLogin | None) -> dict[str, str] | None:
    return None if login is None else {"username": login.username, "password": login.password}


def _inspect_image(api: docker.APIClient, reference: str) -> dict[str, Any]:
    found: dict[str, Any] = api.inspect_image(reference)  # type: ignore[no-untyped-call]
    return found


def _inspect_distribution(
    api: docker.APIClient, reference: str, login: RegistryLogin | None
) -> dict[str, Any]:
    auth = _auth(login)
    found: dict[str, Any] = api.inspect_distribution(reference, auth_config=auth)  # type: ignore[no-untyped-call]
    return found


def _message(error: docker.errors.APIError) -> str:
    return str(error.explanation or error).strip()

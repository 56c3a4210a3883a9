"""Starts a batch of ranks: lists the containers once, then starts all ranks concurrently.

That takes three calls of the engine per rank (create, start, inspect) and two per batch;
starting each rank by itself takes seven per rank.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from agentlink.ranks import RankSpec
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.docker.arguments import (
    ACCOUNT_FILES,
    HOME,
    Host,
    ImageProgram,
    create_arguments,
)
from container_mgr.docker.engine import (
    DockerHost,
    EngineFailure,
    EngineRefusedError,
    EngineTimeoutError,
)
from container_mgr.hardware.inventory import Inventory
from container_mgr.hardware.nic import Nics
from container_mgr.kernel.process import is_ending
from container_mgr.ranks import policy, secrets
from container_mgr.ranks.batch import BatchOutcome, batch, fault_of
from container_mgr.users import RankUser
from container_mgr.values import AgentError, Container, container_in
from container_mgr.volumes.volumes import Volumes

_log = structlog.get_logger("container_mgr.ranks.launch")

Images = dict[str, "asyncio.Task[ImageProgram]"]


class Locks(Protocol):
    """One lock per endpoint."""

    def __getitem__(self, endpoint: str) -> asyncio.Lock:
        """Return the endpoint's lock."""
        ...


class Launcher:
    """Starts ranks. ``ranks.Ranks`` watches and stops them."""

    def __init__(
        self,
        engine: DockerHost,
        nics: Nics,
        inventory: Inventory,
        host: Host,
        volumes: Volumes,
        *,
        checkpoints: DiskHolder,
        dirs: Path,
        locks: Locks,
        current: Callable[[Container], Container],
        attach: Callable[[Container], Awaitable[None]],
        remove: Callable[[Container], Awaitable[None]],
        proc: Path = Path("/proc"),
    ) -> None:
        """``current`` corrects the engine's report of a container by what the kernel has.

        ``attach`` gives a running container its NIC and watches it.
        """
        self._engine = engine
        self._nics = nics
        self._inventory = inventory
        self._host = host
        self._volumes = volumes
        self._checkpoints = checkpoints
        self._dirs = dirs
        self._locks = locks
        self._current = current
        self._attach = attach
        self._remove = remove
        self._proc = proc
        self._beginning: dict[str, int] = {}
        """Memory of the ranks that are being started, by endpoint."""

    async def start(self, specs: Sequence[RankSpec], term: int) -> BatchOutcome:
        """Start the ranks that do not run yet; each succeeds or fails by itself."""
        try:
            policy.distinct(specs)
        except AgentError as error:
            return BatchOutcome((), (error,))
        async with AsyncExitStack() as locks:
            # Sorted, so that two batches cannot deadlock.
            for endpoint in sorted({spec.endpoint for spec in specs}):
                await locks.enter_async_context(self._locks[endpoint])
            try:
                listed = await self._engine.list(self._host.server)
                present = [self._current(one) for one in listed]
            except EngineFailure as error:
                return BatchOutcome((), tuple(fault_of(s.key.container, error) for s in specs))
            images: Images = {}
            found = {c.key.container: c for c in present}
            try:
                return await batch(
                    specs,
                    lambda s: s.key.container,
                    lambda s: self._start(s, found, images, term),
                )
            finally:
                await asyncio.gather(*images.values(), return_exceptions=True)

    async def _start(
        self, spec: RankSpec, present: Mapping[str, Container], images: Images, term: int
    ) -> Container:
        policy.check(
            spec,
            self._inventory.endpoints,
            self._inventory.facts,
            disk=self._host.block_device,
            digest_only=self._inventory.digest_only,
        )
        name = spec.key.container
        found = present.get(name)
        if found is not None and found.digest != spec.digest():
            raise AgentError(
                "conflict", name, "is already running with another specification", "use a new epoch"
            )
        if found is None:
            self._check_epoch(spec, present)
            with (
                self._volumes.reserved(spec),
                self._checkpoints.reserved(spec),
                self._memory(spec, present),
            ):
                await self._evict(spec, present)
                found = await self._create(spec, images, term)
        if found.state == "created":
            found = await self._launch(found)
        if found.alive:
            try:
                await self._attach(found)
            except AgentError:
                if is_ending(found, self._proc):
                    # It ended before it got its NIC. Its job needs the exit code, so the
                    # container stays.
                    await asyncio.to_thread(self._nics.release, found.key.namespace)
                    return found
                await self._remove(found)
                raise
        return found

    @contextmanager
    def _memory(self, spec: RankSpec, present: Mapping[str, Container]) -> Iterator[None]:
        """Promise memory to a rank. AgentError when what is promised exceeds the server's.

        Only a rank that asks for more than its share is refused, as there is always room for one
        that does not.
        """
        share = self._host.limits.memory_bytes
        held = policy.memory_of_checkpoints(spec)
        mine, whole = policy.memory_beside(spec, share) + held, self._inventory.facts.memory_bytes
        others = {c.endpoint: c.memory_bytes for c in present.values() if c.alive}
        others |= self._beginning
        promised = sum(size for endpoint, size in others.items() if endpoint != spec.endpoint)
        if mine > share and promised + mine > whole:
            raise AgentError(
                "unavailable",
                spec.key.container,
                f"{mine} bytes of memory asked for: of the server's {whole},"
                f" {promised} are promised to other ranks",
                "ask for less in the job's limits, or wait for those ranks",
            )
        self._beginning[spec.endpoint] = mine
        try:
            yield
        finally:
            del self._beginning[spec.endpoint]

    def _check_epoch(self, spec: RankSpec, present: Mapping[str, Container]) -> None:
        """Refuse a rank of an older epoch while ranks of a newer one run."""
        key = spec.key
        newest = max(
            (c.key.epoch for c in present.values() if c.key.job == key.job and c.alive), default=0
        )
        if newest > key.epoch:
            raise AgentError(
                "conflict",
                key.container,
                f"epoch {key.epoch} is stale: job {key.job} runs with epoch {newest}",
                "another controller has started it again",
            )

    async def _evict(self, spec: RankSpec, present: Mapping[str, Container]) -> None:
        """Refuse an endpoint in use; remove containers that ended on it.

        One that does not run blocks nothing: the next start tries again to remove it.
        """
        for other in present.values():
            if other.endpoint != spec.endpoint and other.nic.name != spec.nic.name:
                continue
            if other.alive:
                raise AgentError(
                    "conflict",
                    spec.key.container,
                    f"endpoint {spec.endpoint} is in use by {other.key.container}",
                    f"cancel job {other.key.job}, or wait for it",
                )
            try:
                await self._remove(other)
            except (EngineFailure, AgentError, OSError) as error:
                _log.warning("ended container stays", container=other.key.container, error=error)

    async def _create(self, spec: RankSpec, images: Images, term: int) -> Container:
        name = spec.key.container
        if spec.image not in images:
            images[spec.image] = asyncio.create_task(self._program(spec.image))
        try:
            program = await asyncio.shield(images[spec.image])
        except AgentError as error:
            raise AgentError(error.code, name, error.message, error.hint) from error
        if not (spec.command or program.command or program.entrypoint):
            raise AgentError("invalid", name, "neither the rank nor its image has a command")
        self._inventory.check_free(spec.endpoint, spec.gpu_uuid, name)
        if not await self._is_free(spec.nic.name):
            raise AgentError(
                "not_found", name, f"{self._host.server} has no free NIC {spec.nic.name}"
            )
        user = self._host.users.choose(name, spec.uid, spec.gid)
        rdma = self._inventory.rdma(spec.nic.name)
        # A rank with RDMA stays in the initial user namespace.
        volumes = await self._volumes.bind(spec, user, remapped=rdma is None)
        checkpoint = await self._checkpoints.begin(spec, user, remapped=rdma is None)
        rank_dir = self._dirs / name
        await asyncio.to_thread(_make_directory, rank_dir, user)
        await asyncio.to_thread(secrets.write, rank_dir, name, spec.secrets)
        share = self._host.limits.memory_bytes
        beside = replace(self._host.limits, memory_bytes=policy.memory_beside(spec, share))
        container, host = create_arguments(
            spec,
            host=replace(self._host, limits=beside),
            program=program,
            rank_dir=rank_dir,
            term=term,
            user=user,
            volumes=volumes,
            checkpoint=checkpoint,
            gpu=self._inventory.gpu(spec.gpu_uuid),
            rdma=rdma,
        )
        try:
            await self._engine.create(container, host)
        except EngineTimeoutError:
            _log.warning("create timed out, inspecting", container=name)
            found = await self._engine.inspect(name)
            if found is None:
                raise AgentError(
                    "timeout", name, "not created in time", "observe, then start again"
                ) from None
            return found
        except EngineRefusedError:
            await asyncio.to_thread(shutil.rmtree, rank_dir, ignore_errors=True)
            raise
        return Container(
            id="",
            key=spec.key,
            endpoint=spec.endpoint,
            digest=spec.digest(),
            nic=spec.nic,
            share=spec.emulated_share,
            state="created",
            volumes=spec.volumes,
            folder=spec.checkpoint.folder if spec.checkpoint else "",
        )

    async def _is_free(self, nic: str) -> bool:
        """Return whether a NIC is free, after moving it back from an ended container if needed."""
        if await asyncio.to_thread(self._nics.present, nic):
            return True
        namespaces = await asyncio.to_thread(self._nics.namespaces)
        namespace = next((place for place, name in namespaces.items() if name == nic), None)
        if namespace is None:
            return False
        holder = await self._engine.inspect(container_in(namespace))
        if holder is not None and self._current(holder).alive:
            return False
        await asyncio.to_thread(self._nics.release, namespace)
        _log.info("NIC of a dead container given back", namespace=namespace)
        return await asyncio.to_thread(self._nics.present, nic)

    async def _program(self, reference: str) -> ImageProgram:
        image = await self._engine.image(reference)
        if image is None:
            raise AgentError(
                "not_found",
                reference,
                f"image {reference} is not on {self._host.server}",
                "load it there, or submit with --pull missing",
            )
        return ImageProgram(
            image.id, image.entrypoint, image.command, image.volumes, image.environment
        )

    async def _launch(self, container: Container) -> Container:
        name = container.key.container
        try:
            await self._engine.start(name)
        except EngineTimeoutError:
            _log.warning("start timed out, inspecting", container=name)
        except EngineRefusedError as error:
            await self._remove(container)
            raise AgentError("failed", name, str(error), "does the image have /bin/sh?") from error
        found = await self._engine.inspect(name)
        if found is None or found.state == "created":
            raise AgentError("timeout", name, "not started in time", "observe, then start again")
        return found


def _make_directory(directory: Path, user: RankUser) -> None:
    """Make a rank's directory with the files that are there from the start."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    directory.chmod(0o755)  # read by the rank, as any user
    for name, text in zip(ACCOUNT_FILES, (user.passwd(HOME), user.group()), strict=True):
        (directory / name).write_text(text, encoding="ascii")
        (directory / name).chmod(0o444)

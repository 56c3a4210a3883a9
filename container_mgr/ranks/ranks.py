"""Runs ranks: one container each, with its NIC. The container's name is the idempotency key.

The engine and the kernel hold all state; this module only caches which containers are alive.
After a restart :meth:`Ranks.recover` rebuilds that from labels and NIC aliases.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import structlog

from agentlink.ranks import RankSpec
from agentlink.values import DataKey, NicReport
from container_mgr import atomic_file
from container_mgr.checkpoints.contract import Transfers
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.docker.arguments import Host
from container_mgr.docker.engine import (
    DockerHost,
    EngineFailure,
    EngineRefusedError,
    EngineTimeoutError,
)
from container_mgr.docker.entry import (
    LOST_FILE,
    NIC_FILE,
    READY_DIR,
    READY_FILE,
    REASONS,
    SCRIPT,
    TAKEN_FILE,
)
from container_mgr.fence import Fence
from container_mgr.hardware.inventory import Inventory
from container_mgr.hardware.nic import Nics
from container_mgr.kernel import inside
from container_mgr.kernel.commands import CommandGroups
from container_mgr.kernel.process import open_first
from container_mgr.ranks import ghosts, secrets
from container_mgr.ranks.archive import Archive
from container_mgr.ranks.batch import BatchOutcome, batch, fault_of
from container_mgr.ranks.execs import Execs
from container_mgr.ranks.freezing import Freezing, with_kernel_state
from container_mgr.ranks.ghosts import Ghosts
from container_mgr.ranks.launch import Launcher
from container_mgr.ranks.living import LiveContainer, LiveSample, Living
from container_mgr.recordings.recordings import Ask, Recordings
from container_mgr.values import AgentError, Container, Unfit
from container_mgr.volumes.volumes import VolumeFacts, Volumes

END_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL for a rank that the agent ends."""
END_FILE = "end"
"""Why the agent ended a rank, in the rank's directory."""
MAX_REASON = 500
KILLED = 128 + signal.SIGKILL
"""The exit code of a rank that the kernel killed, as it does for lack of memory."""

_log = structlog.get_logger("container_mgr.ranks.ranks")


class Ranks:
    """All ranks of one server. Belongs to one event loop."""

    def __init__(
        self,
        *,
        engine: DockerHost,
        nics: Nics,
        inventory: Inventory,
        host: Host,
        fence: Fence,
        volumes: Volumes,
        checkpoints: DiskHolder,
        state_dir: Path,
        log_dir: Path | None = None,
        transfers: Transfers | None = None,
        ask: Ask | None = None,
        command_groups: CommandGroups | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        """:meth:`recover` writes ``host.entry``; ranks' directories are below ``state_dir``.

        ``log_dir`` keeps the output of removed ranks; ``logs`` below ``state_dir`` if absent.
        ``transfers`` get the ranks with checkpoints, and stop before a freeze. ``ask`` reads the
        profilers of TensorFlow's workers; without it no profiler is read.
        """
        self._server = host.server
        self._engine = engine
        self._nics = nics
        self._inventory = inventory
        self._fence = fence
        self._volumes = volumes
        self._checkpoints = checkpoints
        self._dirs = state_dir / "ranks"
        self._entry = host.entry
        self._archive = Archive(log_dir or state_dir / "logs", host.logs)
        # Copying much output delays no start, which works in the loop's own threads.
        self._archiving = ThreadPoolExecutor(4, thread_name_prefix="archive")
        self._living = Living(self._on_end, proc)
        self._ghosts = Ghosts(host.parent, proc)
        self._proc = proc
        self._reports: dict[str, NicReport] = {}
        self._oom: set[str] = set()
        self._ends: dict[str, str] = {}
        """Why the agent ended a container, by the container's id."""
        # One change at a time per endpoint: of the container, its NIC and its directory.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # One freeze or thaw at a time per job: concurrent ones would undo each other.
        self._job_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._starting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._background: set[asyncio.Task[None]] = set()
        self._freezing = Freezing(engine)
        self._transfers = transfers
        self._execs = Execs(
            engine,
            self.observe,
            lambda c: self._current(c).state == "paused",
            groups=command_groups or CommandGroups(proc),
        )
        self._recordings = Recordings(
            lacking=host.packages.lacking, paused=self._is_paused, ask=ask, proc=proc
        )
        self._launcher = Launcher(
            engine,
            nics,
            inventory,
            host,
            volumes,
            checkpoints=checkpoints,
            dirs=self._dirs,
            locks=self._locks,
            current=self._current,
            attach=self._attach_nic,
            remove=self._remove,
            proc=proc,
        )

    @property
    def archive(self) -> Archive:
        """The logs of removed ranks."""
        return self._archive

    @property
    def recordings(self) -> Recordings:
        """What is known of the ranks' communication."""
        return self._recordings

    @property
    def execs(self) -> Execs:
        """The commands that callers run in the ranks."""
        return self._execs

    @property
    def term(self) -> int:
        """The highest term of a controller that commanded this agent."""
        return self._fence.term

    async def recover(self) -> None:
        """Adopt running ranks, remove what a crash left, and move NICs of ended ranks back."""
        # Other accounts of this server must not read or write here.
        for directory in (self._dirs.parent, self._dirs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        await asyncio.to_thread(self._archive.load)
        # In one step: a container that starts now must read the whole script.
        atomic_file.write(self._entry, SCRIPT, mode=0o555)
        containers = await self._engine.list(self._server)
        self._fence.raise_to(max((c.term for c in containers), default=0))
        for container in containers:
            if container.state == "created":  # an agent died between create and start
                await self._remove(container)
            elif container.alive:
                self._log_limit(container)
                try:
                    await self._attach_nic(container)
                except AgentError as error:
                    _log.error("container without its NIC", reason=str(error))
                    self._checkpoints.watch(container)
                    self._living.add(container)
                if self._transfers is not None and self._current(container).state == "paused":
                    await self._transfers.pause(container.key.job)
            else:
                secrets.remove(self._dir(container))
                if (reason := await asyncio.to_thread(self._read_end, container)) is not None:
                    self._ends[container.id] = reason
        await self._execs.recover(containers)
        wanted = {c.key.namespace for c in containers if c.alive}
        for namespace in await asyncio.to_thread(self._nics.namespaces):
            if namespace not in wanted:
                try:
                    await asyncio.to_thread(self._nics.release, namespace)
                except AgentError as error:
                    _log.error("NIC of a dead container is lost", reason=str(error))
                    continue
                _log.info("NIC of a dead container given back", namespace=namespace)
        names = {c.key.container for c in containers if c.state != "created"}
        for left in [d for d in self._dirs.iterdir() if d.name not in names]:
            await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
        _log.info("state rebuilt", containers=len(names), alive=len(wanted), term=self._fence.term)

    def _log_limit(self, container: Container) -> None:
        """Log a rank that has more memory than one may have that starts now. It goes on."""
        most = self._inventory.facts.most_memory_bytes
        if container.memory_bytes > most:
            name = container.key.container
            has = container.memory_bytes
            _log.warning("rank goes on above a limit of starts", container=name, has=has, most=most)

    async def close(self) -> None:
        """Stop watching. Containers keep running without the agent."""
        await self._execs.close()
        await self._recordings.close()
        self._living.clear()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._archiving.shutdown(wait=False)

    async def start(self, specs: Sequence[RankSpec]) -> BatchOutcome:
        """Start the ranks that do not run yet; each succeeds or fails by itself."""
        done = asyncio.get_running_loop().create_future()
        jobs = {spec.job for spec in specs}
        for job in jobs:
            self._starting[job].add(done)
        try:
            started = await self._launcher.start(specs, self._fence.term)
        finally:
            done.set_result(None)
            for job in jobs:
                self._starting[job].discard(done)
                if not self._starting[job]:
                    del self._starting[job]
        return replace(started, containers=tuple(self._current(c) for c in started.containers))

    async def stop(self, job: str, grace_s: float, until: int | None = None) -> BatchOutcome:
        """Stop and remove the job's containers; report how they ended.

        With ``until`` only containers of that epoch and earlier ones.
        """
        # A start continues after its caller gave up; its containers must be stopped as well.
        if pending := self._starting.get(job):
            await asyncio.wait(set(pending))
        try:
            found = await self._engine.list(self._server, job)
        except EngineFailure as error:
            return BatchOutcome((), (fault_of(self._server, error),))
        meant = [c for c in found if until is None or c.key.epoch <= until]
        return await batch(meant, lambda c: c.key.container, lambda c: self._stop(c, grace_s))

    async def end(self, container: Container, reason: str) -> None:
        """Stop a running container; its reports have the reason, after a restart too.

        One that is frozen stays as it is.
        """
        name = container.key.container
        async with self._locks[container.endpoint], self._job_lock(container.key.job):
            now = await self._engine.inspect(name)
            if now is None or now.id != container.id or self._current(now).state != "running":
                return
            live = self._living.get(name)
            if live is not None:
                live.ending = True
            try:
                text, path = reason[:MAX_REASON], self._dir(container) / END_FILE
                await asyncio.to_thread(partial(atomic_file.write, path, text, mode=0o444))
                self._ends[container.id] = text
                await self._act_once(name, lambda: self._engine.stop(name, END_GRACE_S), _gone)
            finally:
                if live is not None:
                    live.ending = False

    async def freeze(self, job: str, settle_s: float = 0.0) -> BatchOutcome:
        """Freeze the job's containers; see :meth:`Freezing.freeze`."""
        self._recordings.disturb(job)
        async with self._job_lock(job):
            if self._transfers is not None:
                await self._transfers.pause(job)
            return await self._freezing.freeze(self._of(job), settle_s)

    async def thaw(self, job: str) -> BatchOutcome:
        """Thaw the job's containers, also those that another program froze."""
        self._recordings.disturb(job)
        async with self._job_lock(job):
            try:
                return await self._freezing.thaw(self._of(job))
            finally:
                if self._transfers is not None:
                    self._transfers.resume(job)

    async def observe(self, job: str | None = None) -> list[Container]:
        """Return all containers of this server, or one job's, in their current state."""
        return [self._current(c) for c in await self._engine.list(self._server, job)]

    def sample(self) -> list[LiveSample]:
        """Measure the running containers since the last call, and act on their state.

        A container that became ready gets its CPU share. One whose light returned announces its
        address. Secrets that a container has read are removed. One whose checkpoints fill the
        disk is ended.
        """
        for live in self._living:
            share = live.container.share
            if (
                share is not None
                and not live.share_applied
                and self._has_status_file(live, READY_FILE)
            ):
                live.share_applied = True
                self._run_in_background(self._apply_share(live, share))
            given = self._dir(live.container)
            if secrets.are_in(given) and self._has_status_file(live, TAKEN_FILE):
                secrets.remove(given)
            if live.light_came_back(self._proc):
                self._run_in_background(self._announce(live.container))
        for name, why in self._checkpoints.excesses().items():
            exceeding = self._living.get(name)
            if exceeding is not None:
                self._run_in_background(self.end(exceeding.container, why))
        return self._living.sample(self._inventory.reading)

    def carriers(self) -> dict[str, bool]:
        """Return whether the NICs of running ranks have a carrier, by endpoint, where known."""
        found = {live.container.endpoint: live.carrier(self._proc) for live in self._living}
        return {endpoint: up for endpoint, up in found.items() if up is not None}

    async def volumes(self) -> list[VolumeFacts]:
        """Report the volumes of this server and the data of jobs in them."""
        return await self._volumes.facts(await self.observe())

    async def remove_data(self, key: DataKey) -> bool:
        """Remove an owner's data; return whether it existed. Raises AgentError."""
        return await self._volumes.remove(key, self.observe)

    async def is_written(self, container: Container) -> bool:
        """Return whether the container's log may still grow.

        The engine copies output with a delay, even after the program has ended, and reports the
        end only after that. An engine that does not answer copies nothing.
        """
        name = container.key.container
        if name in self._living:
            return True
        try:
            now = await self._engine.inspect(name)
        except EngineFailure:
            return False
        return now is not None and now.id == container.id and self._current(now).alive

    def report(self, container: Container) -> NicReport | None:
        """Return the NIC of a running container as it was bound."""
        return self._reports.get(container.key.container)

    def reason_for(self, container: Container) -> str:
        """Return why a container is in its state or what is wrong with it; empty when nothing is.

        A container whose GPU is lost still runs, but its job needs the reason.
        """
        if container.alive:
            unfit = self._unfit_gpu(container)
            reason = unfit.reason if unfit else ""
            live = self._living.get(container.key.container)
            if not reason and live is not None and self._has_status_file(live, LOST_FILE):
                reason = "the container may not open its GPU any more"
            return reason
        if ended := self._ends.get(container.id):
            return ended
        if container.id in self._ghosts:
            return ghosts.REASON
        if container.oom and container.exit_code == KILLED:
            return "it ran out of memory"
        return REASONS.get(container.exit_code or 0, "")

    def fault_for(self, container: Container) -> str:
        """Return the code of what is wrong with the GPU of a running container; empty if nothing.

        A driver or a library that does not answer is not its GPU's fault.
        """
        unfit = self._unfit_gpu(container) if container.alive else None
        return unfit.fault if unfit else ""

    def _unfit_gpu(self, container: Container) -> Unfit | None:
        unfit = self._inventory.unfit(container.endpoint)
        return unfit if unfit and unfit.of_device else None

    async def _attach_nic(self, container: Container) -> None:
        """Give a running container its NIC and the NIC's file, and watch it."""
        name = container.key.container
        report = await asyncio.to_thread(self._bind, container)
        self._reports[name] = report
        path = self._dir(container) / NIC_FILE
        try:
            await asyncio.to_thread(
                partial(atomic_file.write, path, nic_assignments(report), mode=0o444)
            )
        except OSError as error:
            raise AgentError(
                "failed", name, f"the file about its NIC cannot be written: {error}"
            ) from error
        self._recordings.begin(container)
        self._checkpoints.watch(container)
        self._living.add(container)
        self._report_ranks()

    def _bind(self, container: Container) -> NicReport:
        # Another process with its number can be in any namespace, even in the machine's own.
        try:
            pidfd = open_first(container, self._proc)
        except ProcessLookupError as error:
            name = container.key.container
            raise AgentError("failed", name, f"ended before it got its NIC: {error}") from error
        try:
            return self._nics.bind(
                container.nic,
                container.key.namespace,
                container.pid,
                self._inventory.attach(container.endpoint),
                container.rdma_device,
            )
        finally:
            os.close(pidfd)

    async def _announce(self, container: Container) -> None:
        await asyncio.to_thread(self._nics.announce, container.nic, container.key.namespace)

    def _report_ranks(self) -> None:
        """Report to checkpoint transfers which ranks run."""
        if self._transfers is not None:
            self._transfers.ranks_changed(self._with_checkpoints)
        try:
            self._inventory.map_jobs([live.container for live in self._living])
        except OSError as error:
            _log.warning("job map not written", reason=str(error))

    def _with_checkpoints(self) -> list[tuple[str, int, str, str]]:
        """Return folder, rank, endpoint and network namespace of ranks with checkpoints."""
        found = [live.container for live in self._living if live.container.folder]
        return [(c.folder, c.key.rank, c.endpoint, c.key.namespace) for c in found]

    async def _stop(self, container: Container, grace_s: float) -> Container:
        name = container.key.container
        async with self._locks[container.endpoint]:
            now = await self._engine.inspect(name)
            if now is None:
                await self._clear_away(container)
                return container
            live = self._living.get(name)
            if live is not None:
                live.ending = True
            try:
                now = self._current(now)
                if now.alive:
                    async with self._job_lock(now.key.job):  # no freeze is in progress
                        await self._freezing.release(now, live)
                    await self._act_once(name, lambda: self._engine.stop(name, grace_s), _gone)
                    now = self._current(await self._engine.inspect(name) or now)
                await self._remove(now)
            finally:
                if live is not None:
                    live.ending = False
            return now

    async def _act_once(
        self,
        name: str,
        act: Callable[[], Awaitable[None]],
        done: Callable[[Container | None], bool],
    ) -> None:
        """Act once; after a time-out or a refusal, inspect whether it took effect all the same."""
        try:
            await act()
        except (EngineTimeoutError, EngineRefusedError):
            if not done(await self._engine.inspect(name)):
                raise

    async def _remove(self, container: Container) -> None:
        """Archive a container's log, return its NIC, remove it, and delete its directory."""
        name = container.key.container
        if container.log_path:
            log = Path(container.log_path)
            await asyncio.get_running_loop().run_in_executor(
                self._archiving, self._archive.store, container.key, log
            )
        if container.alive:
            await self._freezing.release(container, self._living.get(name))
        try:
            # Before the removal, whose outcome and time are uncertain.
            await asyncio.to_thread(self._nics.release, container.key.namespace)
        finally:
            try:
                await self._act_once(name, lambda: self._engine.remove(name), lambda c: c is None)
            except EngineFailure as error:
                if container.id not in self._ghosts:
                    raise
                # It stays in the engine's list, and nothing of it on the endpoint.
                _log.error("ghost not removed", container=name, reason=str(error))
            else:
                self._ghosts.forget(container.id)
            await self._clear_away(container)

    async def _clear_away(self, container: Container) -> None:
        self._recordings.end(container.key.container)
        self._checkpoints.ended(container.key.container)
        self._living.forget(container.key.container)
        self._reports.pop(container.key.container, None)
        self._oom.discard(container.id)
        self._ends.pop(container.id, None)
        self._report_ranks()
        await asyncio.to_thread(self._nics.release, container.key.namespace)
        await asyncio.to_thread(shutil.rmtree, self._dir(container), ignore_errors=True)

    def _on_end(self, container: Container, oom: bool) -> None:
        if oom:
            self._oom.add(container.id)
        self._recordings.end(container.key.container)
        self._checkpoints.ended(container.key.container)
        self._run_in_background(self._after_end(container))

    async def _after_end(self, container: Container) -> None:
        name = container.key.container
        async with self._locks[container.endpoint]:
            if name in self._living:
                return  # removed and started again meanwhile: the new rank has the NIC
            secrets.remove(self._dir(container))
            await asyncio.to_thread(self._nics.release, container.key.namespace)
        self._report_ranks()
        _log.info("rank ended, NIC given back", container=name)

    async def _apply_share(self, live: LiveContainer, share: float) -> None:
        name = live.container.key.container
        try:
            await self._engine.limit_cpu(name, share)
        except EngineFailure:
            live.share_applied = False  # setting the same value again is harmless
            raise
        _log.info("CPU share applied", container=name, cores=share)

    def _job_lock(self, job: str) -> asyncio.Lock:
        return self._job_locks.setdefault(job, asyncio.Lock())

    def _of(self, job: str) -> list[LiveContainer]:
        return [live for live in self._living if live.container.key.job == job]

    def _current(self, container: Container) -> Container:
        live = self._living.get(container.key.container)
        if container.alive and live is None:
            container = self._ghosts.judge(container)
        if container.alive:
            return with_kernel_state(container, live)
        if live is not None:  # the engine saw its end first
            live.check_oom()
        oom = container.oom or container.id in self._oom or (live is not None and live.oom)
        return replace(container, oom=oom)

    def _is_paused(self, name: str) -> bool:
        live = self._living.get(name)
        return live is not None and self._current(live.container).state == "paused"

    def _has_status_file(self, live: LiveContainer, name: str) -> bool:
        """Return whether a rank has created this status file; only the rank can."""
        return inside.has(live.container.pid, READY_DIR, name, self._proc)

    def _read_end(self, container: Container) -> str | None:
        try:
            return (self._dir(container) / END_FILE).read_text(encoding="utf-8")[:MAX_REASON]
        except (OSError, ValueError):
            return None

    def _dir(self, container: Container) -> Path:
        return self._dirs / container.key.container

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except (AgentError, EngineFailure, OSError) as error:
                _log.error("chore failed", reason=str(error))

        task = asyncio.get_running_loop().create_task(guarded())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def nic_assignments(report: NicReport) -> str:
    """Return, as shell assignments, what is fixed only once the program has its NIC."""
    known: dict[str, int | str] = {"LIGHTLOOM_MTU": report.mtu}
    if report.rdma_device:
        known["NCCL_IB_HCA"] = f"={report.rdma_device}"  # without "=" NCCL matches prefixes
    if report.rdma_device and report.gid_index is not None:
        known["NCCL_IB_GID_INDEX"] = report.gid_index
    if report.dscp is not None:
        known["NCCL_IB_TC"] = report.dscp << 2  # the traffic class is DSCP and two ECN bits
    return "".join(f"export {name}={value}\n" for name, value in known.items())


def _gone(container: Container | None) -> bool:
    return container is None or not container.alive

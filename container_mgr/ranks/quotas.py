"""Measures what jobs keep in volumes, and ends ranks whose data exceeds its quota.

Where the file system has project quotas the kernel refuses to write more, and nothing ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import structlog

from agentlink.values import DataKey
from base.figures import figure
from container_mgr.docker.engine import EngineFailure
from container_mgr.values import AgentError, Container
from container_mgr.volumes.records import DirectoryRecord
from container_mgr.volumes.volumes import Volumes, in_use, key_of

ENFORCE_S = 10.0
"""Between two measurements of the data that running ranks use under a quota."""
MEASURE_S = 600.0
"""Between two measurements of all data."""

_log = structlog.get_logger("container_mgr.ranks.quotas")


class QuotaWatch:
    """Two loops: one for the data in use under a quota, one for all data."""

    def __init__(
        self,
        volumes: Volumes,
        observe: Callable[[], Awaitable[Sequence[Container]]],
        end: Callable[[Container, str], Awaitable[None]],
    ) -> None:
        """``end`` stops a container and keeps the reason."""
        self._volumes = volumes
        self._observe = observe
        self._end = end
        self._used: frozenset[DataKey] = frozenset()
        """The data that containers used at the last check."""
        self._measuring: dict[DataKey, asyncio.Task[None]] = {}
        """Measurements that go on after a check: data with many entries takes minutes."""

    async def enforce_forever(self) -> None:
        """Measure and enforce, again and again; a failed round does not stop it."""
        try:
            while True:
                await self._guarded(self.enforce)
                await asyncio.sleep(ENFORCE_S)
        finally:
            for task in self._measuring.values():
                task.cancel()

    async def measure_forever(self) -> None:
        """Measure all data, again and again; a failed round does not stop it."""
        while True:
            await self._guarded(self.measure)
            await asyncio.sleep(MEASURE_S)

    async def enforce(self) -> None:
        """Measure the data of running ranks with a quota; end those that exceed it.

        Data that no rank uses any more is measured once, so that its size is known.
        """
        containers = await self._observe()
        used = frozenset(in_use(containers))
        left, self._used = self._used - used, used
        for ended in sorted(left, key=_order):
            self._begin(ended, self._measure(ended, used=False))
        keys = {
            key
            for c in containers
            for mount in c.volumes
            if c.state == "running"
            and mount.quota_bytes is not None
            and (key := key_of(mount)) is not None
        }
        for key in sorted(keys, key=_order):
            self._begin(key, self._enforce(key))
        if self._measuring:
            await asyncio.wait(self._measuring.values(), timeout=ENFORCE_S)

    async def measure(self) -> None:
        """Measure all data, what was measured longest ago first."""
        await self._volumes.recover()
        used = in_use(await self._observe())
        for key in self._volumes.owned():
            await self._measure(key, used=key in used)

    def _begin(self, key: DataKey, work: Coroutine[Any, Any, object]) -> None:
        """Work on one owner's data, unless that is still under way."""
        if key in self._measuring:
            work.close()
            return

        async def guarded() -> None:
            try:
                await work
            except (EngineFailure, AgentError, OSError) as error:
                _log.warning("quota not enforced", owner=key.owner, reason=str(error))
            finally:
                del self._measuring[key]

        self._measuring[key] = asyncio.get_running_loop().create_task(guarded())

    async def _enforce(self, key: DataKey) -> None:
        record = await self._measure(key, used=True)
        if record is None:
            return
        for container in await self._observe():
            reason = why_end(container, key, record)
            if reason:
                _log.warning("quota exceeded", container=container.key.container, reason=reason)
                await self._end(container, reason)

    async def _measure(self, key: DataKey, *, used: bool) -> DirectoryRecord | None:
        try:
            return await self._volumes.measure(key, used=used)
        except AgentError as error:
            _log.warning("not measured", volume=key.volume, owner=key.owner, reason=str(error))
            return None

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (EngineFailure, AgentError, OSError) as error:
            _log.warning("volumes not watched", reason=str(error))


def _order(key: DataKey) -> tuple[str, str, str]:
    return key.volume, key.scope, key.owner


def why_end(container: Container, key: DataKey, record: DirectoryRecord) -> str:
    """Return why a container must end, given a measurement of ``key``; empty when it may go on.

    A frozen container writes nothing; it is judged when it runs again.
    """
    if container.state != "running":
        return ""
    for mount in container.volumes:
        if key_of(mount) != key or mount.quota_bytes is None:
            continue
        if record.most_files is not None and (record.files or 0) > record.most_files:
            return (
                f"the data of {key.owner} in volume {key.volume} has more than"
                f" {record.most_files} entries, as many as its quota allows"
            )
        if record.too_deep:
            return f"its directories in volume {key.volume} are nested too deep to be measured"
        if record.bytes is not None and record.bytes > mount.quota_bytes:
            return (
                f"the data of {key.owner} in volume {key.volume} is {size(record.bytes)},"
                f" its quota is {size(mount.quota_bytes)}"
            )
    return ""


def size(number: int) -> str:
    """Write a number of bytes for people: ``1.5 GiB``."""
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{figure(value, 4)} {unit}"

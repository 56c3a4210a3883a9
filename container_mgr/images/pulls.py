"""Pulls images: one pull at a time per image and login, which concurrent requests join."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from agentlink.values import RegistryLogin
from container_mgr.docker.engine import DockerHost, EngineFailure, PullState
from container_mgr.images.kept import KeptImages
from container_mgr.values import AgentError

MAX_PULLS = 64
"""Pulls that run or wait; the engine's threads carry out a few at a time."""

_log = structlog.get_logger("container_mgr.images.pulls")


@dataclass(slots=True)
class ImagePull:
    """A pull under way. ``task`` raises EngineFailure; ``state`` is how far it is."""

    task: asyncio.Task[None]
    state: PullState = field(default_factory=PullState)


class Pulls:
    """The pulls of one server. A pull continues when those who asked for it leave."""

    def __init__(self, engine: DockerHost, kept: KeptImages) -> None:
        self._engine = engine
        self._kept = kept
        self._running: dict[tuple[str, RegistryLogin | None], ImagePull] = {}

    def join(self, reference: str, login: RegistryLogin | None) -> ImagePull:
        """Begin to pull an image, or join the pull that runs. AgentError when too many run."""
        key = reference, login
        found = self._running.get(key)
        if found is not None:
            return found
        if len(self._running) >= MAX_PULLS:
            raise AgentError(
                "unavailable", reference, f"{MAX_PULLS} images are being pulled", "try again later"
            )
        pull = ImagePull(asyncio.create_task(self._pull(reference, login)))
        self._running[key] = pull
        pull.task.add_done_callback(lambda task: self._over(key, task))
        return pull

    async def close(self) -> None:
        """Stop waiting for the engine; it may still complete a pull."""
        tasks = [pull.task for pull in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pull(self, reference: str, login: RegistryLogin | None) -> None:
        loop = asyncio.get_running_loop()

        def report(state: PullState) -> None:
            loop.call_soon_threadsafe(note, state)

        def note(state: PullState) -> None:
            pull = self._running.get((reference, login))
            if pull is not None:
                pull.state = state

        before = await self._engine.image(reference)
        await self._engine.pull(reference, login, report)
        after = await self._engine.image(reference)
        _log.info("image pulled", image=reference)
        # An image that was there before this agent pulled it belongs to someone else.
        if after is not None and (before is None or before.id != after.id):
            await self._kept.pulled(reference, after.id, after.size_bytes)

    def _over(self, key: tuple[str, RegistryLogin | None], task: asyncio.Task[None]) -> None:
        del self._running[key]
        if task.cancelled() or (error := task.exception()) is None:
            return
        # The engine's words go to the operator's log only: a job must not probe networks with them.
        if isinstance(error, EngineFailure):
            _log.warning("image not pulled", image=key[0], reason=str(error))
        else:
            _log.error("image not pulled", image=key[0], exc_info=error)

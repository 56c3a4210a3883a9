"""Removes directories of volumes: what an operator or a user asks for, and what is due."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, ExecutionEngine
from controller.state.offers import Directory
from controller.state.state import State
from controller.volumes import keep
from controller.volumes.keep import HeldDirectory

MAX_PER_ROUND = 16
"""Directories removed at most in one round of the policy."""


@dataclass(slots=True, frozen=True)
class Removed:
    """A directory on one server: removed, or why it is not."""

    left: HeldDirectory
    problem: str = ""


class DataRemover:
    """Removes directories that no job uses."""

    def __init__(self, state: State, engine: ExecutionEngine) -> None:
        self._state = state
        self._engine = engine
        self._told: set[tuple[str, Directory]] = set()
        """Directories whose removal failed, and whose event was emitted."""

    def find(self, directory: Directory, server: str | None = None) -> list[HeldDirectory]:
        """Return where a directory is, as last read; with ``server`` only there."""
        return [
            HeldDirectory(name, directory, offer.data[directory.volume][directory])
            for name, offer in self._state.offers.servers.items()
            if server in (None, name) and directory in offer.data.get(directory.volume, ())
        ]

    def check_unused(self, directory: Directory) -> None:
        """Raise ServiceError ``conflict`` when a job uses a directory, or it is being removed."""
        state = self._state
        using = keep.users(state.site, state.jobs.values(), self.find(directory))
        if names := using.get(directory):
            raise ServiceError(
                "conflict",
                f"job {names[0]} uses the data of {directory.owner} in volume {directory.volume}",
                object=f"volume/{directory.volume}",
                hint=f"wait for its end, or `lightloom cancel {names[0]}`",
            )
        if directory in state.offers.removing:
            raise ServiceError(
                "conflict",
                f"the data of {directory.owner} in volume {directory.volume} is being removed",
                object=f"volume/{directory.volume}",
                hint="see `lightloom get volumes`",
            )

    async def remove(
        self, directory: Directory, places: Sequence[HeldDirectory], why: str
    ) -> list[Removed]:
        """Remove a directory from servers at the same time. ServiceError ``conflict`` in use.

        ``why`` completes the event of each removal. A server without an answer may have removed
        it: the next reading of what it offers shows that.
        """
        state = self._state
        state.require_command()
        self.check_unused(directory)
        state.offers.removing.add(directory)
        try:
            return await asyncio.gather(*(self._remove(one, why) for one in places))
        finally:
            state.offers.removing.discard(directory)

    async def _remove(self, left: HeldDirectory, why: str) -> Removed:
        state, directory, key = self._state, left.directory, (left.server, left.directory)
        try:
            there = await self._engine.remove_data(
                left.server, directory.volume, directory.scope, directory.owner
            )
        except EngineError as error:
            problem = f"{error.faults[0].message} ({error.code})"
            if key not in self._told:
                self._told.add(key)
                text = f"the data of {directory.owner} is not removed from {left.server}: {problem}"
                state.events.add("warning", _about(directory), "DataNotRemoved", text)
            return Removed(left, problem)
        self._told.discard(key)
        state.offers.forget(left.server, directory)
        if there:
            text = f"the data of {directory.owner} in volume {directory.volume} on {left.server}"
            state.events.add("info", _about(directory), "DataRemoved", f"{text}: {why}")
        return Removed(left)

    async def remove_due(self) -> None:
        """Remove what the site file keeps no longer."""
        state = self._state
        if state.command_lost or state.suspect:
            return
        records, offers = list(state.jobs.values()), dict(state.offers.servers)
        # In a thread: a site may hold many thousands of directories.
        found = await asyncio.to_thread(
            lambda: keep.due(state.site, records, keep.left(offers), state.clock())
        )
        self._told &= {
            key for key in self._told if key[1] in offers[key[0]].data.get(key[1].volume, ())
        }
        failing = {directory for _, directory in self._told}
        found.sort(key=failing.__contains__)  # those never keep others from their turn
        tried = 0
        for directory in found:
            answering, places = state.connections.servers(), self.find(directory)
            reached = [one for one in places if answering.get(one.server)]
            # Earlier removals may have taken long: a job may have used it and ended meanwhile.
            still = keep.due(state.site, state.jobs.values(), places, state.clock())
            if not reached or not still:
                continue
            if tried == MAX_PER_ROUND:
                return
            tried += 1
            with contextlib.suppress(ServiceError):  # a job asked for it meanwhile
                await self.remove(directory, reached, "not used for as long as the site keeps it")


def _about(directory: Directory) -> str:
    """Return the object of a directory's events: the job's, so that its project sees them."""
    project, dot, job = directory.owner.partition(".")
    del project
    return f"job/{job}" if dot else f"volume/{directory.volume}"

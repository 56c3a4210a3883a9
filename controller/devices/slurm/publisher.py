"""Gives Slurm its topology: the file first, whole, then the running slurmctld, then read back.

A restarted slurmctld reads the file and is right. A running one changes single nodes from 25.05 on;
before, and when it has no tree of lightloom's yet, it reads the file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import structlog

from controller.devices.observed import ObservedError, Published, ReadBack
from controller.devices.slurm.documents import items_of
from controller.devices.slurm.gres import node_of
from controller.devices.slurm.hostlists import compress
from controller.devices.slurm.topology import (
    CORE,
    MAX_FILE,
    Mark,
    SlurmTopology,
    differences,
    leaves_of,
    mark_of,
    misplaced,
    render,
    shown_in,
    unit_of,
)
from controller.devices.slurm.transport import OBJ, Setup, Transport

log = structlog.get_logger(__name__)

READ_BACK_S = 8.0
"""slurmctld answers a reconfigure before it has read its files."""
READ_BACK_EVERY_S = 0.25
UNSURE_TRIES = 3
"""Tries of a change whose outcome is unknown, as long as Slurm shows the same. One that ended and
changed nothing is not tried again until either side changes."""
_LIVE_FROM = (25, 5)
_NEW_MODE = 0o644


class TopologyWriter:
    """Writes one site's topology, one at a time."""

    def __init__(
        self,
        transport: Transport,
        setup: Setup,
        file: Path,
        site: str,
        nodes: Mapping[str, tuple[str, ...]],
    ) -> None:
        """``nodes`` is node -> endpoints."""
        self._transport = transport
        self._setup = setup
        self._file = file
        self._site = site
        self._nodes = nodes
        self._lock = asyncio.Lock()
        self._tried: tuple[Mapping[str, str], SlurmTopology] | None = None
        """What was wanted and shown when tries to change it left it as it was."""
        self._unsure = 0
        """Tries of it with an unknown outcome."""

    async def publish(self, topology: Published) -> ReadBack:
        """Give Slurm the topology and read it back. ObservedError.

        When it fails after the file was written, slurmctld keeps what it had until it reads the
        file; a time-out is read back before it counts as a failure.
        """
        async with self._lock:
            known = await self._known()
            mapped = {node: ends for node, ends in self._nodes.items() if node in known}
            wanted = leaves_of(topology, mapped, sorted(known - mapped.keys()))
            unknown = tuple(sorted(self._nodes.keys() - known))
            try:
                text = render(self._site, topology.epoch, wanted)
            except ValueError as error:
                raise ObservedError("invalid", OBJ, f"topology: {error}") from error
            await asyncio.to_thread(self._write, text)
            shown = await self._shown()
            if misplaced(wanted, shown) and not self._gave_up(wanted, shown):
                shown = await self._try(wanted, shown)
            epoch = await asyncio.to_thread(self.epoch)
            return ReadBack(epoch, differences(wanted, shown), unknown)

    def mark(self) -> Mark | None:
        """Return the file's mark; None without one of lightloom's. Blocks. ObservedError."""
        text = self._read()
        return mark_of(text) if text is not None else None

    def epoch(self) -> int | None:
        """Return the epoch of the file; None when it is not this site's. Blocks. ObservedError."""
        mark = self.mark()
        return mark.epoch if mark is not None and mark.site == self._site else None

    def foreign(self) -> str:
        """Return why the file must not be written; empty when it may. Blocks. ObservedError."""
        if self._file.with_name("topology.yaml").exists():
            return "a topology.yaml beside it counts in its place"
        text = self._read()
        if text is None or not text.strip():
            return ""
        mark = mark_of(text)
        if mark is None:
            return "lightloom did not write it"
        return "" if mark.site == self._site else f"it is of the site {mark.site}"

    def _gave_up(self, wanted: Mapping[str, str], shown: SlurmTopology) -> bool:
        """Whether this very difference was tried, and stayed."""
        if self._tried != (wanted, shown):
            self._tried, self._unsure = None, 0
        return self._tried is not None and self._unsure in (0, UNSURE_TRIES)

    async def _try(self, wanted: Mapping[str, str], shown: SlurmTopology) -> SlurmTopology:
        """Bring Slurm to what is wanted once; what changes nothing is noted. ObservedError."""
        before = shown
        try:
            shown = await self._apply(wanted, shown)
        except ObservedError as error:
            if error.code in ("timeout", "unavailable"):
                self._tried, self._unsure = (wanted, before), self._unsure + 1
            raise
        left = misplaced(wanted, shown)
        self._tried, self._unsure = ((wanted, shown) if left else None), 0
        return shown

    async def _known(self) -> frozenset[str]:
        """Return the nodes that Slurm has."""
        body = await self._transport.nodes()
        try:
            return await asyncio.to_thread(
                lambda: frozenset(node_of(node).name for node in items_of(body, "nodes"))
            )
        except ValueError as error:
            raise ObservedError("invalid", OBJ, f"nodes: {error}") from error

    async def _shown(self) -> SlurmTopology:
        try:
            return shown_in(await self._setup.topology())
        except ValueError as error:
            hint = "set TopologyPlugin=topology/tree in slurm.conf"
            raise ObservedError("invalid", OBJ, f"topology: {error}", hint) from error

    async def _apply(self, wanted: Mapping[str, str], shown: SlurmTopology) -> SlurmTopology:
        """Bring the running slurmctld to what the file says, and return what it has then."""
        unknown: ObservedError | None = None
        if CORE in shown.roots and lives(await self._transport.release()):
            try:
                for leaf, nodes in misplaced(wanted, shown).items():
                    await self._transport.place(compress(nodes), unit_of(leaf))
                shown = await self._shown()
                if not misplaced(wanted, shown):
                    return shown
            except ObservedError as error:
                if error.code == "forbidden":
                    raise
                log.warning("live_topology_failed", error=error.message)
        try:
            await self._transport.reconfigure()
        except ObservedError as error:
            if error.code not in ("timeout", "unavailable"):
                raise
            unknown = error
        shown = await self._settled(wanted, shown)
        if unknown is not None and misplaced(wanted, shown):
            raise unknown
        return shown

    async def _settled(self, wanted: Mapping[str, str], shown: SlurmTopology) -> SlurmTopology:
        """Read back until slurmctld has what is wanted, a few seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_BACK_S):
                while misplaced(wanted, shown):
                    await asyncio.sleep(READ_BACK_EVERY_S)
                    try:
                        shown = await self._shown()
                    except ObservedError as error:  # it restarts
                        if error.code not in ("timeout", "unavailable"):
                            raise
        return shown

    def _read(self) -> str | None:
        """Return the file; None without one. ObservedError."""
        try:
            with self._file.open("rb") as file:
                data = file.read(MAX_FILE + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from error
        if len(data) > MAX_FILE:
            raise ObservedError("conflict", str(self._file), "it is too long to be lightloom's")
        return data.decode("utf-8", errors="replace")

    def _write(self, text: str) -> None:
        """Replace the file at once with its mode and owner kept; equal text is not written."""
        if why := self.foreign():
            hint = "move it away, or set engine.topology.publish: false"
            raise ObservedError("conflict", str(self._file), why, hint)
        if self._read() == text:
            return
        draft = ""
        try:
            descriptor, draft = tempfile.mkstemp(prefix=".lightloom-", dir=self._file.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                self._like_before(descriptor)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            Path(draft).replace(self._file)
            draft = ""
            folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            if draft:
                Path(draft).unlink(missing_ok=True)

    def _like_before(self, descriptor: int) -> None:
        try:
            old = self._file.stat()
        except FileNotFoundError:
            os.fchmod(descriptor, _NEW_MODE)
            return
        if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, old.st_mode & 0o777)

    def _failed(self, error: OSError) -> ObservedError:
        code = "forbidden" if isinstance(error, PermissionError) else "invalid"
        hint = "lightloom needs to write in the folder of topology.conf"
        return ObservedError(code, str(self._file), error.strerror or str(error), hint)


def lives(release: str) -> bool:
    """Whether this release changes the topology of single nodes."""
    return version_of(release) >= _LIVE_FROM


def version_of(release: str) -> tuple[int, int]:
    """Return (25, 5) for ``25.05.3``; (0, 0) for any other text."""
    found = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)

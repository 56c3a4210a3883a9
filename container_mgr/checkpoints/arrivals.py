"""A part that arrives: it is compared as it lies on disk, and then it is there in one step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import structlog

from checkpoints.manifest import Manifest
from container_mgr.checkpoints import layout, parts
from container_mgr.checkpoints.disk import files
from container_mgr.checkpoints.disk.files import ChangedError, StoppedError
from container_mgr.checkpoints.parts import About
from container_mgr.checkpoints.shelf import Shelf, refused
from container_mgr.checkpoints.values import Part
from container_mgr.values import AgentError

_log = structlog.get_logger("container_mgr.checkpoints.arrivals")


class Arriving:
    """Implements ``Receiving``. Used in one thread at a time."""

    def __init__(
        self,
        shelf: Shelf,
        parents: Sequence[str],
        final: str,
        about: About,
        *,
        why_not: Callable[[Manifest], str],
        kept: Callable[[parts.Found], None],
        stamped: bool = False,
    ) -> None:
        """``why_not`` says why a manifest is not the expected one; ``kept`` learns of the part.

        ``stamped``: no program has these files, so that they are as they were compared as long as
        their stamps are. Raises OSError.
        """
        self._shelf = shelf
        self._parents = tuple(parents)
        self._final = final
        self._about = about
        self._why_not = why_not
        self._kept = kept
        self._stamped = stamped
        self._name = shelf.arrive()
        with shelf.opened(layout.ARRIVING, self._name, parts.FILES) as at:
            self._root = os.dup(at)
        self._open = True

    @property
    def root(self) -> int:
        """A descriptor of the directory for its files."""
        return self._root

    def keep(self, part: Part | Manifest) -> None:
        """See ``Receiving``."""
        shelf = self._shelf
        manifest = part if isinstance(part, Manifest) else part.manifest
        members = () if isinstance(part, Manifest) else part.manifests
        if not self._open:
            raise AgentError("failed", shelf.folder.name, "the part was given up")
        try:
            why = self._why_not(manifest) or "; ".join(
                parts.damages(self._root, manifest, shelf.stopped, durable=shelf.durable)
            )
            if why:
                raise AgentError("failed", shelf.folder.name, f"what arrived differs: {why}")
            about = self._about
            if self._stamped:
                stamps = files.listing(self._root).stamps
                about = About(about.stamp, about.written_s, about.seen_at, about.rank, stamps)
            with shelf.opened(layout.ARRIVING, self._name) as at:
                parts.write(at, manifest, about, members, durable=shelf.durable)
            shelf.install(self._name, self._parents, self._final)
        except (OSError, ValueError, ChangedError, StoppedError) as error:
            self.give_up()
            raise fault(shelf, error) from error
        except AgentError:
            self.give_up()
            raise
        self._close()
        self._kept(parts.Found(manifest, about, members))

    def give_up(self) -> None:
        """See ``Receiving``."""
        if not self._open:
            return
        self._close()
        try:
            self._shelf.give_up(self._name)
        except OSError as error:  # the next start of the agent removes it
            _log.warning("not removed", folder=self._shelf.folder.name, reason=str(error))

    def _close(self) -> None:
        self._open = False
        os.close(self._root)


def fault(shelf: Shelf, error: Exception) -> AgentError:
    """Return the fault of work on a shelf that failed."""
    name = shelf.folder.name
    if isinstance(error, AgentError):
        return error
    if isinstance(error, OSError | ChangedError):
        return refused(name, error)
    if isinstance(error, StoppedError):
        return AgentError("unavailable", name, "the agent ends")
    return AgentError("failed", name, str(error))

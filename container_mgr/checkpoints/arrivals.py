"""A part that arrives: it is compared as it lies on disk, and then it is there in one step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import structlog

from checkpoints.manifest import Manifest
from container_mgr.checkpoints import layout, parts
from container_mgr.checkpoints.disk import files
from container_mgr.checkpoints.disk.files import AgentEndingError, ChangedError
from container_mgr.checkpoints.parts import About
from container_mgr.checkpoints.rank_folder import RankFolder, refused
from container_mgr.checkpoints.values import HeldPart
from container_mgr.values import AgentError

_log = structlog.get_logger("container_mgr.checkpoints.arrivals")


class Arriving:
    """Implements ``Receiving``. Used in one thread at a time."""

    def __init__(
        self,
        rank_folder: RankFolder,
        parents: Sequence[str],
        final: str,
        about: About,
        *,
        why_not: Callable[[Manifest], str],
        kept: Callable[[parts.StoredPart], None],
        stamped: bool = False,
    ) -> None:
        """``why_not`` returns why a manifest is not the expected one; ``kept`` gets the part.

        ``stamped``: no program has these files open, so they stay as compared while their stamps
        stay. Raises OSError.
        """
        self._rank_folder = rank_folder
        self._parents = tuple(parents)
        self._final = final
        self._about = about
        self._why_not = why_not
        self._kept = kept
        self._stamped = stamped
        self._name = rank_folder.arrive()
        with rank_folder.opened(layout.ARRIVING, self._name, parts.FILES) as at:
            self._root = os.dup(at)
        self._open = True

    @property
    def root(self) -> int:
        """A descriptor of the directory for its files."""
        return self._root

    def keep(self, part: HeldPart | Manifest) -> None:
        """See ``Receiving``."""
        rank_folder = self._rank_folder
        manifest = part if isinstance(part, Manifest) else part.manifest
        members = () if isinstance(part, Manifest) else part.manifests
        if not self._open:
            raise AgentError("failed", rank_folder.folder.name, "the part was given up")
        try:
            why = self._why_not(manifest) or "; ".join(
                parts.damages(
                    self._root, manifest, rank_folder.stopped, durable=rank_folder.durable
                )
            )
            if why:
                raise AgentError("failed", rank_folder.folder.name, f"what arrived differs: {why}")
            about = self._about
            if self._stamped:
                stamps = files.listing(self._root).stamps
                about = About(about.stamp, about.written_s, about.seen_at, about.rank, stamps)
            with rank_folder.opened(layout.ARRIVING, self._name) as at:
                parts.write(at, manifest, about, members, durable=rank_folder.durable)
            rank_folder.install(self._name, self._parents, self._final)
        except (OSError, ValueError, ChangedError, AgentEndingError) as error:
            self.give_up()
            raise fault(rank_folder, error) from error
        except AgentError:
            self.give_up()
            raise
        self._close()
        self._kept(parts.StoredPart(manifest, about, members))

    def give_up(self) -> None:
        """See ``Receiving``."""
        if not self._open:
            return
        self._close()
        try:
            self._rank_folder.give_up(self._name)
        except OSError as error:  # the next start of the agent removes it
            _log.warning("not removed", folder=self._rank_folder.folder.name, reason=str(error))

    def _close(self) -> None:
        self._open = False
        os.close(self._root)


def fault(rank_folder: RankFolder, error: Exception) -> AgentError:
    """Return the fault of work on a rank's folder that failed."""
    name = rank_folder.folder.name
    if isinstance(error, AgentError):
        return error
    if isinstance(error, OSError | ChangedError):
        return refused(name, error)
    if isinstance(error, AgentEndingError):
        return AgentError("unavailable", name, "the agent ends")
    return AgentError("failed", name, str(error))

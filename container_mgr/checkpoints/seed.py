"""Prepares a rank's folders for a run: what it starts from, and nothing else. Blocks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agentlink.checkpoints import GetPart
from checkpoints.ledger import Key
from checkpoints.manifest import Manifest
from checkpoints.rules import find_steps, parse_rule
from container_mgr.checkpoints import layout, parts
from container_mgr.checkpoints.disk import files
from container_mgr.checkpoints.disk.files import Stamp
from container_mgr.checkpoints.rank_folder import RankFolder, Staged
from container_mgr.checkpoints.watching.live import FolderRun
from container_mgr.users import RankUser
from container_mgr.values import AgentError


@dataclass(slots=True, frozen=True)
class _Source:
    """A part on this server that a rank may start from."""

    rank_folder: RankFolder
    names: tuple[str, ...]
    """The directory of its files."""
    manifest: Manifest
    rank: int
    """Who starts from it."""
    stamps: Mapping[str, Stamp]
    """Its files when they were compared; empty when they were not."""


def begin(
    rank_folder: RankFolder,
    siblings: Sequence[RankFolder],
    run: FolderRun,
    resumed: Key | None,
    user: RankUser,
) -> FolderRun:
    """Empty the live folder and seed it; return the run with the steps that it has from the start.

    ``siblings`` are this job's folders of the server's other endpoints. Raises OSError,
    AgentError(failed) when the part to start from is not here whole.
    """
    rule = parse_rule(run.rule)
    shown: list[_Source] = []
    own: _Source | None = None
    if resumed is not None:
        found = list(
            _sources((rank_folder, *siblings) if rule.gathers else (rank_folder,), resumed)
        )
        if rule.gathers:
            own, shown = _all(found, run)
        else:
            own = next((one for one in found if one.rank == run.rank and is_whole(one)), None)
            shown = [own] if own else []
        if not shown:
            raise AgentError(
                "failed", run.container,
                f"step {resumed.step} of run {resumed.epoch} is not whole on this server,"
                f" and rank {run.rank} was to resume from it",
                "fetch it again, or start from another step",
            )  # fmt: skip
    rank_folder.unstage(resumed)
    ids = (user.uid, user.gid)
    rank_folder.renew(layout.LIVE, 0o700, ids)
    with rank_folder.opened(layout.LIVE) as above:
        os.mkdir(layout.FILES, 0o700, dir_fd=above)
        os.chown(layout.FILES, *ids, dir_fd=above)
    rank_folder.renew(layout.RESTORE, 0o755, (os.geteuid(), os.getegid()))
    for one in shown:
        _show(rank_folder, one, ids)
    if own is not None:
        paths = own.manifest.files
        with rank_folder.opened(layout.RESTORE) as source, rank_folder.opened(*run.place) as target:
            if rule.overwrites:
                sizes = {path: file.bytes for path, file in paths.items()}
                files.copy(source, sizes, target, rank_folder.stopped, mode=0o644)
            else:
                files.link(source, paths, target)
    with rank_folder.opened(*run.place) as live:
        listed = files.listing(live, rule)
    known = {
        one.step: files.written(listed.stamps, one.files)
        for one in find_steps(rule, listed.entries).steps
    }
    begun = replace(run, known=known)
    rank_folder.write(layout.RUN, begun.dump())
    return begun


def _sources(rank_folders: Sequence[RankFolder], key: Key) -> Iterator[_Source]:
    """Yield the parts of a step: what was fetched first, then what the ranks wrote here."""
    step = layout.named(key)
    for rank_folder in rank_folders:
        yield from (_fetched(rank_folder, one) for one in rank_folder.staged(key))
        try:
            with rank_folder.opened(layout.HELD, step) as at:
                found = parts.read(at)
        except (OSError, ValueError):
            continue
        held = (layout.HELD, step, parts.FILES)
        yield _Source(rank_folder, held, found.manifest, found.manifest.rank, {})


def _fetched(rank_folder: RankFolder, one: Staged) -> _Source:
    names = (layout.STAGED, layout.named(one.key), one.name, parts.FILES)
    return _Source(rank_folder, names, one.manifest, one.rank, one.about.stamps)


def came(rank_folder: RankFolder, key: Key, get: GetPart) -> bool:
    """Return whether a whole part for a rank exists already. Raises OSError."""
    wanted = (get.rank, get.part, get.digest)
    return any(
        (one.rank, one.manifest.rank, one.manifest.digest) == wanted
        and is_whole(_fetched(rank_folder, one))
        for one in rank_folder.staged(key)
    )


def _all(found: Sequence[_Source], run: FolderRun) -> tuple[_Source | None, list[_Source]]:
    """Return the rank's own part, if it has one, and all parts; none when one is lacking."""
    whole: dict[int, _Source] = {}
    for one in found:
        if one.manifest.rank not in whole and is_whole(one):
            whole[one.manifest.rank] = one
    wanted = max((one.manifest.ranks for one in found), default=0)
    if not wanted or whole.keys() != set(range(wanted)):
        return None, []
    return whole.get(run.rank), [whole[rank] for rank in sorted(whole)]


def is_whole(one: _Source) -> bool:
    """Compare a part with its manifest, unless nothing has touched it since that was done."""
    try:
        with one.rank_folder.opened(*one.names) as at:
            stamps = files.listing(at).stamps
            if one.stamps and dict(stamps) == dict(one.stamps):
                return True
            return not parts.damages(at, one.manifest, one.rank_folder.stopped)
    except OSError:
        return False


def _show(rank_folder: RankFolder, one: _Source, ids: tuple[int, int]) -> None:
    with one.rank_folder.opened(*one.names) as source, rank_folder.opened(layout.RESTORE) as target:
        bring(source, one.manifest, target, rank_folder)
        files.own(target, one.manifest.files, ids, 0o600)


def bring(source: int, manifest: Manifest, target: int, rank_folder: RankFolder) -> None:
    """Link a part's files, or copy them where that cannot be. Raises OSError, ChangedError."""
    present = files.listing(target).stamps
    wanted = {path: one.bytes for path, one in manifest.files.items() if path not in present}
    try:
        files.link(source, wanted, target)
    except OSError as error:
        # EPERM: a program made the file immutable.
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
            raise
        left = files.listing(target).stamps
        sizes = {path: size for path, size in wanted.items() if path not in left}
        files.copy(source, sizes, target, rank_folder.stopped)

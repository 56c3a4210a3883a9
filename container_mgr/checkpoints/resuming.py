"""Decides how long the parts that ranks resume from stay, and records which ranks will start.

With a rule that gathers, ranks of one server resume from parts that arrived for one of them. So
these stay until every rank that a fetch named has begun, and every rank that began has loaded: it
has a step of its own. Until then a container may also be made again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from checkpoints.rules import parse_rule
from container_mgr import atomic_file
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.rank_folder import RankFolder
from container_mgr.checkpoints.watching.live import LiveFolder

_log = structlog.get_logger("container_mgr.checkpoints.resuming")


class Resuming:
    """The starts expected in all jobs' folders below one root.

    Any thread; all methods but :meth:`comes` block.
    """

    def __init__(self, root: Path, rank_folders: Callable[[str], Sequence[RankFolder]]) -> None:
        """``rank_folders`` returns a job's folders."""
        self._root = root
        self._rank_folders = rank_folders
        self._lock = threading.Lock()
        """Guards what follows; never held during work on files."""
        self._expected: dict[str, set[str]] = {}
        """By folder: endpoints whose ranks will start from what was fetched."""
        self._reading: dict[str, dict[str, int]] = {}
        """By folder: endpoints whose ranks began and have not loaded yet, with their runs."""
        self._freeing = threading.Lock()
        """Held while parts are freed, so that what a later fetch or start needs is not."""
        self._saving = threading.Lock()

    def expect(self, folder: str, endpoints: Collection[str]) -> None:
        """Set the ranks that will start from what is fetched now, in place of an earlier fetch's.

        Raises OSError.
        """
        with self._freeing:
            with self._lock:
                self._expected[folder] = set(endpoints)
            self._save(folder)

    def comes(self, folder: str, endpoint: str) -> None:
        """Register a starting rank that no fetch named; its parts arrived for other ranks."""
        with self._lock:
            self._expected.setdefault(folder, set()).add(endpoint)

    def begins(self, folder: str, endpoint: str, epoch: int, *, resumes: bool) -> None:
        """Note that a rank's folders are being prepared; ranks of older runs no longer read."""
        with self._freeing, self._lock:
            reading = {e: n for e, n in self._reading.get(folder, {}).items() if n >= epoch}
            reading.pop(endpoint, None)
            if resumes:
                reading[endpoint] = epoch
            else:  # a run from the start needs nothing of what was fetched
                self._expected.pop(folder, None)
            self._reading[folder] = reading

    def begun(self, live: LiveFolder) -> None:
        """Note that a rank runs; it may have run when parts were fetched for it."""
        folder, endpoint = live.rank_folder.folder.name, live.rank_folder.endpoint
        with self._lock:
            expected = self._expected.get(folder, set())
            if endpoint not in expected:
                return
            expected.discard(endpoint)
        try:
            self._save(folder)
            self._free(live)
        except OSError as error:
            _log.warning("not noted", folder=folder, reason=str(error))

    def loaded(self, live: LiveFolder) -> None:
        """Note that a rank has a step of its own; free what it resumed from after the first."""
        folder, endpoint = live.rank_folder.folder.name, live.rank_folder.endpoint
        with self._lock:
            reading = self._reading.get(folder, {})
            if reading.get(endpoint) != live.run.epoch:
                return
            del reading[endpoint]
        self.unload(live)

    def unload(self, live: LiveFolder) -> None:
        """Free what a rank resumed from, and staged parts that no rank needs any more."""
        try:
            live.rank_folder.clean(layout.RESTORE)
            self._free(live)
        except OSError as error:
            _log.warning("not removed", folder=live.rank_folder.folder.name, reason=str(error))

    def _free(self, live: LiveFolder) -> None:
        folder, endpoint = live.rank_folder.folder.name, live.rank_folder.endpoint
        gathers = parse_rule(live.run.rule).gathers
        rank_folders = self._rank_folders(folder) if gathers else [live.rank_folder]
        with self._freeing:
            with self._lock:
                waiting = self._expected.get(folder, set()) | self._reading.get(folder, {}).keys()
            if waiting if gathers else endpoint in waiting:
                return
            for rank_folder in rank_folders:
                rank_folder.discard_staged(None)
        for rank_folder in rank_folders:
            rank_folder.clean(layout.REMOVED)

    def recover(self, folder: str, reading: Mapping[str, int]) -> None:
        """Restore after a restart which ranks will start, and which have not loaded yet."""
        expected: set[str] = set()
        with suppress(OSError, ValueError, TypeError):
            content = (self._root / folder / layout.EXPECTED).read_text(encoding="utf-8")
            expected = {str(one) for one in json.loads(content)}
        with self._lock:
            self._expected[folder] = expected
            self._reading[folder] = dict(reading)

    def forget(self, folder: str) -> None:
        """Drop a job's folder."""
        with self._lock:
            self._expected.pop(folder, None)
            self._reading.pop(folder, None)

    def _save(self, folder: str) -> None:
        with self._saving:
            with self._lock:
                text = json.dumps(sorted(self._expected.get(folder, ())))
            atomic_file.write(self._root / folder / layout.EXPECTED, text, mode=0o600)

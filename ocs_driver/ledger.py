"""Keeps the list of own circuits for switches that cannot store owners.

There is one small JSON file per switch. A claim is written before the circuit is made, so
that a crash leaves a claim without a circuit and never a circuit without a claim. A later
read drops the claims of circuits that no longer exist.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from base import clock
from ocs_driver.errors import OcsError

_YOUNG_S = 60.0
"""A claim younger than this may belong to a circuit whose make is in progress."""

_SEEN = 0.0
"""Replaces the claim's time once the circuit was seen; the claim then ends with the circuit."""

Claims = dict[str, tuple[str, float]]
"""Maps a pair to its group and the epoch seconds of the claim."""


def given_folder() -> Path | None:
    """Return ``LIGHTLOOM_OCS_STATE_DIR``; None when it is not set."""
    given = os.environ.get("LIGHTLOOM_OCS_STATE_DIR")
    return Path(given) if given else None


def default_folder() -> Path:
    """Return ``LIGHTLOOM_OCS_STATE_DIR``, else the user's state folder (XDG)."""
    return given_folder() or user_folder()


def user_folder() -> Path:
    """Return the user's state folder (XDG base directories)."""
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return base / "lightloom" / "ocs"


class CircuitClaims:
    """The claims on one switch. All calls block on disk I/O: do not call them on the event loop.

    ``clock`` returns epoch seconds. The first use moves this switch's file from the folder
    ``older`` to ``folder``, unless ``folder`` already has one.
    """

    def __init__(
        self,
        folder: Path,
        switch: str,
        group: str,
        clock: Callable[[], float] = clock.time,
        *,
        older: Path | None = None,
    ) -> None:
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", switch)
        self._path = folder / f"{safe}.json"
        self._older = None if older is None or older == folder else older / f"{safe}.json"
        self._group = group
        self._clock = clock

    def claim(self, pairs: Collection[str]) -> None:
        """Record a claim on these pairs before they are made. Raises OcsError on failure."""
        self._move_here()
        now = self._clock()
        with self._changing() as claims:
            claims.update(dict.fromkeys(pairs, (self._group, now)))

    def release(self, pairs: Collection[str]) -> None:
        """Drop the claims on these pairs."""
        with self._changing() as claims:
            for pair in pairs:
                claims.pop(pair, None)

    def owners(self, present: Collection[str], *, forget: bool = True) -> Mapping[str, str]:
        """Return the group of each claimed pair, and drop claims of pairs that no longer exist.

        Without ``forget`` all claims stay, for pairs that may have been read before a change.
        """
        self._move_here()
        claims = self._read()
        if not forget:
            return {pair: group for pair, (group, _) in claims.items() if pair in present}
        limit = self._clock() - _YOUNG_S
        stale = [p for p, (_, made) in claims.items() if p not in present and made < limit]
        fresh = [p for p, (_, made) in claims.items() if p in present and made > _SEEN]
        if stale or fresh:
            with self._changing(durable=False) as changing:
                # A claim that another process renewed since is not the claim that was read.
                same = {p for p, claim in claims.items() if changing.get(p) == claim}
                for pair in same.intersection(stale):
                    del changing[pair]
                changing.update({p: (claims[p][0], _SEEN) for p in same.intersection(fresh)})
        return {pair: group for pair, (group, _) in claims.items() if pair in present}

    def _move_here(self) -> None:
        """Move the list from the older folder: write it durably here before deleting it there."""
        older = self._older
        if older is None or self._path.exists() or not _is_file(older):
            return
        claims = _claims_in(older)
        with self._changing() as here:
            for pair, claim in claims.items():
                here.setdefault(pair, claim)
        with contextlib.suppress(OSError):
            older.unlink()

    @contextlib.contextmanager
    def _changing(self, *, durable: bool = True) -> Iterator[Claims]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                claims = self._read()
                before = dict(claims)
                yield claims
                if claims != before:
                    self._write(claims, durable=durable)
        except OSError as error:
            raise OcsError(
                "no_ledger",
                str(self._path),
                f"cannot record which circuits are ours ({error.strerror}); "
                "set LIGHTLOOM_OCS_STATE_DIR to a writable folder",
            ) from None

    def _read(self) -> Claims:
        return _claims_in(self._path)

    def _write(self, claims: Claims, *, durable: bool) -> None:
        with tempfile.NamedTemporaryFile(
            "w", dir=self._path.parent, prefix=self._path.stem, delete=False, encoding="utf-8"
        ) as draft:
            draft.write(json.dumps(claims))
            draft.flush()
            if durable:
                os.fsync(draft.fileno())
        Path(draft.name).replace(self._path)
        if durable:
            _sync_folder(self._path.parent)


def _sync_folder(folder: Path) -> None:
    """Sync a folder's entries: a rename alone may not survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # a home directory without read permission


def _claims_in(path: Path) -> Claims:
    try:
        data = json.loads(path.read_text("utf-8"))
        return {str(p): (str(group), float(made)) for p, (group, made) in data.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise OcsError(
            "bad_ledger",
            str(path),
            f"the list of own circuits cannot be read ({error}); repair or remove the file: "
            "circuits that are not in it count as foreign",
        ) from None

"""Finds whole steps in the folder that a rank writes, and holds them. Never blocks the rank."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

import structlog

from agentlink.checkpoints import Holding, HoldingKind
from base import clock
from checkpoints.ledger import Key
from checkpoints.manifest import FileSums, Manifest, Sum
from checkpoints.rules import (
    CheckpointRule,
    FoundStep,
    Wholeness,
    find_steps,
    names_text,
    parse_rule,
)
from container_mgr.checkpoints import layout, parts
from container_mgr.checkpoints.disk import files, space
from container_mgr.checkpoints.disk.files import AgentEndingError, ChangedError, Listing
from container_mgr.checkpoints.parts import About
from container_mgr.checkpoints.rank_folder import RankFolder, is_full
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.volumes import tree

MAX_WATCHED = 64
"""Folders of steps that are watched in one live folder."""
MAX_WHY = 500
MAX_HELD_NAMES = 9 * files.MAX_NAMES
"""Bytes of the paths of all files held in one folder: the most steps with the longest names."""
SETTLED_S = 0.1
"""A file that is overwritten in place is copied this long after the last write: any later write
then has another time, as file systems note times in steps of some milliseconds."""
LEAST_S = 60.0
SLOWEST = 16 << 20
"""Bytes per second. A step must be read within ``LEAST_S`` and its data at this rate."""

_log = structlog.get_logger("container_mgr.checkpoints.watching.live")


class SlowReadError(ValueError):
    """A step took too long to read."""


@dataclass(slots=True, frozen=True)
class FolderRun:
    """What is known of a rank's run; kept beside its folder."""

    container: str
    rank: int
    ranks: int
    epoch: int
    rule: str
    known: Mapping[int, str] = field(default_factory=dict)
    """``files.written`` of the steps that are not this run's news: seeded or dropped."""
    place: tuple[str, ...] = (layout.LIVE, layout.FILES)
    """Where the program writes; a run of an older agent writes into ``live`` itself."""

    def dump(self) -> str:
        """Return the record."""
        return json.dumps(asdict(self))


def load_run(content: bytes) -> FolderRun:
    """Read a record. Raises ValueError."""
    try:
        fields = json.loads(content)
        run = FolderRun(
            container=str(fields["container"]),
            rank=int(fields["rank"]),
            ranks=int(fields["ranks"]),
            epoch=int(fields["epoch"]),
            rule=str(fields["rule"]),
            known={int(step): str(stamp) for step, stamp in fields["known"].items()},
            place=(layout.LIVE, layout.FILES) if "place" in fields else (layout.LIVE,),
        )
        parse_rule(run.rule)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the record of a run is damaged: {error!r}") from error
    return run


class Events(Protocol):
    """Watches directories."""

    def add(self, directory: int) -> int | None:
        """Watch an open directory; return the number that its events have, None for no more."""
        ...

    def remove(self, watch: int) -> None:
        """Stop watching."""
        ...


class LiveReports(Protocol):
    """Receives reports of what is held."""

    def held(self, part: HeldPart, about: About) -> None:
        """Add a new part."""
        ...

    def holds(self, place: PartPlace) -> bool:
        """Return whether a part is held."""
        ...

    def names_bytes(self, folder: str, endpoint: str) -> int:
        """Return the bytes of the paths of all files that are held of one folder's own steps."""
        ...

    def report(self, holding: Holding) -> None:
        """Report what is not held."""
        ...

    def exceeded(self, container: str, why: str) -> None:
        """Note a rank that must end."""
        ...


class LiveFolder:
    """One rank's folder, from the start of its run to the start of the next one."""

    def __init__(
        self,
        rank_folder: RankFolder,
        run: FolderRun,
        ledger: LiveReports,
        *,
        clock: Callable[[], float] = clock.time,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.rank_folder = rank_folder
        self.run = run
        self.lock = threading.RLock()
        """Held by who reads or changes the folder."""
        self.watches: dict[str, int] = {}
        """By the folder's name; empty for the live folder itself."""
        self.over = False
        """Another run has the folder."""
        self._rule: CheckpointRule = parse_rule(run.rule)
        self._ledger = ledger
        self._clock = clock
        self._monotonic = monotonic
        self._stored: dict[int, str] = dict(run.known)
        self._seen: dict[int, tuple[float, bool]] = {}
        """When a step was first seen, and whether it was whole already."""
        self._said: dict[int, str] = {}
        self._ignored = ""
        self._again = False

    def remember(self, step: int, stamp: str) -> None:
        """Mark a step as already stored, so it is not stored again."""
        self._stored[step] = stamp

    def scan(self, events: Events | None = None) -> bool:
        """Hold what became whole and report what cannot be held; return whether to scan again.

        Ends early when another run gets the folder. Raises OSError, AgentEndingError.
        """
        with self.lock:
            if self.over:
                return False
            self._again = False
            listed = self._list(events)
            found = find_steps(self._rule, listed.entries)
            now = self._monotonic()
            steps = {one.step for one in found.steps}
            for gone in self._seen.keys() - steps:
                del self._seen[gone]
            for gone in self._stored.keys() - steps:
                del self._stored[gone]
            for gone in self._said.keys() - steps:
                del self._said[gone]
            for one in found.steps:
                self._seen.setdefault(one.step, (now, one.state is Wholeness.WHOLE))
            for one in found.steps:  # the newest first: a restart needs it
                self._judge(one, listed)
            if (ignored := names_text(found.ignored)) != self._ignored:
                self._ignored = ignored
                self._report(self._place(0), HoldingKind.IGNORED, ignored, 0)
            if why := self.rank_folder.excess():
                self._ledger.exceeded(self.run.container, why)
            return self._again

    def close(self, step: int) -> bool:
        """Hold a step that awaited its coordinator; return whether it exists. Raises OSError."""
        with self.lock:
            listed = self._list(None)
            for one in find_steps(self._rule, listed.entries).steps:
                if one.step == step and one.state in {Wholeness.AWAITS, Wholeness.WHOLE}:
                    self._hold(one, listed)
                    return True
            return self._ledger.holds(self._place(step))

    def end(self) -> None:
        """Leave the folder to another run; a scan of it stops first."""
        self.over = True
        with self.lock:
            pass

    def drop(self, step: int) -> None:
        """Never report a step again unless it is written again. Raises OSError."""
        with self.lock:
            if step in self._stored:
                known = {**self.run.known, step: self._stored[step]}
                self.run = replace(self.run, known=known)
                self.rank_folder.write(layout.RUN, self.run.dump())

    def _list(self, events: Events | None) -> Listing:
        try:
            with self.rank_folder.opened(*self.run.place) as at:
                owners = self._owners()
                listed = files.listing(at, self._rule, owners)
                if events is not None and self._follow(events, at, listed):
                    listed = files.listing(at, self._rule, owners)  # what came before the watch
                return listed
        except (FileNotFoundError, NotADirectoryError):
            self.watches.pop("", None)  # the program has removed it, and may make another
            return Listing((), {}, ())

    def _owners(self) -> frozenset[int]:
        """Return who writes here: the rank, which no program changes, and the agent."""
        with self.rank_folder.opened(layout.LIVE) as at:
            return frozenset({os.fstat(at).st_uid, os.geteuid()})

    def _follow(self, events: Events, at: int, listed: Listing) -> bool:
        """Watch the folders of steps as well; return whether some are new."""
        new = False
        for name in self.watches.keys() - {""} - set(listed.folders):
            events.remove(self.watches.pop(name))
        # The program may have put another folder in its place; the same one keeps its number.
        watch = events.add(at)
        if watch is not None and watch != self.watches.get(""):
            self.watches[""] = watch
            new = True
        for name in listed.folders:
            if name in self.watches or len(self.watches) > MAX_WATCHED:
                continue
            try:
                with tree.opened_in(at, name) as folder:
                    watch = events.add(folder)
            except OSError:  # it vanished, or was replaced
                continue
            if watch is not None:
                self.watches[name] = watch
                new = True
        return new

    def _judge(self, found: FoundStep, listed: Listing) -> None:
        if found.state is Wholeness.REFUSED:
            self._refuse(found.step, found.why)
            return
        if found.state is Wholeness.PARTIAL:
            if found.step not in self._said and (why := self.rank_folder.why_full()):
                self._refuse(found.step, why)
            return
        stamp = files.written(listed.stamps, found.files)
        if self._stored.get(found.step) == stamp:
            return
        if found.state is Wholeness.AWAITS:
            self._report_once(found.step, HoldingKind.AWAITS, found.why, found.bytes)
            return
        self._hold(found, listed)

    def _hold(self, found: FoundStep, listed: Listing) -> None:
        """Hold a step; one that changes meanwhile is left to the next scan."""
        stamp = files.written(listed.stamps, found.files)
        if self._stored.get(found.step) == stamp:
            return
        rank_folder = self.rank_folder
        first, was_whole = self._seen.get(found.step, (self._monotonic(), True))
        written_s = None if was_whole else self._monotonic() - first
        name = ""
        try:
            # Before any file is read: reading a sparse one of 1 TB takes hours.
            if why := rank_folder.why_full() or self._why_unread(found) or self._why_named(found):
                self._refuse(found.step, why)
                return
            name = rank_folder.arrive()
            part, about = self._bring(name, found, listed, stamp, written_s)
            rank_folder.install(name, (layout.HELD,), layout.named(part.place.key))
        except ChangedError as error:
            self._give_up(name)
            self._again = True
            _log.info(
                "step changes", folder=rank_folder.folder.name, step=found.step, why=str(error)
            )
            return
        except AgentEndingError:
            self._give_up(name)
            raise
        except (OSError, ValueError) as error:
            if isinstance(error, SlowReadError):  # not again before it is written again
                self._stored[found.step] = stamp
            self._give_up(name)
            full = isinstance(error, OSError) and is_full(error)
            why = "the folder is full" if full else "it cannot be held"
            self._refuse(found.step, f"{why}: {error}")
            return
        self._stored[found.step] = stamp
        self._said.pop(found.step, None)
        self._ledger.held(part, about)

    def _bring(
        self, name: str, found: FoundStep, listed: Listing, stamp: str, written_s: float | None
    ) -> tuple[HeldPart, About]:
        """Bring a step's files into ``arriving`` and compare that nothing changed meanwhile."""
        rank_folder = self.rank_folder
        with (
            rank_folder.opened(*self.run.place) as live,
            rank_folder.opened(layout.ARRIVING, name) as at,
            tree.opened_in(at, parts.FILES) as target,
        ):
            sizes = {path: listed.stamps[path].size for path in found.files}
            stopped = self._patience(found.bytes)
            if self._rule.overwrites:
                newest = max(listed.stamps[path].modified_ns for path in found.files)
                if self._clock() - newest / 1e9 < SETTLED_S:
                    raise ChangedError("it has just been written")
                files.copy(live, sizes, target, stopped)
            else:
                files.link(live, found.files, target)
            sums = files.sums(target, sizes, stopped, durable=rank_folder.durable)
            if not self._is_still(found, stamp, live):
                raise ChangedError("it was written meanwhile")
            if {p: s.bytes for p, s in sums.items()} != sizes:
                raise ChangedError("its files were replaced meanwhile")
            manifest = self._manifest(found.step, sums)
            about = About(stamp=stamp, written_s=written_s, seen_at=self._clock())
            parts.write(at, manifest, about, durable=rank_folder.durable)
        place = self._place(found.step)
        return rank_folder.part(place, parts.StoredPart(manifest, about)), about

    def _is_still(self, found: FoundStep, stamp: str, live: int) -> bool:
        """Return whether a step is as it was listed; the second list ends with this call."""
        again = files.listing(live, self._rule, self._owners())
        found_again = find_steps(self._rule, again.entries).steps
        same = [one for one in found_again if one.step == found.step]
        return same == [found] and files.written(again.stamps, found.files) == stamp

    def _why_unread(self, found: FoundStep) -> str:
        """Return why reading a step would take longer than writing it did."""
        with self.rank_folder.opened(*self.run.place) as live:
            if why := space.too_long(self.rank_folder.folder, found.bytes, space.total(live)):
                return why
            return space.too_hollow(found.bytes, files.stored(live, found.files))

    def _why_named(self, found: FoundStep) -> str:
        """Return why the names of a step's files need too much of the agent's memory."""
        held = self._ledger.names_bytes(self.rank_folder.folder.name, self.rank_folder.endpoint)
        more = sum(len(path.encode()) for path in found.files)
        if held + more <= MAX_HELD_NAMES:
            return ""
        return (
            f"the names of its files have {more} bytes and those of the steps held before {held},"
            f" {MAX_HELD_NAMES} together are held; write fewer files or shorter names"
        )

    def _patience(self, length: int) -> Callable[[], bool]:
        """Return the check whether reading so many bytes must stop; it raises SlowReadError.

        At most half of them are holes that could be dug after :meth:`_why_unread`.
        """
        limit_s = LEAST_S + length / SLOWEST
        end = self._monotonic() + limit_s

        def stopped() -> bool:
            if self._monotonic() > end:
                raise SlowReadError(f"its files are not read within {limit_s:.0f} s")
            return self.over or self.rank_folder.stopped()

        return stopped

    def _manifest(self, step: int, sums: Mapping[str, Sum]) -> Manifest:
        run = self.run
        return Manifest(
            job=self.rank_folder.folder.name,
            epoch=run.epoch,
            step=step,
            rank=run.rank,
            ranks=run.ranks,
            rule=run.rule,
            files=FileSums(sums),
        )

    def _place(self, step: int) -> PartPlace:
        rank_folder, run = self.rank_folder, self.run
        key = Key(step, run.epoch)
        return PartPlace(
            rank_folder.folder.name, rank_folder.endpoint, HoldingKind.OWN, run.rank, key
        )

    def _give_up(self, name: str) -> None:
        if name:
            try:
                self.rank_folder.give_up(name)
            except OSError as error:
                _log.warning("not removed", folder=self.rank_folder.folder.name, reason=str(error))

    def _refuse(self, step: int, why: str) -> None:
        self._report_once(step, HoldingKind.REFUSED, why, 0)

    def _report_once(self, step: int, kind: HoldingKind, why: str, size: int) -> None:
        """Report a step that is not stored, once; a stored part takes precedence."""
        text = f"{kind}: {why[:MAX_WHY]}"
        place = self._place(step)
        if self._said.get(step) == text or self._ledger.holds(place):
            return
        self._said[step] = text
        self._report(place, kind, why, size)

    def _report(self, place: PartPlace, kind: HoldingKind, why: str, size: int) -> None:
        self._ledger.report(
            Holding(
                folder=place.folder,
                key=place.key,
                rank=place.rank,
                endpoint=place.endpoint,
                kind=kind,
                bytes=size,
                why=why[:MAX_WHY],
                seen_at=self._clock(),
            )
        )

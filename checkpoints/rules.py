"""Which steps in a rank's folder are whole, by the way its program writes. Pure.

Sources of the layouts (``tests/unit/checkpoints/listings.py`` has listings):

* ``dcp``: PyTorch's ``FileSystemWriter``. Each rank writes ``__RANK_N.distcp``; the coordinator
  alone writes ``.metadata.tmp``, calls fsync and renames it to ``.metadata`` after all ranks.
* ``orbax``: ``NAME.orbax-checkpoint-tmp`` is renamed to ``NAME``, which ends in the step.
  ``commit_success.txt`` and the commit time in ``_CHECKPOINT_METADATA`` are written last.
* ``keras``: ``BackupAndRestore`` overwrites ``latest.weights.h5`` in place, then
  ``training_metadata.json``. Its step is epoch x 10^9 + batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from checkpoints.values import MAX_STEP, path_fault

MAX_ENTRIES = 16_384
"""Entries of one rank's folder; with more, no step of it is trusted."""
MAX_FOUND = 256
"""Steps reported of one folder: the newest."""
MAX_IGNORED = 16
MAX_SHOWN = 4
"""Names that a message shows, with ``MAX_NAME`` characters each."""
MAX_NAME = 48
MAX_HEAD = 65_536
"""Bytes of a small file that a rule reads."""
BATCHES = 10**9
"""Batches in an epoch of ``keras``, at most; epoch x this + batch is the step."""

METADATA, METADATA_TMP = ".metadata", ".metadata.tmp"
COMMITTED, ORBAX_STEP = "commit_success.txt", "_CHECKPOINT_METADATA"
WEIGHTS, TRAINED = "latest.weights.h5", "training_metadata.json"


class EntryKind(StrEnum):
    """What an entry of a folder is, without following it."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"
    FOREIGN = "foreign"
    """Owned by another user than the folder: a second name of what the rank did not write."""


@dataclass(slots=True, frozen=True)
class FolderEntry:
    """One entry below a rank's folder, from ``lstat``."""

    path: str
    """Relative to the rank's folder, with ``/``."""
    kind: EntryKind = EntryKind.FILE
    size: int = 0
    """Bytes."""
    modified_ns: int = 0
    """Compared between two files of one folder only; steps are never ordered by it."""
    head: bytes = b""
    """Its content, when ``CheckpointRule.reads`` names it and it has at most ``MAX_HEAD`` bytes."""


class Wholeness(StrEnum):
    """What is known of one step in one rank's folder."""

    WHOLE = "whole"
    AWAITS = "awaits"
    """This rank's files; whole when the coordinator's folder has the metadata."""
    PARTIAL = "partial"
    REFUSED = "refused"
    """It holds what cannot be copied or trusted: links, devices, hostile names."""


@dataclass(slots=True, frozen=True)
class FoundStep:
    """One step in a rank's folder."""

    step: int
    state: Wholeness
    name: str
    """Its file or folder; empty when the rank's folder itself is the checkpoint (``keras``)."""
    files: tuple[str, ...] = ()
    """Sorted, relative to the rank's folder."""
    bytes: int = 0
    why: str = ""
    """Why it is not whole."""


@dataclass(slots=True, frozen=True)
class Listed:
    """What a folder holds. ``steps`` has the newest first."""

    steps: tuple[FoundStep, ...] = ()
    ignored: tuple[str, ...] = ()
    """Some names that are not steps."""
    overfull: bool = False
    """There were more than ``MAX_ENTRIES`` entries."""


class WriterKind(StrEnum):
    """How a program writes."""

    RENAME = "rename"
    DCP = "dcp"
    ORBAX = "orbax"
    KERAS = "keras"
    MARKER = "marker"


@dataclass(slots=True, frozen=True)
class CheckpointRule:
    """What is whole. ``marker`` names the file of ``marker: FILE``."""

    writer: WriterKind = WriterKind.RENAME
    marker: str = ""

    @property
    def reads(self) -> frozenset[str]:
        """Names of files whose content the rule needs."""
        return {
            WriterKind.ORBAX: frozenset({ORBAX_STEP}),
            WriterKind.KERAS: frozenset({TRAINED}),
        }.get(self.writer, frozenset())

    @property
    def gathers(self) -> bool:
        """Whether a rank may read any rank's files when it loads (tensors kept once, resharded)."""
        return self.writer is WriterKind.DCP

    @property
    def overwrites(self) -> bool:
        """Whether the program overwrites its files in place, so that only a copy is safe."""
        return self.writer is WriterKind.KERAS

    @property
    def naming(self) -> str:
        """What a step is called, for people whose program calls it otherwise."""
        return {
            WriterKind.RENAME: "step-N or step-N.EXT",
            WriterKind.KERAS: f"{WEIGHTS} with {TRAINED}",
        }.get(self.writer, "a folder whose name ends in the step")


def parse_rule(text: str) -> CheckpointRule:
    """Read ``rename``, ``dcp``, ``orbax``, ``keras`` or ``marker: FILE``. Raises ValueError."""
    name, colon, marker = text.partition(":")
    name, marker = name.strip(), marker.strip()
    if name == WriterKind.MARKER:
        fault = path_fault(marker) or ("it is a path" if "/" in marker else "")
        if fault or len(marker) > 64:
            raise ValueError(
                f"the marker {marker!r:.80} must be the name of a file: {fault or 'too long'}"
            )
        return CheckpointRule(WriterKind.MARKER, marker)
    try:
        writer = WriterKind(name)
    except ValueError:
        raise ValueError(
            f"unknown rule {name!r:.80}; write rename, dcp, orbax, keras or marker: FILE"
        ) from None
    if colon:
        raise ValueError(f"the rule {name} has no file; only marker: FILE has one")
    return CheckpointRule(writer)


@dataclass(slots=True)
class _Pile:
    """Everything below one top name."""

    kind: EntryKind | None = None
    faults: list[str] = field(default_factory=list)
    files: dict[str, FolderEntry] = field(default_factory=dict)


def find_steps(rule: CheckpointRule, entries: Iterable[FolderEntry]) -> Listed:
    """Return the steps that a rank's folder holds, from a listing of everything below it.

    Never raises for any listing. Entries beyond ``MAX_ENTRIES`` are not consumed but for one;
    then every step is refused, because the rest of the listing is unknown. A full listing takes a
    good part of a second: not for an event loop.
    """
    taken = list(islice(entries, MAX_ENTRIES + 1))
    overfull = len(taken) > MAX_ENTRIES
    piles, ignored = _piles(taken[:MAX_ENTRIES])
    if rule.writer is WriterKind.KERAS:
        found = _keras(piles)
        ignored += [name for name in piles if not found or name not in {WEIGHTS, TRAINED}]
    else:
        found = []
        for name, pile in piles.items():
            step, temporary = _step_of(rule, name)
            if step is None:
                ignored.append(name)
                continue
            found.append(_judge(rule, step, temporary, name, pile))
    found = _refuse_doubles(found)
    if overfull:
        why = f"the folder has more than {MAX_ENTRIES} entries"
        found = [FoundStep(f.step, Wholeness.REFUSED, f.name, why=why) for f in found]
    found.sort(key=lambda f: (-f.step, f.name))
    return Listed(tuple(found[:MAX_FOUND]), tuple(sorted(ignored)[:MAX_IGNORED]), overfull)


def names_text(names: Iterable[str]) -> str:
    """Write the first of a folder's names for a message, escaped and bounded."""
    some = list(islice(names, MAX_SHOWN + 1))
    written = [ascii(name[: MAX_NAME + 1]) for name in some[:MAX_SHOWN]]
    shown = [one if len(one) <= MAX_NAME + 2 else f"{one[:MAX_NAME]}..." for one in written]
    return ", ".join(shown) + (" and others" if len(some) > MAX_SHOWN else "")


def _piles(entries: list[FolderEntry]) -> tuple[dict[str, _Pile], list[str]]:
    piles: dict[str, _Pile] = {}
    ignored: list[str] = []
    for entry in entries:
        top = entry.path.split("/", 1)[0]
        if path_fault(top):
            ignored.append(top)
            continue
        pile = piles.setdefault(top, _Pile())
        fault = path_fault(entry.path) if entry.path != top else ""
        if fault:
            pile.faults.append(f"{entry.path[:64]!a}: {fault}")
        elif entry.kind in {EntryKind.LINK, EntryKind.OTHER}:
            pile.faults.append(f"{entry.path[:64]} is neither a file nor a folder")
        elif entry.kind is EntryKind.FOREIGN:
            pile.faults.append(f"{entry.path[:64]} belongs to another user")
        elif entry.path in pile.files or entry.size < 0:
            pile.faults.append(f"{entry.path[:64]} is listed twice or without a size")
        elif entry.kind is EntryKind.FILE:
            pile.files[entry.path] = entry
        if entry.path == top:
            pile.kind = entry.kind
    return piles, ignored


_RENAMED = re.compile(
    r"step-(?P<step>[0-9]{1,19})(?:\.(?!tmp$)[A-Za-z0-9]{1,16})?(?P<after>\.tmp)?"
)
_ENDING = r"(?:.*[^0-9])?(?<![0-9]\.)(?P<step>[0-9]{1,19})"
"""The step that a name ends in, with or without a separator; not a decimal fraction."""
_NUMBERED = re.compile(rf"(?P<before>tmp[-_.])?{_ENDING}(?:\.ckpt)?(?P<after>\.tmp)?", re.DOTALL)
_ORBAX = re.compile(
    r"(?:.+_)?(?P<step>[0-9]{1,19})"
    r"(?P<after>\.(?:[a-z_]+\.)?orbax-checkpoint-tmp(?:-[0-9]{1,32})?)?",
    re.DOTALL,
)


def _step_of(rule: CheckpointRule, name: str) -> tuple[int | None, bool]:
    """Return the step that a name means, None without one, and whether it is unfinished."""
    pattern = {WriterKind.RENAME: _RENAMED, WriterKind.ORBAX: _ORBAX}.get(rule.writer, _NUMBERED)
    match = pattern.fullmatch(name)
    if match is None or int(match["step"]) > MAX_STEP:
        return None, False
    groups = match.groupdict()
    return int(match["step"]), bool(groups.get("before") or groups["after"])


def _judge(rule: CheckpointRule, step: int, temporary: bool, name: str, pile: _Pile) -> FoundStep:
    files = tuple(sorted(pile.files))
    size = sum(entry.size for entry in pile.files.values())
    state, why = Wholeness.WHOLE, ""
    if pile.faults:
        state, why = Wholeness.REFUSED, pile.faults[0]
    elif temporary:
        state, why = Wholeness.PARTIAL, "by its name it is being written"
    elif size == 0:
        state, why = Wholeness.PARTIAL, "it is empty"
    elif rule.writer is not WriterKind.RENAME:
        if pile.kind is EntryKind.FILE:
            state, why = Wholeness.PARTIAL, "it is a file; this rule needs a folder"
        else:
            state, why = _in_folder(rule, name, pile)
    return FoundStep(step, state, name, files, size, why)


def _in_folder(rule: CheckpointRule, name: str, pile: _Pile) -> tuple[Wholeness, str]:
    has = pile.files.__contains__
    if rule.writer is WriterKind.MARKER:
        if has(f"{name}/{rule.marker}"):
            return Wholeness.WHOLE, ""
        return Wholeness.PARTIAL, f"{rule.marker} is missing"
    if rule.writer is WriterKind.ORBAX:
        if has(f"{name}/{COMMITTED}") or _commit_time(pile.files.get(f"{name}/{ORBAX_STEP}")):
            return Wholeness.WHOLE, ""
        return Wholeness.PARTIAL, f"neither {COMMITTED} nor a commit time is there"
    return _dcp(name, pile)


def _dcp(name: str, pile: _Pile) -> tuple[Wholeness, str]:
    if f"{name}/{METADATA_TMP}" in pile.files:
        return Wholeness.PARTIAL, f"{METADATA_TMP} is being written"
    metadata = pile.files.get(f"{name}/{METADATA}")
    if metadata is not None and metadata.size > 0:
        return Wholeness.WHOLE, ""
    if any(path.endswith(".distcp") for path in pile.files):
        return Wholeness.AWAITS, "the coordinator's .metadata closes it"
    return Wholeness.PARTIAL, f"{METADATA} is missing"


def _commit_time(entry: FolderEntry | None) -> bool:
    document = _document(entry)
    time = document.get("commit_timestamp_nsecs")
    return isinstance(time, int) and not isinstance(time, bool) and time > 0


def _document(entry: FolderEntry | None) -> dict[str, object]:
    if entry is None or len(entry.head) > MAX_HEAD:
        return {}
    try:
        document = json.loads(entry.head)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _keras(piles: dict[str, _Pile]) -> list[FoundStep]:
    weights, trained = (
        piles[name].files.get(name) if name in piles else None for name in (WEIGHTS, TRAINED)
    )
    document = _document(trained)
    epoch = _count(document.get("epoch"), MAX_STEP // BATCHES - 1)
    batch = _count(document.get("batch", 0), BATCHES - 1)
    if epoch is None or batch is None:
        return []
    step = epoch * BATCHES + batch
    faults = [fault for name in (WEIGHTS, TRAINED) if name in piles for fault in piles[name].faults]
    if faults:
        return [FoundStep(step, Wholeness.REFUSED, "", why=faults[0])]
    if weights is None or weights.size == 0 or trained is None:
        return [FoundStep(step, Wholeness.PARTIAL, "", why=f"{WEIGHTS} is missing or empty")]
    files, size = (WEIGHTS, TRAINED), weights.size + trained.size
    if weights.modified_ns > trained.modified_ns:
        why = f"{WEIGHTS} is newer than {TRAINED}: it is being overwritten"
        return [FoundStep(step, Wholeness.PARTIAL, "", files, size, why)]
    return [FoundStep(step, Wholeness.WHOLE, "", files, size)]


def _count(value: object, most: int) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        return None
    return value


def _refuse_doubles(found: list[FoundStep]) -> list[FoundStep]:
    """Refuse steps that two finished names claim; drop unfinished names beside a finished one."""
    finished: dict[int, int] = {}
    for one in found:
        if one.state is not Wholeness.PARTIAL:
            finished[one.step] = finished.get(one.step, 0) + 1
    kept: list[FoundStep] = []
    for one in found:
        claims = finished.get(one.step, 0)
        if one.state is Wholeness.PARTIAL and claims:
            continue
        if claims > 1:
            why = f"{claims} names claim step {one.step}"
            one = FoundStep(one.step, Wholeness.REFUSED, one.name, why=why)  # noqa: PLW2901
        kept.append(one)
    return kept

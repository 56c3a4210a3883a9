"""Warnings to the owner of a job: no checkpoints are written, or none are safe. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checkpoints.ledger import Key
from checkpoints.ledger import State as Safety
from checkpoints.rules import parse_rule
from checkpoints.values import Scheme
from controller.checkpoints.book import CheckpointBook, newest_of
from controller.state.kept.checkpoints import CheckpointRun
from controller.state.records import CheckpointSpec

QUIET_S = 1800.0
"""Time without a checkpoint, or without a safe one, that is too long while none was timed."""
QUIET_INTERVALS = 3
"""The same in intervals between the job's checkpoints, by their median."""
LEAST_QUIET_S = 60.0
"""The same at least: a program may write every second, and a copy or a pause may last longer."""


def warnings(
    book: CheckpointBook,
    run: CheckpointRun,
    spec: CheckpointSpec,
    safety: Mapping[Key, Safety],
    now: float,
) -> Iterator[tuple[str, str]]:
    """Yield reason and text of what has begun to be wrong; each once, until it is right again."""
    interval_s = book.interval_s
    limit_s = QUIET_S if interval_s is None else max(QUIET_INTERVALS * interval_s, LEAST_QUIET_S)
    wrote_at = book.last_written(run.epoch)
    quiet_s = now - max(wrote_at or 0.0, run.began_at)
    allowed_s = limit_s
    if wrote_at is None:  # it imports its framework and loads first: as long as earlier runs did
        warm_up_s = book.warm_up_s
        allowed_s = max(limit_s, QUIET_S) if warm_up_s is None else limit_s + warm_up_s
    text = f"it has written no checkpoint for {quiet_s:.0f} s"
    if interval_s is not None:
        text += f"; before, it wrote one every {interval_s:.0f} s"
    elif remarks := book.remarks():
        text += f"; {remarks[-1]}"
    unnamed_s = now - (now if (since := book.unnamed_since(run.epoch)) is None else since)
    if _news(book, "NotAStep", wrote_at is None and unnamed_s > LEAST_QUIET_S):
        naming = parse_rule(spec.complete).naming
        yield (
            "NotAStep",
            (
                f"what it writes is not a step by rule {spec.complete}: {book.remarks()[0]};"
                f" call a step {naming}, or choose another rule"
            ),
        )
    if _news(book, "NoCheckpoint", quiet_s > allowed_s):
        yield "NoCheckpoint", text
    bare_s, step = _unprotected(book, safety, now)
    copies = spec.copies.scheme is not Scheme.SINGLE and not book.unprotected_why
    if _news(book, "CheckpointsUnprotected", copies and bare_s > limit_s):
        yield "CheckpointsUnprotected", f"step {step} has no copy elsewhere after {bare_s:.0f} s"


def _unprotected(
    book: CheckpointBook, safety: Mapping[Key, Safety], now: float
) -> tuple[float, int]:
    """Return for how long the newest written step has been without a copy, and the step."""
    newest = newest_of(safety)
    if newest is None or safety[newest] is not Safety.WRITTEN or newest not in book.extras:
        return 0.0, 0
    since = book.extras[newest].marks.written
    return (0.0 if since is None else now - since), newest.step


def _news(book: CheckpointBook, reason: str, holds: bool) -> bool:
    new = holds and reason not in book.told
    (book.told.add if holds else book.told.discard)(reason)
    return new

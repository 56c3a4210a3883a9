"""A job's checkpoints as documents. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from agentlink.checkpoints import Verified
from checkpoints.ledger import Key, Ledger, StepRecord, dropped, is_complete, state, ways
from checkpoints.restore import Restore
from checkpoints.rules import parse_rule
from checkpoints.schemes import chunk_bytes
from checkpoints.values import Places
from controller.checkpoints.book import StepFigures
from controller.schema.checkpoints import (
    CheckpointsView,
    CheckpointView,
    DamageView,
    PartView,
    VerificationView,
)
from controller.state.records import CheckpointSpec

MOST_DAMAGES = 1000
"""Damaged parts that one document names."""


@dataclass(slots=True, frozen=True)
class CheckpointFacts:
    """What the documents are made from."""

    ledger: Ledger
    places: Places
    extras: Mapping[Key, StepFigures]
    endpoints: Mapping[int, tuple[str, ...]]
    """Of each run, in rank order, by epoch."""
    answering: frozenset[str]
    """Servers that answer."""
    store_up: bool


def checkpoints_view(
    job: str,
    spec: CheckpointSpec,
    known: CheckpointFacts,
    restore: Restore,
    *,
    caught_up: bool,
    silent: Iterable[str],
    unprotected_why: str,
    ignored: Iterable[str],
) -> CheckpointsView:
    """Return a job's steps that something is left of, the newest first."""
    steps = known.ledger.steps
    left = [key for key, record in steps.items() if _is_left(record)]
    return CheckpointsView(
        job=job,
        rule=spec.complete,
        scheme=spec.copies.scheme,
        space_bytes=spec.local.size_bytes,
        known=caught_up,
        silent=sorted(silent),
        restore_step=None if restore.key is None else restore.key.step,
        restore_why=restore.why,
        unprotected_why=unprotected_why,
        steps=[_step(key, known) for key in sorted(left, reverse=True)],
        ignored=list(ignored),
        naming=parse_rule(spec.complete).naming,
    )


def _is_left(record: StepRecord) -> bool:
    return any(part.holders or part.stored for part in record.parts.values()) or any(
        parity.holders for parity in record.parities.values()
    )


def _step(key: Key, known: CheckpointFacts) -> CheckpointView:
    record, run = known.ledger.steps[key], known.ledger.runs[key.epoch]
    extra = known.extras.get(key, StepFigures())
    found, why = ways(known.ledger, key, known.answering, known.places, known.store_up)
    taken = sorted(extra.written_s.values())
    return CheckpointView(
        step=key.step,
        epoch=key.epoch,
        state=state(known.ledger, key, known.places),
        complete=not dropped(known.ledger, key) and is_complete(known.ledger, key, known.places),
        restorable=bool(found),
        why=why,
        scheme=run.layout.scheme,
        bytes=sum(part.bytes for part in record.parts.values()),
        written_at=extra.marks.written,
        protected_at=extra.marks.protected,
        persistent_at=extra.marks.persistent,
        written_s_median=median(taken) if taken else None,
        written_s_max=taken[-1] if taken else None,
        parts=[
            _part(rank, record, extra, known.endpoints.get(key.epoch, ()))
            for rank in range(run.ranks)
            if rank in record.parts or not run.identical
        ],
    )


def _part(rank: int, record: StepRecord, extra: StepFigures, ran: tuple[str, ...]) -> PartView:
    part = record.parts.get(rank)
    parity_by = sorted(
        holder
        for parity in record.parities.values()
        if any(member.rank == rank for member in parity.covers)
        for holder in parity.holders
    )
    read = {at: damages for (of, at), damages in extra.damages.items() if of == rank}
    damaged = sorted(f"{at}: {damages[0]}" for at, damages in read.items() if damages)
    why = "; ".join(damaged[:4])
    if part is None:
        why = "it was not written whole"
    elif not part.holders and not part.stored and not why:
        why = "no server has it"
    return PartView(
        rank=rank,
        endpoint=ran[rank] if rank < len(ran) else "",
        bytes=0 if part is None else part.bytes,
        held_by=[] if part is None else sorted(part.holders),
        parity_by=parity_by,
        stored=part is not None and part.stored,
        crc_ok=not damaged if read else None,
        why=why,
    )


def verification_view(
    job: str, ledger: Ledger, verified: Collection[Verified], silent: Iterable[str]
) -> VerificationView:
    """Return what a verification found, the damaged parts first named by step and rank."""
    damaged = sorted(
        (one for one in verified if one.damages), key=lambda one: (one.key, one.rank, one.endpoint)
    )
    return VerificationView(
        job=job,
        parts=len(verified),
        bytes=sum(_bytes(ledger, one) for one in verified),
        damaged=[
            DamageView(
                step=one.key.step,
                epoch=one.key.epoch,
                rank=one.rank,
                endpoint=one.endpoint,
                kind=one.kind,
                damages=list(one.damages),
            )
            for one in damaged[:MOST_DAMAGES]
        ],
        silent=sorted(silent),
    )


def _bytes(ledger: Ledger, one: Verified) -> int:
    record = ledger.steps.get(one.key)
    if record is None:
        return 0
    if one.kind == "parity":
        parity = record.parities.get(one.rank)
        covers = () if parity is None else parity.covers
        return chunk_bytes(max(m.bytes for m in covers), len(covers)) if covers else 0
    part = record.parts.get(one.rank)
    return 0 if part is None else part.bytes

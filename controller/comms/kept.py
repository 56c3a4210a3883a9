"""What stays of a job that has ended: one document and its facts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from controller.comms.ledger import JobComms
from controller.comms.views import view_of
from controller.schema.insight.comms import CommsRowView, CommsView
from controller.state.kept.comms import CommsRecord
from controller.state.records import JobRecord

MOST_BYTES = 256 * 1024
"""Of a document; rows of ranks beyond it are left out first, those that took the least."""


def record_of(job: JobRecord, known: JobComms, now: float) -> CommsRecord | None:
    """Return the record of a job that has ended; None if nothing is known of its calls."""
    if known.epoch != job.epoch:
        return None
    view = view_of(job, known, None, None, now)
    if not view.rows and known.facts is None:
        return None
    fixed = [rank.model_copy(update={"age_s": None}) for rank in view.ranks]
    return CommsRecord(
        job=job.name,
        submitted_at=job.submitted_at,
        kept_at=now,
        ranks=len(known.ranks),
        calls=sum(row.calls for row in view.rows),
        body=_text(view.model_copy(update={"ranks": fixed})),
        facts=known.facts,
    )


def kept_view(record: CommsRecord, rank: int | None, *, since: bool) -> CommsView | None:
    """Return a record's document, with ``rank`` that of one rank; ``since`` was asked for.

    None for a document that this version of the program cannot read.
    """
    try:
        view = CommsView.model_validate_json(record.body)
    except ValueError:
        return None
    changes: dict[str, object] = {}
    if rank is not None:
        changes["rows"] = [row for row in view.rank_rows if row.rank == rank]
        changes["overlap"] = next((one for one in view.overlap_ranks if one.rank == rank), None)
    if since:
        changes["notes"] = [*view.notes, "the job has ended: these figures are of its whole run"]
    return view.model_copy(update=changes)


def _text(view: CommsView) -> str:
    """Return a document as JSON, with as many rows as fit."""
    text = view.model_dump_json()
    if len(text) <= MOST_BYTES:
        return text
    ranks = _fitting(view.rank_rows, MOST_BYTES // 2)
    rows = _fitting(view.rows, MOST_BYTES // 4)
    left_out = len(view.rank_rows) - len(ranks) + len(view.rows) - len(rows)
    return view.model_copy(
        update={
            "rank_rows": ranks,
            "rows": rows,
            "ranks": view.ranks[: MOST_BYTES // 4 // 500],
            "notes": [*view.notes, f"{left_out} rows of short calls were not kept"],
        }
    ).model_dump_json()


def _fitting(rows: Sequence[CommsRowView], most: int) -> list[CommsRowView]:
    kept, size = [], 0
    for row in rows:
        size += len(row.model_dump_json()) + 1
        if size > most:
            break
        kept.append(row)
    return kept

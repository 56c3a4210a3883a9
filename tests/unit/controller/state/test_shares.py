"""What projects share: nobody displaces another one's."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.state.kept import predictions, recoveries
from controller.state.kept.predictions import PREDICTIONS, PredictionRecord, Predictions
from controller.state.kept.recoveries import Recoveries, RecoveryRecord
from controller.state.kinds.shares import one, surplus

ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=40)


@given(ITEMS, st.integers(0, 20), st.integers(0, 60))
def test_what_stays_keeps_every_limit_and_is_shared(
    items: list[tuple[str, int]], most: int, most_bytes: int
) -> None:
    numbered = [(owner, size, at) for at, (owner, size) in enumerate(items)]
    gone = surplus(numbered, lambda item: item[0], (most, one), (most_bytes, lambda item: item[1]))
    stays = [item for item in numbered if item not in gone]
    assert len(stays) <= most
    assert sum(size for _, size, _ in stays) <= most_bytes
    if sum(size for _, size, _ in numbered) <= most_bytes:
        assert len(gone) == max(0, len(numbered) - most), "no more goes than must"
        left, had = Counter(o for o, *_ in stays), Counter(o for o, *_ in numbered)
        most_left = max(left.values(), default=0)
        for owner in had:
            if left[owner] < had[owner]:
                assert left[owner] >= most_left - 1, "only of those who have most"
    for owner, _, at in gone:
        assert all(at < other for who, _, other in stays if who == owner), "the oldest goes"


def test_one_projects_predictions_displace_no_other_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "KEPT_PREDICTIONS", 10)
    kept = Predictions(PREDICTIONS)

    def made(project: str) -> PredictionRecord:
        return PredictionRecord(
            id=kept.next_key(),
            job="red",
            submitted_at=1.0,
            project=project,
            cause="whatif",
            made_at=1.0,
            homes={},
            low_s=1.0,
            high_s=1.0,
        )

    theirs = [kept.put(made("quiet")).id for _ in range(3)]
    for _ in range(30):
        kept.put(made("loud"))
        kept.trim()
    assert len(kept) == 10
    assert set(theirs) <= kept.keys()


def test_one_projects_recoveries_displace_no_other_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "KEPT_RECOVERIES", 10)
    kept = Recoveries()

    def made(job: str, **fields: object) -> RecoveryRecord:
        record = RecoveryRecord(
            id=kept.next_key(),
            job=job,
            submitted_at=1.0,
            number=1,
            epoch=1,
            cause="program",
            objects=(),
            stage="over",
            failed_at=1.0,
            **fields,  # type: ignore[arg-type]
        )
        return kept.put(record)

    theirs = [made("quiet-job").id for _ in range(3)]
    for number in range(30):
        made(f"loud-{number}")
        for gone in kept.surplus(lambda job: job.partition("-")[0]):
            kept.remove(gone.id)
    assert len(kept) == 10
    assert set(theirs) <= kept.keys()

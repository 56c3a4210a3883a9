from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.kinds import SettingsError
from measure.storage.fio import figures, imported, parts

GOLDEN = (Path(__file__).parent / "fio-3.33.json").read_text(encoding="utf-8")
"""As fio 3.33 wrote it, with two jobs: four threads that read and write, one that reads."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["jobs", "read", "clat_ns", "percentile", "error"]), inner
        )
    ),
    max_leaves=12,
)


def test_a_file_of_fios_becomes_a_row_per_job_and_direction() -> None:
    body = imported(GOLDEN)
    assert body.tool.version == "3.33"
    assert not body.invalid_because
    assert [(r["job"], r["direction"], r["workers"], r["io_bytes"]) for r in body.rows] == [
        ("mixed", "read", 4, 16384),
        ("mixed", "write", 4, 16384),
        ("reads", "read", 1, 2**20),
    ]
    first = body.rows[0]
    assert first["bytes_per_s"] == 161227269
    assert first["iops"] == pytest.approx(9840.531561)
    assert first["latency_s"]["p99"] == pytest.approx(995328e-9)
    assert first["spread"]["bytes_per_s"]["n"] == 1
    assert first["rw"] == "randrw"
    assert first["cached_share"] is None, "fio does not know it"
    assert body.rows[2]["iodepth"] == 2


def test_messages_before_the_document_do_not_matter() -> None:
    assert imported("fio: this platform says something\n" + GOLDEN).rows == imported(GOLDEN).rows


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"fio version": "fio-3"}', "[" * 5000])
def test_what_fio_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="no JSON of fio"):
        imported(text)


def test_a_job_that_failed_is_a_row_of_nulls() -> None:
    document = json.loads(GOLDEN)
    document["jobs"][1]["error"] = 5
    row = imported(json.dumps(document)).rows[-1]
    assert row["bytes_per_s"] is None
    assert row["reason"] == "fio: error 5"


@given(JSON, st.sampled_from(["read", "write"]))
def test_nothing_that_a_job_writes_breaks_the_reader(document: Any, direction: str) -> None:
    for part in parts(document, direction):
        assert part.io_bytes >= 0
        assert part.bytes_per_s >= 0


def test_repetitions_give_a_median_and_its_interval() -> None:
    job = json.loads(GOLDEN)["jobs"][1]
    jobs = [
        {**job, "read": {**job["read"], "bw_bytes": rate}} for rate in (100, 300, 200, 500, 400)
    ]
    found = figures(parts({"jobs": jobs}, "read"))
    assert found["bytes_per_s"] == 300
    assert found["spread"]["bytes_per_s"]["n"] == 5
    low, high = found["spread"]["bytes_per_s"]["ci"]
    assert low <= 300 <= high
    assert figures([]) == {}

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


def changed(**job: Any) -> str:
    """Return the file of fio with its second job changed."""
    document = json.loads(GOLDEN)
    document["jobs"][1] |= job
    return json.dumps(document)


@pytest.mark.parametrize("option", ["64KiB", "1", "4k-64k", "", "1MiB"])
def test_the_size_of_a_request_is_what_fio_counted(option: str) -> None:
    job = json.loads(GOLDEN)["jobs"][1]
    counted = {**job["read"], "io_bytes": 64_000 * 256}
    options = {**job["job options"], "bs": option}
    row = imported(changed(**{"read": counted, "job options": options})).rows[-1]
    assert row["io_bytes"] == 64_000
    several = {**counted, "io_bytes": 64_000 * 256 - 1}
    row = imported(changed(**{"read": several, "job options": options})).rows[-1]
    assert row["io_bytes"] is None, "the requests had several sizes"


def test_the_threads_of_a_job_are_one_row() -> None:
    """As without group_reporting: an entry for each of them."""
    document = json.loads(GOLDEN)
    job = document["jobs"][1]
    job["job options"]["numjobs"] = "3"
    rates = (100, 300, 200)
    document["jobs"][1:] = [
        {**job, "read": {**job["read"], "bw_bytes": rate, "iops": rate / 10}} for rate in rates
    ]
    row = imported(json.dumps(document)).rows[-1]
    assert len(imported(json.dumps(document)).rows) == 3
    assert (row["workers"], row["bytes_per_s"], row["iops"]) == (3, 600, 60)
    assert row["io_bytes"] == 2**20
    assert row["latency_s"]["mean"] == pytest.approx(job["read"]["lat_ns"]["mean"] / 1e9)
    assert row["latency_s"]["p99"] is None, "percentiles have no sum"
    document["jobs"][2]["error"] = 5
    row = imported(json.dumps(document)).rows[-1]
    assert (row["bytes_per_s"], row["reason"]) == (None, "fio: error 5")


def test_the_last_of_several_documents_counts() -> None:
    """As with --status-interval, and with --output-format=json,normal."""
    job = json.loads(GOLDEN)["jobs"][1]
    earlier = changed(read={**job["read"], "bw_bytes": 1})
    assert imported(earlier + "\n" + GOLDEN).rows == imported(GOLDEN).rows
    normal = "\nmixed: (groupid=0, jobs=4): err= 0: pid=1\n  read: IOPS=9840\n"
    assert imported(GOLDEN + normal).rows == imported(GOLDEN).rows


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("3;fio-3.33;reads;1;0;262144;868026;847", "the terse form"),
        ("reads;0;0;262144;868026;847;302", "the terse form"),
        ("reads: (g=0): rw=read, bs=(R) 1024KiB-1024KiB\nfio-3.33\n", "the normal form"),
        ("reads: (groupid=0, jobs=1): err= 0: pid=7\n  read: IOPS=847\n", "the normal form"),
        (GOLDEN.replace("fio-3.33", "fio-2.2.10"), "fio-2.2.10"),
        (GOLDEN.replace("fio-3.33", "fio-2.99"), "fio-2.99"),
        ('{"fio version": "fio-3.33", "client_stats": [{"jobname": "a"}]}', "fio --client"),
        (
            '{"fio version": "fio-3.33", "jobs": [{"jobname": "a", "mixed": {"io_bytes": 1}}]}',
            "unified_rw_reporting",
        ),
    ],
)
def test_another_form_of_fios_is_refused_by_its_name(text: str, form: str) -> None:
    with pytest.raises(SettingsError, match=form):
        imported(text)


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

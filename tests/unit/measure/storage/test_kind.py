from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.envelope import Body
from measure.kinds import (
    Importing,
    Line,
    MeasuredEndpoint,
    MeasuredSite,
    MeasurementKind,
    RunEnd,
    SettingsError,
    Tabled,
)
from measure.storage.kind import STORAGE
from tests.parts.measure.storage import SMALL, grid, point

FABRIC = MeasuredSite(
    [
        MeasuredEndpoint("gpu0", "s0", "as0"),
        MeasuredEndpoint("gpu1", "s0", "as0"),
        MeasuredEndpoint("gpu2", "s1", "as1"),
    ]
)


def body(lines: list[Line], ends: int = 2, **more: Any) -> Body:
    settings = STORAGE.settings({**SMALL, **more}, FABRIC)
    return STORAGE.body(settings, FABRIC, 1, lines, [RunEnd(completed=True)] * ends)


def test_it_is_a_kind() -> None:
    kind: MeasurementKind = STORAGE
    assert isinstance(kind, Importing)
    assert isinstance(kind, Tabled)
    assert set(STORAGE.imports) == {"fio"}


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({}, "volume"),
        ({"volume": "../etc"}, "volume"),
        ({"volume": "results", "wrokers": 1}, "wrokers"),
        ({"volume": "results", "workers": "many"}, "workers"),
        ({"volume": "results", "workers": [0]}, "workers"),
        ({"volume": "results", "workers": True}, "workers"),
        ({"volume": "results", "io_bytes": "4q"}, "io_bytes"),
        ({"volume": "results", "rw": "trim"}, "rw"),
        ({"volume": "results", "size": "1m"}, "size"),
        ({"volume": "results", "io_limits": "10"}, "io_limits"),
        ({"volume": "results", "direct": "perhaps"}, "direct"),
        ({"volume": "results", "file": "../x"}, "file"),
        ({"volume": "results", "file": "x", "rw": "write"}, "file"),
        ({"volume": "results", "runtime_s": float("nan")}, "runtime_s"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingsError) as refused:
        STORAGE.settings(given, FABRIC)
    assert refused.value.setting == setting


def test_sizes_are_read_as_people_write_them() -> None:
    settings = STORAGE.settings(
        {"volume": "v", "io_bytes": "4k,64KiB,1m", "io_limits": "5M,1GB/s", "size": "1g"}, FABRIC
    )
    assert settings["io_bytes"] == [4096, 65536, 2**20]
    assert settings["io_limits"] == [5_000_000, 10**9], "rates are decimal, as everywhere"
    assert settings["size"] == 2**30


def test_settings_survive_json_and_themselves() -> None:
    settings = STORAGE.settings(SMALL, FABRIC)
    assert STORAGE.settings(json.loads(json.dumps(settings)), FABRIC) == settings


def test_each_server_has_its_own_run_under_each_limit() -> None:
    settings = STORAGE.settings({**SMALL, "io_limits": "5M,50M", "memory_limits": "0,1g"}, FABRIC)
    runs = STORAGE.runs(settings, FABRIC, 1)
    assert [(r.endpoints, r.io_bps, r.memory_bytes) for r in runs] == [
        ((endpoint,), io, memory)
        for memory, io, endpoint in itertools.product(
            (None, 2**30), (5_000_000, 50_000_000), ("gpu0", "gpu2")
        )
    ]
    assert {run.together for run in runs} == {0}
    assert runs[0].volumes == (("results", "/volume", False),)


def test_servers_together_share_a_number_per_limit() -> None:
    settings = STORAGE.settings({**SMALL, "io_limits": "5M,50M", "together": "true"}, FABRIC)
    assert [run.together for run in STORAGE.runs(settings, FABRIC, 1)] == [1, 1, 2, 2]


def test_a_file_of_the_volume_is_mounted_read_only() -> None:
    settings = STORAGE.settings({**SMALL, "file": "train/images.npy"}, FABRIC)
    assert STORAGE.runs(settings, FABRIC, 1)[0].volumes == (("results", "/volume", True),)


def test_rows_follow_the_grid_with_medians_and_what_memory_answered() -> None:
    result = body([*grid(0), *grid(1)])
    assert result.invalid_because == []
    assert [(r["server"], r["workers"], r["io_bytes"]) for r in result.rows] == [
        (server, workers, size)
        for server, workers, size in itertools.product(("s0", "s1"), (1, 4), (4096, 2**20))
    ]
    row = result.rows[0]
    assert row["bytes_per_s"] == 1.5e6
    assert row["latency_s"]["p50"] == pytest.approx(9e-4)
    assert row["latency_s"]["p95"] is None
    assert row["cached_share"] == 0
    assert (row["cpu_cores"], row["server_cpu_cores"]) == (0.5, 0.7)
    assert result.tool.version == "3.33"
    assert result.summary["best"][0]["workers_enough"] == 4
    assert "MB/s" in STORAGE.table({"rows": result.rows})


def test_a_cache_that_answered_makes_a_measurement_of_the_disk_invalid() -> None:
    result = body([*grid(0, block_bytes=0), *grid(1)])
    assert result.rows[0]["cached_share"] == 1
    assert "memory answered more than 1 % of 4 points" in result.invalid_because[0]
    assert body([*grid(0, block_bytes=0), *grid(1)], direct=False).invalid_because == []


def test_block_bytes_that_are_unknown_stay_unknown() -> None:
    result = body([*grid(0, block_bytes=None), *grid(1)])
    assert result.rows[0]["cached_share"] is None
    assert result.invalid_because == []


@pytest.mark.parametrize(
    ("error", "reason"), [(28, "fio: no space left"), (5, "fio: input/output error"), (99, "99")]
)
def test_a_point_that_failed_is_null_with_its_reason(error: int, reason: str) -> None:
    failed = point(1, 4096, 10**6)
    failed["fio"]["jobs"][1]["error"] = error
    row = body([Line(0, 0, failed), *grid(0)]).rows[0]
    assert row["bytes_per_s"] is None
    assert row["latency_s"] is None
    assert reason in row["reason"]


def test_a_killed_worker_is_null_with_its_reason() -> None:
    killed = point(1, 4096, 10**6, reason="fio was killed by signal 9")
    row = body([Line(0, 0, killed)]).rows[0]
    assert (row["bytes_per_s"], row["reason"]) == (None, "fio was killed by signal 9")


def test_a_volume_in_memory_is_refused_with_the_reason() -> None:
    refused = {"probe": "refused", "reason": "tmpfs has no block device", "hint": "choose another"}
    result = body([Line(0, 0, refused), *grid(1)])
    assert "s0: tmpfs has no block device (choose another)" in result.invalid_because
    assert {row["reason"] for row in result.rows[:4]} == {
        "tmpfs has no block device (choose another)"
    }


def test_a_run_that_ended_early_says_why_and_keeps_what_it_measured() -> None:
    settings = STORAGE.settings(SMALL, FABRIC)
    ends = [RunEnd(completed=False, reason="cancelled"), RunEnd(completed=True)]
    result = STORAGE.body(settings, FABRIC, 1, [*grid(0)[:1], *grid(1)], ends)
    assert result.rows[0]["bytes_per_s"] is not None
    assert {row["reason"] for row in result.rows[1:4]} == {"cancelled"}
    assert "3 of 8 points were not measured" in result.invalid_because


def test_fewer_repetitions_are_said() -> None:
    lines = [*grid(0), *grid(1)]
    assert "8 points have fewer than 5 repetitions" in body(lines, repetitions=5).invalid_because


def test_a_loop_device_through_the_servers_memory_is_remarked() -> None:
    device = {"probe": "device", "filesystem": "ext4", "number": "7:0", "direct_loop": False}
    assert body([Line(0, 0, device), *grid(0), *grid(1)]).anomalies[0]["kind"] == "host_cache"


def test_a_limit_on_a_file_system_of_another_server_is_remarked() -> None:
    device = {"probe": "device", "filesystem": "nfs4", "number": "0:52", "direct_loop": None}
    found = body([Line(0, 0, device), *grid(0), *grid(1)], io_limits="5M").anomalies
    assert [anomaly["kind"] for anomaly in found] == ["no_limit"]


def test_gdsio_that_fell_back_is_called_compat() -> None:
    text = "Throughput: 1.5 GiB/sec, Avg_Latency: 100.0 usecs ops: 100 total_time 1.0 secs"
    stats = "Ops : Read=1 Write=0 BatchIO=0"
    lines = [
        Line(
            0,
            0,
            {
                **point(workers, io_bytes),
                "path": "gds",
                "gdsio": [text, text],
                "counters": [stats, stats],
            },
        )
        for workers in (1, 4)
        for io_bytes in (4096, 2**20)
    ]
    row = body(lines, paths="gds").rows[0]
    assert (row["path"], row["bytes_per_s"]) == ("compat", 1.5 * 2**30)


HOSTILE = st.dictionaries(
    st.sampled_from(
        ["path", "rw", "workers", "io_bytes", "fio", "block_bytes", "cores", "reason", "number"]
    ),
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.sampled_from(["posix", "read", "gds", "\x1b[31m", "x" * 5000])
    | st.lists(st.integers(), max_size=2)
    | st.just({"jobs": [{"read": {"io_bytes": 1}}, 7]}),
)


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 3),
            st.integers(-1, 2),
            st.sampled_from(["point", "device", "gdscheck", "refused", "error", "x", None, 3]),
            HOSTILE,
        ),
        max_size=6,
    )
)
def test_hostile_lines_break_nothing(
    written: list[tuple[int, int, Any, dict[str, Any]]],
) -> None:
    lines = [Line(run, rank, {"probe": name, **rest}) for run, rank, name, rest in written]
    result = body(lines)
    assert len(result.rows) == 8
    json.dumps([result.rows, result.anomalies, result.summary], allow_nan=False)
    STORAGE.table({"rows": result.rows})
    settings = STORAGE.settings(SMALL, FABRIC)
    progress = STORAGE.progress(settings, FABRIC, lines)
    assert 0 <= progress.done <= progress.total == 8

"""nccl-tests' JSON and its text table, which agree byte for byte."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.collectives.imports import IMPORTS, MOST_ENTRIES, entries, read_nccl_tests
from measure.collectives.table import average_busbw, number, text
from measure.collectives.tables import entry, table
from measure.kinds import SettingsError

HERE = Path(__file__).parent
JSON = (HERE / "all_reduce.json").read_text()
TEXT = (HERE / "all_reduce.txt").read_text()
"""Lines as nccl-tests' releases with ``-J`` print them, of every width."""


def test_the_table_from_the_json_is_nccl_tests_own_byte_for_byte() -> None:
    document = json.loads(JSON)
    lines = entries(document)
    assert text(lines, 1, document["average_bus_bandwidth"]["bandwidth"]) == TEXT


def test_the_table_of_an_imported_result_is_it_too() -> None:
    shown = table(asdict(IMPORTS["nccl-tests"](JSON)))
    assert shown == "# all_reduce\n" + TEXT


def test_rows_have_base_units() -> None:
    body = read_nccl_tests(JSON)
    first, second = body.rows[0], body.rows[1]
    assert first["out_of_place"]["time_s"] == pytest.approx(55.18e-6)
    assert second["in_place"]["bus_bw"] == pytest.approx(45.68e9)
    assert (second["in_place"]["nwrong"], second["out_of_place"]["nwrong"]) == (7, 0)
    assert body.rows[3]["in_place"]["nwrong"] is None
    assert (second["operation"], second["ranks"], second["root"]) == ("all_reduce", 4, -1)
    assert body.tool.version == "NCCL 2.29.7"
    assert body.invalid_because == ["data were wrong"]


@pytest.mark.parametrize(
    ("threads", "gpus", "devices", "ranks"),
    [
        (1, 8, [(0, 0), (8, 0)], 16),
        (2, 4, [(0, 0), (8, 0), (16, 0)], 24),
        (1, 1, [(rank, 0) for rank in range(4)], 4),
        (1, 4, [(0, 0)], 4),
        (1, 2, [(0, 0), (2, 1), (4, 0), (6, 1)], 4),  # two communicators
        (1, 2, [(0, 0), (2, 1), (4, 0)], None),  # of different sizes
        (1, 8, [(0, 0), (1, 0)], None),  # no process begins at rank 1
        (1, 8, [(0, 0), (0, 0)], None),
        (1, 8, [], None),
        (1, 8, None, None),
        (0, 8, [(0, 0)], None),
    ],
)
def test_a_process_has_as_many_ranks_as_threads_and_gpus(
    threads: int, gpus: int, devices: list[tuple[int, int]] | None, ranks: int | None
) -> None:
    document = json.loads(JSON)
    listed = devices and [{"rank": rank, "group": group} for rank, group in devices]
    document["config"] |= {"nthreads": threads, "ngpus": gpus, "devices": listed}
    assert {row["ranks"] for row in read_nccl_tests(json.dumps(document)).rows} == {ranks}


def test_nothing_of_the_environment_is_kept() -> None:
    assert "canary" in JSON
    assert "canary" not in repr(read_nccl_tests(JSON))


def test_nan_is_unknown_and_prints_as_nccl_tests_prints_it() -> None:
    document = json.loads(JSON)
    document["results"] = document["results"][:1]
    document["results"][0]["in_place"] |= {"alg_bw": "nan", "bus_bw": "nan"}
    body = read_nccl_tests(json.dumps(document))
    assert body.rows[0]["in_place"]["bus_bw"] is None
    assert "    nan     nan       0\n" in text(entries(document), 0, 0.0)


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"results": 1}',
        '{"results": [1]}',
        '{"results": [{"size": -1, "count": 1}]}',
        '{"results": [{"size": true, "count": 1}]}',
        '{"results": [{"size": 8, "count": 2, "root": "x"}]}',
        '{"results": [{"size": 8, "count": 2, "in_place": {"time": "much"}}]}',
        json.dumps({"results": [{}] * (MOST_ENTRIES + 1)}),
    ],
)
def test_another_file_is_refused_with_the_place(damage: str) -> None:
    with pytest.raises(SettingsError):
        read_nccl_tests(damage)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["size", "count", "type", "redop", "root", "out_of_place", "in_place"])


@given(
    st.fixed_dictionaries(
        {"results": st.lists(st.dictionaries(KEYS, VALUES), max_size=3)},
        optional={
            "args": VALUES,
            "config": VALUES,
            "nccl_version": VALUES,
            "out_of_bounds": VALUES,
        },
    )
)
def test_hostile_json_is_read_or_refused(document: Any) -> None:
    try:
        body = read_nccl_tests(json.dumps(document))
    except SettingsError:
        return
    json.dumps(asdict(body), allow_nan=False)
    table(asdict(body))


FIGURE = st.floats(0, 1e5).map(lambda value: round(value, 6))


@given(FIGURE, FIGURE, FIGURE)
def test_base_units_lose_no_digit_of_the_table(time: float, alg: float, bus: float) -> None:
    half = {"time": time, "alg_bw": alg, "bus_bw": bus, "nwrong": 0.0}
    line = {"size": 8, "count": 2, "type": "float", "redop": "sum", "root": "    -1"}
    document = {"results": [{**line, "out_of_place": half, "in_place": half}]}
    (direct,) = entries(document)
    (row,) = read_nccl_tests(json.dumps(document)).rows
    assert text([entry(row)], 0, 0.0) == text([direct], 0, 0.0)
    assert average_busbw([direct]) == bus


@pytest.mark.parametrize(
    ("value", "width", "shown"),
    [
        (0.0, 7, "   0.00"),
        (9999.99, 7, "9999.99"),
        (12901.04, 7, "12901.0"),
        (115201.4, 7, " 115201"),
        (1234567.0, 7, "1234567"),
        (12345678.0, 7, "1.2e+07"),
        (999.99, 6, "999.99"),
        (1234.56, 6, "1234.6"),
        (1234567.0, 6, " 1e+06"),
    ],
)
def test_numbers_keep_their_width(value: float, width: int, shown: str) -> None:
    assert number(value, width) == shown

"""Kinds of records: what is written is read back, and rows of earlier versions are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.state.kept.kinds import KINDS
from controller.state.kinds.kind import Kind, Records
from controller.state.records import NOTICES, QUARANTINE, Notice, Quarantine
from controller.store.kinds import TABLES

ROWS = json.loads(Path(__file__).with_name("rows-2.json").read_text(encoding="utf-8"))
"""One row of each kind, as the release before kinds were declared wrote it."""
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def records(kind: Kind[Any]) -> st.SearchStrategy[Any]:
    """Return records of a kind, with values of any size."""

    def plain(record: Any) -> Any:
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        maps = {name: dict(v) for name, v in values.items() if isinstance(v, Mapping)}
        return replace(record, **maps)

    return st.from_type(kind.record).map(plain)


@EACH
def test_a_record_is_read_back_as_it_was_written(kind: Kind[Any]) -> None:
    table = TABLES[kind.name]

    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    @given(records(kind))
    def check(record: Any) -> None:
        row = table.row(record)
        again = table.read(row)
        assert again == record or table.row(again) == row  # NaN equals nothing

    check()


@EACH
def test_a_row_of_an_earlier_release_says_the_same(kind: Kind[Any]) -> None:
    table, row = TABLES[kind.name], ROWS[kind.name]
    again = table.row(table.read(row))
    assert again.keys() == row.keys()
    for name, value in row.items():
        if kind.document and name == "body":
            before, now = json.loads(value), json.loads(again[name])
            assert {key: now[key] for key in before} == before
            assert now.keys() - before.keys() <= {kind.key, *kind.columns}
        else:
            assert again[name] == value


@EACH
def test_a_document_of_a_newer_release_is_read(kind: Kind[Any]) -> None:
    row = dict(ROWS[kind.name])
    if kind.document:
        row["body"] = json.dumps(json.loads(row["body"]) | {"from the future": [1]})
    assert TABLES[kind.name].read(row) == TABLES[kind.name].read(ROWS[kind.name])


@EACH
def test_a_damaged_document_is_found(kind: Kind[Any]) -> None:
    row = ROWS[kind.name] | {"body": '{"id": 1}'}
    if kind.document:
        with pytest.raises(ValueError):
            TABLES[kind.name].read(row)


def test_keys_count_on_from_what_is_stored() -> None:
    numbered = Records(Kind("n", Notice, key="id", order="id", columns=(), prefix="n"))
    kept = [Notice(f"n{number}", "r", "j", "", 0.0) for number in (10, 9)]
    numbered.restore(kept, 7)
    assert list(numbered) == ["n9", "n10"]
    assert numbered.next_key() == "n11"
    numbered.restore(kept, 20)
    assert numbered.next_key() == "n21"


def test_records_are_replaced_one_by_one() -> None:
    quarantine = Records(QUARANTINE)
    quarantine.put(Quarantine("as0/1", "no light", 1.0))
    assert quarantine.change("as0/1", reason="dirt").reason == "dirt"
    assert quarantine.remove("as0/1") == Quarantine("as0/1", "dirt", 1.0)
    assert quarantine.remove("as0/1") is None
    assert QUARANTINE.row("as0/1") != NOTICES.row("as0/1")

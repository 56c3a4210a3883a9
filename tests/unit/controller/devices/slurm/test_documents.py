"""JSON documents, item by item."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.slurm import documents
from controller.devices.slurm.documents import count_of, items_of, number_of, texts_of
from tests import recorded

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "jobs"]), JSON),
    st.sampled_from([None, 1]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([0, documents.AT_ONCE]),
)
def test_items_are_those_of_the_whole_document(
    document: dict[str, Any], indent: int | None, piece: int, step: int, at_once: int
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False).encode(errors="replace")
    document = json.loads(text)
    body = [text[i : i + piece] for i in range(0, len(text), piece)]
    jobs = document.get("jobs")
    with patch.object(documents, "_STEP", step), patch.object(documents, "AT_ONCE", at_once):
        if jobs is None or isinstance(jobs, list):
            assert list(items_of(body, "jobs")) == (jobs or [])
        else:
            with pytest.raises(ValueError, match="not a list"):
                list(items_of(body, "jobs"))


@given(
    st.binary(max_size=40) | st.text(alphabet='{}[]",:jobs1 ', max_size=30).map(str.encode),
    st.sampled_from([0, documents.AT_ONCE]),
)
def test_anything_gives_items_or_an_error(body: bytes, at_once: int) -> None:
    try:
        with patch.object(documents, "AT_ONCE", at_once):
            list(items_of([body], "jobs"))
    except ValueError:
        return
    assert body.strip().startswith(b"{")


@pytest.mark.parametrize("at_once", [0, documents.AT_ONCE])
def test_nesting_is_bounded(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "AT_ONCE", at_once)
    with pytest.raises(ValueError, match="nested"):
        list(items_of([b'{"jobs": [', b"[" * 100_000], "jobs"))


def test_a_recorded_answer() -> None:
    states = list(items_of([recorded.answer("v0.0.45", "states")[1]], "jobs"))
    assert len(states) == 16
    assert states[0] == {"job_id": "1", "state": ["RUNNING"]}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        ({"set": True, "infinite": False, "number": 7}, 7),
        ({"set": False, "infinite": False, "number": 7}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
        ({}, None),
        (None, None),
    ],
)
def test_numbers(value: object, number: float | None) -> None:
    assert number_of({"n": value}, "n") == number


@pytest.mark.parametrize(
    "value", ["7", True, [7], float("inf"), 2**60, {"set": True, "number": ""}]
)
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(ValueError, match="n is"):
        number_of({"n": value}, "n")


def test_counts_and_texts() -> None:
    assert count_of({"n": 3}, "n") == 3
    with pytest.raises(ValueError, match="count"):
        count_of({"n": 3.5}, "n")
    assert texts_of({"t": "a"}, "t") == ("a",)
    with pytest.raises(ValueError, match="texts"):
        texts_of({"t": [1]}, "t")

"""Wishes of a job's owner: what is understood, and what is said about the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.slurm.wishes import MAX_PROBLEMS, Wishes, wishes_of
from scheduler.model import Locality, Policy


def test_all_wishes() -> None:
    comment = "lightloom:policy=pause,locality=regroup,dark=2s,pinned"
    assert wishes_of(comment) == Wishes(Locality.REGROUP, Policy.PAUSE, 2.0, True)


@pytest.mark.parametrize("comment", ["", "my job", "see lightloom", "xlightloom:pinned"])
def test_a_comment_without_wishes(comment: str) -> None:
    assert wishes_of(comment) == Wishes()


def test_wishes_beside_other_words() -> None:
    assert wishes_of("account 7; lightloom:policy=live ticket=9").policy is Policy.LIVE


@pytest.mark.parametrize(
    ("value", "seconds"), [("500ms", 0.5), ("2", 2.0), ("1.5s", 1.5), ("3m", 180.0)]
)
def test_dark_times(value: str, seconds: float) -> None:
    assert wishes_of(f"lightloom:dark={value}").dark_tolerance_s == seconds


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("polcy=pause", "unknown wish 'polcy'"),
        ("policy=restart", "use live, pause"),
        ("locality=near", "use strict"),
        ("dark=-1", "dark '-1'"),
        ("dark=0s", "dark '0s'"),
        ("dark=2h", "dark '2h'"),
        ("dark=61m", "dark '61m'"),
        ("dark=nan", "dark 'nan'"),
        ("pinned=maybe", "write pinned alone"),
        ("\x1b[31m=1", "unknown wish '\\x1b[31m'"),
    ],
)
def test_what_is_not_understood_is_said(wish: str, words: str) -> None:
    wishes = wishes_of(f"lightloom:pinned,{wish}" if "pinned" not in wish else f"lightloom:{wish}")
    assert any(words in problem for problem in wishes.problems)


def test_the_first_of_two_counts() -> None:
    wishes = wishes_of("lightloom:dark=1s,dark=9s")
    assert wishes.dark_tolerance_s == 1
    assert wishes.problems == ("dark is given twice: the first counts",)


def test_problems_are_bounded() -> None:
    wishes = wishes_of("lightloom:" + ",".join(f"k{i}" * 500 for i in range(999)))
    assert len(wishes.problems) <= MAX_PROBLEMS
    assert all(len(problem) < 200 for problem in wishes.problems)


@given(st.text(max_size=200))
def test_any_text_is_harmless(text: str) -> None:
    wishes = wishes_of("lightloom:" + text)
    assert wishes.dark_tolerance_s is None or 0 < wishes.dark_tolerance_s <= 3600
    assert all(problem.isprintable() and problem.isascii() for problem in wishes.problems)

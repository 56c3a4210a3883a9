"""The ledger against the plain sum: any events, restarts and steps of the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.usage.interval import ChargedJob, Level, UsageInterval, UsageSums
from controller.usage.ledger import MOST_UNWRITTEN, UsageLedger
from controller.usage.window import MOST_LINES, By, Kept, UsageQuery, answer

ACCOUNTS = (
    ChargedJob("red", 1.0, "alpha", "ann"),
    ChargedJob("blue", 2.0, "alpha", "bob"),
    ChargedJob("green", 3.0, "beta", "ann"),
)
START = 1_000_000.0
ALWAYS = (-1e9, 1e12)
"""Steps of the clock leave intervals at any date."""
BYS: tuple[By, ...] = ("project", "user", "job")


@dataclass
class Story:
    """A ledger, a store that keeps what was committed, and the naive sums of the same events."""

    ledger: UsageLedger = field(default_factory=UsageLedger)
    stored: dict[int, UsageInterval] = field(default_factory=dict)
    now: float = START
    holds: dict[ChargedJob, Level] = field(default_factory=dict)
    begun: set[ChargedJob] = field(default_factory=set)
    naive: dict[ChargedJob, list[Fraction]] = field(default_factory=dict)

    def passes(self, seconds: int) -> None:
        """Let time pass: every job is charged for what it holds."""
        self.now += seconds
        for account, level in self.holds.items():
            held = Fraction(level.endpoints * seconds)
            parts = (held, held * level.frozen, Fraction(0), held * Fraction(level.weight))
            self.charge(account, *parts)

    def charge(self, account: ChargedJob, *parts: Fraction) -> None:
        known = self.naive.setdefault(account, [Fraction(0)] * 4)
        self.naive[account] = [a + b for a, b in zip(known, parts, strict=True)]

    def change(self, account: ChargedJob, level: Level | None) -> None:
        """A job starts, is frozen or thawed, is moved, requeued, or ends."""
        self.ledger.note(account, level, self.now, first=account not in self.begun)
        self.holds.pop(account, None)
        if level is not None:
            self.holds[account] = level
            self.begun.add(account)

    def dark(self, account: ChargedJob, endpoints: int) -> None:
        """A regroup ends, in which so many endpoints had no light for its last second."""
        self.ledger.charge_dark(account, endpoints, self.now - 1, self.now)
        self.charge(account, Fraction(0), Fraction(0), Fraction(endpoints), Fraction(0))

    def commit(self, *, acknowledged: bool = True) -> None:
        """Write; a commit of unknown outcome was written and is written again."""
        taken = self.ledger.take_unwritten()
        self.stored |= {interval.id: interval for interval in taken}
        if not acknowledged:
            self.ledger.give_back(taken)

    def restart(self) -> None:
        """Crash after a commit: only what is stored remains."""
        self.commit()
        self.ledger = UsageLedger()
        going_on = [i for i in self.stored.values() if i.until is None]
        self.ledger.restore(going_on, max(self.stored, default=0), self.now)

    def step(self, by_s: int) -> None:
        """Set the wall clock: the ledger hears of it."""
        self.now += by_s
        self.ledger.stepped(by_s)

    def usage(self, window: UsageQuery) -> dict[tuple[str | float, ...], UsageSums]:
        """Return the answer of a store that has what was committed, and of the ledger."""
        live = self.ledger.live()
        ids = {interval.id for interval in live}
        kept = [i for i in self.stored.values() if i.id not in ids]
        lines: dict[tuple[str | float, ...], UsageSums] = {}
        for interval in kept:
            key = window.key(interval.account)
            lines[key] = lines.get(key, UsageSums()) + interval.sums(window.since, window.until)
        found = answer(window, Kept(lines, sum(lines.values(), UsageSums())), live)
        assert close(sum(found.lines.values(), found.others), found.total)
        return dict(found.lines)

    def total(self, since: float, until: float, by: By = "project") -> UsageSums:
        return sum(self.usage(UsageQuery(since, until, by)).values(), UsageSums())


def close(one: UsageSums, other: UsageSums) -> bool:
    pairs = (
        (one.held_s, other.held_s),
        (one.frozen_s, other.frozen_s),
        (one.dark_s, other.dark_s),
        (one.weighted_s, other.weighted_s),
    )
    near = all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-2) for a, b in pairs)
    return near and one.jobs == other.jobs


LEVELS = st.builds(Level, st.integers(1, 16), st.booleans(), st.sampled_from([1.0, 1.5, 2.0, 4.0]))
EVENTS = st.one_of(
    st.tuples(st.just("passes"), st.integers(0, 200_000)),
    st.tuples(st.just("change"), st.sampled_from(ACCOUNTS), st.none() | LEVELS),
    st.tuples(st.just("dark"), st.sampled_from(ACCOUNTS), st.integers(1, 16)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("late")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("step"), st.integers(-100_000, 100_000)),
)


def told(events: list[tuple[object, ...]]) -> Story:
    story = Story()
    for name, *given_ in events:
        if name == "late":
            story.commit(acknowledged=False)
        else:
            getattr(story, str(name))(*given_)
    return story


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_the_ledger_agrees_with_the_plain_sum_of_the_events(
    events: list[tuple[object, ...]],
) -> None:
    story = told(events)
    for account in ACCOUNTS:
        story.change(account, None)
    lines = story.usage(UsageQuery(*ALWAYS, "job"))
    jobs = {account.job: account for account in ACCOUNTS}
    found = {jobs[str(key[0])]: sums for key, sums in lines.items()}
    for account in ACCOUNTS:
        parts = [float(part) for part in story.naive.get(account, [Fraction(0)] * 4)]
        assert close(
            found.get(account, UsageSums()), UsageSums(*parts, jobs=int(account in story.begun))
        )
    totals = [story.total(*ALWAYS, by) for by in BYS]
    assert close(totals[0], totals[1])
    assert close(totals[0], totals[2])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(EVENTS, max_size=30),
    st.lists(st.integers(-500_000, 3_000_000), min_size=3, max_size=3),
)
def test_windows_that_meet_add_up(events: list[tuple[object, ...]], cuts: list[int]) -> None:
    story = told(events)
    a, b, c = sorted(min(START + cut, story.now) for cut in cuts)
    assert close(story.total(a, b) + story.total(b, c), story.total(a, c))


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_nothing_is_negative_and_counters_only_grow(events: list[tuple[object, ...]]) -> None:
    story, before = Story(), dict[str, UsageSums]()
    for name, *given_ in events:
        if name == "restart":
            before = {}
        if name == "late":
            story.commit(acknowledged=False)
        else:
            getattr(story, str(name))(*given_)
        totals = story.ledger.totals(story.now)
        for project, sums in totals.items():
            past = before.get(project, UsageSums())
            assert min(sums.held_s, sums.frozen_s, sums.dark_s, sums.weighted_s) >= 0
            assert sums.held_s >= past.held_s - 1e-6
        before = dict(totals)


def test_a_clock_set_back_across_a_restart_is_never_negative() -> None:
    ledger = UsageLedger()
    ledger.note(ACCOUNTS[0], Level(4), 1000.0, first=True)
    again = UsageLedger()
    again.restore(ledger.take_unwritten(), 1, 400.0)
    assert again.open["red"].since == 400.0
    again.note(ACCOUNTS[0], None, 410.0)
    (ended,) = again.take_unwritten()
    assert ended.sums(0, math.inf).held_s == pytest.approx(40.0)


def test_a_name_that_is_used_again_is_another_job() -> None:
    ledger, again = UsageLedger(), ChargedJob("red", 9.0, "beta", "bob")
    ledger.note(ACCOUNTS[0], Level(4), 10.0, first=True)
    ledger.note(again, Level(2), 20.0, first=True)
    live = ledger.live()
    found = answer(UsageQuery(0, 30, "job"), Kept({}, UsageSums()), live)
    assert {key[1]: sums.held_s for key, sums in found.lines.items()} == {1.0: 40.0, 9.0: 20.0}
    assert found.total.jobs == 2


def test_a_start_that_was_refused_is_not_charged() -> None:
    ledger = UsageLedger()
    ledger.note(ACCOUNTS[0], Level(4), 10.0, first=True)
    ledger.void("red")
    assert not ledger.open
    assert sum((i.sums(0, 100) for i in ledger.live()), UsageSums()) == UsageSums()


def test_closing_writes_nothing_by_itself() -> None:
    ledger = UsageLedger()
    ledger.note(ACCOUNTS[0], Level(4), 10.0, first=True)
    ledger.take_unwritten()
    (closing,) = ledger.closing("red", 20.0)
    assert closing.until == 20.0
    assert ledger.open["red"].until is None
    assert not ledger.take_unwritten()
    assert ledger.closing("unknown", 20.0) == ()


def test_what_waits_for_a_failing_store_is_bounded() -> None:
    ledger = UsageLedger()
    for second in range(2 * MOST_UNWRITTEN):
        ledger.note(ACCOUNTS[0], Level(4, frozen=second % 2 == 1), second)
    assert len(ledger.live()) <= MOST_UNWRITTEN + 1
    total = sum((i.sums(0, 2.0 * MOST_UNWRITTEN) for i in ledger.live()), UsageSums())
    assert total.held_s == 4 * 2 * MOST_UNWRITTEN


def test_more_jobs_than_lines_are_one_sum() -> None:
    ledger = UsageLedger()
    for number in range(MOST_LINES + 7):
        ledger.note(ChargedJob(f"j{number}", 1.0, "alpha", "ann"), Level(1), 0.0, first=True)
    found = answer(UsageQuery(0, 10, "job"), Kept({}, UsageSums()), ledger.live())
    assert len(found.lines) == MOST_LINES
    assert (found.others.jobs, found.others.held_s) == (7, 70.0)

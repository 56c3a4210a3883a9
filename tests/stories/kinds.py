"""The kinds of stories: what Hypothesis draws for each, and what tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from checkpoints.values import Scheme
from tests.stories import checkpoints, clients, dropping, faults, losses, writers
from tests.stories.telling import Log

SEEDS = st.integers(0, 2**32 - 1)
EXAMPLES = 20
"""Stories of which the last is drawn for a number: the first are the simplest."""


@dataclass(frozen=True)
class Kind:
    """A kind of stories."""

    about: str
    stories: st.SearchStrategy[Any]
    tell: Callable[[Any, int], Log]

    def drawn(self, number: int) -> Any:
        """Return the story of this number, always the same."""
        found: list[Any] = []

        @seeded(number)
        @settings(
            max_examples=EXAMPLES,
            derandomize=False,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(self.stories)
        def collect(story: Any) -> None:
            found.append(story)

        collect()
        return found[-1]


def _times(until_ms: int) -> st.SearchStrategy[int]:
    return st.integers(0, until_ms // 5).map(lambda n: 5 * n)


TURNS = st.integers(0, 600)
POINTS = st.integers(1, 12)
"""Turns of the loop, and failpoints, until a death."""


def _deaths(
    step: Callable[..., Any], number: str, **others: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    """Return deaths as steps of a story, with the moment in the field ``number``."""
    return st.one_of(
        st.builds(step, what=st.just("die"), **{number: TURNS}, **others),
        st.builds(step, what=st.just("die at"), **{number: POINTS}, **others),
    )


def _many(step: st.SearchStrategy[Any], times: int = 3) -> st.SearchStrategy[list[Any]]:
    """Return lists of steps, longer than Hypothesis usually draws."""
    some = st.lists(step, max_size=10)
    return st.tuples(*[some] * times).map(lambda parts: [one for part in parts for one in part])


# --- clients --------------------------------------------------------------------------------------

JOBS = st.sampled_from("abc")


def _clients(*what: str, until_ms: int) -> st.SearchStrategy[clients.Step]:
    return st.builds(
        clients.Step,
        what=st.sampled_from(what),
        job=JOBS,
        at_ms=_times(until_ms),
        count=st.integers(1, 6),
    )


def _begun(*submits: tuple[str, int]) -> st.SearchStrategy[list[clients.Step]]:
    return st.permutations([clients.Step("submit", job, 0, count) for job, count in submits])


def _together(
    first: st.SearchStrategy[list[clients.Step]], others: st.SearchStrategy[list[clients.Step]]
) -> st.SearchStrategy[list[clients.Step]]:
    return st.builds(lambda one, other: [*one, *other], first, others)


CANCELS = _together(
    _begun(("a", 4), ("b", 5)), st.lists(_clients("cancel", until_ms=150), min_size=3)
)
CLIENTS = _together(
    _begun(("a", 4), ("b", 2), ("c", 1)),
    _many(
        st.one_of(
            _clients("cancel", "pause", "resume", "regroup", "drain", "undrain", until_ms=3000),
            _clients("submit", "exit", "lose", "slow", until_ms=3000),
            _deaths(clients.Step, "count", job=JOBS, at_ms=_times(4000)),
        ),
        times=2,
    ),
)

# --- losses ---------------------------------------------------------------------------------------

LOSSES = _many(
    st.one_of(
        st.builds(
            losses.Harm,
            what=st.sampled_from(["rank", "gpu", "hung gpu", "server"]),
            after_ms=_times(6000),
            count=st.integers(0, losses.RANKS - 1),
        ),
        _deaths(losses.Harm, "count", after_ms=_times(6000)),
        st.just(losses.Harm("repair")),
    ),
    times=2,
)

# --- faults ---------------------------------------------------------------------------------------


def _faults(what: Sequence[faults.What]) -> st.SearchStrategy[faults.Step]:
    return st.builds(
        faults.Step,
        what=st.sampled_from(what),
        number=st.integers(0, 9999),
        after_ms=_times(3000),
        waits=st.booleans(),
    )


FAULTS = _many(
    st.one_of(
        _faults(["submit", "submit", "cancel", "regroup", "attach"]),
        _faults([w for w in get_args(faults.What) if w not in ("die", "die at")]),
        _deaths(faults.Step, "number", after_ms=_times(3000), waits=st.booleans()),
    )
)

# --- checkpoints ----------------------------------------------------------------------------------

ENDPOINTS = st.permutations(range(8)).map(lambda p: tuple(p[: checkpoints.RANKS]))
WRITERS = st.sets(st.integers(0, checkpoints.RANKS - 1)).map(lambda ranks: tuple(sorted(ranks)))
CHECKPOINTS = st.builds(
    checkpoints.Script,
    scheme=st.sampled_from([Scheme.PARTNER, Scheme.XOR, Scheme.SINGLE]),
    holds_fetched=st.booleans(),
    steps=_many(
        st.one_of(
            st.builds(checkpoints.Step, what=st.just("write")),
            st.builds(checkpoints.Step, what=st.just("write"), picks=WRITERS),
            st.builds(checkpoints.Step, what=st.just("settle")),
            st.builds(
                checkpoints.Step,
                what=st.sampled_from(["lose", "away", "back", "damage", "restart"]),
                number=st.integers(0, 20),
            ),
            st.builds(
                checkpoints.Step, what=st.sampled_from(["start", "prefetch"]), picks=ENDPOINTS
            ),
            _deaths(checkpoints.Step, "number"),
        )
    ).map(tuple),
)

# --- parts ----------------------------------------------------------------------------------------

WRITES = st.lists(
    st.builds(
        writers.Change, how=st.sampled_from(["commit", "record"]), at_ms=st.integers(0, 1000)
    ),
    min_size=2,
    max_size=8,
)
DROPS = st.lists(
    st.builds(dropping.Drop, step=st.integers(1, dropping.STEPS), at_ms=st.integers(0, 30)),
    min_size=2,
    max_size=4,
    unique_by=lambda drop: drop.step,
)

KINDS = {
    "clients": Kind("clients and faults at the same time", CLIENTS, clients.story),
    "cancels": Kind("clients cancel what starts", CANCELS, clients.story),
    "losses": Kind("ranks, GPUs and servers of one job are lost", LOSSES, losses.story),
    "faults": Kind("devices and the disk fail under jobs and regroups", FAULTS, faults.story),
    "checkpoints": Kind("servers lose what a job resumes from", CHECKPOINTS, checkpoints.story),
    "writers": Kind("parts write one record", WRITES, writers.story),
    "drops": Kind("users drop checkpoints of one job", DROPS, dropping.story),
}

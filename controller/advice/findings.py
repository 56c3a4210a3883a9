"""What limits a job, and what helps: from its facts, its ring and its ranks. Pure.

The parts of a step are input (waiting for the next batch), compute, and communication that
nothing covers. The last is the network's, the placement's (a scattered job's ring shares the
links between aggregators), a straggler's (the others wait for it inside the collective) or the
program's (it could overlap more).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from base.figures import figure
from controller.schema.insight.advice import Limit
from measure.loading.floor import Floor
from scheduler.steptime.calibrate import PredictionInterval
from scheduler.steptime.facts import StepFacts

NOTABLE = 0.05
"""Shares of a step below this are not worth a finding."""
_GATES = 0.95
"""A loader alone that takes this share of a step, or more, limits it."""
_LATE = 1.1
"""A rank computes too long if it takes this much longer than the median of all."""


@dataclass(slots=True, frozen=True, kw_only=True)
class JobFinding:
    """One thing that limits a job."""

    limit: Limit
    text: str
    evidence: tuple[str, ...] = ()
    gain: PredictionInterval | None = None
    """Share of the step's time that the remedy saves."""
    remedy: str = ""
    command: str = ""

    @property
    def weight(self) -> float:
        """What findings are ordered by: the middle of the gain."""
        return 0.0 if self.gain is None else (self.gain.low + self.gain.high) / 2


@dataclass(slots=True, frozen=True, kw_only=True)
class Situation:
    """What is known of a job when it is judged."""

    job: str
    ended: bool = False
    waits: str = ""
    """Why it waits; empty if it does not."""
    wait_remedy: str = ""
    wait_command: str = ""
    facts: StepFacts | None = None
    span: int = 1
    span_least: int = 1
    compact: PredictionInterval | None = None
    """Its step now over its step in the most compact homes; None without such homes."""
    compact_reasons: tuple[str, ...] = ()
    input_wait: tuple[float, float] | None = None
    """Recorded: seconds of a step in which it waits for its batch, and the step's length."""
    floor: Floor | None = None
    """The shortest step that its input allows, as it was measured."""
    compute_s: Mapping[int, float] = field(default_factory=dict)
    """Per rank: compute of a step, where it is recorded."""
    rank_evidence: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Per rank: its endpoint, light, utilisation."""
    recorder: str = ""
    """Why nothing is recorded; empty if unknown or recording."""
    links_measured: bool = False


@dataclass(slots=True, frozen=True)
class Judgement:
    """Findings in order of gain, and what is not known."""

    limit: Limit
    findings: tuple[JobFinding, ...]
    unknown: tuple[str, ...] = ()


def judge(situation: Situation) -> Judgement:
    """Return what limits a job, in order of gain."""
    if situation.waits:
        return Judgement("none", (_waiting(situation),))
    late, facts = _straggler(situation), situation.facts
    found = [f for f in (_scatter(situation), late, _input(situation)) if f is not None]
    if facts is not None:
        waited = late.weight if late else 0.0
        network = _network(situation, facts, waited)
        found += [f for f in (network, _overlap(facts)) if f is not None]
    found.sort(key=lambda f: (-f.weight, f.limit))
    unknown = _unknown(situation)
    if facts is None:
        limit: Limit = found[0].limit if found else "unknown"
        return Judgement(limit, tuple(found), unknown)
    if not found or found[0].weight < NOTABLE:
        found.insert(0, _compute(facts))
    return Judgement(found[0].limit, tuple(found), unknown)


def _waiting(situation: Situation) -> JobFinding:
    return JobFinding(
        limit="none",
        text=f"it does not run: {situation.waits}",
        remedy=situation.wait_remedy,
        command=situation.wait_command,
    )


def _scatter(situation: Situation) -> JobFinding | None:
    """Its ring crosses between aggregators although fewer would hold it."""
    ratio = situation.compact
    if ratio is None or situation.span <= situation.span_least or ratio.high <= 1.0:
        return None
    gain = PredictionInterval(max(1.0 - 1.0 / ratio.low, 0.0), 1.0 - 1.0 / ratio.high)
    if gain.high < NOTABLE:
        return None
    return JobFinding(
        limit="scatter",
        text=f"it touches {situation.span} aggregators, {situation.span_least} would do",
        evidence=(
            f"a compact step takes {_of(1.0 / ratio.high, 1.0 / ratio.low)} of the present one",
            *situation.compact_reasons,
        ),
        gain=gain,
        remedy="it ran scattered: submit it with --locality regroup next time"
        if situation.ended
        else "bring its endpoints together",
        command="" if situation.ended else f"lightloom plan --job {situation.job}",
    )


def _straggler(situation: Situation) -> JobFinding | None:
    """One rank computes longer; the others wait for it."""
    by_rank, facts = situation.compute_s, situation.facts
    if len(by_rank) < 2 or facts is None:
        return None
    slowest = max(sorted(by_rank), key=lambda rank: by_rank[rank])
    rest = sorted(seconds for rank, seconds in by_rank.items() if rank != slowest)
    usual = rest[len(rest) // 2]
    late = by_rank[slowest] - usual
    if by_rank[slowest] < _LATE * usual or late < NOTABLE * facts.step_s:
        return None
    share = min(late / facts.step_s, 1.0)
    return JobFinding(
        limit="straggler",
        text=f"rank {slowest} computes {figure(by_rank[slowest])} s a step,"
        f" the others {figure(usual)} s",
        evidence=tuple(situation.rank_evidence.get(slowest, ())),
        gain=PredictionInterval(share, share),
        remedy="look at its server and its endpoint; start the job again without it",
        command=f"lightloom describe job {situation.job}",
    )


def _input(situation: Situation) -> JobFinding | None:
    """It waits for its next batch, or its loader alone takes as long as a step."""
    facts, floor = situation.facts, situation.floor
    waited, step = situation.input_wait or (None, None)
    if facts is not None:
        waited, step = facts.wait_s, facts.step_s
    if not step:
        return None
    told = () if floor is None else (_of_floor(floor, step),)
    gates = floor is not None and floor.step_s >= _GATES * step
    if waited is None:
        if floor is None or not gates:
            return None
        exposed = facts.exposed_s if facts is not None else 0.0
        return JobFinding(
            limit="input",
            text=f"its loader alone needs {figure(floor.step_s)} s for a batch, a step takes"
            f" {figure(step)} s",
            evidence=told,
            gain=PredictionInterval(0.0, max(1.0 - exposed / step, 0.0)),
            remedy=_FASTER,
            command=_measure_input(floor),
        )
    share = min(waited / step, 1.0)
    if share < NOTABLE:
        return None
    ahead = "its loader alone keeps up: let it run further ahead (prefetch)"
    return JobFinding(
        limit="input",
        text=f"it waits for its next batch for {_percent(share)} of a step",
        evidence=(f"{figure(waited)} s of {figure(step)} s", *told),
        gain=PredictionInterval(share, share),
        remedy=ahead
        if floor is not None and not gates
        else f"{_FASTER}{'' if gates else '; measure its loader first'}",
        command=_measure_input(floor),
    )


_FASTER = "load with more workers, or from a nearer volume"


def _of_floor(floor: Floor, step_s: float) -> str:
    share = floor.step_s / step_s
    return (
        f"{floor.measurement}: the loader alone takes {figure(floor.step_s)} s for a batch of"
        f" {floor.batch} from {floor.volume}, {_percent(share)} of a step"
    )


def _measure_input(floor: Floor | None) -> str:
    given = "" if floor is None else f" --set volume={floor.volume} --set batch={floor.batch}"
    return f"lightloom measure input{given}"


def _network(situation: Situation, facts: StepFacts, late: float) -> JobFinding | None:
    """Communication is exposed, also in the most compact homes.

    ``late`` is the share of a step in which it waits for a straggler.
    """
    share = max(min(facts.exposed_s / facts.step_s, 1.0) - late, 0.0)
    left = share
    if situation.compact is not None and situation.span > situation.span_least:
        left = max(share - (1.0 - 1.0 / max(situation.compact.low, 1.0)), 0.0)
    if left < NOTABLE:
        return None
    where = "even where it is compact" if left < share else "where it is"
    return JobFinding(
        limit="network",
        text=f"{_percent(left)} of a step is communication that nothing covers, {where}",
        evidence=(
            f"{figure(facts.bytes_per_step / 1e6)} MB in {figure(facts.calls_per_step)} calls of a"
            " step",
            f"{figure(facts.comm_s)} s of communication, {figure(facts.exposed_s)} s of it exposed",
        ),
        gain=PredictionInterval(0.0, left),
        remedy="send less or less often: a larger batch per rank, gradients of 16 bits,"
        " accumulation over steps",
        command=f"lightloom comms {situation.job}",
    )


def _overlap(facts: StepFacts) -> JobFinding | None:
    """Compute could cover communication that is exposed now."""
    compute = max(facts.step_s - facts.exposed_s - (facts.wait_s or 0.0), 0.0)
    hidden = max(facts.comm_s - facts.exposed_s, 0.0)
    room = min(facts.exposed_s, max(compute / 2 - hidden, 0.0))
    share = room / facts.step_s
    if share < NOTABLE:
        return None
    return JobFinding(
        limit="overlap",
        text=f"compute could cover {_percent(share)} of a step more of its communication",
        evidence=(
            f"{figure(hidden)} s of communication runs behind {figure(compute)} s of compute,"
            " of which the backward pass, about half, can cover some",
        ),
        gain=PredictionInterval(0.0, share),
        remedy="send gradients while the backward pass runs, in smaller buckets"
        " (DDP: bucket_cap_mb)",
    )


def _compute(facts: StepFacts) -> JobFinding:
    compute = max(facts.step_s - facts.exposed_s - (facts.wait_s or 0.0), 0.0)
    return JobFinding(
        limit="compute",
        text=f"it computes for {_percent(min(compute / facts.step_s, 1.0))} of a step",
        evidence=(f"{figure(compute)} s of {figure(facts.step_s)} s",),
        remedy="the fabric is not the limit: faster or more GPUs, or less work a step",
    )


def _unknown(situation: Situation) -> tuple[str, ...]:
    found = []
    if situation.facts is None:
        why = situation.recorder or "nothing is recorded of its steps yet"
        again = f"lightloom comms {situation.job}; submit --record counts records a job"
        found.append(f"{why}: {again}")
    elif situation.facts.wait_s is None and situation.floor is None:
        found.append("whether it waits for its input: lightloom measure input")
    if not situation.links_measured:
        found.append("links were not measured, rates are the site file's: lightloom measure links")
    return tuple(found)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _of(low: float, high: float) -> str:
    if high - low < 0.005:
        return _percent(high)
    return f"{100 * low:.0f} to {_percent(high)}"

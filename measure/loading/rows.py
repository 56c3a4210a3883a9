"""Turns the lines of loading probes into one row per limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from measure.envelope import Json, Row
from measure.kinds import Line, RunEnd
from measure.loading.verdict import LoadingEvidence, certain, limit, remedy
from measure.statistics import Summary, summarise
from measure.storage.checked import figure, mapping, whole, words
from measure.storage.plan import StorageLimits

MOST_BLOCKS = 100
NAMED = {"loader": "ceiling", "model": "model", "both": "together", "deeper": "deeper"}
"""By phase: the name of its rate in a row."""


@dataclass(slots=True, frozen=True, kw_only=True)
class PhaseTurn:
    """One phase of one block on one rank. Seconds are sums, rates samples a second."""

    samples: int
    seconds: float
    wait_s: float
    compute_s: float
    read_s: float
    decode_s: float
    read_bytes: float | None
    block_bytes: float | None
    server_cores: float | None

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds


@dataclass(slots=True)
class LoadingLines:
    """The lines of one run's probes, checked."""

    turns: dict[tuple[str, int, int], PhaseTurn] = field(default_factory=dict)
    """By phase, block and rank; the first line counts."""
    device: Mapping[str, Json] = field(default_factory=dict)
    direct: bool | None = None
    """Whether reads go past the page cache."""
    refused: str = ""


def collect(lines: Iterable[Line], run: int, ranks: int) -> LoadingLines:
    """Collect the lines of one run."""
    found = LoadingLines()
    for line in lines:
        if line.run != run or not 0 <= line.rank < ranks:
            continue
        match line.record.get("probe"):
            case "phase":
                phase = words(line.record.get("phase"))
                block = whole(line.record.get("block"), 0, MOST_BLOCKS - 1)
                turn = _turn(line.record)
                if phase in NAMED and block is not None and turn is not None:
                    found.turns.setdefault((phase, block, line.rank), turn)
            case "device":
                found.device = line.record
            case "data":
                direct = line.record.get("direct")
                found.direct = direct if isinstance(direct, bool) else None
            case "refused":
                hint = words(line.record.get("hint"))
                found.refused = words(line.record.get("reason")) + (f" ({hint})" if hint else "")
            case "error":
                found.refused = found.refused or words(line.record.get("message"))
            case _:
                pass
    return found


def _turn(record: Row) -> PhaseTurn | None:
    samples = whole(record.get("samples"), 1, 2**50)
    seconds = figure(record.get("seconds"), 1e-6, 1e7)
    sums = {
        name: figure(record.get(name), 0, 1e9)
        for name in ("wait_s", "compute_s", "read_s", "decode_s")
    }
    if samples is None or seconds is None or any(value is None for value in sums.values()):
        return None
    return PhaseTurn(
        samples=samples,
        seconds=seconds,
        **{name: value or 0.0 for name, value in sums.items()},
        read_bytes=figure(record.get("read_bytes")),
        block_bytes=figure(record.get("block_bytes")),
        server_cores=figure(mapping(record.get("cores")).get("server"), 0, 1e5),
    )


def row(
    settings: Row, arm: StorageLimits, ranks: int, said: LoadingLines, end: RunEnd
) -> dict[str, Json]:
    """Return the row of one run: three rates, the verdict, and what to do about it."""
    rates = {phase: _rates(said, phase, ranks) for phase in NAMED}
    ceiling, model, together, deeper = (summarise(rates[phase]) for phase in NAMED)
    exposed = _exposed(end)
    both = [turn for (phase, _, _), turn in said.turns.items() if phase == "both"]
    alone = [turn for (phase, _, _), turn in said.turns.items() if phase == "loader"]
    whole_s = sum(turn.seconds for turn in both)
    working = settings["workers"] * sum(turn.seconds for turn in alone)
    reading = _share(sum(turn.read_s for turn in alone), working)
    decoding = _share(sum(turn.decode_s for turn in alone), working)
    found: Json = None
    sure: bool | None = None
    advice = ""
    if ceiling is not None and model is not None and together is not None:
        found = limit(ceiling.median, model.median, together.median, exposed=exposed)
        sure = certain(ceiling, model, together, exposed=exposed)
        evidence = LoadingEvidence(
            ceiling=ceiling.median,
            model=model.median,
            together=together.median,
            deeper=deeper.median if deeper else None,
            workers=settings["workers"],
            prefetch=settings["prefetch"],
            deeper_batches=settings["deeper"],
            sample_bytes=settings["sample"],
            reading=reading,
            decoding=decoding,
        )
        advice = remedy(found, evidence)
    return {
        "io_limit_bps": arm.io_bps,
        "memory_bytes": arm.memory_bytes,
        "ranks": ranks,
        "ceiling_samples_s": _median(ceiling),
        "model_samples_s": _median(model),
        "together_samples_s": _median(together),
        "deeper_samples_s": _median(deeper),
        "to_ceiling": _ratio(together, ceiling),
        "wait_share": _share(sum(turn.wait_s for turn in both), whole_s),
        "au": _share(sum(turn.compute_s for turn in both), whole_s),
        "reading_share": reading,
        "decoding_share": decoding,
        "ceiling_bytes_per_s": ceiling.median * settings["sample"] if ceiling else None,
        "cached_share": _cached([*both, *alone]),
        "server_cpu_cores": _highest(turn.server_cores for turn in both),
        "limit": found,
        "certain": sure,
        "remedy": advice,
        "spread": {
            f"{NAMED[phase]}_samples_s": summary.document()
            for phase, summary in zip(NAMED, (ceiling, model, together, deeper), strict=True)
            if summary is not None
        },
        "repetitions": min(len(rates[phase]) for phase in ("loader", "model", "both")),
        "reason": "" if found else said.refused or end.reason or "the probe did not measure it",
    }


def _rates(said: LoadingLines, phase: str, ranks: int) -> list[float]:
    """Return the rate of all ranks for each whole block; they step together: the slowest rules."""
    found = []
    for block in range(MOST_BLOCKS):
        turns = [said.turns.get((phase, block, rank)) for rank in range(ranks)]
        there = [turn.rate for turn in turns if turn is not None]
        if len(there) == ranks:
            found.append(ranks * min(there))
    return found


def _exposed(end: RunEnd) -> float | None:
    facts = end.facts
    if facts is None or facts.step_s <= 0:
        return None
    return min(max(facts.exposed_s / facts.step_s, 0.0), 1.0)


def _share(part: float, of: float) -> float | None:
    """Return a share of time; parts that were measured by themselves may exceed the whole a bit."""
    return min(part / of, 1.0) if of > 0 else None


def _median(summary: Summary | None) -> float | None:
    return None if summary is None else summary.median


def _ratio(one: Summary | None, other: Summary | None) -> float | None:
    if one is None or other is None or other.median <= 0:
        return None
    return one.median / other.median


def _cached(turns: Sequence[PhaseTurn]) -> float | None:
    """Return the share of the bytes that did not come from the block layer."""
    known = [(t.read_bytes, t.block_bytes) for t in turns if t.block_bytes is not None]
    asked = sum(read or 0.0 for read, _ in known)
    if not asked:
        return None
    return min(max(1 - sum(blocks or 0.0 for _, blocks in known) / asked, 0.0), 1.0)


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)

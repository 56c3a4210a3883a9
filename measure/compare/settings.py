"""Settings of a comparison of placements: the job, where to place it, and how long to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from base.figures import figure
from measure import placements
from measure.envelope import Json, Row
from measure.kinds import MeasuredSite, SettingsError
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.identify import usable

COMPARED = ("local", "hybrid", "remote")
MODES = ("default", "run", "predict")
RECORDS = ("counts", "full")
MOST_ROUNDS = 10
MOST_STEPS = 10_000
MOST_RUN_S = 86_400.0
WARM_UP = 10
"""Steps at the beginning of a run that do not count."""
_KNOWN = ("job", "placements", "mode", "within", "steps", "rounds", "run_s", "known", "record")


@dataclass(slots=True, frozen=True, kw_only=True)
class JobToRun:
    """The job that is compared, from its file."""

    count: int
    command: tuple[str, ...] = ()
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory_bytes: int | None = None
    io_bps: int | None = None
    volumes: tuple[tuple[str, str, bool], ...] = ()
    project: str = ""


@dataclass(slots=True, frozen=True)
class EarlierResult:
    """What an earlier comparison measured of the same job."""

    order: tuple[str, ...]
    homes: Mapping[str, str | None]
    facts: StepFacts


def complete(given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
    """Return all settings with their defaults. Raises SettingsError."""
    for name in given:
        if name not in _KNOWN:
            hint = f"there are: {', '.join(_KNOWN)}"
            raise SettingsError(str(name)[:40], "no such setting", hint)
    job = given.get("job")
    if not isinstance(job, dict):
        raise SettingsError("job", "is missing", "lightloom compare -f job.yaml sends it")
    found = job_of({"job": job})
    if found.count > len(fabric.places):
        raise SettingsError(
            "job",
            f"it has {found.count} ranks, {len(fabric.places)} endpoints are idle, lit and fit",
            "name more endpoints, or wait until they are idle",
        )
    mode = given.get("mode", "default")
    if mode not in MODES:
        raise SettingsError("mode", "is unknown", f"one of: {', '.join(MODES)}")
    record = given.get("record", "counts")
    if record not in RECORDS:
        raise SettingsError("record", "is unknown", f"one of: {', '.join(RECORDS)}")
    complete_ = {
        "job": dict(job),
        "placements": placements.read(given.get("placements"), fabric, COMPARED),
        "mode": mode,
        "within": _number(given, "within", 0.05, 0.0, 1.0),
        "steps": int(_number(given, "steps", 40, 10, MOST_STEPS)),
        "rounds": int(_number(given, "rounds", 2, 1, MOST_ROUNDS)),
        "run_s": _number(given, "run_s", 300.0, 1.0, MOST_RUN_S),
        "known": list(given.get("known") or []),
        "record": record,
    }
    if mode == "predict" and not known_of(complete_):
        raise SettingsError(
            "known",
            "nothing was measured of this job, so nothing can be predicted",
            "give --from an earlier comparison, or leave --predict out",
        )
    return complete_


def job_of(settings: Row) -> JobToRun:
    """Return the job of a comparison. Raises SettingsError."""
    job = settings["job"]
    count = job.get("count")
    if not _whole(count) or not 1 <= count <= 100_000:
        raise SettingsError("job", "its number of GPUs is missing", "give resources.gpus, or -n")
    env, command = job.get("env") or {}, job.get("command") or []
    if not isinstance(env, dict) or not isinstance(command, list):
        raise SettingsError("job", "its command is not a list or its variables are not a mapping")
    secret = next((name for name, value in env.items() if not isinstance(value, str)), None)
    if secret is not None:
        raise SettingsError(
            "job",
            f"{str(secret)[:80]} is a secret, which a measurement does not pass on",
            "give a file without it",
        )
    return JobToRun(
        count=count,
        command=tuple(str(word) for word in command),
        image=str(job.get("image") or ""),
        env={str(name): value for name, value in env.items()},
        cpu=_optional(job.get("cpu")),
        memory_bytes=_optional_whole(job.get("memory_bytes")),
        io_bps=_optional_whole(job.get("io_bps")),
        volumes=tuple(_volumes(job.get("volumes") or [])),
        project=str(job.get("project") or ""),
    )


def known_of(settings: Row) -> tuple[EarlierResult, ...]:
    """Return what earlier comparisons measured, without entries that make no sense."""
    count, found = settings["job"]["count"], []
    for entry in settings["known"]:
        if not isinstance(entry, dict):
            continue
        facts = facts_of(entry.get("facts"))
        order, homes = entry.get("order"), entry.get("homes")
        if facts is None or not usable(facts, count) or not isinstance(order, list):
            continue
        if isinstance(homes, dict) and len(order) == count and all(e in homes for e in order):
            found.append(EarlierResult(tuple(map(str, order)), homes, facts))
    return tuple(found)


def facts_document(facts: StepFacts) -> dict[str, Json]:
    """Return facts as a result keeps them."""
    return {name: getattr(facts, name) for name in StepFacts.__slots__}


def facts_of(document: Json) -> StepFacts | None:
    """Read facts back; None for anything else."""
    if not isinstance(document, dict):
        return None
    try:
        facts = StepFacts(**document)
        return facts if usable(facts, facts.ranks) else None
    except (TypeError, ValueError):
        return None


def _volumes(given: Json) -> Sequence[tuple[str, str, bool]]:
    if not isinstance(given, list):
        raise SettingsError("job", "its volumes are not a list")
    found = []
    for item in given:
        if not isinstance(item, dict) or "volume" not in item or "path" not in item:
            raise SettingsError("job", "a volume has no name or no path")
        found.append((str(item["volume"]), str(item["path"]), bool(item.get("read_only", True))))
    return found


def _number(
    given: Mapping[str, Json], name: str, default: float, least: float, most: float
) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise SettingsError(name, f"is not a number from {figure(least, 6)} to {figure(most, 6)}")
    return float(value)


def _optional(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _optional_whole(value: Json) -> int | None:
    return value if _whole(value) else None


def _whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

"""What Slurm says about a job, as :class:`EngineJob`. Pure.

One parser for slurmrestd and for ``squeue --json`` and ``scontrol show job --json``. A part of the
text is its owner's: everything is checked and clipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from base.engines import number_in
from controller.devices.observed import End, EngineJob, JobNeeds, Turn
from controller.devices.slurm.documents import (
    Document,
    clean,
    count_of,
    mapping,
    number_of,
    text_of,
    texts_of,
)
from controller.devices.slurm.gres import devices_in, gpus_in
from controller.devices.slurm.hostlists import MAX_NAMES, expand
from controller.devices.slurm.wishes import wishes_of

KIND = "slurm"
MAX_NAME = 120
MAX_REASON = 300
_LAST_JOB = 2**32 - 1

_ENDS: Mapping[str, End] = {
    "COMPLETED": "completed",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "REVOKED": "cancelled",
    "DEADLINE": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "LAUNCH_FAILED": "failed",
}
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_LATER = {"Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit"}
"""Reasons for which the engine does not try a job at all, as for those that are held."""
_TOPOLOGY = (
    "No suitable topology unit found",
    "Insufficient resources in topology unit",
    "Required nodes do not fit topology",
)
"""What Slurm 26.05 adds to a reason when a job waits for near nodes."""


@dataclass(slots=True, frozen=True)
class NodeMap:
    """The engine's nodes: the endpoints of each, in the order of its devices."""

    endpoints: Mapping[str, tuple[str, ...]]
    uncounted: frozenset[str] = field(default_factory=frozenset)
    """Nodes whose GPUs Slurm does not count (no ``Gres``): jobs get them with the node."""


@dataclass(slots=True, frozen=True)
class SlurmJob:
    """A job, and what its position in the queue depends on."""

    number: int
    seen: EngineJob
    priority: float = 0.0
    eligible: bool = True
    """Whether the engine tries to start it."""

    @property
    def order(self) -> tuple[bool, float, int]:
        """Sorts waiting jobs as the engine tries them."""
        return not self.eligible, -self.priority, self.number


def key_of(number: int) -> str:
    """Return the key of a job."""
    return f"{KIND}:{number}"


def job_in(key: str) -> int | None:
    """Return the number of the job with this key; None for a key of another kind."""
    number = number_in(key, KIND)
    return None if number is None else int(number)


def record_of(document: object, nodes: NodeMap, before: EngineJob | None = None) -> SlurmJob:
    """Return the job of one document; ``before`` is how it was seen last. ValueError.

    Its position in the queue is the one that it was seen with.

    Endpoints are those that ``gres_detail`` names. A job without it has none on nodes whose GPUs
    Slurm counts. On others it has the node's endpoints when it has the whole node, or when the node
    has one endpoint; which of several it would use is not known.

    Slurm forgets a job's devices when the job begins to end, before its processes are gone: a job
    that is completing, or has ended, keeps the endpoints that it was seen with.

    Pending tasks of an array are one job until each of them starts; components of a heterogeneous
    job are a job each.
    """
    job = mapping(document, "a job")
    number = count_of(job, "job_id", _LAST_JOB)
    if number == 0:
        raise ValueError("a job without a number")
    states = frozenset(state.upper() for state in texts_of(job, "job_state"))
    turn, end = _turn(states)
    attempt = count_of(job, "restart_cnt", _LAST_JOB)
    again = "COMPLETING" in states and states & _WAITING
    if again and before is not None and before.turn is not Turn.WAITS:
        attempt = before.attempt  # it may have the number of the next one already
    held = _Held()
    if turn is not Turn.WAITS:
        held = _held(job, nodes)
        ends = turn is Turn.ENDED or "COMPLETING" in states
        if ends and not held.endpoints and before is not None and before.attempt == attempt:
            held = _Held(before.endpoints, before.strangers)
    reason = clean(text_of(job, "state_reason"), MAX_REASON)
    described = clean(text_of(job, "state_description"), MAX_REASON)
    priority = number_of(job, "priority") or 0.0
    waits = turn is Turn.WAITS
    ending = turn is Turn.RUNNING and "COMPLETING" in states
    started = number_of(job, "start_time") or None
    seen = EngineJob(
        key=key_of(number),
        attempt=attempt,
        revision=_revision(attempt, turn, held, ending=ending),
        turn=turn,
        wants=_wants(job, turn, held, nodes),
        name=clean(text_of(job, "name"), MAX_NAME),
        user=_user(job),
        endpoints=held.endpoints,
        strangers=held.strangers,
        scope="" if turn in (Turn.WAITS, Turn.ENDED) else key_of(number),
        reason=_reason(turn, states, reason, described),
        ahead=before.ahead if waits and before is not None else 0,
        curable=waits and _curable(reason, described, _switches(job)),
        submitted_at=number_of(job, "submit_time") or 0.0,
        started_at=started if not waits and text_of(job, "nodes") else None,
        ended_at=number_of(job, "end_time") if turn is Turn.ENDED else None,
        end=end,
        exit_code=_exit_code(job) if turn is Turn.ENDED else None,
        suspended=bool(states & {"SUSPENDED", "STOPPED"}),
        ending=ending,
    )
    eligible = priority > 0 and reason not in _LATER and not reason.startswith("JobHeld")
    return SlurmJob(number, seen, priority, eligible)


def vanished(seen: EngineJob, now: float) -> EngineJob:
    """Return the end of a job that the engine forgot before its end was seen."""
    return replace(
        seen,
        turn=Turn.ENDED,
        revision=_revision(seen.attempt, Turn.ENDED, _Held(seen.endpoints, seen.strangers)),
        scope="",
        reason="Slurm no longer knows it: how it ended is not known",
        curable=False,
        ahead=0,
        ended_at=now,
        end="cancelled",  # as the fold says of a job that a whole batch lacks
        suspended=False,
        ending=False,
    )


@dataclass(slots=True, frozen=True)
class _Held:
    """What a job holds."""

    endpoints: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def _turn(states: frozenset[str]) -> tuple[Turn, End]:
    """Return where a job is; with several states the one that says most about its nodes counts.

    While a job completes, its processes hold its nodes, also of one that waits again: it was
    requeued or preempted.
    """
    ended = next((end for state, end in _ENDS.items() if state in states), None)
    if "COMPLETING" in states:
        return Turn.RUNNING, ended or "completed"
    if states & _WAITING:
        return Turn.WAITS, "completed"
    if "CONFIGURING" in states and ended is None:
        return Turn.ALLOCATED, "completed"
    if states & {"RUNNING", "SUSPENDED", "STOPPED"}:
        return Turn.RUNNING, ended or "completed"
    if ended is not None:
        return Turn.ENDED, ended
    raise ValueError(f"unknown states {clean(', '.join(sorted(states)), 80)!r}")


def _held(job: Document, nodes: NodeMap) -> _Held:
    hosts = expand(text_of(job, "nodes"))
    if len(set(hosts)) != len(hosts):
        raise ValueError("a node is named twice")
    details = texts_of(job, "gres_detail")
    if details and len(details) != len(hosts):
        raise ValueError(f"devices of {len(details)} nodes for {len(hosts)}")
    endpoints: list[str] = []
    strangers: list[str] = []
    problems: list[str] = []
    for i, host in enumerate(hosts):
        mapped = nodes.endpoints.get(host)
        detail = details[i] if details else ""
        if mapped is None:
            strangers.append(host)
        elif detail or host not in nodes.uncounted:
            found, whole = devices_in(detail, mapped)
            endpoints.extend(found)
            if not whole:
                strangers.append(host)
                problems.append(f"node {host} has GPUs that are not endpoints, or are not named")
        elif len(mapped) == 1 or _has_whole_nodes(job):
            endpoints.extend(mapped)
        else:
            problems.append(f"node {host} is shared and counts no GPUs: its endpoint is not known")
    return _Held(tuple(endpoints), tuple(strangers), tuple(problems))


def _has_whole_nodes(job: Document) -> bool:
    if "none" in texts_of(job, "shared") or "true" in texts_of(job, "exclusive"):
        return True
    resources = job.get("job_resources")
    allocated = resources.get("nodes") if isinstance(resources, dict) else None
    return isinstance(allocated, dict) and allocated.get("whole") is True


def _wants(job: Document, turn: Turn, held: _Held, nodes: NodeMap) -> JobNeeds:
    wishes = wishes_of(text_of(job, "comment"))
    servers = len(expand(text_of(job, "nodes"))) if turn is not Turn.WAITS else 0
    servers = servers or count_of(job, "node_count", MAX_NAMES)
    minutes = number_of(job, "time_limit")
    return JobNeeds(
        count=len(held.endpoints) or _asked(job, servers, nodes),
        servers=servers,
        leaves=_switches(job),
        locality=wishes.locality,
        policy=wishes.policy,
        dark_tolerance_s=wishes.dark_tolerance_s,
        pinned=wishes.pinned,
        time_limit_s=minutes * 60 if minutes and minutes > 0 else None,
        problems=wishes.problems + held.problems,
    )


def _asked(job: Document, servers: int, nodes: NodeMap) -> int:
    """Return how many GPUs a job asks for, by the first option that names them."""
    tasks = count_of(job, "tasks", _LAST_JOB) or 1
    sockets = count_of(job, "sockets_per_node", MAX_NAMES) or 1
    for key, times in (
        ("tres_req_str", 1),
        ("tres_per_job", 1),
        ("tres_per_node", servers),
        ("tres_per_task", tasks),
        ("tres_per_socket", servers * sockets),
    ):
        if one := gpus_in(text_of(job, key)):
            return min(one * times, MAX_NAMES)
    if nodes.uncounted and nodes.uncounted >= nodes.endpoints.keys():
        most = max(map(len, nodes.endpoints.values()))
        if most == 1 or _has_whole_nodes(job):
            return min(servers * most, MAX_NAMES)
    return 0


def _switches(job: Document) -> int:
    """Return ``--switches``; ``data_parser`` v0.0.40 and before call it a minimum."""
    key = "required_switches" if "required_switches" in job else "minimum_switches"
    return count_of(job, key, _LAST_JOB)


def _curable(reason: str, described: str, switches: int) -> bool:
    """Whether other homes may end the wait: more nodes, licences or time no light can give."""
    if any(text in described or text in reason for text in _TOPOLOGY):
        return True
    return reason == "Resources" and switches > 0


def _reason(turn: Turn, states: frozenset[str], reason: str, described: str) -> str:
    if turn is Turn.ENDED:
        words = ", ".join(sorted(states))
    elif turn is Turn.WAITS:
        words = "" if reason == "None" else reason
        reason = ""
    else:
        return ""
    for more in (reason, described):
        if more and more != "None":
            words = f"{words}: {more}" if words else more
    return clean(words, MAX_REASON)


def _user(job: Document) -> str:
    name = clean(text_of(job, "user_name"), MAX_NAME)
    uid = number_of(job, "user_id")
    return name or ("" if uid is None else f"{uid:.0f}")


def _exit_code(job: Document) -> int | None:
    """Return the exit code, 128 and the signal for a job that a signal ended."""
    code = job.get("exit_code")
    if not isinstance(code, dict):
        return None
    signal = code.get("signal")
    if isinstance(signal, dict):
        by = number_of(signal, "id" if "id" in signal else "signal_id")
        if by:
            return 128 + int(by)
    value = number_of(code, "return_code")
    return None if value is None else int(value)


def _revision(attempt: int, turn: Turn, held: _Held, *, ending: bool = False) -> str:
    words = "\n".join((*held.endpoints, "", *held.strangers))
    where = "ending" if ending else turn
    return f"{attempt}.{where}.{hashlib.sha256(words.encode()).hexdigest()[:16]}"

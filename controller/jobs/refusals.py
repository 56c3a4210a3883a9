"""Judges starts that were refused: for the job's reason, the server's, or an unknown one.

By code and object alone (``EngineFault``), never by wording. A start that is refused by the
server's reason is not the job's end: it waits again and avoids those endpoints for a while. An
endpoint that refused the starts of different jobs goes out of use, and its server with the second
one: it is idle at once after each refusal and would swallow the whole queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agentlink.ranks import RankKey
from controller.base.errors import ServiceError
from controller.base.texts import clipped
from controller.devices.engine import EngineError, EngineFault, Fenced
from controller.images.keeper import NotFetchedError
from controller.ranks.calls import UNANSWERED
from controller.state.kept.kinds import row_of
from controller.state.records import JobRecord, Quarantine
from controller.state.state import State

JOBS = 3
"""Different jobs whose starts an endpoint refused before it goes out of use."""
TRIES = 3
"""Starts refused for an unknown reason before the reason counts as the job's."""
AVOID_S = 5.0
"""For how long a job avoids an endpoint after a first refusal; doubled by each further one."""
LONGEST_S = 3600.0

_OF_JOB = ("invalid", "forbidden")
_OF_SERVER = ("not_found", "conflict", *UNANSWERED)


class Whose(StrEnum):
    """Whose reason a refusal has."""

    JOB = "job"
    SERVER = "server"
    UNKNOWN = "unknown"


@dataclass(slots=True, frozen=True)
class StartRefusal:
    """A start that was refused, and the endpoints that did as far as they are known."""

    whose: Whose
    endpoints: tuple[str, ...]
    text: str
    """Of the fault."""
    counts: bool = True
    """Against the endpoints; False for what is known otherwise: a server that did not answer,
    light that could not be moved."""


@dataclass(slots=True)
class _Asked:
    """A waiting job whose starts were refused."""

    submitted_at: float
    tries: int = 0
    """Refusals for an unknown reason."""
    often: dict[str, int] = field(default_factory=dict)
    """By endpoint: refusals."""
    until: dict[str, float] = field(default_factory=dict)
    """By endpoint that it avoids: until when, on the controller's clock."""
    servers: set[str] = field(default_factory=set)
    """That refused it for an unknown reason."""


def judge(job: JobRecord, error: Exception, servers: dict[str, str]) -> StartRefusal | None:
    """Return what is known of a refused start; None for an error that no server answered.

    ``servers`` has the server of each of the job's endpoints. A fault of one rank is its
    endpoint's, one of a server is that of all endpoints of the job there. An image that cannot be
    fetched is the server's reason where another server has it, and may be the server's or the
    registry's, unless it does not exist or is not allowed.
    """
    if isinstance(error, ServiceError) and error.object.startswith("image/"):
        return _of_image(error, servers)
    told = error.__cause__ if isinstance(error, ServiceError) else error
    if not isinstance(told, EngineError) or isinstance(told, Fenced):
        return None
    ranks = {RankKey(job.name, r, job.epoch).container: e for r, e in enumerate(job.endpoints)}
    found = [(fault, _endpoints(fault, ranks, servers)) for fault in told.faults]
    kinds = {_whose(fault, known=bool(ends)) for fault, ends in found}
    whose = next(kind for kind in (Whose.JOB, Whose.UNKNOWN, Whose.SERVER) if kind in kinds)
    ends = tuple(dict.fromkeys(e for _, some in found for e in some))
    if whose is Whose.SERVER and not ends:
        ends = tuple(servers)
    silent = all(f.obj.startswith("server/") and f.code in UNANSWERED for f in told.faults)
    return StartRefusal(whose, ends, clipped(str(told)), counts=not silent)


def _of_image(error: ServiceError, servers: dict[str, str]) -> StartRefusal | None:
    """Return what is known of an image that was not fetched."""
    if not isinstance(error.__cause__, EngineError):
        return None
    text, ends, elsewhere = clipped(error.message), tuple(servers), False
    if isinstance(error, NotFetchedError):
        ends = tuple(e for e, server in servers.items() if server == error.server)
        elsewhere = error.elsewhere
    if error.code in UNANSWERED:
        return StartRefusal(Whose.SERVER, ends, text, counts=False)
    if elsewhere and error.code not in _OF_JOB:
        return StartRefusal(Whose.SERVER, ends, text)
    return StartRefusal(Whose.UNKNOWN if error.code == "failed" else Whose.JOB, ends, text)


def _whose(fault: EngineFault, *, known: bool) -> Whose:
    if fault.obj.startswith("server/") or (fault.code in _OF_SERVER and known):
        return Whose.SERVER
    if fault.code in _OF_JOB or fault.code == "not_found":
        return Whose.JOB
    return Whose.UNKNOWN


def _endpoints(fault: EngineFault, ranks: dict[str, str], servers: dict[str, str]) -> Sequence[str]:
    """Return the endpoints of the job that a fault is about."""
    if fault.obj in ranks:
        return (ranks[fault.obj],)
    kind, _, name = fault.obj.partition("/")
    if kind == "server":
        return [endpoint for endpoint, server in servers.items() if server == name]
    return tuple(servers) if len(servers) == 1 and kind != "image" else ()


class StartRefusals:
    """Counts refused starts; puts endpoints out of use that refuse different jobs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked: dict[str, _Asked] = {}
        """By waiting job."""
        self._marks: dict[str, dict[str, Whose]] = {}
        """By endpoint: the jobs whose starts it refused since it last started one."""
        self._out: dict[str, Quarantine] = {}
        """Endpoints that went out of use for it."""

    def avoided(self, job: JobRecord) -> frozenset[str]:
        """Return the endpoints that a waiting job avoids now."""
        asked = self._asked.get(job.name)
        if asked is None or asked.submitted_at != job.submitted_at:
            return frozenset()
        now = self._state.clock()
        return frozenset(endpoint for endpoint, until in asked.until.items() if until > now)

    def started(self, job: JobRecord) -> None:
        """Forget the refusals of a job that started, and of the endpoints on which it did."""
        self._asked.pop(job.name, None)
        for endpoint in job.endpoints:
            self._marks.pop(endpoint, None)

    async def refused(self, job: JobRecord, refusal: StartRefusal) -> bool:
        """Count a refusal; return whether the job goes on.

        It ends if the reason is its own: it was refused ``TRIES`` times for an unknown
        reason, on different servers or again and again on one endpoint.
        """
        state, now = self._state, self._state.clock()
        self._asked = {n: a for n, a in self._asked.items() if not _over(state, n)}
        asked = self._asked.get(job.name)
        if asked is None or asked.submitted_at != job.submitted_at:
            asked = self._asked[job.name] = _Asked(job.submitted_at)
        ends = refusal.endpoints
        for endpoint in ends:
            asked.often[endpoint] = often = asked.often.get(endpoint, 0) + 1
            asked.until[endpoint] = now + min(AVOID_S * 2 ** (often - 1), LONGEST_S)
        if refusal.whose is Whose.UNKNOWN:
            asked.tries += 1
            asked.servers |= {state.cables[e].server for e in ends or job.endpoints}
            elsewhere = len(asked.servers) > 1
            if elsewhere:  # it is not this endpoint: the job brings its reason along
                await self._clear(job.name)
            stuck = max(asked.often.values(), default=TRIES) >= TRIES
            if asked.tries >= TRIES and (elsewhere or stuck):
                del self._asked[job.name]
                return False
            if elsewhere:
                return True
        if not refusal.counts:
            return True
        for endpoint in ends:
            self._marks.setdefault(endpoint, {})[job.name] = refusal.whose
        await self._judge(ends, refusal.text)
        return True

    async def _judge(self, endpoints: Iterable[str], text: str) -> None:
        """Put endpoints out of use that refused different jobs, and a server with the second."""
        state, out = self._state, dict[str, str]()
        for endpoint in endpoints:
            server, count = state.cables[endpoint].server, len(self._marks[endpoint])
            beside = [e for e in self._out if state.cables[e].server == server]
            if endpoint in state.light.quarantine or (count < JOBS and len(beside) < 2):
                continue
            out[endpoint] = f"it refused to start {_jobs(count)}; the last: {text}"
            if beside:
                busy = state.jobs.holders()
                why = f"its server {server} refuses to start jobs on {beside[0]} and {endpoint}"
                for cable in state.site.endpoints:
                    if cable.server == server and cable.name not in busy:
                        out.setdefault(cable.name, why)
        entries = [
            Quarantine(endpoint, why, state.clock())
            for endpoint, why in out.items()
            if endpoint not in state.light.quarantine
        ]
        for entry in entries:
            self._out[entry.object] = state.light.quarantine.put(entry)
            state.events.add("error", f"endpoint/{entry.object}", "Quarantined", entry.reason)
        if entries:
            state.jobs.wake.set()
            with contextlib.suppress(ServiceError):  # the journal retries
                await state.record(*map(row_of, entries))

    async def _clear(self, job: str) -> None:
        """Remove a job's refusals from its endpoints' counts: other servers refuse it as well."""
        state = self._state
        for endpoint, marks in self._marks.items():
            if marks.get(job) is not Whose.UNKNOWN:
                continue
            del marks[job]
            entry = self._out.get(endpoint)
            if entry is None or len(marks) >= JOBS or state.light.quarantine.get(endpoint) != entry:
                continue

            def free(now: Quarantine | None, entry: Quarantine = entry) -> Quarantine | None:
                return None if now == entry else now

            with contextlib.suppress(ServiceError):  # an operator may release it
                await state.intend({row_of(entry): free})
                del self._out[endpoint]
                text = f"back in use: job {job} was refused elsewhere as well"
                state.events.add("info", f"endpoint/{endpoint}", "Released", text)
                state.jobs.wake.set()


def _over(state: State, name: str) -> bool:
    job = state.jobs.get(name)
    return job is None or job.ended


def _jobs(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} different jobs"

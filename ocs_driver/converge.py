"""Changes circuits for all vendors by one loop: diff, send, read back, repeat.

A vendor's driver supplies ``read`` and the two bulks. A lost response makes the outcome
unknown; then the map is read again and only the missing changes are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from ocs_driver.base import (
    Action,
    ApplyResult,
    Circuit,
    CircuitMap,
    CircuitOutcome,
    CircuitRequest,
    CircuitState,
    Mode,
    OcsDriver,
    PairResult,
)
from ocs_driver.diff import LIGHT, CircuitChanges, diff
from ocs_driver.errors import (
    OcsBadReply,
    OcsConflict,
    OcsError,
    OcsTimeout,
    OcsUnreachable,
)
from ocs_driver.turns import CommandTurns

_log = logging.getLogger(__name__)

_POLL_FIRST_S = 0.004
_POLL_LONGEST_S = 0.2
_POLL_EAGER_S = 0.3
"""Time of fast polling after a change: a bulk takes up to 0.2 s, and dark time matters."""
_READ_S = 0.1
"""Longest interval between full reads; in between, one circuit is polled."""
_UNSETTLED = frozenset({CircuitState.TUNING, CircuitState.PROVISIONED})
_FAIL_GRACE_S = 0.3
"""A failure counts only after this time: a switch may report one while mirrors settle."""
_RETRY_PAUSE_S = 0.1
_BULK_SHARE = 0.5
"""Share of the remaining time for one bulk before its outcome counts as unknown."""


@dataclass(slots=True)
class _Job:
    """The goal and the progress of one ``apply``."""

    delete: tuple[CircuitRequest, ...]
    make: tuple[CircuitRequest, ...]
    mode: Mode
    until: float
    sent_deletes: dict[str, Circuit] = field(default_factory=dict)
    sent_makes: set[CircuitRequest] = field(default_factory=set)
    refused: dict[tuple[Action, CircuitRequest], OcsError] = field(default_factory=dict)


class ConvergingDriver(OcsDriver):
    """Implements ``apply`` on top of ``read``, ``_delete_bulk`` and ``_make_bulk``."""

    name: str
    """The switch's address, for messages."""
    group: str
    """Marks own circuits."""

    def __init__(self, name: str, group: str) -> None:
        self.name = name
        self.group = group
        self._turns = CommandTurns(name)
        self.revision = 0
        """Number of own changes of the map."""

    @property
    def changing(self) -> bool:
        """Whether a change of circuits is in progress."""
        return self._turns.changing

    @abstractmethod
    async def _delete_bulk(
        self, circuits: Sequence[Circuit], timeout_s: float
    ) -> list[OcsError | None]:
        """Send one bulk of deletes; return a refusal or None for each."""

    @abstractmethod
    async def _make_bulk(
        self, requests: Sequence[CircuitRequest], timeout_s: float
    ) -> list[OcsError | None]:
        """Send one bulk of makes; return a refusal or None for each. Leaves no half circuit."""

    async def _prepare(self, requests: Sequence[CircuitRequest]) -> None:
        """Prepare for makes while the old circuits still carry light.

        Raises OcsError on failure; then nothing is sent.
        """

    async def _read_map(self) -> CircuitMap:
        """Read the map with the internal names in which requests are compared."""
        return await self.read()

    @abstractmethod
    def _validate(self, requests: Sequence[CircuitRequest]) -> None:
        """Raise OcsError for ports that this switch cannot have, before anything is sent."""

    async def apply(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
        deadline_s: float = 10.0,
    ) -> ApplyResult:
        """See ``OcsDriver.apply``. Calls run one after the other.

        Each holds the session exclusively until its circuits are read back; reads wait.
        """
        loop = asyncio.get_running_loop()
        self._validate((*delete, *make))
        job = _Job(tuple(delete), tuple(make), mode, loop.time() + deadline_s)
        async with self._turns.change(job.until):
            before = await self._read_in_time(job.until)
            changes = diff(before, job.delete, job.make, mode=mode, group=self.group)
            while changes and await self._send(job, changes) is False:
                changes = self._still_missing(job, await self._read_again(job))
            return _judge(job, await self._settle(job), self.group)

    async def check(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        *,
        mode: Mode = Mode.SAFE,
    ) -> None:
        """See ``OcsDriver.check``."""
        self._validate((*delete, *make))
        diff(await self._read_map(), delete, make, mode=mode, group=self.group)

    async def provoke(
        self, requests: Sequence[CircuitRequest], timeout_s: float = 10.0
    ) -> list[OcsError | None]:
        """Make circuits without a conflict check, to find out how the switch responds.

        Returns a refusal or None for each. For the probe, on unused ports.
        """
        async with self._turns.change():
            self.revision += 1
            await self._prepare(self._inwards(requests))
            return await self._make_bulk(self._inwards(requests), timeout_s)

    def _inwards(self, requests: Sequence[CircuitRequest]) -> list[CircuitRequest]:
        """Translate requests to the internal names that bulks use."""
        return list(requests)

    async def _read_in_time(self, until: float) -> CircuitMap:
        """Read the map before anything is sent. Raises OcsUnreachable when that takes too long."""
        try:
            async with asyncio.timeout_at(until):
                return await self._read_map()
        except (TimeoutError, OcsTimeout):
            raise OcsUnreachable(
                "no_answer", self.name, "the circuits could not be read; nothing was changed"
            ) from None

    async def _send(self, job: _Job, changes: CircuitChanges) -> bool:
        """Send the bulks; return False when the outcome is unknown and needs a new read."""
        if self._left(job) <= _RETRY_PAUSE_S:
            # Too late to send anything: the last map shows what is missing.
            return True
        job.sent_deletes.update({c.name: c for c in changes.deletes})
        job.sent_makes.update(changes.makes)
        self.revision += 1
        try:
            # A bulk of several steps, or a read within it, may wait longer than the time left.
            async with asyncio.timeout_at(job.until):
                if changes.makes:
                    await self._prepare(changes.makes)
                await self._send_bulks(job, changes)
        except TimeoutError:
            _log.warning("%s: the bulk did not finish before the deadline", self.name)
            return False
        except (OcsBadReply, OcsTimeout, OcsUnreachable) as error:
            _log.warning("%s; reading the switch again", error)
            if isinstance(error, OcsBadReply):
                await asyncio.sleep(_RETRY_PAUSE_S)  # it came at once, and so would the next
            return False
        return True

    async def _send_bulks(self, job: _Job, changes: CircuitChanges) -> None:
        if changes.deletes:
            errors = await self._delete_bulk(changes.deletes, self._share(job))
            for circuit, error in zip(changes.deletes, errors, strict=True):
                if error is not None:
                    job.refused[Action.DELETE, _request(circuit)] = error
        if changes.makes:
            errors = await self._make_bulk(changes.makes, self._share(job))
            for request, error in zip(changes.makes, errors, strict=True):
                if error is not None:
                    job.refused[Action.MAKE, request] = error

    def _share(self, job: _Job) -> float:
        """Return how long a bulk may wait for responses; the rest remains for the read-back."""
        return max(self._left(job) * _BULK_SHARE, _RETRY_PAUSE_S / 2)

    @staticmethod
    def _left(job: _Job) -> float:
        return job.until - asyncio.get_running_loop().time()

    def _still_missing(self, job: _Job, now: CircuitMap) -> CircuitChanges:
        """Return the changes to send after an unknown outcome, except refused ones."""
        delete = [r for r in job.delete if (Action.DELETE, r) not in job.refused]
        make = [r for r in job.make if (Action.MAKE, r) not in job.refused]
        try:
            return diff(now, delete, make, mode=job.mode, group=self.group)
        except OcsConflict as error:
            # Another client occupied the ports meanwhile: the missing circuits have failed.
            for request in make:
                if now.find(request) is None:
                    job.refused[Action.MAKE, request] = error
            return CircuitChanges((), ())

    async def _read_again(self, job: _Job) -> CircuitMap:
        """Read the map, with retries. Raises OcsTimeout at the deadline."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(job.until):
                    return await self._read_map()
            except TimeoutError:
                error: OcsError = OcsTimeout("deadline", self.name, "no response in time")
            except (OcsBadReply, OcsTimeout, OcsUnreachable) as problem:
                error = problem
            if loop.time() + _RETRY_PAUSE_S >= job.until:
                raise OcsTimeout(
                    "outcome_unknown",
                    self.name,
                    f"the circuits could not be read back before the deadline ({error.hint}); "
                    "read the switch before any other change",
                ) from None
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _may_be_lit(self, request: CircuitRequest) -> bool:
        """Check cheaply whether light arrives at a circuit's end; True when that is unknown.

        The result only decides when to read all circuits; the read decides about their state.
        """
        del request
        return True

    async def _settle(self, job: _Job) -> CircuitMap:
        """Read until every made circuit is tuned or permanently failed, or until the deadline."""
        loop = asyncio.get_running_loop()
        pause = _POLL_FIRST_S
        eager_until = loop.time() + _POLL_EAGER_S
        patience = None
        now = await self._read_again(job)
        while True:
            found = [
                (request, circuit.state)
                for request in job.make
                if (Action.MAKE, request) not in job.refused
                and (circuit := now.find(request)) is not None
            ]
            waiting = [request for request, state in found if state in _UNSETTLED]
            failed = [request for request, state in found if state is CircuitState.FAILED]
            if not failed:
                patience = None
            elif patience is None:
                patience = loop.time() + _FAIL_GRACE_S
            lasting = patience is not None and loop.time() >= patience
            if not waiting and (not failed or lasting):
                return now
            read_at = loop.time() + _READ_S
            if patience is not None and not lasting:
                read_at = min(read_at, patience)
            while True:
                if loop.time() + pause >= job.until:
                    return now
                await asyncio.sleep(pause)
                if loop.time() > eager_until:
                    pause = min(pause * 1.5, _POLL_LONGEST_S)
                looked_at = (waiting or failed)[-1]
                if loop.time() >= read_at or await self._worth_reading(job, looked_at):
                    break
            with contextlib.suppress(OcsTimeout):
                now = await self._read_again(job)

    async def _worth_reading(self, job: _Job, request: CircuitRequest) -> bool:
        try:
            async with asyncio.timeout_at(job.until):
                return await self._may_be_lit(request)
        except TimeoutError:
            return False  # too late for a read as well
        except OcsError:
            return True


def _request(circuit: Circuit) -> CircuitRequest:
    return CircuitRequest(circuit.a, circuit.b, circuit.duplex)


def _judge(job: _Job, after: CircuitMap, group: str) -> ApplyResult:
    """Return the result of each circuit, judged by the map read back."""
    sent = {circuit.paths for circuit in job.sent_deletes.values()}
    made = {request.paths for request in job.make}
    asked = {paths for request in (*job.delete, *job.make) for paths in request.within}
    displaced = [_request(c) for c in job.sent_deletes.values() if c.paths not in asked]
    results = [
        _judge_delete(
            job,
            request,
            after,
            sent=not sent.isdisjoint(request.within),
            made_again=request.paths in made,
        )
        for request in (*job.delete, *displaced)
    ]
    results += [_judge_make(job, request, after, group) for request in job.make]
    return ApplyResult(tuple(results), after)


def _judge_delete(
    job: _Job, request: CircuitRequest, after: CircuitMap, *, sent: bool, made_again: bool
) -> PairResult:
    found = None if made_again else next(iter(after.covered(request)), None)
    if found is None:
        outcome = CircuitOutcome.DONE if sent else CircuitOutcome.UNCHANGED
        return PairResult(Action.DELETE, request.a, request.b, request.duplex, outcome)
    refused = next(
        (
            error
            for (action, key), error in job.refused.items()
            if action is Action.DELETE and found.matches(key)
        ),
        None,
    )
    return PairResult(
        Action.DELETE,
        request.a,
        request.b,
        request.duplex,
        CircuitOutcome.FAILED,
        "still_there" if refused is None else refused.code,
        f"{found.name} still exists" if refused is None else refused.hint,
    )


def _judge_make(job: _Job, request: CircuitRequest, after: CircuitMap, group: str) -> PairResult:
    found = after.find(request)
    refused = job.refused.get((Action.MAKE, request))
    code = message = ""
    if found is not None and found.belongs_to(group) and found.state is CircuitState.TUNED:
        outcome = CircuitOutcome.DONE if request in job.sent_makes else CircuitOutcome.UNCHANGED
        return PairResult(Action.MAKE, request.a, request.b, request.duplex, outcome)
    if refused is not None:
        code, message = refused.code, refused.hint
    elif found is None:
        code, message = "not_made", "the switch does not show the circuit"
    elif not found.belongs_to(group):
        owner = found.owner or "an unknown owner"
        code, message = "foreign_circuit", f"{found.name} belongs to {owner}"
    elif found.state in LIGHT or found.state is CircuitState.PROVISIONED:
        code, message = "not_tuned", f"still {found.state} at the deadline ({found.detail})"
    else:
        code, message = "circuit_failed", f"no light, or the setup failed ({found.detail})"
    return PairResult(
        Action.MAKE, request.a, request.b, request.duplex, CircuitOutcome.FAILED, code, message
    )

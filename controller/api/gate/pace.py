"""Limits the rate of each caller's requests: token buckets, on the monotonic clock.

Admins and operators are not limited: their requests must pass during a flood.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from fastapi.responses import JSONResponse

from base import clock
from controller.api.problems import problem
from controller.base.addresses import network_of
from controller.base.token_bucket import TokenBucket
from controller.people.authz import Principal, Role

MAX_KNOWN = 10_000


@dataclass(slots=True, frozen=True)
class Limit:
    """``rate`` a second in the long run, ``burst`` at once."""

    rate: float
    burst: float


CHANGES = Limit(rate=20, burst=100)
READS = Limit(rate=100, burst=500)
HOOKS = Limit(rate=50, burst=1000)
"""Requests of one engine's hook: more jobs than an engine starts. Each asks the engine and is
audited."""
FAILURES = Limit(rate=1, burst=20)
"""Requests of one address without a valid token, and its sign-ins."""
PUBLIC = Limit(rate=100, burst=500)
"""Requests of one address for what needs no token: the console's files, the schema, probes."""
BYTES = 4096
"""A change counts once for each so many bytes of its body: a thousand jobs are not one request."""
_FREE = frozenset({Role.ADMIN, Role.OPERATOR})


class RateLimit:
    """The buckets of all callers; the least recently used are dropped first."""

    def __init__(
        self,
        *,
        changes: Limit = CHANGES,
        reads: Limit = READS,
        hooks: Limit = HOOKS,
        failures: Limit = FAILURES,
        public: Limit = PUBLIC,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._changes, self._reads, self._hooks = changes, reads, hooks
        self._failures, self._public = failures, public
        self._clock = clock
        self._buckets: defaultdict[str, OrderedDict[str, TokenBucket]] = defaultdict(OrderedDict)
        """Per kind, so that addresses, which cost nothing, cannot displace a user's bucket."""

    def read(self, principal: Principal) -> JSONResponse | None:
        """Count a read; return the refusal of a caller who sends too many requests."""
        if principal.role in _FREE:
            return None
        if principal.role is Role.ENGINE:
            return self._spend("hook", principal.name, self._hooks)
        return self._spend("read", principal.name, self._reads)

    def change(self, principal: Principal, size: int) -> JSONResponse | None:
        """Count a change whose body has ``size`` bytes; return the refusal, as ``read``.

        A large one is let through on what is left and makes later ones wait.
        """
        if principal.role in _FREE:
            return None
        cost = 1 + size // BYTES
        if principal.role is Role.ENGINE:
            return self._spend("hook", principal.name, self._hooks, cost)
        return self._spend("change", principal.name, self._changes, cost)

    def failed(self, address: str) -> JSONResponse | None:
        """Count a request without a valid token; return the refusal if there are too many."""
        return self._spend("failed", network_of(address), self._failures)

    def public(self, address: str) -> JSONResponse | None:
        """Count a request that needs no token; return the refusal if there are too many."""
        return self._spend("public", network_of(address), self._public)

    def _spend(self, kind: str, key: str, limit: Limit, cost: float = 1) -> JSONResponse | None:
        now = self._clock()
        buckets = self._buckets[kind]
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = TokenBucket(limit.rate, limit.burst)
            if len(buckets) > MAX_KNOWN:
                buckets.popitem(last=False)
        buckets.move_to_end(key)
        if bucket.consume(now):
            bucket.spend(now, cost - 1)
            return None
        wait_s = bucket.wait_s(now)
        return problem(
            429,
            "unavailable",
            f"too many requests: at most {limit.rate:g} a second are allowed",
            hint=f"try again in {wait_s:.1f} s",
            headers={"Retry-After": str(max(1, round(wait_s)))},
        )

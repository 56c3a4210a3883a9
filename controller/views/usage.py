"""Usage as REST documents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from controller.base.errors import ServiceError
from controller.schema.insight.usage import By, UsageLineView, UsageSumsView, UsageView
from controller.state.state import State
from controller.usage.interval import UsageSums
from controller.usage.window import Key, UsageQuery, answer

USUAL_S = 30 * 86400.0
"""Length of the window of a question without ``since``."""


class UsageViews:
    """Answers what jobs held, from the store and from what it does not have yet."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def over(
        self, since: float | None, until: float | None, by: By, projects: Collection[str] | None
    ) -> UsageView:
        """Return the usage of a window, by default of the last 30 days.

        A window ends now at the latest. ServiceError ``invalid`` when it is empty.
        """
        ledger, now = self._state.usage.ledger, self._state.usage.now
        end = now if until is None else min(until, now)
        begin = end - USUAL_S if since is None else since
        if begin >= end:
            raise ServiceError(
                "invalid",
                "the window is empty: it begins at or after its end, or in the future",
                object="usage",
                hint="give a `since` before `until`, in seconds since 1970",
            )
        only = None if projects is None else frozenset(projects)
        window = UsageQuery(begin, end, by, only)
        live = ledger.live()
        found = answer(window, await self._state.store.usage(window, live), live)
        return UsageView(
            since=begin,
            until=end,
            by=by,
            lines=[_line(by, key, sums) for key, sums in found.lines.items()],
            others=_sums(found.others),
            total=_sums(found.total),
        )

    def totals(self) -> Mapping[str, UsageSumsView]:
        """Return, by project, all usage since the controller started."""
        usage = self._state.usage
        return {project: _sums(sums) for project, sums in usage.ledger.totals(usage.now).items()}


def _sums(sums: UsageSums) -> UsageSumsView:
    return UsageSumsView(**asdict(sums))


def _line(by: By, key: Key, sums: UsageSums) -> UsageLineView:
    names = ("job", "submitted_at", "project", "user") if by == "job" else (by,)
    return UsageLineView.model_validate(dict(zip(names, key, strict=True)) | asdict(sums))

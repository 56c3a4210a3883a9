"""Quarantine: lists what is out of use, and puts it back into use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.reconcile.adopt import Adopter
from controller.schema.plans import QuarantineView
from controller.state.kept.kinds import row_of
from controller.state.records import Quarantine
from controller.state.state import State


class QuarantineKeeper:
    """Lists and releases ports and endpoints that are out of use."""

    def __init__(
        self, state: State, adopter: Adopter, relight: Callable[[Iterable[str]], None]
    ) -> None:
        """``relight`` gives light back to endpoints that are dark."""
        self._state = state
        self._adopter = adopter
        self._relight = relight

    def views(self) -> list[QuarantineView]:
        """Return all quarantined objects, the oldest entry first."""
        entries = sorted(self._state.light.quarantine.values(), key=lambda entry: entry.since)
        return [QuarantineView(object=e.object, reason=e.reason, since=e.since) for e in entries]

    async def release(self, name: str) -> QuarantineView:
        """Put a port (``as0/3``) or an endpoint back into use. ServiceError ``not_found``.

        An endpoint that is dark, as after a spare has taken its place, gets light as soon as a port
        of its home is free. If the port still carries no light, the next transaction that uses it
        puts it into quarantine again.
        """
        state = self._state
        entry = state.light.quarantine.get(name)
        if entry is None:
            raise ServiceError(
                "not_found",
                f"{name} is not in quarantine",
                object=name,
                hint="see `lightloom quarantine list`",
            )

        def released(now: Quarantine | None) -> Quarantine | None:
            return None if now == entry else now  # a new one stays

        async with failpoints.around("save-quarantine"):
            await state.intend({row_of(entry): released})
        kind = "aggregator" if "/" in name else "endpoint"
        state.events.add("info", f"{kind}/{name}", "Released", "back in use, by the operator")
        cable = state.cables.get(name)
        if cable is not None and cable.fiber.device in state.light.foreign_points:
            await self._adopter.adopt(cable.fiber.device)
        if cable is not None and name not in state.light.attachments:
            self._relight((name,))
        state.jobs.wake.set()
        return QuarantineView(object=entry.object, reason=entry.reason, since=entry.since)

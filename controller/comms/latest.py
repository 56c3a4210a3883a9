"""The latest measurements that tell what the fabric gives: of links, and of collectives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog

from controller.base.errors import ServiceError
from controller.state.kept.measurements import MeasurementRecord
from controller.state.state import State
from measure.links.model import link_model, tells_paths
from scheduler.steptime.road import LinkModel

LOOK_EVERY_S = 10.0

Kind = Literal["links", "collectives"]
log = structlog.get_logger(__name__)


class LatestResults:
    """Holds the newest valid result of each type that was measured here. Belongs to the loop."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[Kind, tuple[str, Mapping[str, Any]]] = {}
        self._links: LinkModel | None = None

    def links(self) -> LinkModel | None:
        """Return the links as the newest measurement of each pair alone tells; None before one."""
        return self._links

    def collectives(self) -> tuple[str, Mapping[str, Any]] | None:
        """Return the id and the result of the latest measurement of collectives."""
        return self._known.get("collectives")

    async def refresh(self) -> None:
        """Look for newer results. ServiceError when the store cannot be read."""
        await self._refresh("collectives")
        if await self._refresh("links", _of_paths):
            self._links = _model(self._known.get("links"))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.refresh()
            except ServiceError as error:
                log.warning("measured results unread", error=error.message)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _refresh(
        self, kind: Kind, suits: Callable[[MeasurementRecord], bool] = lambda record: True
    ) -> bool:
        """Return whether another result is the latest now."""
        record, known = self._state.measurements.latest(kind, suits), self._known.get(kind)
        if record is None:
            return self._known.pop(kind, None) is not None
        if known is not None and known[0] == record.id:
            return False
        text = self._state.measurements.results.get(record.id)
        if text is None:
            text = await self._state.store.measurement_result(record.id)
        if text is None:
            return False
        self._known[kind] = record.id, await asyncio.to_thread(json.loads, text)
        return True


def _of_paths(record: MeasurementRecord) -> bool:
    return tells_paths(record.settings)


def _model(known: tuple[str, Mapping[str, Any]] | None) -> LinkModel | None:
    """Return the classes of a result; None where no fit can be true: a job wrote the figures."""
    if known is None:
        return None
    ident, result = known
    try:
        found = link_model(result)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("measured links refused", measurement=ident, reason=str(error))
        return None
    return LinkModel(found, source=f"measurement {ident}") if found else None

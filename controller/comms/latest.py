"""The latest measurements of what the fabric gives: of links, and of collectives."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from controller.base.errors import ServiceError
from controller.state.kept.measurements import MeasurementRecord
from controller.state.state import State
from measure.collectives.matching import ring_share
from measure.links.model import link_model, tells_paths
from scheduler.steptime.road import LinkModel

LOOK_EVERY_S = 10.0
MOST_LINKS = 8
"""Measurements of links that count: an older one for the classes that no newer one has."""

Figures = TypeVar("Figures")
Fits = Mapping[str, tuple[float, float]]
log = structlog.get_logger(__name__)


class LatestResults:
    """Holds the newest valid results that were measured here. Belongs to the loop."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._collectives: tuple[str, Mapping[str, Any]] | None = None
        self._fits: dict[str, Fits] = {}
        """By id of a measurement of links, the newest first."""
        self._links: LinkModel | None = None
        self._rings: tuple[str, float] | None = None
        """Id of the latest measurement of collectives, and the share that its ring got of links."""

    def links(self) -> LinkModel | None:
        """Return each class by the newest measurement that has it; None before the first.

        Pairs are measured alone. A measurement of two endpoints has no other classes. The
        ring's share of the links comes from the latest collectives, if these have it.
        """
        if self._links is None or self._rings is None:
            return self._links
        ident, share = self._rings
        source = f"{self._links.source}, rings by {ident}"
        return replace(self._links, ring_share=share, source=source)

    def collectives(self) -> tuple[str, Mapping[str, Any]] | None:
        """Return the id and the result of the latest measurement of collectives."""
        return self._collectives

    async def refresh(self) -> None:
        """Read newer results. ServiceError when the store cannot be read."""
        await self._refresh_collectives()
        await self._refresh_links()

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            try:
                await self.refresh()
            except ServiceError as error:
                log.warning("measured results unread", error=error.message)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _refresh_collectives(self) -> None:
        record, known = next(self._state.measurements.valid("collectives"), None), self._collectives
        if record is None:
            self._collectives = self._rings = None
        elif known is None or known[0] != record.id:
            result = await self._result(record)
            if result is not None:
                self._collectives = record.id, result
                share = _figures(record, ring_share, result)
                self._rings = None if share is None else (record.id, share)

    async def _refresh_links(self) -> None:
        records = self._state.measurements.valid("links", _of_paths)
        found: dict[str, Fits] = {}
        for record in list(itertools.islice(records, MOST_LINKS)):
            if record.id in self._fits:
                found[record.id] = self._fits[record.id]
            elif (result := await self._result(record)) is not None:
                found[record.id] = _figures(record, link_model, result) or {}
        if found != self._fits:
            self._fits, self._links = found, _model(found)

    async def _result(self, record: MeasurementRecord) -> Mapping[str, Any] | None:
        text = self._state.measurements.results.get(record.id)
        if text is None:
            text = await self._state.store.measurement_result(record.id)
        if text is None:
            return None
        result: Mapping[str, Any] = await asyncio.to_thread(json.loads, text)
        return result


def _of_paths(record: MeasurementRecord) -> bool:
    return tells_paths(record.settings)


def _figures(
    record: MeasurementRecord,
    read: Callable[[Mapping[str, Any]], Figures | None],
    result: Mapping[str, Any],
) -> Figures | None:
    """Return a result's links; None where it cannot be true: a job wrote the figures."""
    try:
        return read(result)
    except (ValueError, KeyError, TypeError) as error:
        log.warning(
            "measured figures refused",
            type=record.type,
            measurement=record.id,
            reason=str(error),
        )
        return None


def _model(found: Mapping[str, Fits]) -> LinkModel | None:
    """Join the measurements' links; ``found`` has the newest first. Pure."""
    classes: dict[str, tuple[float, float]] = {}
    sources: list[str] = []
    for ident, fits in found.items():
        fresh = {name: fit for name, fit in fits.items() if name not in classes}
        if fresh:
            classes.update(fresh)
            sources.append(ident)
    if not classes:
        return None
    word = "measurement" if len(sources) == 1 else "measurements"
    return LinkModel(classes, source=f"{word} {', '.join(sources)}")

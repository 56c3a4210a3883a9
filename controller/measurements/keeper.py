"""Accepts measurements, keeps them and their results, and goes on with them after a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from controller.base.errors import ServiceError, not_found
from controller.base.tasks import Tasks
from controller.base.texts import clipped
from controller.devices.engine import Pull
from controller.images.pins import hosts
from controller.jobs.admission import Admission, check_project
from controller.jobs.volumes import volumes_of
from controller.measurements.jobs import check_runs, homed, request_of
from controller.measurements.places import pick
from controller.measurements.results import written
from controller.measurements.runner import MeasurementParts, MeasurementRunner
from controller.measurements.views import job_name, measurement_view
from controller.schema.insight.measurements import (
    MeasurementImport,
    MeasurementRequest,
    MeasurementView,
    ResultView,
)
from controller.state.intend import keys
from controller.state.intend.intentions import constant
from controller.state.kept.measurements import MEASUREMENTS, MeasurementRecord, MeasurementRun
from controller.state.state import State
from measure.envelope import Body, Environment, Measurement
from measure.kinds import (
    Continuing,
    Importing,
    MeasuredSite,
    MeasurementKind,
    Progress,
    Run,
    SettingsError,
)

log = structlog.get_logger(__name__)

CANCEL_S = 45.0
"""Longest wait of a cancel for the measurement's end; it goes on by itself afterwards."""
IMAGE_HINT = "build it on that server: docs/measure.md says how"


class MeasurementKeeper:
    """All measurements of the site."""

    def __init__(
        self, parts: MeasurementParts, tasks: Tasks, kinds: Mapping[str, MeasurementKind]
    ) -> None:
        self._parts = parts
        self._state = parts.state
        self._tasks = tasks
        self._kinds = kinds
        self._runners: dict[str, MeasurementRunner] = {}

    # --- life -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Go on with the measurements that a restart interrupted."""
        for record in list(self._state.measurements.values()):
            if record.ended:
                continue
            kind = self._kinds.get(record.type)
            if kind is None:
                reason = f"this version of the program has no measurement {record.type}"
                self._state.measurements.change(
                    record.id, state="failed", reason=reason, finished_at=self._state.clock()
                )
                self._state.journal.owe(MEASUREMENTS.row(record.id))
                continue
            self._spawn(record.id, kind)

    def _spawn(self, ident: str, kind: MeasurementKind) -> None:
        runner = self._runners[ident] = MeasurementRunner(self._parts, kind, ident)

        async def run() -> None:
            try:
                await runner.run()
            finally:
                self._runners.pop(ident, None)

        self._tasks.spawn(run(), f"measurement {ident}")

    # --- reads ----------------------------------------------------------------------------

    def views(self) -> list[MeasurementView]:
        """Return all measurements without results, oldest first."""
        return [self._view(record) for record in self._state.measurements.values()]

    def snapshots(self) -> dict[str, object]:
        """Return by id what the list shows of each, cheap to compare."""
        return {
            record.id: record
            if record.ended
            else (record, self._progress(record), self._begun(record))
            for record in self._state.measurements.values()
        }

    async def view(self, ident: str) -> MeasurementView:
        """Return one measurement with its result. ServiceError ``not_found``."""
        record = self.get(ident)
        view = self._view(record)
        result = await stored_result(self._state, ident) if record.ended else None
        if result is None:
            return view
        return view.model_copy(update={"result": ResultView.model_validate(result)})

    def get(self, ident: str) -> MeasurementRecord:
        """Return one record. ServiceError ``not_found``."""
        record = self._state.measurements.get(ident)
        if record is None:
            raise not_found("measurement", ident)
        return record

    def _view(self, record: MeasurementRecord) -> MeasurementView:
        return measurement_view(record, self._progress(record), self._begun(record))

    def _progress(self, record: MeasurementRecord) -> Progress | None:
        runner = self._runners.get(record.id)
        return None if runner is None or record.ended else runner.progress

    def _begun(self, record: MeasurementRecord) -> frozenset[str]:
        """Return the jobs of its runs that exist."""
        names = (job_name(record.id, number) for number in range(len(record.runs)))
        return frozenset(name for name in names if name in self._state.jobs)

    # --- changes --------------------------------------------------------------------------

    async def start(self, request: MeasurementRequest, user: str) -> MeasurementView:
        """Accept a measurement and begin it; with ``dry_run`` only show its runs.

        ServiceError ``invalid`` for wrong settings, ``conflict`` when an endpoint is not idle.
        """
        state = self._state
        state.require_command()
        if not state.ready:
            raise ServiceError(
                "unavailable",
                "the controller is still recovering",
                object="controller",
                hint="try again in a moment",
            )
        kind = self._kind(request.type)
        fabric = pick(state, request.endpoints, request.homes, self._claimed())
        if (links := self._parts.links()) is not None:
            fabric = replace(fabric, fits=links.fits, ring_share=links.ring_share)
        settings, runs = await self._planned(kind, request, fabric)
        used = {name for run in runs for name in run.endpoints}
        record = MeasurementRecord(
            id="m0" if request.dry_run else state.measurements.next_key(),
            type=request.type,
            user=user,
            project=request.project,
            submitted_at=state.clock(),
            reason="its first job is being submitted",
            endpoints=tuple(p.endpoint for p in fabric.places if p.endpoint in used),
            settings=settings,
            seed=request.seed,
            fabric=fabric,
            homes=dict(request.homes),
            runs=tuple(
                MeasurementRun(run.label, tuple(run.endpoints), dict(run.homes)) for run in runs
            ),
        )
        await self._check_runs(record.id, runs, request.project)
        if request.dry_run:
            return measurement_view(replace(record, id="", reason="nothing was started"), None)
        if used:
            pick(state, sorted(used), {}, self._claimed())  # somebody may have taken one meanwhile
        await self._save(record)
        self._spawn(record.id, kind)
        text = f"{record.type} on {len(used)} endpoints"
        state.events.add("info", f"measurement/{record.id}", "MeasurementStarted", text)
        return self._view(record)

    async def import_result(self, request: MeasurementImport, user: str) -> MeasurementView:
        """Keep what another tool measured. ServiceError ``invalid`` when it cannot be read."""
        self._state.require_command()
        kind = self._kind(request.type)
        imports = kind.imports if isinstance(kind, Importing) else {}
        parser = imports.get(request.tool)
        if parser is None:
            known = ", ".join(sorted(imports)) or "none"
            raise ServiceError(
                "invalid",
                f"{request.type} reads no file of {request.tool}",
                object=f"measurement/{request.type}",
                hint=f"tools whose files it reads: {known}",
            )
        now = self._state.clock()
        record = MeasurementRecord(
            id=self._state.measurements.next_key(),
            type=request.type,
            state="completed",
            reason=f"imported from {request.tool}",
            user=user,
            submitted_at=now,
            started_at=now,
            finished_at=now,
            settings={"tool": request.tool},
        )
        try:
            body = await asyncio.to_thread(parser, request.text)
            text = await asyncio.to_thread(lambda: written(_imported(record, body)))
        except SettingsError as error:
            raise _refusal(error) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ServiceError(
                "invalid",
                f"not a file of {request.tool}: {clipped(str(error))}",
                object="measurement",
                hint="give the file as the tool wrote it",
            ) from None
        reasons = text.invalid_because
        record = replace(
            record, valid=not reasons, invalid_because=reasons, result_bytes=len(text.text)
        )
        await self._save(record, text.text)
        return await self.view(record.id)

    async def cancel(self, ident: str) -> MeasurementView:
        """Stop a measurement: its jobs end, its light is put back."""

        def cancelled(now: MeasurementRecord) -> MeasurementRecord:
            if now.ended:
                raise ServiceError(
                    "conflict",
                    f"measurement {ident} is {now.state} already",
                    object=f"measurement/{ident}",
                )
            return replace(now, cancelling=True)

        cancelled(self.get(ident))
        runner = self._runners.get(ident)
        if runner is None:
            raise ServiceError(
                "unavailable",
                "the controller is still recovering",
                object="controller",
                hint="try again in a moment",
            )
        await self._state.intend({MEASUREMENTS.row(ident): cancelled})
        runner.stop()
        try:
            async with asyncio.timeout(CANCEL_S):
                await runner.ended.wait()
        except TimeoutError:
            log.warning("measurement_still_ends", measurement=ident)
        return self._view(self.get(ident))

    async def remove(self, ident: str) -> MeasurementView:
        """Forget an ended measurement and its result."""
        record = self.get(ident)
        if not record.ended:
            raise ServiceError(
                "conflict",
                f"measurement {ident} is {record.state}",
                object=f"measurement/{ident}",
                hint=f"cancel it first: lightloom measure cancel {ident}",
            )
        view = self._view(record)
        await self._state.intend({MEASUREMENTS.row(ident): constant(None)})
        return view

    # --- helpers --------------------------------------------------------------------------

    def _kind(self, name: str) -> MeasurementKind:
        kind = self._kinds.get(name)
        if kind is None:
            raise ServiceError(
                "invalid",
                f"measurement {name} does not exist",
                object=f"measurement/{name}",
                hint=f"one of: {', '.join(self._kinds) or 'none'}",
            )
        return kind

    def _claimed(self) -> dict[str, str]:
        """Return, by endpoint, the measurement that has it."""
        return {
            name: record.id
            for record in self._state.measurements.values()
            if not record.ended
            for name in record.endpoints
        }

    async def _planned(
        self, kind: MeasurementKind, request: MeasurementRequest, fabric: MeasuredSite
    ) -> tuple[Mapping[str, Any], list[Run]]:
        def plan() -> tuple[Mapping[str, Any], list[Run]]:
            settings = kind.settings(request.settings, fabric)
            return settings, homed(kind.runs(settings, fabric, request.seed), request.homes)

        try:
            settings, runs = await asyncio.to_thread(plan)
        except SettingsError as error:
            raise _refusal(error) from None
        names = [place.endpoint for place in fabric.places]
        check_runs(runs, names, some=not isinstance(kind, Continuing))
        return settings, runs

    async def _check_runs(self, ident: str, runs: Sequence[Run], project: str) -> None:
        """Refuse runs that can never be jobs, before anything is kept. ServiceError."""
        state, admission = self._state, Admission(self._state.site)
        checked: set[tuple[str, str]] = set()
        for number, run in enumerate(runs):
            request = request_of(job_name(ident, number), run, project)
            admission.check(request)
            check_project(state.site, state.projects(), request)
            volumes_of(state.site, request)
            key = run.image, request.project
            if key in checked or not run.image:
                await asyncio.sleep(0)
                continue
            checked.add(key)
            try:
                servers = hosts(state.site, request)
                await self._parts.images.pin(run.image, request.project, Pull.NEVER, servers)
            except ServiceError as error:
                hint = IMAGE_HINT if "is not on" in error.message else error.hint
                raise ServiceError(
                    error.code, error.message, object=error.object, hint=hint
                ) from None

    async def _save(self, record: MeasurementRecord, result: str | None = None) -> None:
        """Make a new measurement durable, or refuse it; forget the oldest beyond the limits."""
        kept = self._state.measurements
        if result is not None:
            kept.results[record.id] = result
        try:
            made = {MEASUREMENTS.row(record.id): constant(record)}
            await self._state.intend(made, keys.FACTS, visible=True)
        finally:
            kept.results.pop(record.id, None)
        gone = kept.surplus()
        for ident in gone:
            kept.remove(ident)
        self._state.journal.owe(*map(MEASUREMENTS.row, gone))


async def stored_result(state: State, ident: str) -> dict[str, Any] | None:
    """Return the envelope of a finished measurement as JSON has it; None without one."""
    text = state.measurements.results.get(ident)
    if text is None:
        text = await state.store.measurement_result(ident)
    if text is None:
        return None
    found: dict[str, Any] = await asyncio.to_thread(json.loads, text)
    return found


def _imported(record: MeasurementRecord, body: Body) -> Measurement:
    return Measurement(
        type=record.type,
        id=record.id,
        jobs=(),
        source="imported",
        started_at=record.submitted_at,
        finished_at=record.submitted_at,
        fabric_epoch=0,
        endpoints=(),
        homes={},
        settings=record.settings,
        seed=record.seed,
        environment=Environment(),
        body=body,
    )


def _refusal(error: SettingsError) -> ServiceError:
    return ServiceError(
        "invalid",
        clipped(f"{error.setting}: {error.message}", 500),
        object=f"setting/{clipped(error.setting)}",
        hint=clipped(error.hint, 300),
    )

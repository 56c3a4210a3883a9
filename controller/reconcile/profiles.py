"""Measures aggregators at each greeting and when asked, and keeps what was found."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from controller.base.errors import ErrorCode, ServiceError, not_found
from controller.base.tasks import Tasks
from controller.devices.aggregators import AggregatorError, Aggregators
from controller.devices.profile import differences, judge, worst_case
from controller.schema.insight.profiles import ProfileFindingView, ProfileView, TableView, TrialView
from controller.state.kept.profiles import PROFILES, ProfileRecord
from controller.state.state import State


class ProfileKeeper:
    """The profiles of all aggregators."""

    def __init__(self, state: State, aggregators: Aggregators, tasks: Tasks) -> None:
        self._state = state
        self._aggregators = aggregators
        self._tasks = tasks

    def greeted(self, name: str) -> None:
        """Measure an aggregator that has connected, beside everything else."""
        self._tasks.spawn(self._quietly(name), f"profile {name}")

    def view(self, name: str) -> ProfileView:
        """Return the last profile. ServiceError ``not_found``, also before the first one."""
        record = self._state.light.profiles.get(name)
        if record is None:
            raise not_found("profile", name)
        return self._shown(record)

    async def probe(self, name: str) -> ProfileView:
        """Measure an aggregator now. ServiceError."""
        self._state.require_command()
        try:
            profile = await self._aggregators.profile(name)
        except AggregatorError as error:
            raise ServiceError(
                cast(ErrorCode, error.code),
                str(error),
                object=f"aggregator/{name}",
                hint=error.hint,
            ) from error
        record = ProfileRecord(aggregator=name, measured_at=self._state.clock(), profile=profile)
        self._report(record)
        self._state.light.profiles.put(record)
        self._state.journal.owe(PROFILES.row(name))
        return self._shown(record)

    async def _quietly(self, name: str) -> None:
        with suppress(ServiceError):
            await self.probe(name)

    def _report(self, record: ProfileRecord) -> None:
        """Report what changed; of the first profile what is missing."""
        before = self._state.light.profiles.get(record.aggregator)
        obj = f"aggregator/{record.aggregator}"
        if before is not None:
            if changed := differences(before.profile, record.profile):
                self._state.events.add("warning", obj, "ProfileChanged", "; ".join(changed))
            return
        for finding in judge(record.profile, worst_case(self._state.site, record.aggregator)):
            if finding.severity != "info":
                self._state.events.add(finding.severity, obj, "ProfileFinding", finding.text)

    def _shown(self, record: ProfileRecord) -> ProfileView:
        profile, site = record.profile, self._state.site
        rules = worst_case(site, record.aggregator)
        return ProfileView(
            name=record.aggregator,
            measured_at=record.measured_at,
            manufacturer=profile.manufacturer,
            hardware=profile.hardware,
            software=profile.software,
            serial=profile.serial,
            tables=profile.tables,
            metadata_bits=profile.metadata_bits,
            barrier=profile.barrier,
            durations=profile.durations,
            features=[
                TableView(
                    table=facts.table,
                    max_entries=facts.max_entries,
                    needed=rules[facts.table],
                    metadata_match=f"{facts.metadata_match:#x}",
                    metadata_write=f"{facts.metadata_write:#x}",
                    matches=list(facts.matches),
                )
                for facts in profile.facts
            ],
            trials=[
                TrialView(name=trial.name, outcome=trial.outcome, detail=trial.detail)
                for trial in profile.trials
            ],
            findings=[
                ProfileFindingView(fact=f.fact, severity=f.severity, text=f.text, mend=f.mend)
                for f in judge(profile, rules)
            ],
        )

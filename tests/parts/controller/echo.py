"""A small kind of measurement, and a rack whose jobs print its lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controller.schema.insight.measurements import MeasurementRequest, MeasurementView
from controller.service.service import Service
from measure.envelope import Body, Json, Row, ToolVersion
from measure.kinds import Line, MeasuredSite, Progress, Run, RunEnd, SettingsError
from tests.parts.controller.rack import Rack

OPERATOR = "alice"


@dataclass(slots=True)
class Echo:
    """``count`` runs of all endpoints; a row is a line that a rank printed."""

    name: str = "links"
    homes: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By run."""
    together: bool = False
    split: int = 0
    """Endpoints of one run; 0 is all."""
    broken: bool = False
    timeout_s: float = 60.0
    record: str = "off"
    on_body: Callable[[], None] = lambda: None

    def settings(self, given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
        count = given.get("count", 1)
        if not isinstance(count, int):
            raise SettingsError("count", "it is no number", "give a whole number")
        return {"count": count}

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        names = [place.endpoint for place in fabric.places]
        size = self.split or len(names)
        return [
            Run(
                command=("echo", str(number)),
                endpoints=names[number * size % len(names) :][:size],
                label=f"run {number}",
                homes=self.homes.get(number, {}),
                together=int(self.together),
                timeout_s=self.timeout_s,
                record=self.record,
            )
            for number in range(settings["count"])
        ]

    def progress(self, settings: Row, fabric: MeasuredSite, lines: Sequence[Line]) -> Progress:
        return Progress(len(lines), 10, "echoing")

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        if self.broken:
            raise ZeroDivisionError("no")
        self.on_body()
        said = [line for line in lines if line.record.get("probe") == "echo"]
        return Body(
            rows=[{"run": li.run, "rank": li.rank, "value": li.record["value"]} for li in said],
            summary={"runs": sum(end.completed for end in ends)},
            tool=ToolVersion(name="echo", version="1"),
        )

    @property
    def imports(self) -> Mapping[str, Callable[[str], Body]]:
        return {"osu": _osu}


def _osu(text: str) -> Body:
    return Body(
        rows=[{"value": float(word)} for word in text.split()], tool=ToolVersion(name="osu")
    )


def environment(phase: str, at: float, load: float, cores: int = 8) -> str:
    fields = {"at": at, "kernel": "6.1", "cores": cores, "load_1m": load, "mtu": 1500}
    return json.dumps({"probe": "environment", "phase": phase, **fields})


class MeasuringRack(Rack):
    """A rack whose measurement jobs print lines; ``finish`` ends a job's ranks."""

    def __init__(self, state_dir: Path, kind: Echo | None = None) -> None:
        super().__init__(state_dir)
        self.kind = kind or Echo()

    async def up(self, **options: object) -> Service:
        self.kinds = {self.kind.name: self.kind}
        return await super().up(kinds=self.kinds)

    async def measure(self, *endpoints: str, **fields: object) -> MeasurementView:
        request = MeasurementRequest.model_validate(
            {"type": "links", "endpoints": list(endpoints), **fields}
        )
        return await self.service.desks.measurements.start(request, OPERATOR)

    async def running(self, job: str) -> None:
        async def reached() -> bool:
            view = [v for v in await self.service.desks.jobs.jobs() if v.name == job]
            return bool(view) and view[0].state == "running"

        await self.until(reached)

    async def finish(self, job: str, *lines: str, code: int = 0) -> None:
        """Let a job print and end."""
        await self.running(job)
        ranks = len(self.engine.specs[job])
        for rank in range(ranks):
            self.engine.output[job, rank] = lines or (json.dumps({"probe": "echo", "value": 1}),)
        for rank in range(ranks):
            self.engine.exit(job, rank, code)

    async def finish_away(self, job: str) -> None:
        """Let a job's ranks end while no controller watches."""
        for spec in self.engine.specs[job]:
            self.engine.output[job, spec.key.rank] = (json.dumps({"probe": "echo", "value": 2}),)
            self.engine.exit(job, spec.key.rank, 0)

    async def ended(self, ident: str) -> MeasurementView:
        async def over() -> bool:
            view = await self.service.desks.measurements.view(ident)
            return view.state in ("completed", "failed", "cancelled")

        await self.until(over)
        return await self.service.desks.measurements.view(ident)

    def homes(self) -> dict[str, str | None]:
        return self.see.homes()

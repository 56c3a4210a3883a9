"""What the fake controller shows: the paper's rack, all of it up and well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

from controller.base.errors import ServiceError, not_found
from controller.comms.ledger import Bucket, BucketSums
from controller.people.authz import Owned
from controller.schema.checkpoints import DrainView
from controller.schema.fabric import (
    AggregatorPortView,
    AggregatorView,
    AlarmView,
    CircuitView,
    EndpointView,
    EventView,
    NodeView,
    OpticalPortView,
    OpticsView,
    SiteView,
    SwitchView,
    UplinkView,
)
from controller.schema.images import ImageView, PreparationView
from controller.schema.insight.advice import AdviceView, FindingView, PredictionView, RangeView
from controller.schema.insight.comms import CommsRowView, CommsView, RankCommsView
from controller.schema.insight.measurements import MeasurementView
from controller.schema.insight.usage import By, UsageLineView, UsageSumsView, UsageView
from controller.schema.jobs import ContainerView, GpuFiguresView, JobView, SecretView
from controller.schema.live import (
    DeviceHealthView,
    HealthView,
    HopView,
    LogLineView,
    PortPowerView,
    PowerSeriesView,
    SeriesLineView,
    SeriesView,
    TopRowView,
    TopView,
    TraceView,
)
from controller.schema.plans import Allocation, QuarantineView, RolloutView, TransactionView
from controller.schema.volumes import VolumeDataView, VolumeView
from controller.stream.feed import Cut, Feed, Reader
from tests.parts.api.fake_engine import EngineQueries
from tests.parts.api.fake_plans import STARTED_AT
from tests.parts.api.fake_survival import SurvivalQueries

SIZE = 6

HOT = GpuFiguresView(
    memory_total_bytes=80 * 2**30,
    temperature_c=61.0,
    power_w=350.5,
    sm_clock_hz=1_980_000_000,
    ecc_corrected=9,
    ecc_uncorrected=1,
    throttle_reasons=["sw_thermal"],
)
VOLUMES = [
    VolumeView(
        name="scratch",
        server="s0",
        mode="rw",
        per="job",
        projects=[],
        filesystem="xfs",
        total_bytes=2**40,
        free_bytes=2**39,
        quota="kernel",
        read_at=STARTED_AT,
        data=[
            VolumeDataView(
                owner=f"{project}.{project}-red",
                project=project,
                job=f"{project}-red",
                uid=2001,
                bytes=2**30,
                files=12,
                quota_bytes=2**38,
                created_at=STARTED_AT,
                used_at=STARTED_AT + 60,
                kept_until=STARTED_AT + 10**10,
            )
            for project in ("alpha", "beta")
        ],
    ),
    VolumeView(
        name="imagenet",
        server="s0",
        mode="ro",
        per="site",
        projects=["beta"],
        problem="/srv/imagenet is not a mount point",
    ),
]


class FakeState(Protocol):
    """What the fake queries read."""

    epoch: int
    homes: dict[str, str | None]
    projects: set[str]
    jobs: dict[str, JobView]
    transactions_: dict[str, list[TransactionView]]
    rollouts_: dict[str, list[RolloutView]]
    logged: list[LogLineView]
    log_error: ServiceError | None
    followed: bool
    endless_logs: bool
    feed: Feed
    volumes: list[VolumeView]
    dropped: dict[str, set[int]]
    verified: list[tuple[str, int | None]]
    drained: dict[str, DrainView]

    refuse: dict[str, ServiceError]

    async def enter(self, operation: str) -> None:
        """Fail or wait as the test has ordered."""


class FakeQueries(SurvivalQueries, EngineQueries):
    """Reads the fake state."""

    def __init__(self, state: FakeState) -> None:
        self._fake = state

    @property
    def epoch(self) -> int:
        return self._fake.epoch

    async def health(self) -> HealthView:
        await self._fake.enter("health")
        return HealthView(
            status="ok",
            version="0.1.0",
            site="paper",
            epoch=self._fake.epoch,
            started_at=STARTED_AT,
            devices=[DeviceHealthView(name="as0", kind="aggregator", connected=True)],
            emulated=["gpu0"],
        )

    async def site(self) -> SiteView:
        return SiteView(
            name="paper",
            subnet="10.77.0.0/24",
            servers=["s0"],
            endpoints=await self.endpoints(),
            aggregators=await self.aggregators(),
            switches=await self.switches(),
            uplinks=[UplinkView(a="as0/9", b="as1/9", capacity_bps=114e6)],
        )

    def endpoint_names(self) -> Sequence[str]:
        return list(self._fake.homes)

    async def endpoints(self, names: Sequence[str] | None = None) -> list[EndpointView]:
        await self._fake.enter("endpoints")
        return [
            EndpointView(
                name=name,
                server="s0",
                kind="gpu",
                model="M40",
                memory_bytes=12 * 2**30,
                ip=f"10.77.0.{i + 1}",
                mac=f"02:00:00:00:00:0{i}",
                fiber=f"ocs0/1.1.{i}",
                home=home,
                port=f"{home}/{i}",
                state="busy" if i < 4 else "idle",
                job="red" if i < 4 else None,
                emulated=name != "gpu0",
                utilisation=0.42 if name == "gpu0" else None,
                source="nvml" if name == "gpu0" else None,
                memory_used_bytes=3 * 2**30 if name == "gpu0" else None,
                gpu=HOT if name == "gpu0" else None,
                unfit="the GPU is lost" if name == "gpu5" else "",
            )
            for i, (name, home) in enumerate(self._fake.homes.items())
            if names is None or name in names
        ]

    async def aggregators(self) -> list[AggregatorView]:
        return [
            AggregatorView(
                name=name,
                dpid="0000000000000001",
                connected=True,
                size=4,
                used=3,
                free=1,
                endpoints=[e for e, home in self._fake.homes.items() if home == name],
                jobs=["red"],
                ports=[AggregatorPortView(port=1, kind="fiber", far="ocs0/2.1.1", up=True)],
            )
            for name in ("as0", "as1")
        ]

    async def switches(self) -> list[SwitchView]:
        return [
            SwitchView(
                name="ocs0",
                url="calient+tl1://admin@127.0.0.1:3082",
                connected=True,
                vendor="Calient",
                ports=14,
                circuits=6,
                foreign_circuits=0,
            )
        ]

    async def optics(self, switch: str) -> OpticsView:
        port = OpticalPortView(port="1.1.1", health="tuned", label="rack 3")
        alarm = AlarmView(object="1.1.1", severity="major", text="low light")
        return OpticsView(switch=switch, time=STARTED_AT, ports=[port], alarms=[alarm])

    async def circuits(self) -> list[CircuitView]:
        return [CircuitView(switch="ocs0", a="1.1.1", b="2.1.1", state="tuned", endpoint="gpu0")]

    async def containers(self) -> list[ContainerView]:
        return [
            ContainerView(
                name="ll-red-0-4",
                job="red",
                rank=0,
                epoch=4,
                endpoint="gpu0",
                server="s0",
                state="running",
                started_at=STARTED_AT,
            )
        ]

    async def secrets(self) -> list[SecretView]:
        return [SecretView(project="vision", name="wandb")]

    async def nodes(self) -> list[NodeView]:
        return [
            NodeView(
                name="s0",
                agent="127.0.0.1:7701",
                reachable=True,
                endpoints=list(self._fake.homes),
                jobs=["red"],
                containers=4,
                readings={"load": 1.25, "memory_available_bytes": 3 << 30},
            )
        ]

    async def volumes(self) -> list[VolumeView]:
        return list(self._fake.volumes)

    async def events(self, since: int, limit: int) -> list[EventView]:
        events = [
            EventView(
                id=i,
                time=STARTED_AT + i,
                severity="info",
                object="job/red" if i % 2 else "endpoint/gpu0",
                reason="Placed",
                message=f"event {i}",
                epoch=self._fake.epoch,
            )
            for i in range(1, 8)
        ]
        return [event for event in events if event.id > since][:limit]

    async def top(self) -> TopView:
        await self._fake.enter("top")
        row = TopRowView(name="red", state="running", rx_bps=1e8, tx_bps=2e8, utilisation=0.5)
        told = {"source": "nvml", "temperature_c": 61.0, "power_w": 350.5}
        return TopView(
            time=STARTED_AT,
            epoch=self._fake.epoch,
            jobs=[row.model_copy(update={"spread": {"as0": 2, "as1": 2}, "excess_span": 1})],
            containers=[
                row.model_copy(update={"name": "ll-red-0-4", "job": "red", "rank": 0} | told)
            ],
            endpoints=[row.model_copy(update={"name": "gpu0", "home": "as0"})],
            access_bps=250e6,
            excess_span=1,
        )

    async def series(self, since_s: float, jobs: Collection[str] | None = None) -> SeriesView:
        red = SeriesLineView(
            job="red",
            rank=0,
            endpoint="gpu0",
            server="s0",
            rx_bps=[since_s],
            tx_bps=[None],
            utilisation=[0.5],
        )
        lines = [line for line in (red,) if jobs is None or line.job in jobs]
        return SeriesView(times=[STARTED_AT], containers=lines, markers=[])

    def watch(self, last_id: str | None, cut: Cut | None = None) -> Reader:
        return self._fake.feed.read(last_id, cut)

    def highest_priority(self, project: str) -> int:
        return 5

    def projects(self) -> set[str]:
        return {"default", *self._fake.projects}

    def owners(self) -> dict[str, Owned]:
        ended = {"completed", "failed", "cancelled"}
        return {
            job.name: Owned(
                job.name,
                job.project,
                tuple(job.endpoints),
                holding=job.finished_at is None,
                ended=job.state in ended,
            )
            for job in self._fake.jobs.values()
        }

    async def usage(
        self, since: float | None, until: float | None, by: By, projects: Collection[str] | None
    ) -> UsageView:
        await self._fake.enter("usage")
        end = STARTED_AT if until is None else until
        sums = {"held_s": 7200.0, "frozen_s": 600.0, "dark_s": 0.5, "weighted_s": 9000.0, "jobs": 1}
        total = UsageSumsView.model_validate(sums)
        job = {"job": "red", "submitted_at": STARTED_AT, "project": "vision", "user": "=cmd()"}
        about = job if by == "job" else {by: job[by]}
        return UsageView(
            since=end - 86400.0 if since is None else since,
            until=end,
            by=by,
            lines=[UsageLineView.model_validate(about | sums)],
            others=UsageSumsView(),
            total=total,
        )

    async def comms(self, name: str, rank: int | None, since_s: float | None) -> CommsView:
        job = await self.job(name)
        if rank is not None and rank >= job.count:
            raise ServiceError("not_found", f"no rank {rank}", object=f"job/{name}")
        row = CommsRowView(
            op="all_reduce",
            bytes=4 * 2**20,
            dtype="float",
            calls=80,
            total_s=8.0,
            avg_s=0.1,
            min_s=0.09,
            max_s=0.2,
            p50_s=0.1,
            source="torch",
            timing="host",
            rank=rank,
            last_rank=1,
            last_share=0.75,
        )
        return CommsView(
            job=name,
            epoch=1,
            record="counts",
            state=job.state,
            since=None if since_s is None else STARTED_AT,
            updated_at=STARTED_AT,
            ranks=[RankCommsView(rank=0, endpoint="gpu0", recorder="recording", source="torch")],
            rows=[row],
            efficiency=0.5,
            efficiency_of="all_reduce of 4194304 bytes, to 4194304 bytes of m7",
        )

    def collectives(self) -> dict[str, dict[Bucket, BucketSums]]:
        return {"red": {("all_reduce", 4 * 2**20): BucketSums(80, 80 * 4 * 2**20, 8.0)}}

    def usage_totals(self) -> dict[str, UsageSumsView]:
        return {"vision": UsageSumsView(held_s=7200.0, frozen_s=600.0)}

    async def power(self) -> list[PortPowerView]:
        return [
            PortPowerView(
                switch="ocs0", port="1.1.1", far="gpu0", power_in_dbm=-3.0, power_out_dbm=-4.5
            )
        ]

    async def power_series(self, switch: str, port: str, since_s: float) -> PowerSeriesView:
        if switch != "ocs0" or port not in ("1.1.1", "2.1.1"):
            raise ServiceError("not_found", f"no port {port}", object=f"switch/{switch}")
        return PowerSeriesView(
            switch=switch,
            port=port,
            far="gpu0",
            interval_s=15.0,
            times=[STARTED_AT, STARTED_AT + 15],
            power_in_dbm=[-3.0, None],
            power_out_dbm=[-4.5, -4.6],
        )

    async def trace(self, endpoint: str) -> TraceView:
        if endpoint not in self._fake.homes:
            raise ServiceError(
                "not_found", f"the site has no endpoint {endpoint}", object=f"endpoint/{endpoint}"
            )
        hops = [
            HopView(kind="endpoint", at="s0/e-gpu0", detail="M40"),
            HopView(kind="switch", at="ocs0/1.1.1", power_in_dbm=-3.0, loss_db=1.5),
            HopView(kind="switch", at="ocs0/2.1.1", power_out_dbm=-4.5, loss_db=1.5),
            HopView(kind="aggregator", at="as0/1"),
        ]
        return TraceView(endpoint=endpoint, complete=True, hops=hops, loss_up_db=1.5)

    async def jobs(self, names: Sequence[str] | None = None) -> list[JobView]:
        await self._fake.enter("jobs")
        return [job for name, job in self._fake.jobs.items() if names is None or name in names]

    async def job(self, name: str) -> JobView:
        await self._fake.enter("job")
        if name not in self._fake.jobs:
            raise ServiceError(
                "not_found", f"there is no job {name}", object=f"job/{name}", hint="see get jobs"
            )
        return self._fake.jobs[name]

    async def logs(
        self,
        name: str,
        *,
        rank: int | None,
        tail: int | None,
        follow: bool,
        since: float | None = None,
        search: str = "",
    ) -> AsyncIterator[LogLineView]:
        self._fake.followed = follow
        lines = [
            line
            for line in self._fake.logged
            if rank in (None, line.rank) and line.time >= (since or 0) and search in line.text
        ]
        for line in lines if tail is None else lines[len(lines) - tail :]:
            yield line
        if follow and self._fake.endless_logs:
            await asyncio.Event().wait()
        if self._fake.log_error is not None:
            raise self._fake.log_error

    async def images(self, timeout_s: float) -> list[ImageView]:
        await self._fake.enter("images")
        return [
            ImageView(
                server=server,
                image_id=f"sha256:{'a' * 64}",
                names=["trainer:1"],
                size_bytes=2**30,
                jobs=sorted(self._fake.jobs),
            )
            for server in ("s0", "s1")
        ]

    async def preparation(self, ident: str) -> PreparationView:
        await self._fake.enter("preparation")
        if ident not in self._fake.preparations:
            raise ServiceError(
                "not_found", f"there is no preparation {ident}", object=f"preparation/{ident}"
            )
        views = self._fake.preparations[ident]
        return views.pop(0) if len(views) > 1 else views[0]

    async def transaction(self, ident: str) -> TransactionView:
        if ident not in self._fake.transactions_:
            raise not_found("transaction", ident)
        views = self._fake.transactions_[ident]
        return views.pop(0) if len(views) > 1 else views[0]

    async def rollout(self, ident: str) -> RolloutView:
        if ident not in self._fake.rollouts_:
            raise ServiceError(
                "not_found", f"there is no rollout {ident}", object=f"rollout/{ident}"
            )
        views = self._fake.rollouts_[ident]
        return views.pop(0) if len(views) > 1 else views[0]

    async def rollouts(self) -> list[RolloutView]:
        return [views[-1] for views in self._fake.rollouts_.values()]

    async def transactions(self) -> list[TransactionView]:
        return [views[-1] for views in self._fake.transactions_.values()]

    async def measurements(self) -> list[MeasurementView]:
        await self._fake.enter("measurements")
        return list(self._fake.measurements.values())

    async def measurement(self, ident: str) -> MeasurementView:
        await self._fake.enter("measurement")
        if ident not in self._fake.measurements:
            raise not_found("measurement", ident)
        return self._fake.measurements[ident]

    async def predictions(self, projects: Collection[str] | None = None) -> list[PredictionView]:
        await self._fake.enter("predictions")
        if projects is not None and "default" not in projects:
            return []
        return [
            PredictionView(
                id="p1",
                job="red",
                cause="whatif",
                made_at=STARTED_AT,
                homes={"gpu0": "as0"},
                step_s=RangeView(low=0.4, high=0.5),
                step_before_s=0.8,
                measured_s=0.46,
                measured_at=STARTED_AT + 60,
                error=abs(0.45 - 0.46) / 0.46,
                basis=["100 recorded steps (torch) at 1 placement"],
                state="met",
            )
        ]

    async def advice(self, job: str | None, jobs: Collection[str] | None = None) -> AdviceView:
        await self._fake.enter("advice")
        if job is not None:
            if jobs is not None and job not in jobs:
                raise ServiceError("not_found", f"there is no job {job}", object=f"job/{job}")
            await self.job(job)
        found = FindingView(
            job="red",
            limit="scatter",
            text="it touches 2 aggregators, 1 would do",
            evidence=["a compact step takes 50 % of the present one"],
            gain=RangeView(low=0.5, high=0.5),
            remedy="bring its endpoints together",
            command="lightloom plan --job red",
        )
        shown = [found] if jobs is None or "red" in jobs else []
        return AdviceView(job=job, limit="scatter" if job else None, findings=shown)

    async def quarantine(self) -> list[QuarantineView]:
        return [QuarantineView(object="as0/3", reason="no light for job beta-blue", since=1.0)]

    async def allocation(self) -> Allocation:
        return Allocation(site="paper", epoch=self._fake.epoch, homes=self._fake.homes)

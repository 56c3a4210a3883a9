"""Documents of measurements, communication, predictions and advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.schema.base import View
from controller.schema.insight.advice import (
    AdviceView,
    FindingView,
    PredictionView,
    RangeView,
    WhatIfView,
)
from controller.schema.insight.comms import CommsRowView, CommsView, OverlapView, RankCommsView
from controller.schema.insight.measurements import (
    EnvironmentView,
    MeasurementView,
    ProgressView,
    ResultView,
    RunView,
    ToolView,
)

MARKUP = "<img src=x onerror=alert(1)>"
Json = Any


def repeated(median: float) -> Json:
    """Repetitions that spread by 2 %."""
    ends = {"min": 0.98 * median, "max": 1.02 * median}
    return {"median": median, "ci": [0.99 * median, 1.01 * median], "n": 5} | ends


def measurement(
    type_: str,
    rows: list[Json],
    *,
    number: int = 7,
    endpoints: tuple[str, ...] = ("gpu0", "gpu1", "gpu2", "gpu3"),
    invalid: tuple[str, ...] = (),
    **lists: Json,
) -> MeasurementView:
    """A measurement that has ended."""
    homes = {name: f"as{i // (len(endpoints) // 2 or 1)}" for i, name in enumerate(endpoints)}
    result = ResultView(
        type=type_,
        id=f"m{number}",
        jobs=[f"measure-m{number}"],
        source="emulated",
        started_at=1000.0,
        finished_at=1060.0,
        fabric_epoch=12,
        endpoints=list(endpoints),
        homes=dict(homes),
        settings={"repetitions": 5},
        seed=1,
        tool=ToolView(name="a-tool", version="1.2"),
        environment=EnvironmentView(mtu=1500, kernel="6.1", cores=2, load_1m=0.3),
        rows=rows,
        groups=lists.get("groups", []),
        anomalies=lists.get("anomalies", []),
        fits=lists.get("fits", []),
        summary=lists.get("summary", {}),
        valid=not invalid,
        invalid_because=list(invalid),
    )
    return MeasurementView(
        id=f"m{number}",
        type=type_,
        state="completed",
        user="ann",
        submitted_at=990.0 + number,
        started_at=1000.0,
        finished_at=1060.0,
        endpoints=list(endpoints),
        runs=[RunView(job=f"measure-m{number}", endpoints=list(endpoints))],
        valid=not invalid,
        invalid_because=list(invalid),
        result=result,
    )


def running(number: int = 8) -> MeasurementView:
    """A measurement that runs."""
    return MeasurementView(
        id=f"m{number}",
        type="collectives",
        state="running",
        user="bob",
        submitted_at=2000.0,
        started_at=2001.0,
        endpoints=["gpu4", "gpu5"],
        progress=ProgressView(done=12, total=40, text="pair 3"),
        runs=[RunView(job=f"measure-m{number}", endpoints=["gpu4", "gpu5"])],
    )


def links(endpoints: tuple[str, ...], sizes: tuple[int, ...] = (65536, 1048576)) -> MeasurementView:
    """Pairs of two aggregators; the first pair could not be measured, ``gpu1`` sends slowly."""
    half = len(endpoints) // 2
    rows: list[Json] = []
    for i, one in enumerate(endpoints):
        for j, other in enumerate(endpoints):
            if i == j:
                continue
            near = (i < half) == (j < half)
            pair = {"from": one, "to": other, "class": "same aggregator" if near else "across"}
            for size in sizes:
                row = pair | {"size": size, "alone": True, "group": 1 if near else 2}
                if (i, j) == (0, 1):
                    rows.append(row | {"latency_s": None, "bandwidth": None, "reason": MARKUP})
                else:
                    rate = (30e6 if near else 14e6) * (0.8 if one == "gpu1" else 1.0)
                    figures = {"bandwidth": repeated(rate), "latency_s": repeated(size / rate)}
                    rows.append(row | figures)
    groups = [
        {"size": size, "id": group, "center": center, "pairs": 4, "classes": [name]}
        for size in sizes
        for group, center, name in ((1, 30e6, "same aggregator"), (2, 14e6, "across"))
    ]
    anomaly = {
        "kind": "endpoint",
        "object": "gpu1 (sends)",
        "objects": ["endpoint/gpu1"],
        "ratio": 0.8,
        "sizes": list(sizes),
        "evidence": f"all of its row {MARKUP}",
    }
    fits = [{"class": "across", "alpha_s": 1e-4, "beta": 14e6, "n_half": 1400, "residual": 0.01}]
    return measurement(
        "links", rows, endpoints=endpoints, groups=groups, anomalies=[anomaly], fits=fits
    )


def collectives() -> MeasurementView:
    """Two placements, in place only, one of them with wrong elements."""

    def row(placement: str, size: int, busbw: float, wrong: int) -> Json:
        return {
            "placement": placement,
            "operation": "all_reduce",
            "group": 0,
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": -1,
            "ranks": 2,
            "order": ["gpu0", "gpu1"],
            "crossings": 2,
            "out_of_place": None,
            "in_place": {
                "time_s": size / busbw,
                "alg_bw": busbw,
                "bus_bw": busbw,
                "nwrong": wrong,
            },
            "time_max_s": 1.1 * size / busbw,
            "link_share": 0.96,
        }

    rows = [row("local", s, 29e6, 0) for s in (4096, 4194304)]
    return measurement("collectives", [*rows, row("remote", 4194304, 13e6, 3)])


def scaling() -> MeasurementView:
    """ResNet/1 and ResNet/8 on one and two ranks."""
    rows = [
        {
            "x": x,
            "batch": 64,
            "ranks": ranks,
            "intensity": 40.0 / x,
            "step_s": 0.1 * x / ranks + 0.02 * (ranks - 1),
            "compute_s": 0.1 * x / ranks,
            "comm_s": 0.03 * (ranks - 1),
            "exposed_s": 0.02 * (ranks - 1),
            "efficiency": 1.0 / (1 + 0.2 * (ranks - 1)),
            "predicted_step_s": {"low": 0.1 * x / ranks, "high": 0.11 * x / ranks},
            "error": 0.03,
        }
        for x in (1, 8)
        for ranks in (1, 2)
    ]
    return measurement("scaling", rows)


def storage() -> MeasurementView:
    """Two numbers of workers, two sizes."""
    rows = [
        {
            "workers": workers,
            "io_bytes": size,
            "rw": "read",
            "path": "posix",
            "bytes_per_s": 1e6 * workers,
            "iops": 1e6 * workers / size,
            "latency_s": {"mean": 1e-3, "p50": 9e-4, "p95": 2e-3, "p99": 3e-3, "p999": None},
            "cpu_cores": 0.1 * workers,
            "cached_share": 0.0,
        }
        for workers in (1, 8)
        for size in (4096, 65536)
    ]
    return measurement("storage", rows)


def loading() -> MeasurementView:
    """One run that the disk limits."""
    row = {
        "io_limit_bps": 5e6,
        "ceiling_samples_s": 50.0,
        "model_samples_s": 400.0,
        "together_samples_s": 49.0,
        "wait_share": 0.88,
        "au": 0.12,
        "limit": "input",
        "remedy": f"a faster disk {MARKUP}",
    }
    return measurement("input", [row])


def comparison() -> MeasurementView:
    """Local and remote were measured, hybrid was predicted."""

    def row(placement: str, low: float, high: float, measured: float | None) -> Json:
        return {
            "placement": placement,
            "predicted_step_s": {"low": low, "high": high},
            "measured_step_s": measured,
            "error": None if measured is None else abs((low + high) / 2 - measured) / measured,
        }

    rows = [
        row("local", 0.4, 0.41, 0.405),
        row("hybrid", 0.58, 0.61, None),
        row("remote", 0.8, 0.82, 0.81),
    ]
    summary = {"recommended": "local", "because": "it is the fastest by more than 5 %"}
    return measurement("compare", rows, summary=summary)


def comms(job: str = "red", record: Json = "counts") -> CommsView:
    """Two operations of two ranks; rank 1's recorder is damaged."""

    def row(op: str, size: int, average: float, rank: int | None = None) -> CommsRowView:
        return CommsRowView(
            rank=rank,
            op=op,
            bytes=size,
            dtype="float32",
            calls=1200,
            total_s=1200 * average,
            avg_s=average,
            min_s=0.8 * average,
            max_s=1.5 * average,
            p50_s=average,
            source="torch",
            timing="host",
            share=None if rank is not None else 0.3,
            busbw=None if rank is not None else size / average,
        )

    def overlap(rank: int | None) -> OverlapView:
        return OverlapView(
            rank=rank,
            step_s=0.4,
            compute_s=0.3,
            comm_s=0.2,
            exposed_s=0.1,
            overlap=0.5,
            definition="timeline",
            bytes_per_step=4 << 20,
            calls_per_step=2.0,
            steps=600,
            source="torch",
        )

    kinds = (("all_reduce", 1 << 20, 0.01), (MARKUP, 4096, 0.001))
    return CommsView(
        job=job,
        epoch=1,
        record=record,
        state="running",
        updated_at=1000.0,
        ranks=[
            RankCommsView(rank=0, endpoint="gpu0", recorder="recording", source="torch", age_s=3.0),
            RankCommsView(
                rank=1, endpoint="gpu1", recorder="damaged", reason=MARKUP, damaged_rows=3
            ),
        ],
        rows=[row(*kind) for kind in kinds],
        rank_rows=[row(*kind, rank=rank) for kind in kinds for rank in (0, 1)],
        overlap=overlap(None),
        overlap_ranks=[overlap(0), overlap(1)],
        efficiency=0.93,
        notes=["the first 10 steps are left out"],
    )


def whatif(job: str, before: Mapping[str, str | None], homes: Mapping[str, str]) -> WhatIfView:
    """The same job with other homes: half as fast."""
    return WhatIfView(
        job=job,
        prediction="p3",
        homes_before=dict(before),
        homes_after={**before, **homes},
        span_before=1,
        span_after=2,
        step_now_s=0.4,
        step_then_s=RangeView(low=0.58, high=0.61),
        change=RangeView(low=0.45, high=0.525),
        ring_rate_before=1.0,
        ring_rate_after=0.46,
        possible=True,
        basis=["600 recorded steps"],
        unidentified=["the overlap is not known"],
    )


def predictions(*jobs: str) -> list[PredictionView]:
    """One of each job that was met, with an error of 2 %."""
    return [
        PredictionView(
            id=f"p{number}",
            job=job,
            cause="whatif",
            made_at=1000.0,
            homes={"gpu0": "as0"},
            step_s=RangeView(low=0.58, high=0.61),
            step_before_s=0.4,
            measured_s=0.607,
            measured_at=1100.0,
            error=0.02,
            basis=[MARKUP],
            state="met",
        )
        for number, job in enumerate(jobs, 1)
    ]


def advice(job: str | None, *of: str) -> AdviceView:
    """A finding of each job."""
    return AdviceView(
        job=job,
        limit="scatter" if job else None,
        findings=[
            FindingView(
                job=name,
                limit="scatter",
                text=f"{name} lies under two aggregators",
                evidence=["step 0.600 s, compact 0.400 s", MARKUP],
                gain=RangeView(low=0.3, high=0.34),
                remedy="regroup it",
                command=f"lightloom plan --job {name}",
            )
            for name in of
        ],
        unknown=["links were not measured: lightloom measure links"],
    )


def document(found: View | list[Any]) -> Json:
    """A document as the API writes it: a list is a page."""
    if isinstance(found, list):
        return {"items": [one.model_dump(mode="json") for one in found], "next": None, "epoch": 1}
    return found.model_dump(mode="json")

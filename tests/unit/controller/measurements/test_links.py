"""What a measurement of links leaves behind: light beside anomalies, and rates for predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from controller.measurements.validity import STRANGERS_AFTER_S, Crossing, Traffic
from controller.state.records import JobRecord
from measure.envelope import Body, Row
from measure.kinds import Line, MeasuredSite, RunEnd
from scheduler.steptime.road import LinkModel
from tests.parts.controller.echo import Echo, MeasuringRack
from tests.parts.controller.rack import crash

FITS = ({"class": "same aggregator", "alpha_s": 1e-4, "beta": 3e7},)


@dataclass(slots=True)
class Fitting(Echo):
    """Finds one class of links, and one slow endpoint."""

    fits: Sequence[Row] = FITS

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        strange = {"kind": "endpoint", "object": "gpu0 (sends)", "objects": ["endpoint/gpu0"]}
        return Body(rows=[{"value": 1}], fits=self.fits, anomalies=[strange])


async def known(rack: MeasuringRack) -> LinkModel | None:
    await rack.parts.latest.refresh()
    return rack.parts.latest.links()


async def measured(rack: MeasuringRack, ident: str) -> None:
    await rack.measure("gpu0", "gpu1")
    await rack.finish(f"measure-{ident}")
    assert (await rack.ended(ident)).state == "completed"


async def source(rack: MeasuringRack) -> str | None:
    model = await known(rack)
    return model and model.source


async def test_predictions_rest_on_the_newest_valid_links_also_after_a_restart(
    tmp_path: Path,
) -> None:
    rack = MeasuringRack(tmp_path, Fitting())
    await rack.up()
    assert await known(rack) is None
    await measured(rack, "m1")
    model = await known(rack)
    assert model is not None and model.fits == {"same aggregator": (1e-4, 3e7)}
    roads = rack.parts.meter.roads({"red": ("gpu0", "gpu1")}, rack.homes())
    assert roads is not None and roads.source == "measurement m1"

    await measured(rack, "m2")
    assert await source(rack) == "measurement m2"
    records = rack.parts.state.measurements
    records.change("m2", valid=False)
    assert await source(rack) == "measurement m1"
    records.change("m2", valid=True, settings={"together": True})
    assert await source(rack) == "measurement m1"  # contended
    records.change("m2", settings={"tool": "osu"})
    assert await source(rack) == "measurement m1"  # of no class of this site

    await crash(rack)
    await rack.up()
    assert await source(rack) == "measurement m2"  # as it was stored
    for ident in ("m2", "m1"):
        await rack.desks.measurements.remove(ident)
    assert await known(rack) is None
    await rack.down()


async def test_a_measurement_of_few_endpoints_leaves_other_classes_as_they_were(
    tmp_path: Path,
) -> None:
    across = {"class": "as0-as1", "alpha_s": 3e-4, "beta": 1e7}
    kind = Fitting(fits=[*FITS, across])
    rack = MeasuringRack(tmp_path, kind)
    await rack.up()
    await measured(rack, "m1")
    kind.fits = [{"class": "same aggregator", "alpha_s": 2e-4, "beta": 2e7}]
    await measured(rack, "m2")
    model = await known(rack)
    assert model is not None
    assert model.fits == {"same aggregator": (2e-4, 2e7), "as0-as1": (3e-4, 1e7)}
    assert model.source == "measurements m2, m1"
    kind.fits = [{"class": "same aggregator", "alpha_s": 0, "beta": -1}]  # a job wrote it
    await measured(rack, "m3")
    assert await source(rack) == "measurements m2, m1"
    await rack.desks.measurements.remove("m1")
    model = await known(rack)
    assert model is not None and model.fits == {"same aggregator": (2e-4, 2e7)}
    await rack.down()


@pytest.mark.parametrize("fits", [[{"class": "x"}], [{"class": "x", "alpha_s": 0, "beta": 0}], []])
async def test_fits_that_are_none_are_not_used(tmp_path: Path, fits: Sequence[Row]) -> None:
    rack = MeasuringRack(tmp_path, Fitting(fits=fits))
    await rack.up()
    await measured(rack, "m1")
    assert await known(rack) is None
    await rack.down()


async def test_what_stands_out_has_its_light_beside_it(tmp_path: Path) -> None:
    rack = MeasuringRack(tmp_path, Fitting())
    await rack.up()
    await rack.parts.power.measure()
    await measured(rack, "m1")
    result = (await rack.ended("m1")).result
    assert result is not None
    (strange,) = result.anomalies
    cable = rack.see.cables["gpu0"]
    assert strange["light"][0]["port"] == str(cable.fiber)
    assert {level["endpoint"] for level in strange["light"]} == {"gpu0"}
    assert set(strange["light"][0]) >= {"power_in_dbm", "power_out_dbm"}
    await rack.down()


HOMES = {"a": "as0", "b": "as1", "c": "as0", "d": "as1", "e": "as0"}


def job(record: JobRecord, name: str, *endpoints: str) -> JobRecord:
    return replace(record, name=name, endpoints=endpoints)


@pytest.mark.parametrize(
    ("sent", "uplinks", "others"),
    [
        ({"a": 90.0, "c": 0.0}, {"as0": (90.0, 0.0)}, 0.0),
        # Another job spans both aggregators, yet what it sends stays under its own.
        ({"a": 90.0, "c": 5.0}, {"as0": (90.0, 0.0)}, 5.0),
        ({"a": 0.0, "c": 50.0}, {"as0": (2.0, 0.0)}, 2.0),
        # Nobody whom lightloom knows sends this.
        ({"a": 90.0, "c": 0.0}, {"as0": (97.0, 0.0)}, 7.0),
        # It comes from elsewhere, and only passes through.
        ({"a": 90.0, "c": 0.0}, {"as0": (97.0, 7.0)}, 0.0),
        ({"a": 90.0, "c": 5.0}, {}, 5.0),
    ],
)
async def test_ports_bound_the_traffic_of_others(
    tmp_path: Path,
    sent: Mapping[str, float],
    uplinks: Mapping[str, tuple[float, float]],
    others: float,
) -> None:
    rack = MeasuringRack(tmp_path)
    await rack.up()
    await rack.measure("gpu0", "gpu1")
    await rack.running("measure-m1")
    record = rack.see.jobs["measure-m1"]
    await rack.down()
    jobs = [job(record, "own", "a", "b"), job(record, "other", "c", "d")]
    crossing = {name: Crossing(*rates) for name, rates in uplinks.items()}
    traffic = Traffic()
    for _ in range(STRANGERS_AFTER_S):
        traffic.add(["a", "b"], HOMES, jobs, lambda name: sent.get(name, 0.0), crossing)
    assert traffic.others_bps == others
    assert bool(traffic.verdict(100.0)) is (others > 1.0)


def test_an_unknown_rate_of_a_job_is_not_taken_for_the_own_traffic() -> None:
    traffic = Traffic()
    traffic.add(["a", "b"], HOMES, [], lambda name: None, {"as0": Crossing(90.0, 0.0)})
    assert traffic.others_bps == 0.0

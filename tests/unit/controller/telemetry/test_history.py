"""The history on disk: bounded, coarser with age, complete after a restart."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.devices.counters import ROWS, PortBlock, PortCounters
from controller.devices.openflow.wire.port_stats import WIRE, WireBody, block_of
from controller.telemetry.history import LEVELS, RingBuffer
from controller.telemetry.history_file import draft_of
from controller.telemetry.rates import RateTable
from testbed.simulated.loop import settled
from testbed.simulated.work import WorkEvent
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

START = 1_800_000_000.0


async def filled(
    directory: Path | None, seconds: int, start: float = START, *, at_once: bool = False
) -> RingBuffer:
    """Append a row per second; with ``at_once``, do not wait for the disk in between."""
    ring = RingBuffer(directory, ["gpu0", "gpu1"])
    for second in range(seconds):
        if second % 50 == 49 and not at_once:
            await ring.flush()
        values = np.full((2, 3), second, dtype=np.float32)
        values[1, 2] = np.nan
        ring.append(start + second + 0.5, values)
    return ring


async def test_the_finest_level_keeps_fifteen_minutes(tmp_path: Path) -> None:
    ring = await filled(tmp_path, 1000)
    window = ring.latest(START + 999.5)
    assert window.interval_s == 1.0
    assert len(window.times) == 900
    assert window.values[:, 0, 0].tolist() == list(range(100, 1000))
    assert np.isnan(window.values[:, 1, 2]).all()


async def test_coarser_rows_are_means_of_the_finer_ones() -> None:
    ring = await filled(None, 1300)
    day = ring.read(START, START + 1299)
    assert day.interval_s == 10.0
    assert day.values[:, 0, 0].tolist() == [4.5 + 10 * i for i in range(len(day.times))]
    month = ring.read(START, START + 90000)
    assert month.interval_s == 300.0
    assert month.values[0, 0, 0] == pytest.approx(149.5)
    assert np.isnan(month.values[0, 1, 2])


async def test_a_restart_finds_all_rows_and_closes_open_intervals(tmp_path: Path) -> None:
    await (await filled(tmp_path, 607)).flush()
    again = RingBuffer(tmp_path, ["gpu0", "gpu1"])
    assert again.latest(START + 606).values[-1, 0, 0] == 606
    again.append(START + 612.5, np.zeros((2, 3), dtype=np.float32))
    tens = again.read(START, START + 1200)
    assert tens.times[-1] == START + 600
    assert tens.values[-1, 0, 0] == 603  # the mean of 600 to 606; 607 to 609 were not recorded
    assert again.read(START, START + 90000).values[:, 0, 0].tolist() == [149.5, 449.5]


async def test_a_row_that_reaches_the_disk_during_a_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer stores the row right after the file was read."""
    ring = await filled(tmp_path, 599)
    await ring.flush()
    pread, pwrite, go = os.pread, os.pwrite, WorkEvent()
    waiting: list[tuple[Any, ...]] = []

    def held(*row: Any) -> int:
        waiting.append(row)
        go.wait()
        return pwrite(*row)

    def overtaken(*where: Any) -> bytes:
        data = pread(*where)
        for row in waiting:
            pwrite(*row)
        return data

    monkeypatch.setattr("controller.telemetry.history_file.os.pwrite", held)
    ring.append(START + 612.5, np.zeros((2, 3), dtype=np.float32))
    await settled()
    assert waiting
    monkeypatch.setattr("controller.telemetry.history_file.os.pread", overtaken)
    assert ring.read(START, START + 1200).times[-1] == START + 590


async def test_missing_seconds_are_a_gap() -> None:
    ring = await filled(None, 20)
    ring.append(START + 60.5, np.ones((2, 3), dtype=np.float32))
    window = ring.read(START, START + 61)
    assert [t - START for t in window.times] == [*range(20), 60]


async def test_rows_of_an_earlier_round_are_not_returned(tmp_path: Path) -> None:
    await (await filled(tmp_path, 900)).flush()
    later = RingBuffer(tmp_path, ["gpu0", "gpu1"])
    assert not len(later.latest(START + 5000).times)


async def test_a_full_disk_loses_rows_on_disk_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("controller.telemetry.history_file.os.pwrite", full)
    ring = await filled(tmp_path, 30)
    await ring.flush()
    assert ring.latest(START + 29).values[:, 0, 0].tolist() == list(range(30))
    monkeypatch.undo()
    ring.append(START + 30.5, np.full((2, 3), 30, dtype=np.float32))
    await ring.flush()
    again = RingBuffer(tmp_path, ["gpu0", "gpu1"])
    assert again.latest(START + 30).values[:, 0, 0].tolist() == [30]


async def test_a_hanging_disk_blocks_no_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, pwrite = WorkEvent(), os.pwrite

    def late(*arguments: Any) -> int:
        go.wait()
        return pwrite(*arguments)

    monkeypatch.setattr("controller.telemetry.history_file.os.pwrite", late)
    ring = await filled(tmp_path, 1000, at_once=True)  # more rows than may wait
    day = ring.read(START, START + 1000)
    assert day.values[-1, 0, 0] == 984.5, "rows that wait for the disk can be read"
    go.set()
    await ring.flush()
    ring.append(START + 1000.5, np.zeros((2, 3), dtype=np.float32))
    await ring.flush()
    again = RingBuffer(tmp_path, ["gpu0", "gpu1"])
    assert again.latest(START + 1000).times[-1] == START + 1000


async def test_other_endpoints_start_a_new_history(tmp_path: Path) -> None:
    await (await filled(tmp_path, 10)).flush()
    other = RingBuffer(tmp_path, ["gpu0", "gpu9"])
    assert not len(other.latest(START + 9).times)


async def test_a_column_more_keeps_the_history(tmp_path: Path) -> None:
    """Also files of an earlier version, which had fewer readings."""
    ring = await filled(tmp_path, 40)
    await ring.flush()
    later = RingBuffer(tmp_path, ["gpu0", "gpu1"], columns=("rx_bps", "fan_ratio", "utilisation"))
    window = later.latest(START + 39.5)
    assert window.values[:, 0, 0].tolist() == window.values[:, 0, 2].tolist() == list(range(40))
    assert np.isnan(window.values[:, :, 1]).all()
    assert np.isnan(window.values[:, 1, 2]).all()
    again = RingBuffer(tmp_path, ["gpu0", "gpu1"], columns=("rx_bps", "fan_ratio", "utilisation"))
    assert again.read(START, START + 1000).times.tolist() == [START, START + 10, START + 20]


async def test_columns_change_once_wherever_the_program_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = await filled(tmp_path, 20)
    await ring.flush()
    columns = ("utilisation", "tx_bps", "rx_bps")  # as many as before, in another order
    replace, deaths = Path.replace, 0
    reached: list[Path] = []

    def dying(draft: Path, target: Path) -> Path:
        if len(reached) >= deaths:
            raise KeyboardInterrupt
        reached.append(target)
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", dying)
    while True:
        reached.clear()
        try:
            RingBuffer(tmp_path, ["gpu0", "gpu1"], columns=columns)
            break
        except KeyboardInterrupt:
            deaths += 1
    assert deaths > 1
    monkeypatch.setattr(Path, "replace", replace)
    window = RingBuffer(tmp_path, ["gpu0", "gpu1"], columns=columns).latest(START + 19.5)
    assert np.isnan(window.values[:, 1, 0]).all()
    assert window.values[:, 1, 2].tolist() == list(range(20))
    assert not any(draft_of(tmp_path / f"telemetry-{i:g}s.ring").exists() for i, _ in LEVELS)


async def test_history_that_cannot_be_rewritten_starts_anew(tmp_path: Path) -> None:
    ring = await filled(tmp_path, 3)
    await ring.flush()
    (tmp_path / "telemetry.json").write_text('{"columns": 7')
    assert not len(RingBuffer(tmp_path, ["gpu0", "gpu1"]).latest(START + 3).times)


async def test_the_files_have_a_fixed_size(tmp_path: Path) -> None:
    await filled(tmp_path, 5)
    for interval, rows in LEVELS:
        size = (tmp_path / f"telemetry-{interval:g}s.ring").stat().st_size
        assert size == rows * (8 + 2 * 3 * 4)


async def test_a_truncated_file_is_replaced(tmp_path: Path) -> None:
    await (await filled(tmp_path, 5)).flush()
    path = tmp_path / "telemetry-1s.ring"
    path.write_bytes(path.read_bytes()[:100])
    assert not len(RingBuffer(tmp_path, ["gpu0", "gpu1"]).latest(START + 4).times)


def test_an_unusable_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match="cannot be opened"):
        RingBuffer(tmp_path / "file" / "x", ["gpu0"])


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=60))
def test_the_newest_sample_of_each_second_is_returned(seconds: list[int]) -> None:
    ring = RingBuffer(None, ["gpu0"])
    ring_of: dict[int, float] = {}
    now = 0
    for number, second in enumerate(np.cumsum(seconds).tolist()):
        now = second
        ring.append(START + second, np.full((1, 3), number, dtype=np.float32))
        ring_of[second] = number
    window = ring.latest(START + now)
    assert {
        int(t - START): v for t, v in zip(window.times, window.values[:, 0, 0], strict=True)
    } == {s: n for s, n in ring_of.items() if s > now - 900}


# --- rates --------------------------------------------------------------------------------


def block(duration_s: float, **ports: tuple[int, int]) -> PortBlock:
    return PortBlock.made(
        {int(p[1:]): PortCounters(rx, tx, 0, 0, duration_s) for p, (rx, tx) in ports.items()}
    )


def test_rates_are_per_port_and_survive_a_change_of_layout() -> None:
    table = RateTable()
    table.update({"as0": block(1.0, p1=(0, 0), p2=(0, 0))}, 0.0)
    assert np.isnan(table.rates).all()
    table.update({"as0": block(3.0, p1=(1000, 0), p2=(0, 500))}, 0.0)
    assert table.rates.tolist() == [[4000, 0], [0, 2000]]
    table.update({"as0": block(4.0, p2=(0, 1500)), "as1": block(9.0, p1=(7, 7))}, 0.0)
    assert table.rates[table.position(AttachPoint("as0", 2))].tolist() == [0, 8000]
    assert np.isnan(table.rates[table.position(AttachPoint("as1", 1))]).all()
    assert table.position(AttachPoint("as0", 1)) == -1
    table.update({}, 0.0)
    assert not len(table.rates)


@pytest.mark.parametrize(
    ("later_s", "rx"),
    [(2.0, 5), (1.0, 2000), (0.5, 2000)],
    ids=["counter fell", "no time passed", "clock fell"],
)
def test_a_counter_reset_gives_no_rate(later_s: float, rx: int) -> None:
    table = RateTable()
    table.update({"as0": block(1.0, p1=(1000, 0))}, 0.0)
    table.update({"as0": block(later_s, p1=(rx, 0))}, 0.0)
    assert np.isnan(table.rates).all()


@pytest.mark.parametrize("unreported_s", [0.0, 2.0**32 - 1])
def test_a_switch_without_durations_is_measured_by_the_controllers_clock(
    unreported_s: float,
) -> None:
    table = RateTable()
    for now, octets in ((100.0, 0), (102.0, 1000)):
        table.update(
            {
                "as0": block(unreported_s, p1=(octets, 0), p2=(5, 5)),
                "as1": block(now / 2, p1=(octets, 0)),
            },
            now,
        )
    assert table.rates.tolist() == [[4000, 0], [0, 0], [8000, 0]]


@pytest.mark.parametrize(
    ("duration_s", "measured"), [(0.0, False), (2.0**32 - 1, False), (0.5, True), (2.0**31, True)]
)
def test_a_duration_of_all_ones_or_zero_is_not_measured(duration_s: float, measured: bool) -> None:
    assert PortCounters(0, 0, 0, 0, duration_s).has_duration is measured


def test_counters_above_63_bits_give_rates() -> None:
    table = RateTable()
    table.update({"as0": block(1.0, p1=(2**64 - 1000, 0))}, 0.0)
    table.update({"as0": block(2.0, p1=(2**64 - 500, 0))}, 0.0)
    assert table.rates[0, 0] == 4000


def test_a_truncated_port_on_the_wire_is_refused() -> None:
    whole = PortBlock.made({1: PortCounters(1, 2, 3, 4, 5.25)})
    wire = b"header.." + as_openflow(whole)
    assert WireBody.parser(wire, 8).length == WIRE.row.itemsize == 112
    assert dict(block_of([WireBody.parser(wire, 8)])) == {1: PortCounters(1, 2, 3, 4, 5.25)}
    with pytest.raises(struct.error):
        WireBody.parser(wire[:-1], 8)
    assert not block_of([])


def as_openflow(block: PortBlock) -> bytes:
    rows = np.zeros(len(block), dtype=WIRE.row)
    for name in ROWS.row.names or ():
        rows[name] = block.rows[name]
    return rows.tobytes()


def test_one_table_holds_rates_of_two_southbounds() -> None:
    table = RateTable()
    for second, octets in ((1.0, 0), (2.0, 1000)):
        native = block(second, p1=(octets, 0))
        wire = PortBlock(as_openflow(block(second, p1=(0, octets), p2=(octets, octets))), WIRE)
        table.update({"as0": native, "as1": wire, "as2": block(second, p4=(octets, octets))}, 0.0)
    rates = {
        (point.aggregator, point.port): table.rates[at].tolist()
        for point, at in table.points().items()
    }
    assert rates == {
        ("as0", 1): [8000, 0],
        ("as1", 1): [0, 8000],
        ("as1", 2): [8000, 8000],
        ("as2", 4): [8000, 8000],
    }


# --- through the service --------------------------------------------------------------------


async def test_a_sample_belongs_to_the_job_that_held_the_endpoint(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    await rack.up()
    state, telemetry = rack.parts.state, rack.parts.telemetry
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    state.jobs.change("red", started_at=START + 10, finished_at=START + 20)
    state.clock = lambda: START + 30
    for second in range(30):
        telemetry.history.append(START + second, np.ones((6, 3), dtype=np.float32))
    (line,) = (await rack.desks.live.series(40)).containers
    series = await rack.desks.live.series(40)
    known = [t - START for t, v in zip(series.times, line.rx_bps, strict=True) if v is not None]
    assert known == list(range(10, 20))
    await rack.down()

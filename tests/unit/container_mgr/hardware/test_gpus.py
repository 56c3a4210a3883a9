"""NVML through a real shared library that replaces the driver's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from container_mgr.hardware import nvml
from container_mgr.hardware.gpus import MAX_GIVEN_UP, Gpus, Slot, unfit
from container_mgr.hardware.inventory import Inventory
from container_mgr.hardware.nvml import GpuReadings
from container_mgr.values import GpuFault, ServedEndpoint, ServerFacts, Unfit
from readings.catalogue import of
from readings.reading import Object
from tests.nvml import mock

A, B = "GPU-aaaa", "GPU-bbbb"


@pytest.fixture
def behaviour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "gpus"
    mock.look_at(path)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    mock.behave(path, {A: "ok", B: "ok"})
    yield path
    mock.behave(path, {A: "ok", B: "ok"})  # ends the threads that hang
    pynvml._nvmlGetFunctionPointer_cache.clear()


class Clock:
    """Advances only when a test moves it, so a thread that waits for a processor does not hang."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gpus(behaviour: Path, clock: Clock) -> Iterator[Gpus]:
    one = Gpus([A, B], library=mock.library(), interval_s=0.02, clock=clock)
    one.start()
    until(one.settled)
    yield one
    one.stop()


def until(good: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not good():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_figure_is_read(behaviour: Path) -> None:
    found = nvml.NvmlGpu(mock.library(), A)
    assert (found.index, found.minor) == (0, 0)
    values = {
        "utilisation": 0.42,
        "memory_bytes": 3 << 30,
        "memory_total_bytes": 80 << 30,
        "temperature_c": 61,
        "power_w": pytest.approx(350.5),
        "sm_clock_hz": 1_980_000_000,
        "memory_clock_hz": 2_619_000_000,
        "pcie_tx_bps": 1000 * 1024 * 8,
        "pcie_rx_bps": 2000 * 1024 * 8,
        "pcie_replays": 5,
        "nvlinks_up": 3,
        "ecc_corrected": 9,
        "ecc_uncorrected": 1,
        "throttle_reasons": ("sw_power_cap", "sw_thermal"),
    }
    assert found.read().values == values
    declared = {reading.name for reading in of(Object.RANK, Object.GPU)}
    assert declared - values.keys() == {"xid"}  # none has happened


def test_a_figure_that_a_gpu_does_not_give_is_absent_not_zero(behaviour: Path) -> None:
    mock.behave(behaviour, {A: "plain"})
    found = nvml.NvmlGpu(mock.library(), A).read()
    sizes = {"memory_bytes": 3 << 30, "memory_total_bytes": 80 << 30}
    assert found.values == {**sizes, "throttle_reasons": ()}


def test_processes_that_compute_on_a_gpu_are_listed(behaviour: Path) -> None:
    mock.behave(behaviour, {A: "ok"}, pid=4711)
    assert nvml.NvmlGpu(mock.library(), A).read().pids == (4711,)


@pytest.mark.parametrize(
    ("state", "word"), [("lost", "GPU is lost"), ("absent", "Not Found"), ("hang", "NVML hangs")]
)
def test_a_broken_gpu_affects_no_other(
    gpus: Gpus, behaviour: Path, clock: Clock, state: str, word: str
) -> None:
    assert [gpus.why_unfit(A), gpus.why_unfit(B)] == ["", ""]
    mock.behave(behaviour, {A: state, B: "ok"})

    def later() -> str:
        clock.now += 0.1 if state == "hang" else 0.0
        return gpus.why_unfit(A)

    until(later)
    assert word in gpus.why_unfit(A)
    assert gpus.why_unfit(A).count(word) == 1, "it says it once"
    until(lambda: not gpus.why_unfit(B) and gpus.reading(B) is not None)
    mock.behave(behaviour, {A: "ok", B: "ok"})
    until(lambda: not gpus.why_unfit(A))


def test_an_xid_of_the_hardware_makes_a_gpu_unfit_and_one_of_a_program_does_not(
    gpus: Gpus, behaviour: Path
) -> None:
    mock.behave(behaviour, {A: "ok", B: "ok"}, {A: 79, B: 13})
    until(lambda: gpus.why_unfit(A))
    assert gpus.why_unfit(A) == "Xid 79: fell off the bus"
    until(lambda: (gpus.reading(B) or GpuReadings()).values.get("xid") == 13)
    assert gpus.why_unfit(B) == ""


def test_a_gpu_that_is_missing_at_the_start(behaviour: Path) -> None:
    one = Gpus(["GPU-none"], library=mock.library(), interval_s=0.02)
    one.start()
    until(one.settled)
    one.stop()
    assert "lost" in one.why_unfit("GPU-none")
    assert one.reading("GPU-none") is None
    assert one.indices() == {}


def test_a_driver_that_is_not_the_librarys_is_no_fault_of_a_gpu(
    gpus: Gpus, behaviour: Path
) -> None:
    """An unattended upgrade: what runs goes on, and NVML works again after it."""
    mock.behave(behaviour, {A: "mismatch", B: "ok"})
    until(lambda: gpus.unfit(A) and gpus.unfit(B))
    said = Unfit(
        GpuFault.LIBRARY, "NVML does not work: RM has detected an NVML/RM version mismatch."
    )
    assert [gpus.unfit(A), gpus.unfit(B)] == [said, said]
    assert not said.of_device
    mock.behave(behaviour, {A: "ok", B: "lost"})
    until(lambda: not gpus.unfit(A) and gpus.unfit(B) != said)
    assert gpus.unfit(B) == Unfit(GpuFault.LOST, "the GPU is lost")


def test_nvml_that_hangs_on_all_gpus_is_no_fault_of_one(
    gpus: Gpus, behaviour: Path, clock: Clock
) -> None:
    mock.behave(behaviour, {A: "hang", B: "hang"})

    def found() -> list[Unfit | None]:
        clock.now += 0.1
        return [gpus.unfit(A), gpus.unfit(B)]

    said = Unfit(GpuFault.LIBRARY, "NVML does not work: it hangs on all 2 GPUs")
    until(lambda: found() == [said, said])
    assert not said.of_device
    mock.behave(behaviour, {A: "ok", B: "hang"})
    until(lambda: found() == [None, Unfit(GpuFault.HANG, "NVML hangs on this GPU")])
    mock.behave(behaviour, {A: "ok", B: "ok"})
    until(lambda: found() == [None, None])
    until(lambda: gpus.reading(A) and gpus.reading(B))


class Stuck:
    """Devices whose first calls never return."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.opened = 0
        self.end = threading.Event()

    def __call__(self, library: str, uuid: str) -> Stuck:
        self.opened += 1
        return self

    index = minor = 0

    def read(self) -> GpuReadings:
        if self.calls > 0:
            self.calls -= 1
            self.end.wait()
        return GpuReadings({"temperature_c": 40.0})


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    one = Stuck(calls=2)
    monkeypatch.setattr("container_mgr.hardware.gpus.NvmlGpu", one)
    yield one
    one.end.set()


def test_a_call_that_never_returns_is_given_up(stuck: Stuck, clock: Clock) -> None:
    one = Gpus([A], interval_s=0.02, clock=clock)
    one.start()
    until(lambda: stuck.opened == 1)
    clock.now += 10
    assert one.unfit(A) == Unfit(GpuFault.HANG, "NVML hangs on this GPU")
    clock.now += 21
    until(lambda: stuck.opened == 2)
    assert one.unfit(A) == Unfit(GpuFault.HANG, "NVML hangs on this GPU"), "nothing is known yet"
    clock.now += 30
    assert one.unfit(A), "the second call hangs as well"
    clock.now += 40
    until(lambda: one.unfit(A) is None)
    assert one.reading(A) == GpuReadings({"temperature_c": 40.0})
    stuck.end.set()  # what comes late says nothing
    assert one.unfit(A) is None
    one.stop()


def test_calls_that_never_return_take_a_bounded_number_of_threads(
    stuck: Stuck, clock: Clock
) -> None:
    stuck.calls = 10**6
    one = Gpus([A], interval_s=0.001, clock=clock)
    one.start()

    def later() -> bool:
        clock.now += 3600
        return stuck.opened == MAX_GIVEN_UP + 1

    until(later)
    clock.now += 10**6
    time.sleep(0.1)
    assert stuck.opened == MAX_GIVEN_UP + 1
    one.stop()


def test_without_the_library_the_gpus_are_unfit_and_nothing_else(
    behaviour: Path, tmp_path: Path
) -> None:
    one = Gpus([A], library=str(tmp_path / "none.so"), interval_s=0.02)
    one.start()
    until(one.settled)
    one.stop()
    found = one.unfit(A)
    assert found is not None
    assert (found.fault, "none.so" in found.reason) == (GpuFault.LIBRARY, True)


@pytest.mark.real_time
async def test_the_word_on_a_ranks_end_comes_with_a_newer_one_on_its_gpu(behaviour: Path) -> None:
    one = Gpus([A, B], library=mock.library(), interval_s=3600.0)
    served = {"gpu0": ServedEndpoint("gpu0", "nic0", A), "gpu1": ServedEndpoint("gpu1", "nic1", B)}
    inventory = Inventory(served, ServerFacts(4, 8 << 30), gpus=one)
    one.start()
    until(one.settled)
    mock.behave(behaviour, {A: "lost", B: "ok"})
    assert all(not health.unfit for health in inventory.health({})), "nobody has looked since"
    await inventory.look_after({"gpu0": "c0", "gpu1": "c1"})
    assert [not health.unfit for health in inventory.health({})] == [False, True]
    mock.behave(behaviour, {A: "ok", B: "lost"})
    await inventory.look_after({"gpu0": "c0", "gpu1": "c1"})
    assert [not health.unfit for health in inventory.health({})] == [False, True], (
        "one look for each end"
    )
    await inventory.look_after({"gpu0": "c2", "gpu1": "c1"})
    assert [not health.unfit for health in inventory.health({})] == [True, True]
    one.stop()


async def test_a_gpu_that_hangs_does_not_hold_up_the_word_on_its_ranks_end(
    behaviour: Path,
) -> None:
    one = Gpus([A], library=mock.library(), interval_s=3600.0)
    inventory = Inventory(
        {"gpu0": ServedEndpoint("gpu0", "nic0", A)}, ServerFacts(4, 8 << 30), gpus=one
    )
    one.start()
    until(one.settled)
    mock.behave(behaviour, {A: "hang"})
    async with asyncio.timeout(30):
        await inventory.look_after({"gpu0": "c0"})
    one.stop()


def test_indices_are_nvmls(gpus: Gpus) -> None:
    assert gpus.indices() == {A: 0, B: 1}


def test_old_figures_are_not_returned() -> None:
    now = [100.0]
    one = Gpus([A], clock=lambda: now[0])
    one._slots[A].read_at = 100.0
    assert one.reading(A) is not None
    now[0] = 104.0
    assert one.reading(A) is None


def test_a_slow_reading_is_not_a_hang() -> None:
    slot = Slot(started=10.0, read_at=9.0)
    assert unfit(slot, 12.9) is None
    assert unfit(slot, 13.1) == Unfit(GpuFault.HANG, "NVML hangs on this GPU")
    assert unfit(Slot(), 0.0) == Unfit(GpuFault.UNREAD, "the GPU has not been read yet")

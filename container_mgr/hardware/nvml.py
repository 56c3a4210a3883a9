"""Reads one GPU through NVML. A figure that the device or its driver does not give is None.

All calls go through nvidia-ml-py. The library's path is an argument, so tests can use a mock of
``libnvidia-ml.so``. Calls block, and hang when the driver hangs:
:mod:`container_mgr.hardware.gpus` gives every GPU a thread of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pynvml

from readings.reading import Values

DEFAULT_LIBRARY = "libnvidia-ml.so.1"

FATAL_XIDS: Mapping[int, str] = {
    48: "double-bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""Xids after which a GPU cannot run the next job (NVIDIA, Xid Errors). The others are errors
of the program that ran."""

_THROTTLES = (
    (pynvml.nvmlClocksEventReasonSwPowerCap, "sw_power_cap"),
    (pynvml.nvmlClocksEventReasonHwSlowdown, "hw_slowdown"),
    (pynvml.nvmlClocksEventReasonSyncBoost, "sync_boost"),
    (pynvml.nvmlClocksEventReasonSwThermalSlowdown, "sw_thermal"),
    (pynvml.nvmlClocksEventReasonHwThermalSlowdown, "hw_thermal"),
    (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hw_power_brake"),
)
_GONE = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
_OF_DEVICE = _GONE | {
    pynvml.NVML_ERROR_INSUFFICIENT_POWER,
    pynvml.NVML_ERROR_IRQ_ISSUE,
    pynvml.NVML_ERROR_CORRUPTED_INFOROM,
}
"""Of a GPU that cannot be opened while NVML works."""
_OF_LIBRARY = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_MHZ = 1_000_000
_KIB = 1024
_MAX_NVLINKS = 18


class GpuLostError(Exception):
    """The GPU does not work; the message is NVML's."""


class NvmlError(Exception):
    """The library or the driver does not work; the GPU may. The message is NVML's.

    For example, it was upgraded under running programs, or is not loaded yet.
    """


@dataclass(slots=True, frozen=True)
class GpuReadings:
    """The readings of one GPU at one moment; ``readings/catalogue.py`` declares them."""

    values: Values = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    """The processes that compute on it."""


class NvmlGpu:
    """One GPU, found by its UUID. Methods block."""

    def __init__(self, library: str, uuid: str) -> None:
        """Open NVML and the GPU. NvmlError when the first, GpuLostError when the second fails."""
        try:
            _load(library)
            pynvml.nvmlInit()
        except (pynvml.NVMLError, OSError) as error:
            raise NvmlError(_message(error)) from error
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            kind = GpuLostError if error.value in _OF_DEVICE else NvmlError
            raise kind(_message(error)) from error
        self._index = _query(lambda: pynvml.nvmlDeviceGetIndex(self._handle))
        self._minor = _query(lambda: pynvml.nvmlDeviceGetMinorNumber(self._handle))
        self._events = self._listen()
        self._xid: int | None = None

    @property
    def index(self) -> int | None:
        """NVML's index, which dcgm-exporter uses as well."""
        return None if self._index is None else int(self._index)

    @property
    def minor(self) -> int | None:
        """The N of ``/dev/nvidiaN``."""
        return None if self._minor is None else int(self._minor)

    def read(self) -> GpuReadings:
        """Return the current figures. GpuLostError when the GPU no longer works, NvmlError."""
        handle = self._handle
        try:
            # Every GPU supports this call, so its success shows that the GPU works.
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                raise GpuLostError(_message(error)) from error
            if error.value in _OF_LIBRARY:
                raise NvmlError(_message(error)) from error
            memory = None
        busy = _query(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        reasons = _query(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if reasons is None:  # the call's name before driver 535
            reasons = _query(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        processes = _query(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)) or ()
        values = {
            "utilisation": None if busy is None else busy.gpu / 100,
            "memory_bytes": None if memory is None else memory.used,
            "memory_total_bytes": None if memory is None else memory.total,
            "temperature_c": _query(
                lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            ),
            "power_w": _times(_query(lambda: pynvml.nvmlDeviceGetPowerUsage(handle)), 1e-3),
            "sm_clock_hz": self._clock(pynvml.NVML_CLOCK_SM),
            "memory_clock_hz": self._clock(pynvml.NVML_CLOCK_MEM),
            "pcie_rx_bps": self._pcie(pynvml.NVML_PCIE_UTIL_RX_BYTES),
            "pcie_tx_bps": self._pcie(pynvml.NVML_PCIE_UTIL_TX_BYTES),
            "pcie_replays": _query(lambda: pynvml.nvmlDeviceGetPcieReplayCounter(handle)),
            "nvlinks_up": self._nvlinks(),
            "ecc_corrected": self._ecc(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": self._ecc(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "xid": self._last_xid(),
            "throttle_reasons": tuple(word for bit, word in _THROTTLES if (reasons or 0) & bit),
        }
        return GpuReadings(
            values={name: value for name, value in values.items() if value is not None},
            pids=tuple(sorted(int(process.pid) for process in processes)),
        )

    def _clock(self, which: int) -> int | None:
        mhz = _query(lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, which))
        return None if mhz is None else int(mhz) * _MHZ

    def _pcie(self, which: int) -> int | None:
        kib = _query(lambda: pynvml.nvmlDeviceGetPcieThroughput(self._handle, which))
        return None if kib is None else int(kib) * _KIB * 8

    def _ecc(self, kind: int) -> int | None:
        volatile = pynvml.NVML_VOLATILE_ECC
        found = _query(lambda: pynvml.nvmlDeviceGetTotalEccErrors(self._handle, kind, volatile))
        return None if found is None else int(found)

    def _nvlinks(self) -> int | None:
        states = []
        for link in range(_MAX_NVLINKS):
            state = _query(partial(pynvml.nvmlDeviceGetNvLinkState, self._handle, link))
            if state is None:
                break
            states.append(state)
        return sum(states) if states else None

    def _listen(self) -> Any:
        """Subscribe to Xids; not every GPU supports that."""

        def register() -> Any:
            events = pynvml.nvmlEventSetCreate()
            kinds = pynvml.nvmlEventTypeXidCriticalError
            pynvml.nvmlDeviceRegisterEvents(self._handle, kinds, events)
            return events

        return _query(register)

    def _last_xid(self) -> int | None:
        while self._events is not None:
            event = _query(lambda: pynvml.nvmlEventSetWait_v2(self._events, 0))
            if event is None:  # no event waits
                break
            if self._xid not in FATAL_XIDS:  # keep showing the fatal one
                self._xid = int(event.eventData)
        return self._xid


def _load(library: str) -> None:
    """Make nvidia-ml-py use this library; it has no function for that."""
    if pynvml.nvmlLib is None:
        pynvml.nvmlLib = ctypes.CDLL(library)


def _query(question: Callable[[], Any]) -> Any:
    """Return the answer; None when the device, the driver or the library has none."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _message(error: Exception) -> str:
    return str(error).strip() or type(error).__name__

"""Every reading that there is: a new one is an entry here and the code that measures it. Pure."""

from __future__ import annotations

from functools import cache, partial

from readings.reading import Object, Reading, Unit

_ECC = "lightloom_gpu_ecc_errors"
_ECC_HELP = "Memory errors since the driver was loaded"
_whole = partial(Reading, least=0, most=2**64 - 1)

CATALOGUE: tuple[Reading, ...] = (
    Reading(
        id=1,
        name="utilisation",
        of=Object.RANK,
        unit=Unit.RATIO,
        help="Busy fraction of an endpoint",
        metric="lightloom_gpu_utilization_ratio",
        history="telemetry",
    ),
    _whole(
        id=2,
        name="memory_total_bytes",
        of=Object.GPU,
        unit=Unit.BYTES,
        help="Memory the GPU has",
        metric="lightloom_gpu_memory_size_bytes",
        label="GPU memory",
    ),
    Reading(
        id=3,
        name="temperature_c",
        of=Object.GPU,
        unit=Unit.CELSIUS,
        help="Temperature of the GPU",
        metric="lightloom_gpu_temperature_celsius",
        history="gpu",
        of_job="max",
        column="TEMP",
        label="temperature",
    ),
    Reading(
        id=4,
        name="power_w",
        of=Object.GPU,
        unit=Unit.WATTS,
        help="What the GPU draws",
        metric="lightloom_gpu_power_watts",
        history="gpu",
        of_job="sum",
        column="POWER",
        label="power",
    ),
    _whole(
        id=5,
        name="sm_clock_hz",
        of=Object.GPU,
        unit=Unit.HERTZ,
        help="Clock of the streaming multiprocessors",
        metric="lightloom_gpu_sm_clock_hertz",
        label="clocks",
    ),
    _whole(
        id=6,
        name="memory_clock_hz",
        of=Object.GPU,
        unit=Unit.HERTZ,
        help="Clock of the GPU's memory",
        label="clocks",
        text="memory {}",
    ),
    _whole(
        id=7,
        name="pcie_rx_bps",
        of=Object.GPU,
        unit=Unit.BITS_PER_SECOND,
        help="What the GPU receives over PCIe",
    ),
    _whole(
        id=8,
        name="pcie_tx_bps",
        of=Object.GPU,
        unit=Unit.BITS_PER_SECOND,
        help="What the GPU sends over PCIe",
    ),
    _whole(
        id=9,
        name="pcie_replays",
        of=Object.GPU,
        unit=Unit.COUNT,
        help="Packets that were sent again over PCIe",
    ),
    Reading(
        id=10,
        name="nvlinks_up",
        of=Object.GPU,
        unit=Unit.COUNT,
        help="NVLinks that are up",
        least=0,
        most=2**32 - 1,
    ),
    _whole(
        id=11,
        name="ecc_corrected",
        of=Object.GPU,
        unit=Unit.COUNT,
        help=_ECC_HELP,
        metric=_ECC,
        labels=(("kind", "corrected"),),
        counter=True,
        label="memory errors",
        text="{} corrected",
    ),
    _whole(
        id=12,
        name="ecc_uncorrected",
        of=Object.GPU,
        unit=Unit.COUNT,
        help=_ECC_HELP,
        metric=_ECC,
        labels=(("kind", "uncorrected"),),
        counter=True,
        label="memory errors",
        text="{} uncorrected",
    ),
    Reading(
        id=13,
        name="xid",
        of=Object.GPU,
        unit=Unit.COUNT,
        help="The last Xid since the agent started",
        least=0,
        most=2**32 - 1,
        label="last Xid",
    ),
    Reading(
        id=14,
        name="throttle_reasons",
        of=Object.GPU,
        unit=Unit.WORDS,
        help="1 when the clocks are held down",
        metric="lightloom_gpu_throttled",
        label="throttled by",
    ),
    _whole(
        id=15,
        name="memory_bytes",
        of=Object.RANK,
        unit=Unit.BYTES,
        help="Memory in use on an endpoint",
        metric="lightloom_gpu_memory_used_bytes",
        history="gpu",
    ),
    Reading(
        id=16,
        name="load",
        of=Object.SERVER,
        unit=Unit.NUMBER,
        help="Processes that ran or waited, mean of the last minute",
        least=0,
        metric="lightloom_server_load",
        column="LOAD",
        label="load",
    ),
    _whole(
        id=17,
        name="memory_available_bytes",
        of=Object.SERVER,
        unit=Unit.BYTES,
        help="Memory that programs can still get",
        metric="lightloom_server_memory_available_bytes",
        column="AVAILABLE",
        label="memory available",
    ),
    _whole(
        id=18,
        name="lit_ports",
        of=Object.SWITCH,
        unit=Unit.COUNT,
        help="Ports of the site file that receive light",
        lasts_s=60.0,
        metric="lightloom_switch_lit_ports",
        column="LIT",
        label="ports with light",
    ),
)


@cache
def of(*objects: Object) -> tuple[Reading, ...]:
    """Return the readings of some kinds of objects, in the order of the catalogue."""
    return tuple(reading for reading in CATALOGUE if reading.of in objects)


@cache
def kept(ring: str) -> tuple[str, ...]:
    """Return the names of the readings that a ring of the history keeps: its columns."""
    return tuple(reading.name for reading in CATALOGUE if reading.history == ring)

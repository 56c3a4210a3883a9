from __future__ import annotations

import pytest

from measure.storage import gds

GDSIO = (
    "IoType: READ XferType: GPUD Threads: 4 DataSetSize: 36523008/4194304(KiB) IOSize: 1024(KiB)"
    " Throughput: 3.483025 GiB/sec, Avg_Latency: 1121.538438 usecs ops: 35667"
    " total_time 10.000340 secs\n"
)
"""The line's form is that of NVIDIA's guides."""
GDSCHECK = """\
 GDS release version: 1.7.2.10
 ============
 ENVIRONMENT:
 ============
 =====================
 DRIVER CONFIGURATION:
 =====================
 NVMe               : Supported
 NVMeOF             : Unsupported
 SCSI               : Unsupported
 WekaFS             : Unsupported
 =====================
 CUFILE CONFIGURATION:
 =====================
 properties.use_compat_mode : true
 properties.allow_compat_mode : true
 =========
 GPU INFO:
 =========
 GPU index 0 NVIDIA A100 bar:1 bar size (MiB):131072 supports GDS, IOMMU State: Disabled
"""
STATS = """\
GDS Version: 1.7.2.10
NVFS statistics(ver: 4.0)
Active Shadow-Buffer (MiB): 0
Reads                           : err=0 io_state_err=0
Sparse Reads                    : n=0 io=0 holes=0 pages=0
Writes                          : err=0 io_state_err=0
Ops                             : Read={reads} Write={writes} BatchIO=0
"""


def test_a_line_of_gdsio() -> None:
    line = gds.line(GDSIO)
    assert line is not None
    assert line.bytes_per_s == pytest.approx(3.483025 * 2**30)
    assert line.latency_s == pytest.approx(1121.538438e-6)
    assert line.operations == 35667
    assert line.seconds == pytest.approx(10.00034)
    assert gds.line("Error: cuFile driver is not loaded") is None


def test_gdscheck_names_what_works() -> None:
    check = gds.check(GDSCHECK)
    assert check.modes == {"NVMe": True, "NVMeOF": False, "SCSI": False, "WekaFS": False}
    assert check.any_supported
    assert check.compat_allowed is True
    assert gds.check("").compat_allowed is None


@pytest.mark.parametrize(
    ("asked", "before", "after", "writes", "path"),
    [
        ("gds", (5, 0), (90, 0), False, "gds"),
        ("gds", (5, 0), (5, 70), True, "gds"),
        ("gds", (5, 0), (5, 0), False, "compat"),
        ("gds", (5, 0), (90, 0), True, "compat"),
        ("bounce", (5, 0), (5, 0), False, "bounce"),
    ],
)
def test_counters_that_stand_still_tell_a_silent_fall_back(
    asked: str, before: tuple[int, int], after: tuple[int, int], writes: bool, path: str
) -> None:
    first, last = (STATS.format(reads=r, writes=w) for r, w in (before, after))
    assert gds.path(asked, first, last, writes=writes) == path


def test_without_the_driver_there_is_no_direct_path() -> None:
    assert gds.path("gds", None, None, writes=False) == "compat"

"""Measures a volume with fio: workers x sizes, with the processor time and what the cache answered.

    python3 -m probe.storage '{"directory": "/volume", ...}'

Prints a line ``device``, then one line ``point`` for each point of the grid as soon as it is
measured, in an order that the seed shuffles. A point is one run of fio: a part that does not count
(the ramp), then as many parts as repetitions, one after the other. Where the machine has NVIDIA's
GPUDirect Storage and the plan asks for it, gdsio measures the same points; its output goes out as
it is. All files lie in one directory of the volume, which ends with the probe.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import common
from probe.volume import disk, scratch

CHUNK = 4 * 2**20
GRACE_S = 60.0
"""How much longer than requested a run of a tool may take before it is killed."""
STATS = Path("/proc/driver/nvidia-fs/stats")
MOST_TEXT = 8192
"""Characters of a tool's output in one line."""
PERCENTILES = ("50.000000", "95.000000", "99.000000", "99.900000")
_OUR_FILE = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9._@+/-]*")
_GDSIO = {"read": "0", "write": "1", "randread": "2", "randwrite": "3"}
"""Its ``-I``, by fio's word."""
_TRANSFER = {"gds": "0", "bounce": "2"}
"""Its ``-x``: 0 direct to the GPU, 2 through the processor's memory."""


class RefusedPlanError(Exception):
    """A measurement without meaning: why, and what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


@dataclass(slots=True, frozen=True)
class StoragePlan:
    """What to measure. Times in seconds, sizes in bytes."""

    directory: Path
    file: str
    """A file of the volume, read only; empty: a file of the probe's own."""
    bytes: int
    rw: list[str]
    workers: list[int]
    io_bytes: list[int]
    paths: list[str]
    """``posix`` (fio), ``bounce`` and ``gds`` (gdsio)."""
    runtime_s: float
    """Seconds of one repetition."""
    ramp_s: float
    repetitions: int
    direct: bool
    iodepth: int
    seed: int


@dataclass(slots=True, frozen=True)
class GridPoint:
    """One point of the grid."""

    path: str
    rw: str
    workers: int
    io_bytes: int


def main(plan: StoragePlan) -> None:
    """Measure all points."""
    try:
        under = disk.device(plan.directory)
        common.emit(
            "device",
            filesystem=under.filesystem,
            number=under.number,
            direct_loop=under.direct_loop,
        )
        if under.refusal:
            raise RefusedPlanError(under.refusal, "choose a volume on a disk or a file server")
        version = common.run_tool(["fio", "--version"], GRACE_S)
        if version.code != 0:
            raise RefusedPlanError(
                f"fio: {version.problem}", "run it in the image ll-probe, or one with fio"
            )
        gds = _gds(plan)
        me = common.identity()
        if plan.file:
            _measure(plan, _existing(plan), version.stdout.strip(), gds)
            return
        with scratch.Scratch(plan.directory, f"ll-fio-{me.job}-{me.rank}") as own:
            if own.removed:
                common.emit("removed", names=own.removed[:100])
            _measure(plan, _laid_out(own.path / "data", plan), version.stdout.strip(), gds)
    except (RefusedPlanError, scratch.ScratchError) as refused:
        common.emit("refused", reason=refused.reason, hint=refused.hint)


def _existing(plan: StoragePlan) -> Path:
    """Return the volume's own file. Raises RefusedPlanError."""
    path = plan.directory / plan.file
    if not _OUR_FILE.fullmatch(plan.file) or ".." in path.parts or not path.is_file():
        raise RefusedPlanError(
            f"{plan.file} is not a file of the volume", "set `file` to a path in it"
        )
    if path.stat().st_size < plan.bytes:
        raise RefusedPlanError(
            f"{plan.file} has {path.stat().st_size} bytes", f"set `size` below that of {plan.bytes}"
        )
    return path


def _laid_out(path: Path, plan: StoragePlan) -> Path:
    """Write the file, random so that nothing stores it smaller. Raises RefusedPlanError."""
    try:
        with path.open("wb", buffering=0) as file:
            left = plan.bytes
            while left > 0:
                left -= file.write(os.urandom(min(CHUNK, left)))
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise RefusedPlanError(
            f"a file of {plan.bytes} bytes cannot be written: {error.strerror}",
            "free space on the volume, raise its quota, or set a smaller `size`",
        ) from None
    return path


def _measure(plan: StoragePlan, file: Path, version: str, gds: str) -> None:
    points = [
        GridPoint(path, rw, workers, io_bytes)
        for path in plan.paths
        for rw in plan.rw
        for workers in plan.workers
        for io_bytes in plan.io_bytes
    ]
    random.Random(plan.seed).shuffle(points)  # noqa: S311 - the order of points, no secret
    for point in points:
        if point.path != "posix" and gds:
            fields: dict[str, Any] = {"reason": gds}
        elif point.path == "posix":
            fields = {"tool": "fio", "version": version, **_fio(plan, point, file)}
        else:
            fields = {"tool": "gdsio", **_gdsio(plan, point, file)}
        _settle(file)
        common.emit(
            "point",
            path=point.path,
            rw=point.rw,
            workers=point.workers,
            io_bytes=point.io_bytes,
            **fields,
        )


def _settle(file: Path) -> None:
    """Flush this point's writes to disk, and drop its pages: the next one starts clean."""
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


# --- fio ------------------------------------------------------------------------------------


def fio_command(plan: StoragePlan, point: GridPoint, file: Path) -> list[str]:
    """Return fio's command: the ramp, then the repetitions, one after the other.

    Each worker is a thread with a region of its own in one file.
    """
    region = plan.bytes // point.workers // point.io_bytes * point.io_bytes
    parts = [("ramp", plan.ramp_s)] if plan.ramp_s else []
    parts += [(f"part{n}", plan.runtime_s) for n in range(plan.repetitions)]
    argv = [
        *("fio", "--output-format=json", "--eta=never", "--name=global"),
        *(f"--filename={file}", f"--rw={point.rw}", f"--bs={point.io_bytes}"),
        *(f"--size={region}", f"--offset_increment={region}", f"--numjobs={point.workers}"),
        *("--thread", f"--direct={int(plan.direct)}", "--invalidate=1", "--group_reporting"),
        *("--ioengine=libaio", f"--iodepth={plan.iodepth}", "--time_based"),
        *("--allow_file_create=0", "--fallocate=none", f"--randseed={plan.seed % 2**31}"),
        *("--percentile_list=50:95:99:99.9", "--norandommap"),
    ]
    for name, seconds in parts:
        argv += [f"--name={name}", "--stonewall", f"--runtime={round(seconds * 1000)}ms"]
    return argv


def _fio(plan: StoragePlan, point: GridPoint, file: Path) -> dict[str, Any]:
    before = disk.spent()
    seconds = plan.ramp_s + plan.repetitions * plan.runtime_s
    result = common.run_tool(fio_command(plan, point, file), seconds + GRACE_S)
    after = disk.spent()
    reading = point.rw.endswith("read")
    blocks = (
        after.read_bytes - before.read_bytes
        if reading
        else after.written_bytes - before.written_bytes
    )
    fields: dict[str, Any] = {
        "fio": reduced(result.stdout, "read" if reading else "write"),
        "block_bytes": blocks if reading or plan.direct else None,
        "cores": disk.usage(before, after),
    }
    if result.code == 0:
        return fields
    if result.code is not None and result.code < 0:
        return {**fields, "reason": f"fio was killed by signal {-result.code}"}
    return {**fields, "reason": f"fio: {result.problem}"}


def reduced(text: str, direction: str) -> dict[str, Any]:
    """Return the parts of fio's document that are used, with fio's own names."""
    start = text.find("{")  # messages may come before it
    try:
        document = json.loads(text[start:]) if start >= 0 else {}
        return {"jobs": [_job(job, direction) for job in document["jobs"]]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"jobs": []}


def _job(job: Mapping[str, Any], direction: str) -> dict[str, Any]:
    part = job[direction]
    known = part["clat_ns"].get("percentile", {})
    return {
        "jobname": job["jobname"],
        "error": job["error"],
        direction: {
            **{name: part[name] for name in ("io_bytes", "bw_bytes", "iops", "total_ios")},
            "lat_ns": {"mean": part["lat_ns"]["mean"]},
            "clat_ns": {"percentile": {n: known[n] for n in PERCENTILES if n in known}},
        },
    }


# --- GPUDirect Storage: untried on hardware --------------------------------------------------


def _gds(plan: StoragePlan) -> str:
    """Print the output of ``gdscheck`` when GDS is set; return why gdsio cannot run."""
    if all(path == "posix" for path in plan.paths):
        return ""
    check = shutil.which("gdscheck") or shutil.which("gdscheck.py")
    if check is None or shutil.which("gdsio") is None:
        return "the image has no gdsio and gdscheck"
    result = common.run_tool([check, "-p"], GRACE_S)
    common.emit("gdscheck", text=result.stdout[:MOST_TEXT])
    return "" if result.code == 0 else f"gdscheck: {result.problem}"


def _gdsio(plan: StoragePlan, point: GridPoint, file: Path) -> dict[str, Any]:
    """Run gdsio on the point; the counters show whether data bypassed the processor."""
    argv = [
        *("gdsio", "-f", str(file), "-d", "0", "-w", str(point.workers)),
        *("-s", str(plan.bytes // point.workers), "-i", str(point.io_bytes)),
        *("-x", _TRANSFER[point.path], "-I", _GDSIO[point.rw]),
        *("-T", str(max(round(plan.runtime_s), 1))),
    ]
    before, counted = disk.spent(), _counters()
    texts, reason = [], ""
    for _ in range(plan.repetitions):
        result = common.run_tool(argv, plan.runtime_s + GRACE_S)
        if result.code != 0:
            reason = f"gdsio: {result.problem}"
            break
        texts.append(result.stdout[-MOST_TEXT // plan.repetitions :])
    return {
        "gdsio": texts,
        "counters": [counted, _counters()],
        "cores": disk.usage(before, disk.spent()),
        **({"reason": reason} if reason else {}),
    }


def _counters() -> str | None:
    with contextlib.suppress(OSError):
        return STATS.read_text(encoding="utf-8", errors="replace")[:MOST_TEXT]
    return None


def plan_of(text: str) -> StoragePlan:
    """Read a plan. Raises ValueError, TypeError."""
    fields = json.loads(text)
    return StoragePlan(**{**fields, "directory": Path(fields["directory"])})


if __name__ == "__main__":
    asked = plan_of(sys.argv[1])
    common.run_probe(lambda: main(asked), threads=max(asked.workers))

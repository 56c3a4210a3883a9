"""NCCL's plug-in under a driver that plays NCCL, in every version of the interface."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from recorder.build import build
from recorder.layout import Contents, read

DRIVER = Path(__file__).parents[2] / "recorder_driver" / "driver.c"
VERSIONS = range(1, 7)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The plug-in and the driver; ``make setup`` installs the compiler."""
    folder = tmp_path_factory.mktemp("plugin")
    driver = folder / "driver"
    command = ["cc", "-std=gnu11", "-O2", "-Wall", "-pthread", "-o", str(driver), str(DRIVER)]
    subprocess.run([*command, "-ldl"], check=True, timeout=60)
    return build(folder / "libll.so"), driver


def play(
    built: tuple[Path, Path], record: Path, version: int, mode: str, calls: int = 50
) -> list[Contents]:
    library, driver = built
    record.mkdir(exist_ok=True)
    subprocess.run(
        [str(driver), str(library), str(version), str(calls), "2", mode],
        env={**os.environ, "LIGHTLOOM_RECORD_DIR": str(record)},
        check=True,
        timeout=60,
        capture_output=True,
    )
    return [read(path.read_bytes()) for path in record.iterdir()]


@pytest.mark.parametrize("mode", ["whole", "missing", "swapped"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_counts_all_calls(
    built: tuple[Path, Path], tmp_path: Path, version: int, mode: str
) -> None:
    (contents,) = play(built, tmp_path / "record", version, mode)
    rows = {operation.op: operation for operation in contents.operations}
    reduced, gathered = rows["all_reduce"], rows["all_gather"]
    assert (reduced.bytes, reduced.dtype, reduced.calls, reduced.source) == (
        4096,
        "float",
        100,
        "nccl",
    )
    # Before version 4 a communicator's size is unknown: the bytes are one rank's.
    assert (gathered.bytes, gathered.calls) == (1600 if version >= 4 else 400, 2)
    assert (contents.damaged_rows, contents.torn_rows, contents.lost) == (0, 0, 0)
    assert sum(reduced.histogram) == 100
    assert reduced.timing == ("device" if version >= 4 else "host")
    if version >= 4:
        span = 0.001 if mode == "missing" else 0.0015
        assert reduced.min_s == pytest.approx(span)
        assert reduced.max_s == pytest.approx(span)
    by_communicator: dict[int, list[int]] = {}
    for call in contents.calls:
        assert call.ended_s is not None
        by_communicator.setdefault(call.communicator, []).append(call.sequence)
    assert by_communicator == {77: list(range(51)), 78: list(range(51))}


@pytest.mark.parametrize("version", [1, 2])
def test_proxy_operations_of_another_process_are_let_be(
    built: tuple[Path, Path], tmp_path: Path, version: int
) -> None:
    (contents,) = play(built, tmp_path / "record", version, "foreign")
    assert sum(operation.calls for operation in contents.operations) == 102
    assert all(call.ended_s is None for call in contents.calls)


def test_a_forked_child_does_not_write(built: tuple[Path, Path], tmp_path: Path) -> None:
    (contents,) = play(built, tmp_path / "record", 5, "forked")
    assert sum(operation.calls for operation in contents.operations) == 102


def test_more_calls_than_the_tables_hold(built: tuple[Path, Path], tmp_path: Path) -> None:
    (contents,) = play(built, tmp_path / "record", 5, "missing", 20_000)
    assert sum(operation.calls for operation in contents.operations) == 40_002
    assert contents.damaged_rows == 0


def test_without_a_folder_nccl_goes_on_without_the_plug_in(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    library, driver = built
    done = subprocess.run(
        [str(driver), str(library), "5", "10", "1", "whole"],
        env={**os.environ, "LIGHTLOOM_RECORD_DIR": str(tmp_path / "absent")},
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (3, b"init refuses\n")


def test_it_needs_libc_only(built: tuple[Path, Path]) -> None:
    tool = shutil.which("readelf")
    assert tool is not None
    text = subprocess.run([tool, "-d", str(built[0])], check=True, capture_output=True, text=True)
    needed = [
        line.split("[")[1].rstrip("]") for line in text.stdout.splitlines() if "NEEDED" in line
    ]
    assert needed == ["libc.so.6"]

"""The probe with programs that play fio: what they print and how they end is up to the test."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any, Protocol

import pytest

from probe import storage
from probe.storage import GridPoint, StoragePlan, fio_command, main, plan_of, reduced
from probe.volume import disk

GOLDEN = Path(__file__).parents[1] / "measure" / "storage" / "fio-3.33.json"


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A volume on a disk, for rank 0 of a job."""
    monkeypatch.setenv("LIGHTLOOM_JOB", "measure-m1")
    monkeypatch.setenv("LIGHTLOOM_RANK", "0")
    monkeypatch.setenv("LIGHTLOOM_ADDRESSES", "10.0.0.1")
    monkeypatch.setattr(disk, "device", lambda _: disk.DirectoryDevice("ext4", "7:0", True))
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


class Play(Protocol):
    """Puts a program first in the path."""

    def __call__(self, script: str, name: str = "fio") -> None: ...


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(script: str, name: str = "fio") -> None:
        program = folder / name
        program.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo fio-3.33 && exit\n{script}\n")
        program.chmod(0o755)

    return put


def plan(volume: Path, **more: Any) -> StoragePlan:
    fields: dict[str, Any] = {
        "directory": str(volume),
        "file": "",
        "bytes": 2**20,
        "rw": ["read"],
        "workers": [1, 2],
        "io_bytes": [4096],
        "paths": ["posix"],
        "runtime_s": 0.1,
        "ramp_s": 0.1,
        "repetitions": 2,
        "direct": True,
        "iodepth": 1,
        "seed": 1,
    }
    return plan_of(json.dumps({**fields, **more}))


def lines(capsys: pytest.CaptureFixture[str], probe: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in found if line["probe"] == probe]


def test_each_point_is_one_line_and_nothing_is_left(
    volume: Path,
    play: Play,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(f"cat {shlex.quote(str(GOLDEN))}")
    main(plan(volume))
    points = lines(capsys, "point")
    assert sorted((p["workers"], p["io_bytes"]) for p in points) == [(1, 4096), (2, 4096)]
    assert points[0]["version"] == "fio-3.33"
    assert points[0]["fio"]["jobs"][1]["read"]["bw_bytes"] > 0
    assert "reason" not in points[0]
    assert list(volume.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'fio: io_u error: No space left on device' >&2; exit 1", "No space left"),
        ("kill -KILL $$", "killed by signal 9"),
        ("head -c 100000 /dev/zero; exit 3", "exit 3"),
    ],
)
def test_a_failure_of_fio_is_the_points_reason(
    volume: Path,
    play: Play,
    capsys: pytest.CaptureFixture[str],
    script: str,
    reason: str,
) -> None:
    play(script)
    main(plan(volume))
    points = lines(capsys, "point")
    assert len(points) == 2, "the next point is tried"
    assert reason in points[0]["reason"]
    assert points[0]["fio"] == {"jobs": []}
    assert list(volume.iterdir()) == []


def test_a_full_volume_is_refused_and_left_as_it_was(
    volume: Path,
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play("true")
    monkeypatch.setattr(storage, "CHUNK", 4096)

    def full(*_: Any) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "urandom", full)
    main(plan(volume))
    (refused,) = lines(capsys, "refused")
    assert "No space left on device" in refused["reason"]
    assert "smaller `size`" in refused["hint"]
    assert list(volume.iterdir()) == []


def test_memory_is_refused(
    volume: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(disk, "device", lambda _: disk.DirectoryDevice("tmpfs", "0:30", None))
    main(plan(volume))
    (refused,) = lines(capsys, "refused")
    assert "tmpfs has no block device" in refused["reason"]


def test_an_image_without_fio_is_refused(
    volume: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    main(plan(volume))
    (refused,) = lines(capsys, "refused")
    assert "fio" in refused["reason"]
    assert "ll-probe" in refused["hint"]


def test_a_file_of_the_volume_stays(
    volume: Path,
    play: Play,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(f"cat {shlex.quote(str(GOLDEN))}")
    (volume / "train.bin").write_bytes(b"x" * 2**20)
    main(plan(volume, file="train.bin"))
    assert len(lines(capsys, "point")) == 2
    assert [path.name for path in volume.iterdir()] == ["train.bin"]


@pytest.mark.parametrize("file", ["absent", "../x", "/etc/passwd"])
def test_only_files_of_the_volume_are_read(
    volume: Path,
    play: Play,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
) -> None:
    play("true")
    (tmp_path / "x").write_bytes(b"x" * 2**20)
    main(plan(volume, file=file))
    (refused,) = lines(capsys, "refused")
    assert "is not a file of the volume" in refused["reason"]


def test_gds_without_its_tools_is_a_reason(
    volume: Path,
    play: Play,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(f"cat {shlex.quote(str(GOLDEN))}")
    main(plan(volume, paths=["posix", "gds"]))
    points = lines(capsys, "point")
    assert {p["path"]: p.get("reason") for p in points} == {
        "posix": None,
        "gds": "the image has no gdsio and gdscheck",
    }


def test_gdsio_is_run_as_often_as_asked_with_the_counters_around_it(
    volume: Path,
    play: Play,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play("true")
    play('echo "Throughput of $*"', "gdsio")
    play("echo NVMe : Supported", "gdscheck")
    counters = tmp_path / "stats"
    counters.write_text("Ops : Read=1 Write=0")
    monkeypatch.setattr(storage, "STATS", counters)
    main(plan(volume, paths=["gds"], workers=[2]))
    written = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (check,) = [line for line in written if line["probe"] == "gdscheck"]
    assert check["text"] == "NVMe : Supported\n"
    (point,) = [line for line in written if line["probe"] == "point"]
    assert len(point["gdsio"]) == 2
    assert "-x 0 -I 0" in point["gdsio"][0]
    assert point["counters"] == ["Ops : Read=1 Write=0"] * 2


def test_workers_have_regions_of_their_own_and_the_ramp_comes_first(volume: Path) -> None:
    asked = plan(volume, bytes=100 * 4096, repetitions=3)
    argv = fio_command(asked, GridPoint("posix", "randread", 8, 4096), Path("/volume/data"))
    assert "--size=49152" in argv
    assert "--offset_increment=49152" in argv
    assert [a for a in argv if a.startswith("--name=")][1:] == [
        "--name=ramp",
        "--name=part0",
        "--name=part1",
        "--name=part2",
    ]
    assert argv.count("--stonewall") == 4


@pytest.mark.parametrize("text", ["", "{", '{"jobs": 3}', '{"jobs": [{}]}', "[" * 99999])
def test_output_that_is_no_document_has_no_jobs(text: str) -> None:
    assert reduced(text, "read") == {"jobs": []}

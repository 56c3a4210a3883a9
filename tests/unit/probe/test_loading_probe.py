from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe import common, loading
from probe.loading import Bench, main, plan_of
from probe.volume import disk
from probe.volume.loaders import Builtin, Pipeline
from probe.volume.samples import SampleReader, Samples

BLOCK = 4096


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIGHTLOOM_JOB", "measure-m1")
    monkeypatch.setenv("LIGHTLOOM_RANK", "0")
    monkeypatch.setenv("LIGHTLOOM_ADDRESSES", "127.0.0.1")
    monkeypatch.setattr(disk, "device", lambda _: disk.DirectoryDevice("ext4", "7:0", True))
    return tmp_path


def plan(volume: Path, **more: Any) -> loading.LoadingPlan:
    fields: dict[str, Any] = {
        "directory": str(volume),
        "loader": "builtin",
        "data_bytes": 64 * BLOCK,
        "sample_bytes": BLOCK,
        "per_file": 10,
        "batch": 4,
        "workers": 2,
        "prefetch": 2,
        "deeper": 8,
        "decode_s": 0.0,
        "busy": False,
        "step_s": 0.001,
        "direct": False,
        "seconds": 0.01,
        "blocks": 2,
        "enough": 0.95,
        "seed": 1,
    }
    return plan_of(json.dumps({**fields, **more}))


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_phases_take_turns_and_nothing_is_left(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(plan(volume, enough=0.0))
    phases = [line for line in written(capsys) if line["probe"] == "phase"]
    assert [(line["block"], line["phase"]) for line in phases] == [
        (block, phase) for block in range(2) for phase in ("loader", "model", "both")
    ]
    loader, model, both = phases[:3]
    assert loader["samples"] == 4 * loader["steps"] >= 16
    assert loader["read_bytes"] >= loader["samples"] * BLOCK
    assert loader["compute_s"] == 0
    assert model["read_bytes"] == model["wait_s"] == 0
    assert both["compute_s"] >= 0.001 * both["steps"]
    assert list(volume.iterdir()) == []


def test_where_neither_is_reached_it_reads_further_ahead(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(plan(volume, enough=1e9))
    phases = [line["phase"] for line in written(capsys) if line["probe"] == "phase"]
    assert phases[6:] == ["deeper", "deeper"]


def test_a_framework_that_is_absent_is_named(
    volume: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(loading.MODULES, "torch", "no_such_module")
    main(plan(volume, loader="torch"))
    (refused,) = [line for line in written(capsys) if line["probe"] == "refused"]
    assert "loader torch needs the module no_such_module" in refused["reason"]
    assert list(volume.iterdir()) == []


def test_memory_is_refused(
    volume: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(disk, "device", lambda _: disk.DirectoryDevice("overlay", "0:30", None))
    main(plan(volume))
    (refused,) = [line for line in written(capsys) if line["probe"] == "refused"]
    assert "overlay has no block device" in refused["reason"]


def test_a_sample_that_vanishes_ends_the_measurement_with_its_reason(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Samples.make

    def without_the_last(samples: Samples) -> None:
        make(samples)
        samples.shard(6).unlink()

    monkeypatch.setattr(Samples, "make", without_the_last)
    with pytest.raises(common.PeerError, match="No such file"):
        main(plan(volume))
    assert list(volume.iterdir()) == []


def test_all_samples_lie_in_shards_and_are_whole(tmp_path: Path) -> None:
    samples = Samples(tmp_path, 25, BLOCK, 10)
    samples.make()
    assert [path.stat().st_size // BLOCK for path in sorted(tmp_path.iterdir())] == [10, 10, 5]
    reader = SampleReader(samples, direct=False, decode_s=0.0, busy=False)
    for index in range(25):
        reader(index)
    assert reader.count.value == 25
    samples.shard(2).write_bytes(b"short")
    with pytest.raises(OSError, match="sample 20 has 5 of 4096 bytes"):
        reader(20)


def test_every_pass_has_all_samples_in_another_order() -> None:
    order = Pipeline(batch=4, workers=1, prefetch=0, count=20, seed=3).order()
    first, second = ([next(order) for _ in range(20)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


@pytest.mark.parametrize(("prefetch", "ahead"), [(0, 0), (1, 1), (3, 3)])
def test_a_loader_reads_so_many_batches_ahead(tmp_path: Path, prefetch: int, ahead: int) -> None:
    samples = Samples(tmp_path, 100, BLOCK, 10)
    samples.make()
    reader = SampleReader(samples, direct=False, decode_s=0.0, busy=False)
    with Builtin(Pipeline(5, 2, prefetch, 100, 1), reader) as batches:
        next(batches)
        next(batches)
    # Its end lets what runs finish and cancels the rest.
    assert 10 <= reader.count.value <= 5 * (2 + ahead)


def test_a_disk_that_hangs_does_not_hold_up_a_phase_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = Samples(tmp_path, 10, BLOCK, 10)
    samples.make()
    asked = plan(tmp_path, seconds=0.01)
    bench = Bench(asked, samples, direct=False)
    clock = iter(range(10_000))
    # Only the probe's clock: the loops of other tests' servers would sleep for the difference.
    monkeypatch.setattr("probe.loading.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    assert bench.measure("both", 0) > 0, "a step of seconds is enough"


def test_ranks_measure_each_phase_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = ("127.0.0.1", "127.77.0.2")
    monkeypatch.setattr(disk, "device", lambda _: disk.DirectoryDevice("ext4", "7:0", True))
    local = threading.local()
    monkeypatch.setattr(
        common, "identity", lambda: common.Rank(local.rank, 2, addresses, "measure-m1")
    )

    def rank(number: int) -> None:
        local.rank = number
        main(plan(tmp_path, enough=0.0))

    threads = [threading.Thread(target=rank, args=(number,)) for number in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    phases = [line["phase"] for line in written(capsys) if line["probe"] == "phase"]
    assert len(phases) == 2 * 6
    assert list(tmp_path.iterdir()) == []

"""Tests that a rack is taken down while other operations are still in progress."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from pyroute2 import netns

from testbed import processes
from testbed.rack import RackError, network, preflight, procfs, record, remains
from testbed.rack.process import marked

down = importlib.import_module(
    "testbed.rack.down"
)  # the package exports a function of the same name


def entry(proc: Path, pid: int, *, cmdline: bytes, flags: int = 0, born_s: float = 99.0) -> Path:
    """Create a process in a private /proc, on a machine that is up for 100 s."""
    folder = proc / str(pid)
    folder.mkdir()
    ticks = int(born_s * os.sysconf("SC_CLK_TCK"))
    numbers = " ".join(["1", "1", "1", "0", "-1", str(flags), *["0"] * 12, str(ticks), "0"])
    (folder / "stat").write_text(f"{pid} (x) S {numbers}\n")
    (folder / "cmdline").write_bytes(cmdline)
    return folder


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    (tmp_path / "uptime").write_text("100.00 50.00\n")
    return tmp_path


def test_waits_for_a_process_in_exec_until_it_has_a_name(proc: Path) -> None:
    named = entry(proc, 7, cmdline=b"") / "cmdline"
    timer = threading.Timer(0.3, lambda: named.write_bytes(b"dockerd\0--pidfile\0/run/rack\0"))
    timer.start()
    processes.await_named(within_s=60)
    assert processes.running("dockerd", Path("/run/rack")) == [7]
    timer.join()


def test_does_not_wait_for_processes_without_a_name(proc: Path) -> None:
    entry(proc, 7, cmdline=b"", flags=0x00200000)  # a kernel thread
    entry(proc, 8, cmdline=b"", born_s=1.0)  # a process that cleared its arguments long ago
    began = time.monotonic()
    processes.await_named(within_s=600)
    assert time.monotonic() - began < 300


def test_processes_of_a_start_have_the_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(procfs.MARKER, raising=False)
    show = [sys.executable, "-c", f"import os; print(os.environ[{procfs.MARKER!r}])"]
    with marked(tmp_path):
        said = subprocess.run(show, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == str(tmp_path)
    assert procfs.MARKER not in os.environ


def test_a_namespace_may_take_longer_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is slow while it removes the namespaces of an earlier rack."""
    monkeypatch.setattr("pyroute2.netns._create", lambda *_: time.sleep(2.5) or b"")
    assert network.PATIENCE_S > 30
    netns.create("ll-late")


def test_a_start_killed_during_its_first_record_can_be_taken_down(
    tmp_path: Path,
) -> None:
    (tmp_path / record.DRAFT).write_text("{")
    assert preflight.is_ours(tmp_path)


def test_the_record_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the remains of a killed command would have no owner."""
    run_dir = tmp_path / "rack"
    for name in ("docker", "logs", "ovs"):
        (run_dir / name).mkdir(parents=True)
    for name in (record.FILE, "a-links.json", "site.yaml"):
        (run_dir / name).write_text("{}")
    rmtree = shutil.rmtree
    removed: list[bool] = []

    def watched(path: Path, **options: bool) -> None:
        removed.append(path == run_dir)
        assert (run_dir / record.FILE).exists()
        if path == run_dir:
            assert [p.name for p in run_dir.iterdir()] == [record.FILE]
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", watched)
    down._remove_folder(run_dir)
    assert removed[-1]
    assert not run_dir.exists()


def test_the_rack_is_removed_even_if_its_logs_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = importlib.import_module("testbed.rack.up")
    (tmp_path / "x.log").write_text("full")
    monkeypatch.setattr(up, "KEPT_LOGS", tmp_path / "x.log" / "no-folder-can-be-here")
    said = up._keep_logs(tmp_path, RackError("failed", "no space", hint="see the log"))
    assert (said.message, said.hint) == ("no space", "see the log")


def test_processes_started_by_a_dying_process_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = [((1, 10), (2, 20)), ((3, 30),), ()]
    ended: list[tuple[tuple[int, int], ...]] = []
    monkeypatch.setattr(remains, "_processes", lambda _: rounds.pop(0))
    monkeypatch.setattr(remains, "end_all", lambda found, grace_s: ended.append(found))
    monkeypatch.setattr(processes, "thaw", lambda _: None)
    remains.end_processes(tmp_path, grace_s=0.0)
    assert ended == [((1, 10), (2, 20)), ((3, 30),)]


class FakeContainer:
    """A container of the host's engine."""

    def __init__(self, engine: FakeEngine, name: str, *, refuses: int = 0) -> None:
        self.engine, self.name, self.refuses, self.status = engine, name, refuses, "running"

    def remove(self, *, force: bool) -> None:
        if self.refuses:
            self.refuses -= 1
            raise docker.errors.APIError("removal of container is already in progress")
        self.engine.there.remove(self)


class FakeEngine:
    """Stands in for docker.DockerClient."""

    def __init__(self) -> None:
        self.there: list[FakeContainer] = []
        self.containers = self

    def list(self, **_: object) -> list[FakeContainer]:
        return [*self.there]

    def close(self) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeEngine]:
    fake = FakeEngine()
    monkeypatch.setattr(docker, "DockerClient", lambda **_: fake)
    monkeypatch.setattr(down, "HOST_SOCKET", tmp_path)
    yield fake


def test_a_container_in_removal_does_not_stop_the_removal_of_others(engine: FakeEngine) -> None:
    going = FakeContainer(engine, "ll-red-0", refuses=2)
    engine.there += [going, FakeContainer(engine, "ll-red-1")]
    assert down._remove_host_containers() == ()
    assert engine.there == []


def test_a_remaining_container_is_named(engine: FakeEngine) -> None:
    engine.there += [FakeContainer(engine, "ll-red-0", refuses=10**9)]
    engine.there += [FakeContainer(engine, "bystander")]
    assert down._remove_host_containers() == ("ll-red-0",)
    assert [c.name for c in engine.there] == ["ll-red-0", "bystander"]

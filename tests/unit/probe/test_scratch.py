from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from probe.volume.scratch import Scratch, ScratchError, sweep

HOLD = """
import sys
from pathlib import Path
from probe.volume.scratch import Scratch
with Scratch(Path(sys.argv[1]), sys.argv[2]) as own:
    (own.path / "data").write_bytes(b"x" * 1000)
    print("ready", flush=True)
    sys.stdin.read()
"""


def held(volume: Path, name: str) -> subprocess.Popen[bytes]:
    """Another probe that has its directory, until its input ends."""
    probe = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(volume), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert probe.stdout is not None
    assert probe.stdout.readline() == b"ready\n"
    return probe


def ended(probe: subprocess.Popen[bytes]) -> int:
    with probe:
        if probe.stdin:
            probe.stdin.close()
        return probe.wait(20)


def test_a_probes_directory_ends_with_it(tmp_path: Path) -> None:
    with Scratch(tmp_path, "ll-fio-m1-0") as own:
        (own.path / "data").write_bytes(b"x")
        assert own.path == tmp_path / "ll-fio-m1-0"
    assert list(tmp_path.iterdir()) == []


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Scratch(tmp_path, "ll-fio-m1-0"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_next_probe_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    killed = held(tmp_path, "ll-fio-m1-0")
    killed.send_signal(signal.SIGKILL)
    ended(killed)
    assert (tmp_path / "ll-fio-m1-0" / "data").exists()
    with Scratch(tmp_path, "ll-input-m2-0") as own:
        assert own.removed == ["ll-fio-m1-0"]
        assert [path.name for path in tmp_path.iterdir()] == ["ll-input-m2-0"]


def test_a_running_probe_keeps_its_files(tmp_path: Path) -> None:
    running = held(tmp_path, "ll-fio-m1-0")
    try:
        with Scratch(tmp_path, "ll-fio-m1-1") as own:
            assert own.removed == []
            assert (tmp_path / "ll-fio-m1-0" / "data").exists()
    finally:
        assert ended(running) == 0
    assert list(tmp_path.iterdir()) == []


def test_two_probes_never_share_a_name(tmp_path: Path) -> None:
    running = held(tmp_path, "ll-fio-m1-0")
    try:
        with pytest.raises(ScratchError, match="runs already"):
            Scratch(tmp_path, "ll-fio-m1-0")
        assert (tmp_path / "ll-fio-m1-0" / "data").exists()
    finally:
        ended(running)


def test_nothing_else_is_touched_and_no_link_followed(tmp_path: Path) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (volume / "data").mkdir(parents=True)
    (volume / "ll-fio-file").write_text("a file")
    (volume / "ll-other-m1").mkdir()
    (volume / "ll-fio-link").symlink_to(outside)
    planted = volume / "ll-input-m1-0"
    planted.mkdir()
    (planted / "within").symlink_to(outside)
    assert sweep(volume) == ["ll-input-m1-0"]
    assert (outside / "precious").exists()
    assert sorted(path.name for path in volume.iterdir()) == [
        "data",
        "ll-fio-file",
        "ll-fio-link",
        "ll-other-m1",
    ]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    planted = tmp_path / "ll-fio-m1-0"
    planted.mkdir()
    (planted / "lock").symlink_to(tmp_path / "made")
    assert sweep(tmp_path) == []
    assert not (tmp_path / "made").exists()


def test_a_volume_that_cannot_be_written_to_is_refused_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(ScratchError) as refused:
        Scratch(tmp_path / "absent", "ll-fio-m1-0")
    assert "cannot be written to" in refused.value.reason
    assert "lightloom get volumes" in refused.value.hint


@pytest.mark.parametrize("name", ["data", "ll-fio-", "ll-fio-../x", "ll-fio-a/b"])
def test_only_probes_names_are_taken(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not the name"):
        Scratch(tmp_path, name)
    assert list(tmp_path.iterdir()) == []

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path

import pytest

import testbed
from sitefile import load_site
from testbed.rack import down, preflight, record, remains, set_rates, up
from testbed.rack.errors import RackError
from testbed.rack.layout import RackLayout, lay_out
from testbed.rack.process import Process
from testbed.rack.record import RackRecord
from testbed.rack.remains import Remains
from testbed.rack.status import status

PAPER = Path(testbed.__file__).parent / "sites" / "paper.yaml"


def quiet(_: str) -> None:
    pass


@pytest.fixture
def layout() -> RackLayout:
    return lay_out(load_site(PAPER))


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without objects of any rack."""
    monkeypatch.setattr(remains, "find", lambda _: Remains())


def me(*, alive: bool) -> Process:
    """Return this process as a rack's process, or an ended one if not ``alive``."""
    ticks = preflight.remains.procfs.start_ticks(os.getpid())
    assert ticks is not None
    return Process("x", os.getpid(), ticks if alive else ticks - 1, "", (), 0.0)


def written(phase: str, process: Process) -> RackRecord:
    draft = RackRecord("up", "paper", str(PAPER), "http://u", 0.0, 1e6, 1e6, processes=(process,))
    return dataclasses.replace(draft, phase=phase)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["up", "down", "rates"])
def test_nothing_starts_without_root(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RackError) as caught:
        if command == "up":
            up(PAPER, tmp_path / "rack", progress=quiet)
        elif command == "down":
            down(tmp_path / "rack", progress=quiet)
        else:
            set_rates(tmp_path / "rack", 1e6, 1e6)
    assert caught.value.code == "forbidden"
    assert "sudo" in caught.value.hint
    assert not (tmp_path / "rack").exists()


def test_missing_programs_are_named_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(preflight, "HOST_SOCKET", tmp_path / "docker.sock")
    with pytest.raises(RackError) as caught:
        preflight.need_tools()
    assert caught.value.code == "unavailable"
    assert "ovs-vswitchd" in caught.value.message
    assert "dockerd" in caught.value.message
    assert "make setup" in caught.value.hint


@pytest.mark.usefixtures("bare_machine")
def test_a_rack_that_is_up_is_not_started_again(layout: RackLayout, tmp_path: Path) -> None:
    record.save(tmp_path, written("up", me(alive=True)))
    with pytest.raises(RackError) as caught:
        preflight.need_absent(tmp_path, layout)
    assert caught.value.code == "conflict"
    assert "already up" in caught.value.message


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize(("phase", "alive"), [("up", False), ("starting", True)])
def test_a_crashed_rack_must_be_taken_down_first(
    phase: str, alive: bool, layout: RackLayout, tmp_path: Path
) -> None:
    record.save(tmp_path, written(phase, me(alive=alive)))
    with pytest.raises(RackError) as caught:
        preflight.need_absent(tmp_path, layout)
    assert caught.value.code == "conflict"
    assert "testbed down" in caught.value.hint


def test_a_namespace_with_the_racks_prefix_is_a_remain(
    layout: RackLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remains, "find", lambda _: Remains(namespaces=("ll-srv0",)))
    with pytest.raises(RackError) as caught:
        preflight.need_absent(tmp_path / "rack", layout)
    assert "ll-srv0" in caught.value.message


@pytest.mark.usefixtures("bare_machine")
def test_a_folder_of_another_owner_is_not_used(
    layout: RackLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "MAX_RUN_DIR", 4000)
    preflight.need_absent(tmp_path / "fresh", layout)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RackError) as caught:
        preflight.need_absent(tmp_path, layout)
    assert caught.value.code == "invalid"


@pytest.mark.usefixtures("bare_machine")
def test_a_folder_too_deep_for_sockets_is_refused(layout: RackLayout, tmp_path: Path) -> None:
    with pytest.raises(RackError) as caught:
        preflight.need_absent(tmp_path / ("x" * 80), layout)
    assert "too long" in caught.value.message


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(RackError) as caught:
        preflight.need_free([("agent srv0", other.getsockname())])
    assert caught.value.code == "conflict"
    assert "agent srv0" in caught.value.message


def test_a_real_site_is_not_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    real = tmp_path / "real.yaml"
    real.write_text(PAPER.read_text().split("# Only the emulated rack reads")[0])
    with pytest.raises(RackError) as caught:
        up(real, tmp_path / "rack", progress=quiet)
    assert caught.value.code == "invalid"
    assert "emulation" in caught.value.message


@pytest.mark.usefixtures("bare_machine")
def test_the_status_says_what_is_dead(tmp_path: Path) -> None:
    assert status(tmp_path / "absent").state == "down"
    record.save(tmp_path, written("up", me(alive=True)))
    assert status(tmp_path).state == "up"
    record.save(tmp_path, written("up", me(alive=False)))
    assert status(tmp_path).state == "degraded"
    assert not status(tmp_path).parts[0].alive
    record.save(tmp_path, written("starting", me(alive=True)))
    assert status(tmp_path).state == "starting"

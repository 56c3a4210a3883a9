"""RoCEv2 between QEMU guests on the rack: soft-RoCE over circuits, before and after a regroup.

Slow: QEMU translates the guests' instructions in software.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.rack import down
from testbed.rack.remains import find
from testbed.roce import experiment, setup
from tests.integration.machine import run, traces

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

AGGREGATORS = {"as0", "as1"}


@pytest.fixture(scope="module", autouse=True)
def parts() -> None:
    """QEMU and what it boots, as ``make rack`` sets them up."""
    assert setup.main() == 0


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = Path(f"/run/lightloom/test-{os.getpid()}")
    yield path
    down(path, progress=lambda line: None)


def test_rdma_crosses_circuits_and_survives_a_regroup_and_jobs_stay_apart(
    run_dir: Path,
) -> None:
    figures = experiment.run(run_dir, progress=lambda line: None)
    print(json.dumps(figures, indent=1))
    assert figures["source"] == "emulated"
    before, through, after = (figures[when] for when in ("before", "through", "after"))

    # The same job's RoCEv2 passes our tables: over both aggregators, then over one.
    assert (before["span"], after["span"]) == (2, 1)
    assert {name for name, packets in before["roce_packets"].items() if packets} == AGGREGATORS
    assert len([name for name, packets in after["roce_packets"].items() if packets]) == 1
    for flight in (before, through, after):
        assert flight["bandwidth_bps"] > 0
        assert flight["delivered"] > 0
        assert flight["delivered_with_class"] == flight["delivered"]

    # One transfer went on through the dark time: its queue pair did not give up.
    assert figures["regroup"]["state"] == "committed"
    moved = {move["endpoint"] for move in figures["regroup"]["moves"]}
    assert moved & set(experiment.RED)
    assert all(figures["regroup"]["dark_time_s"][endpoint] > 0 for endpoint in moved)

    # Between jobs nothing passes, though it was sent, with the right addresses.
    for phase in figures["isolation"]:
        assert phase["sent"] >= experiment.STRAY_DATAGRAMS
        assert phase["received"] == 0

    assert traces(run_dir) == []


@pytest.mark.soak
def test_guests_without_an_owner_go_with_the_rack(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash of the experiment: its guests are alive, its own clean-up never ran."""
    monkeypatch.setattr(experiment.RoceExperiment, "close", lambda self: None)
    monkeypatch.setattr(experiment.rack, "down", lambda *_, **__: None)
    measured: list[int] = []

    def crash(self: experiment.RoceExperiment) -> None:
        measured.extend(guest.pid for guest in self.guests.values())
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment.RoceExperiment, "measure", crash)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(run_dir, progress=lambda line: None)
    assert len(measured) == 3
    assert all(Path(f"/proc/{pid}").exists() for pid in measured)

    monkeypatch.undo()
    down(run_dir, progress=lambda line: None)
    assert traces(run_dir) == []
    assert find(run_dir).empty
    assert "ll-tap" not in run("ip", "-br", "link")

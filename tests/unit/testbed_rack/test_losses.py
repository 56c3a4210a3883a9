"""What may be lost, and what NVML says of the rack's GPUs, without a rack."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

import testbed
from container_mgr.daemon import parse_endpoints
from container_mgr.hardware.gpus import Gpus
from sitefile import CabledSite, load_site
from testbed import nvml
from testbed.rack import gpus, losses, ovs, preflight, programs, record
from testbed.rack.errors import RackError
from testbed.rack.layout import lay_out
from testbed.rack.losses import ObjectKind
from testbed.rack.record import RackRecord
from testbed.rack.status import of_record

SITES = Path(testbed.__file__).parent / "sites"
PATIENCE_S = 20.0


@pytest.fixture
def site() -> CabledSite:
    return load_site(SITES / "spare.yaml")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a rack whose processes have all ended."""
    monkeypatch.setattr(preflight, "need_root", lambda: None)
    record.site_copy(tmp_path).write_text((SITES / "spare.yaml").read_text("utf-8"), "utf-8")
    gpus.prepare(tmp_path, load_site(SITES / "spare.yaml"))
    return tmp_path


def write(run_dir: Path, *lost: str, phase: str = "up") -> None:
    written = RackRecord(phase, "spare", "spare.yaml", "http://x", 0.0, 1.0, 1.0, lost=lost)  # type: ignore[arg-type]
    record.save(run_dir, written)


def until_unfit(watch: Gpus, endpoint: str, *, unfit: bool) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while bool(why := watch.why_unfit(gpus.uuid(endpoint))) is not unfit:
        assert time.monotonic() < deadline, why
        time.sleep(0.02)
    return why


def test_the_agent_reads_a_loss_and_a_repair_from_nvml(run_dir: Path, site: CabledSite) -> None:
    argv = programs.agent(run_dir, site, site.server("srv1"), "unix:///x", {}).argv
    options = dict(zip(argv[3::2], argv[4::2], strict=True))
    served = parse_endpoints(options["--endpoints"])
    assert [one.watched for one in served] == [gpus.uuid("gpu2"), gpus.uuid("gpu3")]
    assert all(not one.gpu_uuid for one in served), "no rank is given a GPU that is not there"
    watch = Gpus(
        [one.watched for one in served], library=options["--nvml-library"], interval_s=0.05
    )
    watch.start()
    try:
        for end in ("gpu2", "gpu3"):
            until_unfit(watch, end, unfit=False)
        gpus.write_states(run_dir, site, lost=["gpu3"])
        assert "lost" in until_unfit(watch, "gpu3", unfit=True)
        assert watch.why_unfit(gpus.uuid("gpu2")) == ""
        gpus.write_states(run_dir, site, lost=[])
        until_unfit(watch, "gpu3", unfit=False)
    finally:
        watch.stop()


def test_a_lost_gpu_is_recorded_shown_and_repaired_once(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses._Rack, "_users_of", lambda *_: [])
    write(run_dir)
    lost = [losses.lose("gpu3", run_dir) for _ in range(2)]
    assert [(one.kind, one.state, one.changed) for one in lost] == [
        (ObjectKind.ENDPOINT, "lost", True),
        (ObjectKind.ENDPOINT, "lost", False),
    ]
    losses.lose("gpu5", run_dir)
    written = record.load(run_dir)
    assert written is not None
    shown = of_record(run_dir, written)
    assert (shown.lost, shown.state) == (("gpu3", "gpu5"), "degraded")
    assert [losses.repair("gpu3", run_dir).changed for _ in range(2)] == [True, False]
    assert "GPU-emulated-gpu5 lost" in nvml.behaviour(gpus.library(run_dir)).read_text()
    after = record.load(run_dir)
    assert after is not None
    assert after.lost == ("gpu5",)


def test_only_objects_of_the_site_can_be_lost_and_only_of_a_rack_that_is_up(run_dir: Path) -> None:
    for phase in ("starting", "up"):
        write(run_dir, phase=phase)
        with pytest.raises(RackError) as caught:
            losses.lose("gpu9", run_dir)
        assert caught.value.code == ("conflict" if phase == "starting" else "invalid")
    assert "gpu7, srv0" in caught.value.hint
    assert "as1, ocs0" in caught.value.hint
    with pytest.raises(RackError) as absent:
        losses.repair("gpu0", run_dir / "none")
    assert absent.value.code == "conflict"


def test_a_record_of_an_older_version_has_nothing_lost(run_dir: Path) -> None:
    write(run_dir)
    path = run_dir / record.FILE
    path.write_text(path.read_text().replace('"lost": []', '"image": ""'))
    written = record.load(run_dir)
    assert written is not None
    assert written.lost == ()


def test_a_repaired_aggregator_gets_the_controller_it_had(site: CabledSite) -> None:
    bridge = lay_out(site).bridges[0]
    made = ovs.bridge_arguments([bridge], site.openflow_listen)
    again = ovs.controller_arguments(bridge, site.openflow_listen)
    assert " ".join(again) in " ".join(made)
    tls = dataclasses.replace(bridge, tls=True)
    assert f"ssl:{site.openflow_listen}" in ovs.controller_arguments(tls, site.openflow_listen)


@pytest.mark.parametrize("name", ["spare", "spare-two"])
def test_the_sites_with_room_for_spares_have_free_ports(name: str) -> None:
    site = load_site(SITES / f"{name}.yaml")
    assert len(site.switches) == (2 if name == "spare-two" else 1)
    for cable in site.aggregators:
        lit = [end for end, home in site.homes.items() if home == cable.name]
        assert (len(lit), len(cable.fibers)) == (4, 6)
        for switch in site.switches:
            ports = [port for port in cable.fibers.values() if port.device == switch.name]
            here = [end for end in lit if site.endpoint(end).fiber.device == switch.name]
            assert len(ports) > len(here), "a spare finds a port at each switch"

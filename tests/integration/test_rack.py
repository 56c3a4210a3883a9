"""The rack comes up, carries packets over circuits, and goes without a trace."""

from __future__ import annotations

import asyncio
import functools
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import httpx
import pytest

import ocs_driver
import testbed
from ocs_driver import CircuitRequest
from sitefile import CabledSite, load_site
from testbed import processes as kernel_view
from testbed.engine import LABEL, DockerEngine
from testbed.rack import RackError, RackStatus, down, network, ovs, programs, set_rates, status, up
from testbed.rack.down import take_down
from testbed.rack.layout import lay_out
from testbed.rack.process import accepts, spawn, wait_ready
from testbed.rack.remains import find
from testbed.rack.up import KEPT_LOGS
from testbed.token import local_token
from tests.integration import waiting
from tests.integration.machine import run, traces
from tests.integration.tiny_image import tiny_image_tar

down_module = importlib.import_module("testbed.rack.down")  # the name is its function's, too
pytestmark = pytest.mark.root

PAPER = Path(testbed.__file__).parent / "sites" / "paper.yaml"
PASSWORD = "secret"  # noqa: S105
until = functools.partial(waiting.until, limit_s=60.0, pause_s=0.2)


def quiet(_: str) -> None:
    pass


def pings(netns: str, address: str) -> bool:
    argv = ["ip", "netns", "exec", netns, "ping", "-c", "3", "-i", "0.2", "-W", "2", address]
    done = subprocess.run(argv, capture_output=True, timeout=30, check=False)
    return done.returncode == 0


def has_carrier(netns: str, link: str) -> bool:
    (entry,) = json.loads(run("ip", "-n", netns, "-j", "link", "show", "dev", link))
    return "LOWER_UP" in entry["flags"]


def shim_sockets() -> set[Path]:
    return set(Path("/run/containerd/s").glob("*"))


@pytest.fixture
def site() -> CabledSite:
    return load_site(PAPER)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = Path(f"/run/lightloom/test-{os.getpid()}")  # short: sockets lie below it
    path.parent.mkdir(exist_ok=True)
    yield path
    take_down(path, progress=quiet)


@pytest.fixture
def optics(site: CabledSite, run_dir: Path) -> CabledSite:
    """Links, bridges and the optical switch, without a controller."""
    logs = run_dir / "logs"
    logs.mkdir(parents=True)
    layout = lay_out(site)
    network.build(layout)
    ovs.create_database(run_dir)
    database = spawn(ovs.database_program(run_dir), logs, str(run_dir))
    wait_ready(database, lambda: accepts(ovs.database_socket(run_dir)), timeout_s=60)
    ovs.prepare(run_dir)
    spawn(ovs.switch_program(run_dir), logs, str(run_dir))
    ovs.make_bridges(run_dir, layout.bridges, site.openflow_listen)
    programs.links_file(run_dir, "ocs0").write_text(json.dumps(layout.link_maps["ocs0"]))
    assert site.emulation is not None
    env = programs.python_environment(os.environ)
    env |= programs.passwords(site, {"LIGHTLOOM_OCS_PASSWORD": PASSWORD})
    emulator = spawn(
        programs.emulator(run_dir, site.switches[0], site.emulation, env), logs, str(run_dir)
    )
    wait_ready(emulator, lambda: programs.listening(Path(emulator.log)), timeout_s=60)
    return site


async def apply(
    site: CabledSite, *, delete: list[CircuitRequest], make: list[CircuitRequest]
) -> None:
    async with ocs_driver.open(site.switches[0].url, password=PASSWORD) as driver:
        await driver.apply(delete, make, deadline_s=20)


def test_ports_have_the_sites_numbers_and_every_fiber_is_dark(
    optics: CabledSite, run_dir: Path
) -> None:
    shown = run("ovs-ofctl", "-O", "OpenFlow13", "show", "ll-as1", env=ovs.environment(run_dir))
    assert "dpid:00000000000000a1" in shown
    for number, link in lay_out(optics).bridges[1].ports.items():
        assert f" {number}({link})" in shown
    for veth in lay_out(optics).fibers:
        assert not has_carrier(veth.a_netns, veth.a)
    assert has_carrier("ll-fab", "as0-u8")


def test_a_circuit_carries_frames_between_servers_and_darkness_ends_them(
    optics: CabledSite, run_dir: Path
) -> None:
    gpu0, gpu2 = optics.endpoint("gpu0"), optics.endpoint("gpu2")
    run("ip", "-n", "ll-srv0", "addr", "add", f"{gpu0.ip}/24", "dev", gpu0.nic)
    run("ip", "-n", "ll-srv1", "addr", "add", f"{gpu2.ip}/24", "dev", gpu2.nic)
    for flow in ("in_port=1,actions=output:2", "in_port=2,actions=output:1"):
        env = ovs.environment(run_dir)
        run("ovs-ofctl", "-O", "OpenFlow13", "add-flow", "ll-as0", flow, env=env)
    circuits = [CircuitRequest("1.1.1", "2.1.1"), CircuitRequest("1.1.3", "2.1.2")]
    asyncio.run(apply(optics, delete=[], make=circuits))
    assert has_carrier("ll-srv0", gpu0.nic)
    assert has_carrier("ll-fab", "as0-p2")
    assert pings("ll-srv0", gpu2.ip)

    asyncio.run(apply(optics, delete=circuits[:1], make=[]))
    assert not has_carrier("ll-srv0", gpu0.nic)
    assert not has_carrier("ll-fab", "as0-p1")
    assert has_carrier("ll-srv1", gpu2.nic)
    assert not pings("ll-srv1", gpu0.ip)


def controllers(run_dir: Path) -> set[str]:
    """What the bridges say of their controllers."""
    database = f"--db=unix:{ovs.database_socket(run_dir)}"
    shown = run("ovs-vsctl", database, "--columns=target,is_connected", "list", "controller")
    return {" ".join(line.split()) for line in shown.splitlines() if line}


def test_the_rack_is_up_only_once_and_its_rates_can_be_changed(run_dir: Path) -> None:
    first = up(PAPER, run_dir, progress=quiet)
    assert first.state == "up"
    assert {"controller", "ocs0", "ovs-vswitchd", "agent-srv0"} <= {p.name for p in first.parts}
    assert {part.source for part in first.emulated} == {"emulated"}
    json.dumps(first.to_dict())
    connected = {'target : "ssl:127.0.0.1:6653"', "is_connected : true"}
    until(lambda: controllers(run_dir), connected.__eq__)  # the database says so seconds later

    with pytest.raises(RackError) as caught:
        up(PAPER, run_dir, progress=quiet)
    assert caught.value.code == "conflict"
    assert "already up" in caught.value.message
    assert status(run_dir) == first

    set_rates(run_dir, 90e6, 40e6)
    assert "rate 90Mbit" in run("tc", "-n", "ll-ocs", "class", "show", "dev", "o-as1-p4")
    assert "rate 40Mbit" in run("tc", "-n", "ll-fab", "class", "show", "dev", "as1-u8")
    assert status(run_dir).access_bps == 90e6

    down(run_dir, progress=quiet)
    assert traces(run_dir) == []
    down(run_dir, progress=quiet)
    assert status(run_dir).state == "down"


def parts_to_kill(rack: RackStatus, which: str) -> list[int]:
    names = {part.name: part.pid for part in rack.parts}
    if which == "all":
        return list(names.values())
    return [names[name] for name in which.split("+") if name in names]


@pytest.mark.parametrize(
    "which",
    [
        pytest.param("controller+ocs0", marks=pytest.mark.soak),
        pytest.param("ovs-vswitchd+agent-srv0+agent-srv3", marks=pytest.mark.soak),
        "dockerd+ovsdb-server",
        "all",
    ],
)
def test_down_leaves_nothing_after_a_kill(which: str, run_dir: Path) -> None:
    rack = up(PAPER, run_dir, progress=quiet)
    for pid in parts_to_kill(rack, which):
        kernel_view.send(pid, signal.SIGKILL)
    with pytest.raises(RackError) as caught:
        up(PAPER, run_dir, progress=quiet)
    assert caught.value.code == "conflict"
    down(run_dir, progress=quiet)
    assert traces(run_dir) == []
    assert find(run_dir).empty


def submit_and_freeze(url: str) -> None:
    """Start a container on every endpoint and freeze them all."""
    headers = {"Authorization": f"Bearer {local_token(url)}"}
    with httpx.Client(
        base_url=f"{url}/api/v1", headers=headers, timeout=60, trust_env=False
    ) as client:
        job = {"name": "red", "count": 6, "command": ["sleep", "600"]}
        client.post("/jobs", json=job).raise_for_status()
        reach(client, "running")
        client.post("/jobs/red/pause").raise_for_status()
        reach(client, "paused")


def reach(client: httpx.Client, state: str) -> None:
    until(lambda: client.get("/jobs/red").json(), lambda job: job["state"] == state)


@pytest.mark.parametrize("killed", [pytest.param("none", marks=pytest.mark.soak), "all"])
def test_down_leaves_nothing_of_frozen_containers(killed: str, run_dir: Path) -> None:
    sockets = shim_sockets()
    rack = up(PAPER, run_dir, progress=quiet)
    submit_and_freeze(rack.url)
    assert any("ll-c-" in trace for trace in traces(run_dir))
    if killed == "all":
        shims = kernel_view.running("containerd", run_dir)
        assert len(shims) >= 6
        for pid in [*parts_to_kill(rack, "all"), *shims]:
            kernel_view.send(pid, signal.SIGKILL)  # some end with their parents
    down(run_dir, progress=quiet)
    assert traces(run_dir) == []
    assert shim_sockets() <= sockets


def test_a_start_that_fails_half_way_cleans_up_and_keeps_the_logs(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = programs.ProgramSpec("controller", ("sh", "-c", "echo no such planet; exit 1"))
    monkeypatch.setattr(programs, "controller", lambda *_: broken)
    with pytest.raises(RackError) as caught:
        up(PAPER, run_dir, progress=quiet)
    assert caught.value.object == "process/controller"
    assert "no such planet" in caught.value.message
    assert str(KEPT_LOGS / "controller.log") in caught.value.hint
    assert "no such planet" in (KEPT_LOGS / "controller.log").read_text()
    assert traces(run_dir) == []


def test_an_engine_that_was_there_keeps_its_other_containers(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_dir = Path(f"/run/lightloom/host-{os.getpid()}")
    engine = DockerEngine(engine_dir, tmp_path / "data", prefer_host=False)
    try:
        client = docker.DockerClient(engine.start().host_url, timeout=30)
        client.api.import_image_from_data(tiny_image_tar(), repository="ll-tiny", tag="rack")
        run_one = functools.partial(
            client.containers.run,
            "ll-tiny:rack",
            ["/bin/sleep", "600"],
            network_mode="none",
            detach=True,
        )
        run_one(name="bystander")
        run_one(name="ll-lookalike")
        run_one(name="ll-red-0-1", labels={LABEL: "red"}, cgroup_parent="/ll-rack").pause()
        monkeypatch.setattr(down_module, "HOST_SOCKET", engine_dir / "docker" / "docker.sock")
        down(run_dir, progress=quiet)
        names = {container.name for container in client.containers.list(all=True)}
        assert names == {"bystander", "ll-lookalike"}
        client.close()
    finally:
        engine.stop()
        shutil.rmtree(engine_dir)
    assert traces(run_dir) == []


def test_a_fresh_engine_knows_nothing_of_containers_of_one_that_was_killed(tmp_path: Path) -> None:
    engine_dir = Path(f"/run/lightloom/killed-{os.getpid()}")
    engine = DockerEngine(engine_dir, tmp_path / "data", prefer_host=False)
    try:
        with closing(docker.DockerClient(engine.start().host_url, timeout=60)) as client:
            client.api.import_image_from_data(tiny_image_tar(), repository="ll-tiny", tag="rack")
            client.containers.run(
                "ll-tiny:rack",
                ["/bin/sleep", "600"],
                name="ll-red-0-1",
                network_mode="none",
                detach=True,
            )
        pids = [kernel_view.running(name, engine_dir) for name in ("dockerd", "containerd")]
        for pid in itertools.chain.from_iterable(pids):
            os.kill(pid, signal.SIGKILL)
        engine.stop()
        with closing(docker.DockerClient(engine.start().host_url, timeout=60)) as client:
            assert client.containers.list(all=True) == []
            assert client.images.list(name="ll-tiny:rack")
    finally:
        engine.stop()
        shutil.rmtree(engine_dir)
    assert traces(engine_dir) == []


def test_what_is_not_the_racks_stays(run_dir: Path, tmp_path: Path) -> None:
    foreign = f"foreign-{os.getpid()}"
    run("ip", "netns", "add", foreign)
    stranger = subprocess.Popen(["ip", "netns", "exec", foreign, "sleep", "600"])
    try:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(RackError) as caught:
            down(tmp_path, progress=quiet)
        assert caught.value.code == "invalid"
        assert (tmp_path / "notes.txt").read_text() == "mine"
        down(run_dir, progress=quiet)
        assert stranger.poll() is None
        assert foreign in run("ip", "netns", "list")
    finally:
        stranger.kill()
        stranger.wait()
        run("ip", "netns", "del", foreign)

"""``doctor --role``: each planted misconfiguration is found, alone; a clean machine has none."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from console.cli.doctor.duty import read_duty
from console.cli.doctor.finding import CheckedRole, parse_options
from console.cli.doctor.host import is_spared
from console.cli.doctor.rows import ROWS, examine_role
from console.cli.main import main
from pki.authority import Authority
from tests.unit.console.cli.doctor.planted import DRIVER, NOW, SITE, Planted, Spoil

AGENT, CONTROLLER = CheckedRole.AGENT, CheckedRole.CONTROLLER
PF, VF = "sys/class/net/ens1f0", "sys/class/net/ens1f0v0"


@pytest.fixture
def clean(tmp_path: Path) -> Planted:
    return Planted(tmp_path)


@pytest.mark.parametrize("role", [AGENT, CONTROLLER])
def test_a_clean_machine_lacks_nothing(clean: Planted, role: CheckedRole) -> None:
    found = clean.examine(role)
    bad = {name: f.found for name, f in found.items() if f.state != "ok" and "light" not in name}
    assert bad == {}
    assert found["clock"].fix == ""


def test_every_row_of_a_role_is_shown_on_a_clean_machine(clean: Planted) -> None:
    for role in (AGENT, CONTROLLER):
        shown = clean.examine(role)
        for row in ROWS:
            if role in row.roles and row.name != "address of the function":
                assert any(name == row.name or name.startswith(f"{row.name} of ") for name in shown)


def file(path: str, text: str) -> Spoil:
    return lambda m: m.put(path, text)


def tool(begin: str, text: str) -> Spoil:
    return lambda m: m.tools.update({begin: text})


def info(**changes: object) -> Spoil:
    return lambda m: m.info.update(changes)


def version(**changes: object) -> Spoil:
    return lambda m: m.version.update(changes)


def site(old: str, new: str) -> Spoil:
    def spoil(machine: Planted) -> None:
        assert old in SITE
        machine.site = SITE.replace(old, new)

    return spoil


def absent(path: str) -> Spoil:
    def spoil(machine: Planted) -> None:
        place = machine.root / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()

    return spoil


def silent_engine(machine: Planted) -> None:
    machine.engine_error = FileNotFoundError(2, "No such file")


def no_nic(machine: Planted) -> None:
    (machine.root / VF).unlink()
    shutil.rmtree(machine.root / "sys/devices/pci0000:00/0000:c1:00.1/net")
    for path in (machine.root / "sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs").iterdir():
        path.unlink()


def shared_rdma(machine: Planted) -> None:
    machine.put("sys/module/ib_core/parameters/netns_mode", "Y")
    machine.process(500, "python3", 7)


def expired(machine: Planted) -> None:
    Authority.create(machine.root / "old", "planted", now=NOW - timedelta(days=900))
    authority = Authority.load(machine.root / "old")
    authority.issue_agent("srv0", machine.root / "o", now=NOW - timedelta(days=500), days=90)
    machine.take("o", "etc/lightloom/tls")


def soon(machine: Planted) -> None:
    authority = Authority.load(machine.root / "ca")
    authority.issue_controller(machine.root / "etc/lightloom/openflow-tls", now=NOW, days=9)


def taken(machine: Planted) -> None:
    machine.process(600, "nginx", 1, "nginx: master process")
    machine.listen(8470, 4242)
    fds = machine.root / "proc/600/fd"
    fds.mkdir()
    (fds / "5").symlink_to("socket:[4242]")


def remote(kind: str) -> Spoil:
    def spoil(machine: Planted) -> None:
        place = machine.root / "proc/self/mountinfo"
        line = f"40 25 0:9 / /var/lib/lightloom rw - {kind} server:/x rw"
        place.write_text(f"{place.read_text()}{line}\n", encoding="utf-8")

    return spoil


def other_firmware_name(machine: Planted) -> None:
    machine.put(f"{PF}/address", "0c:42:a1:00:00:99")
    device = machine.root / "sys/devices/pci0000:00/0000:c2:00.0"
    machine.put("sys/class/net/ens9/address", "0c:42:a1:00:00:01")
    device.mkdir(parents=True)
    (machine.root / "sys/class/net/ens9/device").symlink_to(device)


def unreachable(machine: Planted) -> None:
    machine.unreachable.add("192.0.2.1:3082")


def no_persistence(machine: Planted) -> None:
    shutil.rmtree(machine.root / "proc/78")
    machine.tools["nvidia-smi"] = "GPU-0, Disabled, Enabled, Disabled\n"


def only_roce_v1(machine: Planted) -> None:
    for path in (machine.root / "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types").iterdir():
        path.write_text("IB/RoCE v1\n", encoding="utf-8")


def chrony_lost(machine: Planted) -> None:
    machine.tools.pop("timedatectl show")
    machine.tools["chronyc"] = "A,0,Not synchronised\n"


def attribute(name: str, value: object) -> Spoil:
    return lambda m: setattr(m, name, value)


MISSING, WARNING = "missing", "warning"
CASES: dict[str, tuple[CheckedRole, Spoil, dict[str, str]]] = {
    "no engine": (AGENT, silent_engine, {"container engine": MISSING}),
    "Podman behind Docker's socket": (
        AGENT,
        version(Components=[{"Name": "Podman Engine"}], Version="5.4.0"),
        {"container engine": MISSING, "engine version": MISSING},
    ),
    "an engine that is too old": (AGENT, version(Version="19.03.5"), {"engine version": MISSING}),
    "a rootless engine": (
        AGENT,
        info(SecurityOptions=["name=seccomp,profile=builtin", "name=rootless"]),
        {"engine as root": MISSING},
    ),
    "no cgroup driver": (AGENT, info(CgroupDriver="none"), {"cgroup driver": MISSING}),
    "a proxy for every registry": (
        AGENT,
        info(HttpsProxy="http://proxy:3128"),
        {"engine's proxy": WARNING},
    ),
    "CDI is off": (AGENT, info(CDISpecDirs=None), {"CDI": WARNING}),
    "neither CDI nor the runtime": (
        AGENT,
        info(CDISpecDirs=None, Runtimes={"runc": {}}),
        {"GPU in containers": MISSING},
    ),
    "CDI by index": (
        AGENT,
        lambda m: m.cdi(DRIVER, "0", "1"),
        {"CDI name of gpu0": WARNING, "CDI name of gpu1": WARNING},
    ),
    "CDI of an older driver": (
        AGENT,
        lambda m: m.cdi("550.54.14"),
        {"CDI age of /etc/cdi/nvidia.yaml": MISSING},
    ),
    "a library of CDI is gone": (
        AGENT,
        absent(f"usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}"),
        {"CDI mounts": MISSING},
    ),
    "no driver": (AGENT, absent("proc/driver/nvidia"), {"NVIDIA driver": MISSING}),
    "a GPU is gone": (
        AGENT,
        absent("proc/driver/nvidia/gpus/0000:01:00.0"),
        {"GPU of gpu1": MISSING},
    ),
    "MIG is on": (
        AGENT,
        tool("nvidia-smi", "GPU-0, Enabled, Enabled, Enabled\n"),
        {"MIG of gpu0": MISSING},
    ),
    "ECC is off": (
        AGENT,
        tool("nvidia-smi", "GPU-0, Disabled, Disabled, Enabled\n"),
        {"ECC of gpu0": WARNING},
    ),
    "a driver that is not kept ready": (AGENT, no_persistence, {"persistence": WARNING}),
    "no fabric manager": (AGENT, absent("proc/79"), {"fabric manager": MISSING}),
    "no node of unified memory": (AGENT, absent("dev/nvidia-uvm"), {"device nodes": MISSING}),
    "a node that users cannot open": (
        AGENT,
        lambda m: (m.root / "dev/nvidia0").chmod(0o660),
        {"device nodes": MISSING},
    ),
    "a NIC is gone": (AGENT, no_nic, {"NIC of ens1f0v0": MISSING}),
    "the NICs' names have changed": (AGENT, other_firmware_name, {"NIC of ens1f0": MISSING}),
    "a NIC is down": (AGENT, file(f"{PF}/flags", "0x1002"), {"state of ens1f0": WARNING}),
    "no carrier": (AGENT, file(f"{PF}/carrier", "0"), {"carrier of ens1f0": WARNING}),
    "too little light": (
        AGENT,
        tool("ethtool -m", "Laser rx power low alarm : On\n"),
        {"light of ens1f0": WARNING},
    ),
    "no FEC": (
        AGENT,
        tool("ethtool --show-fec", "Active FEC encoding: Off\n"),
        {"FEC of ens1f0": WARNING},
    ),
    "autonegotiation": (
        AGENT,
        tool("ethtool ens1f0", "Auto-negotiation: on\n"),
        {"autonegotiation of ens1f0": WARNING},
    ),
    "a name by the kernel": (
        AGENT,
        file(f"{PF}/name_assign_type", "1"),
        {"stable name of ens1f0": WARNING},
    ),
    "networkd configures a NIC": (
        AGENT,
        file("run/systemd/netif/links/2", "ADMIN_STATE=configured"),
        {"other manager of ens1f0": WARNING},
    ),
    "NetworkManager manages a NIC": (
        AGENT,
        tool("nmcli", "ens1f0:disconnected\n"),
        {"other manager of ens1f0": WARNING},
    ),
    "the physical interface's MTU": (
        AGENT,
        file(f"{PF}/mtu", "1500"),
        {"MTU of the function of ens1f0v0": MISSING},
    ),
    "an untrusted function": (
        AGENT,
        file(f"{VF}/address", "0c:42:a1:00:00:77"),
        {"address of the function of ens1f0v0": MISSING},
    ),
    "no RDMA where the site has a DSCP": (
        AGENT,
        absent("sys/class/infiniband"),
        {"RDMA": MISSING},
    ),
    "RoCE v1 only": (AGENT, only_roce_v1, {"GIDs of ens1f0": WARNING}),
    "shared RDMA": (AGENT, shared_rdma, {"RDMA namespaces": MISSING}),
    "a small MTU": (
        AGENT,
        site("mtu: 9000", "mtu: 1500"),
        {"MTU of ens1f0": WARNING, "MTU of ens1f0v0": WARNING},
    ),
    "firmware sets the queues": (
        AGENT,
        tool("dcb dcbx", "lld-managed ieee"),
        {"host's queues of ens1f0": WARNING, "host's queues of ens1f0v0": WARNING},
    ),
    "no lossless queue": (
        AGENT,
        tool("dcb -j pfc", '{"prio_pfc": {"3": false}}'),
        {"PFC of ens1f0": MISSING, "PFC of ens1f0v0": MISSING},
    ),
    "DSCP is not mapped": (
        AGENT,
        tool("dcb -j app", '{"dscp_prio": [[46, 6]]}'),
        {"DSCP of ens1f0": MISSING, "DSCP of ens1f0v0": MISSING},
    ),
    "DSCP to a lossy queue": (
        AGENT,
        tool("dcb -j app", '{"dscp_prio": [[26, 2]]}'),
        {"DSCP of ens1f0": MISSING, "DSCP of ens1f0v0": MISSING},
    ),
    "no congestion control": (
        AGENT,
        file(f"{PF}/ecn/roce_rp/enable/3", "0"),
        {"ECN of ens1f0": WARNING},
    ),
    "locked memory": (
        AGENT,
        file("proc/77/limits", "Max locked memory  65536 65536 bytes"),
        {"memlock": MISSING},
    ),
    "no way from NIC to GPU": (AGENT, absent("sys/module/nvidia_peermem"), {"GPUDirect": WARNING}),
    "access control of bridges": (
        AGENT,
        tool("lspci", "c0:00.0 PCI bridge: x\n\tACSCtl: SrcValid+ ReqRedir+\n"),
        {"PCIe access control": WARNING},
    ),
    "another socket": (
        AGENT,
        file("sys/bus/pci/devices/0000:00:00.0/numa_node", "0"),
        {"NUMA of gpu0": WARNING},
    ),
    "users beyond the agent's range": (
        AGENT,
        site("uid: 2000, gid: 2000", "uid: 200001, gid: 2000"),
        {"users": MISSING},
    ),
    "SELinux enforces": (AGENT, file("sys/fs/selinux/enforce", "1"), {"security module": WARNING}),
    "a read-only freezer": (
        AGENT,
        file("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup2 ro"),
        {"freezer": WARNING},
    ),
    "a clock on its own": (AGENT, tool("timedatectl show", "no"), {"clock": WARNING}),
    "a proxy before the controller": (
        AGENT,
        file("etc/environment", 'HTTPS_PROXY="http://proxy:3128"\nno_proxy=localhost'),
        {"proxy": WARNING},
    ),
    "an expired certificate": (
        AGENT,
        expired,
        {"certificate of /etc/lightloom/tls": MISSING},
    ),
    "another server": (
        AGENT,
        file("etc/lightloom/agent.env", "LIGHTLOOM_AGENT_OPTIONS='--server=srv7'"),
        {"server": MISSING, "certificate of /etc/lightloom/tls": MISSING},
    ),
    "a broken site file": (CONTROLLER, site("kind: Site", "kind: Sight"), {"site file": MISSING}),
    "a certificate that ends soon": (
        CONTROLLER,
        soon,
        {"end of the certificate of /etc/lightloom/openflow-tls": WARNING},
    ),
    "a key that others can read": (
        CONTROLLER,
        lambda m: (m.root / "etc/lightloom/controller-tls/key.pem").chmod(0o644),
        {"certificate of /etc/lightloom/controller-tls": MISSING},
    ),
    "a port in use": (CONTROLLER, taken, {"port of 192.0.2.20:8470": MISSING}),
    "state on NFS": (CONTROLLER, remote("nfs4"), {"state on disk": MISSING}),
    "state in memory": (CONTROLLER, remote("tmpfs"), {"state on disk": MISSING}),
    "no room": (CONTROLLER, attribute("free", 10**8), {"room": MISSING}),
    "a slow disk": (CONTROLLER, attribute("fsync", 0.4), {"fsync": WARNING}),
    "a switch that is off": (CONTROLLER, unreachable, {"optical switch of ocs0": MISSING}),
    "few files": (
        CONTROLLER,
        tool("systemctl show", "LimitNOFILE=1024\n"),
        {"open files": WARNING},
    ),
    "a clock that chrony has lost": (
        CONTROLLER,
        chrony_lost,
        {"clock": WARNING},
    ),
    "a proxy before the agents": (
        CONTROLLER,
        file("etc/lightloom/controller.env", "https_proxy=http://proxy:3128\nNO_PROXY=10.0.0.0/8"),
        {"proxy": WARNING},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_misconfiguration_is_found_and_nothing_else(clean: Planted, case: str) -> None:
    role, spoil, expected = CASES[case]
    spoil(clean)
    found = clean.examine(role)
    bad = {name: f.state for name, f in found.items() if f.state in (MISSING, WARNING)}
    assert bad == expected
    assert all(found[name].fix and "{part}" not in found[name].fix for name in bad)


def test_every_row_has_a_planted_misconfiguration() -> None:
    found = {name for _, _, expected in CASES.values() for name in expected}
    rows = {row.name for row in ROWS}
    planted = {row for row in rows if any(f"{name} of ".startswith(f"{row} of ") for name in found)}
    assert rows - planted == {"image store"}
    assert len(CASES) >= 20


def test_what_cannot_be_read_is_unknown(clean: Planted) -> None:
    clean.tools.clear()
    found = clean.examine(AGENT)
    unknown = {name for name, f in found.items() if f.state == "unknown"}
    names = {"clock", "MIG of gpu0", "ECC of gpu1", "PFC of ens1f0", "DSCP of ens1f0"}
    assert names | {"FEC of ens1f0", "light of ens1f0", "PCIe access control"} <= unknown
    assert {name for name, f in found.items() if f.state in (MISSING, WARNING)} == set()


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), TimeoutError("timed out")])
def test_an_engine_that_cannot_be_asked_is_unknown(clean: Planted, error: OSError) -> None:
    clean.engine_error = error
    assert clean.examine(AGENT)["container engine"].state == "unknown"


def test_a_newer_engine_is_unknown(clean: Planted) -> None:
    clean.version["Version"] = "31.0.0"
    assert clean.examine(AGENT)["engine version"].state == "unknown"


def test_a_nic_may_be_in_a_container(clean: Planted) -> None:
    no_nic(clean)
    clean.process(500, "python3", 7)
    clean.put("proc/500/net/dev", "Inter-|\n  lo: 0\n")
    assert clean.examine(AGENT)["NIC of ens1f0v0"].state == "missing"
    clean.put("proc/500/net/dev", "Inter-|\n  lo: 0\n  ens1f0v0: 0\n")
    assert clean.examine(AGENT)["NIC of ens1f0v0"].state == "unknown"


def test_shared_rdma_names_what_keeps_it_busy(clean: Planted) -> None:
    shared_rdma(clean)
    clean.put("run/netns/kept")
    found = clean.examine(AGENT)["RDMA namespaces"]
    assert "2 network namespaces" in found.found
    assert "python3 (500)" in found.found
    assert "reboot" in found.fix


def test_the_fix_for_cdi_is_the_engines_version(clean: Planted) -> None:
    clean.info["CDISpecDirs"] = None
    for said, word in (("24.0.7", "Docker 25"), ("27.3.1", '"cdi": true'), ("28.2.0", "remove")):
        clean.version["Version"] = said
        assert word in clean.examine(AGENT)["CDI"].fix


def test_a_port_that_is_not_a_number(clean: Planted) -> None:
    clean.put("etc/lightloom/controller.env", "LIGHTLOOM_CONTROLLER_OPTIONS='--api-listen here'")
    assert clean.examine(CONTROLLER)["port of here"].state == "missing"


def test_deep_documents_are_unknown(clean: Planted) -> None:
    clean.put("etc/cdi/nvidia.yaml", "[" * 5000)
    clean.tools["dcb -j pfc"] = "[" * 5000
    found = clean.examine(AGENT)
    assert {found["container engine"].state, found["RDMA namespaces"].state} <= {"ok", "unknown"}


def test_the_image_store_is_said(clean: Planted) -> None:
    assert "overlay2" in clean.examine(AGENT)["image store"].found
    clean.info["DriverStatus"] = [["driver-type", "io.containerd.snapshotter.v1"]]
    assert "manifest" in clean.examine(AGENT)["image store"].found


def test_the_controllers_own_port_is_not_taken(clean: Planted) -> None:
    taken(clean)
    clean.put("proc/600/cmdline", "python3\0/opt/lightloom/bin/lightloom\0controller\0--site")
    clean.put("proc/600/limits", "Max open files  1024  8192 files")
    found = clean.examine(CONTROLLER)
    assert found["port of 192.0.2.20:8470"].state == "ok"
    assert found["open files"].found == "8192"
    shutil.rmtree(clean.root / "proc/600/fd")
    assert clean.examine(CONTROLLER)["port of 192.0.2.20:8470"].state == "unknown"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"x"',
        "{",
        '{"kind": 3}',
        "- a",
        "kind: nvidia.com/gpu\ndevices: 3",
        "\0",
        "&a [*a]",
    ],
)
def test_hostile_files_are_no_findings_of_their_own(clean: Planted, text: str) -> None:
    clean.put("etc/cdi/nvidia.yaml", text)
    clean.put("proc/net/tcp", text)
    clean.put("etc/lightloom/agent.env", f"LIGHTLOOM_AGENT_OPTIONS='{text}")
    for path in ("speed", "flags", "name_assign_type"):
        clean.put(f"{PF}/{path}", text)
    clean.tools = dict.fromkeys(clean.tools, text)
    for role in (AGENT, CONTROLLER):
        assert clean.examine(role)["site file"].state == "ok"


@pytest.mark.parametrize("answer", [[], {"Components": 3}, {"Version": [], "Components": [None]}])
def test_an_engine_that_answers_rubbish(clean: Planted, answer: object) -> None:
    machine = clean.access()
    clean.version = clean.info = answer  # type: ignore[assignment]
    assert machine.ask_engine(Path(), "/info") == json.dumps(answer).encode()
    assert clean.examine(AGENT)["container engine"].state == "unknown"


def run_verb(*arguments: str) -> int:
    try:
        return main(["doctor", "-o", "json", *arguments]) or 0
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize(
    ("case", "code"), [(None, 0), ("no carrier", 0), ("MIG is on", 1), ("a switch that is off", 1)]
)
def test_the_exit_code_is_of_the_role(
    clean: Planted,
    case: str | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    role, spoil, _ = CASES[case] if case else (AGENT, lambda _: None, {})
    spoil(clean)
    clean.duty(role)
    monkeypatch.setattr("console.cli.doctor.access.MachineAccess", clean.access)
    assert run_verb("--role", role, "--site", str(clean.root / "site.yaml")) == code
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (code == 0)
    assert document["role"] == role


def test_a_site_needs_a_role(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("--site", "x") == 2
    assert "--role" in capsys.readouterr().err


def test_without_a_site_file_its_checks_are_not_made(clean: Planted) -> None:
    duty = read_duty(clean.access(), AGENT, None, None)
    found = {f.name: f.state for f in examine_role(clean.access(), duty)}
    assert found["site file"] == "unknown"
    assert "users" not in found
    clean.put("etc/lightloom/site.yaml", clean.site)
    assert read_duty(clean.access(), AGENT, None, None).site is not None


def test_the_manual_lists_every_check() -> None:
    text = (Path(__file__).parents[5] / "docs/doctor.md").read_text(encoding="utf-8")
    assert [row.name for row in ROWS if f"| {row.name} | {row.worst} |" not in text] == []


def test_options_of_a_daemon() -> None:
    text = "# c\nA=--x\nO=\"--server srv1 --uids=5-9 --flag --tls '/a b'\"\n"
    expected = {"--server": "srv1", "--uids": "5-9", "--flag": "", "--tls": "/a b"}
    assert parse_options(text, "O") == expected
    assert parse_options("O='--x", "O") == {}


@pytest.mark.parametrize(
    ("host", "spared", "expected"),
    [
        ("127.0.0.1", [], True),
        ("0.0.0.0", [], True),
        ("ctl.dc.example", [".dc.example"], True),
        ("ctl.dc.example", ["*.example"], True),
        ("ctl.dc.example", ["c.example"], False),
        ("192.0.2.7", ["192.0.2.0/24"], True),
        ("192.0.2.7", ["", "198.51.100.0/24"], False),
        ("192.0.2.7", ["*"], True),
    ],
)
def test_no_proxy(host: str, spared: list[str], expected: bool) -> None:
    assert is_spared(host, spared) is expected

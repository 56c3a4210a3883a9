"""The checks of ``doctor`` for an agent's server and for the controller's machine: one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from console.cli.doctor import engine, gpu, host, nic, plane, rdma
from console.cli.doctor.access import MachineAccess, in_time
from console.cli.doctor.finding import CheckedRole, CheckResult, Duty, Judged, State

READ_TIMEOUT_S = 30.0
"""For all that is read of one kind; the kinds are read beside each other."""
_AGENT = frozenset({CheckedRole.AGENT})
_CONTROLLER = frozenset({CheckedRole.CONTROLLER})
_BOTH = _AGENT | _CONTROLLER


@dataclass(slots=True, frozen=True)
class DoctorRow:
    """One check: ``judge`` decides on what ``read`` returned; ``fix`` may name ``{part}``."""

    name: str
    roles: frozenset[CheckedRole]
    worst: Literal["warning", "missing"]
    """The state of what is not good."""
    read: Callable[[MachineAccess, Duty], Any]
    judge: Callable[[Any, Duty], Iterable[Judged]]
    fix: str


_host = partial(DoctorRow, read=host.read_host)
_engine = partial(DoctorRow, roles=_AGENT, read=engine.read_engine)
_gpu = partial(DoctorRow, roles=_AGENT, read=gpu.read_gpus)
_nic = partial(DoctorRow, roles=_AGENT, read=nic.read_nics)
_rdma = partial(DoctorRow, roles=_AGENT, read=rdma.read_rdma)
_plane = partial(DoctorRow, roles=_CONTROLLER, read=plane.read_plane)

_CDI = (
    "toolkit 1.18 or newer: rm /etc/cdi/nvidia.yaml; systemctl restart nvidia-cdi-refresh. "
    "Older: nvidia-ctk cdi generate --device-name-strategy=uuid "
    "--output=/etc/cdi/nvidia.yaml. Then restart the agent"
)

ROWS: Sequence[DoctorRow] = (
    _host(
        name="site file",
        roles=_BOTH,
        worst="missing",
        judge=host.judge_site,
        fix="correct the file, or give another: --site FILE",
    ),
    _host(
        name="server",
        roles=_AGENT,
        worst="missing",
        judge=host.judge_server,
        fix="--server NAME, as in the site file",
    ),
    _host(
        name="clock",
        roles=_BOTH,
        worst="warning",
        judge=host.judge_clock,
        fix="apt-get install chrony, with a server that this machine reaches in /etc/chrony",
    ),
    _host(
        name="certificate",
        roles=_BOTH,
        worst="missing",
        judge=host.judge_trust,
        fix="issue it again: lightloom pki issue; run doctor as root",
    ),
    _host(
        name="end of the certificate",
        roles=_BOTH,
        worst="warning",
        judge=host.judge_renewal,
        fix="lightloom pki issue renews it",
    ),
    _host(
        name="proxy",
        roles=_BOTH,
        worst="warning",
        judge=host.judge_proxy,
        fix="add these addresses to NO_PROXY where the proxy is set",
    ),
    _engine(
        name="container engine",
        worst="missing",
        judge=engine.judge_engine,
        fix="Docker Engine: remove podman-docker, install docker-ce or docker.io, "
        "systemctl enable --now docker; run doctor as root",
    ),
    _engine(
        name="engine version",
        worst="missing",
        judge=engine.judge_version,
        fix="Docker Engine 20.10 to 29",
    ),
    _engine(
        name="engine as root",
        worst="missing",
        judge=engine.judge_rootless,
        fix="dockerd-rootless-setuptool.sh uninstall; systemctl enable --now docker",
    ),
    _engine(
        name="cgroup driver",
        worst="missing",
        judge=engine.judge_cgroup_driver,
        fix='"exec-opts": ["native.cgroupdriver=systemd"] in /etc/docker/daemon.json',
    ),
    _engine(
        name="image store",
        worst="warning",
        judge=engine.judge_image_store,
        fix="the same store on all servers, or images by digest",
    ),
    _engine(
        name="engine's proxy",
        worst="warning",
        judge=engine.judge_engine_proxy,
        fix='"proxies": {"no-proxy": ...} in /etc/docker/daemon.json, then restart Docker',
    ),
    _host(
        name="freezer",
        roles=_AGENT,
        worst="warning",
        judge=host.judge_freezer,
        fix="mount cgroup v2 at /sys/fs/cgroup, or the freezer of v1, writable for the agent",
    ),
    _host(
        name="users",
        roles=_AGENT,
        worst="missing",
        judge=host.judge_users,
        fix="give the agent another range: --uids LOW-HIGH in /etc/lightloom/agent.env",
    ),
    _host(
        name="security module",
        roles=_AGENT,
        worst="warning",
        judge=host.judge_lsm,
        fix="files of ranks below /run/lightloom may be refused: setenforce 0 for a trial, then "
        "a policy that lets container_t read them",
    ),
    _gpu(
        name="NVIDIA driver",
        worst="missing",
        judge=gpu.judge_driver,
        fix="apt-get install nvidia-driver, then modprobe nvidia",
    ),
    _gpu(
        name="GPU",
        worst="missing",
        judge=gpu.judge_present,
        fix="gpu_uuid in the site file as nvidia-smi -L prints it; see the kernel's log",
    ),
    _gpu(
        name="MIG",
        worst="missing",
        judge=gpu.judge_mig,
        fix="nvidia-smi -mig 0 -i UUID, then reset the GPU",
    ),
    _gpu(name="ECC", worst="warning", judge=gpu.judge_ecc, fix="nvidia-smi -e 1, then reboot"),
    _gpu(
        name="persistence",
        worst="warning",
        judge=gpu.judge_persistence,
        fix="systemctl enable --now nvidia-persistenced",
    ),
    _gpu(
        name="fabric manager",
        worst="missing",
        judge=gpu.judge_fabric_manager,
        fix="install nvidia-fabricmanager of the driver's version; "
        "systemctl enable --now nvidia-fabricmanager",
    ),
    _gpu(
        name="device nodes",
        worst="missing",
        judge=gpu.judge_nodes,
        fix="nvidia-modprobe -u -c 0, or nvidia-persistenced, before the agent starts",
    ),
    _engine(name="GPU in containers", worst="missing", judge=engine.judge_cdi, fix=""),
    _engine(name="CDI", worst="warning", judge=engine.judge_cdi_on, fix=""),
    _engine(name="CDI name", worst="warning", judge=engine.judge_cdi_names, fix=_CDI),
    _engine(name="CDI age", worst="missing", judge=engine.judge_cdi_age, fix=_CDI),
    _engine(name="CDI mounts", worst="missing", judge=engine.judge_cdi_paths, fix=_CDI),
    _nic(
        name="NIC",
        worst="missing",
        judge=nic.judge_present,
        fix="nic in the site file as `ip link` prints it",
    ),
    _nic(
        name="light",
        worst="warning",
        judge=nic.judge_light,
        fix="clean and check the fiber; lightloom ocs show says what arrives at the switch",
    ),
    _nic(name="state", worst="warning", judge=nic.judge_up, fix="ip link set {part} up"),
    _nic(
        name="carrier",
        worst="warning",
        judge=nic.judge_carrier,
        fix="normal while its endpoint is dark; else the same speed and FEC at both ends",
    ),
    _nic(
        name="FEC",
        worst="warning",
        judge=nic.judge_fec,
        fix="ethtool --set-fec {part} encoding rs, and the same on the aggregator",
    ),
    _nic(
        name="autonegotiation",
        worst="warning",
        judge=nic.judge_autoneg,
        fix="ethtool -s {part} speed SPEED autoneg off, and the same on the aggregator",
    ),
    _nic(
        name="stable name",
        worst="warning",
        judge=nic.judge_name,
        fix="a .link file in /etc/systemd/network: [Match] MACAddress=..., [Link] Name={part}",
    ),
    _nic(
        name="other manager",
        worst="warning",
        judge=nic.judge_manager,
        fix="networkd: [Link] Unmanaged=yes; "
        "NetworkManager: [keyfile] unmanaged-devices=interface-name:{part}",
    ),
    _nic(
        name="MTU of the function",
        worst="missing",
        judge=nic.judge_mtu,
        fix="ip link set PHYSICAL mtu MTU, at least the site's",
    ),
    _nic(
        name="address of the function",
        worst="missing",
        judge=nic.judge_trust,
        fix="ip link set PHYSICAL vf N mac MAC trust on",
    ),
    _rdma(
        name="RDMA",
        worst="missing",
        judge=rdma.judge_device,
        fix="install the NIC's driver (rdma-core, mlx5_ib), or remove network.dscp",
    ),
    _rdma(
        name="RDMA namespaces",
        worst="missing",
        judge=rdma.judge_namespaces,
        fix="options ib_core netns_mode=0 in /etc/modprobe.d/lightloom.conf, update-initramfs -u, "
        "reboot: the kernel refuses the change beside another network namespace",
    ),
    _rdma(
        name="GIDs",
        worst="warning",
        judge=rdma.judge_gids,
        fix="cma_roce_mode -d DEVICE -p 1 -m 2, or the driver of an older NIC: RoCE v2",
    ),
    _rdma(
        name="MTU",
        worst="warning",
        judge=rdma.judge_mtu,
        fix="network: {mtu: 9000} in the site file, and the same on every aggregator",
    ),
    _rdma(
        name="host's queues",
        worst="warning",
        judge=rdma.judge_dcbx,
        fix="dcb dcbx set dev {part} host ieee",
    ),
    _rdma(
        name="PFC",
        worst="missing",
        judge=rdma.judge_lossless,
        fix="dcb pfc set dev {part} prio-pfc all:off 3:on, while no job runs: the link toggles",
    ),
    _rdma(
        name="DSCP",
        worst="missing",
        judge=rdma.judge_dscp,
        fix="dcb app add dev {part} dscp-prio 26:3, and network: {dscp: 26} in the site file",
    ),
    _rdma(
        name="ECN",
        worst="warning",
        judge=rdma.judge_congestion,
        fix="echo 1 > /sys/class/net/{part}/ecn/roce_np/enable/3, and roce_rp",
    ),
    _rdma(
        name="memlock",
        worst="missing",
        judge=rdma.judge_locked,
        fix="LimitMEMLOCK=infinity in `systemctl edit docker`, then restart it",
    ),
    _gpu(
        name="GPUDirect",
        worst="warning",
        judge=gpu.judge_gpudirect,
        fix="modprobe nvidia_peermem; name it in /etc/modules-load.d",
    ),
    _gpu(
        name="PCIe access control",
        worst="warning",
        judge=gpu.judge_acs,
        fix="turn ACS off in the firmware's setup where no virtual machines run",
    ),
    _gpu(
        name="NUMA",
        worst="warning",
        judge=gpu.judge_numa,
        fix="pair GPUs and NICs of one socket in the site file",
    ),
    _plane(
        name="port",
        worst="missing",
        judge=plane.judge_ports,
        fix="end that process, or change controller.api or controller.openflow.listen",
    ),
    _plane(
        name="state on disk",
        worst="missing",
        judge=plane.judge_disk,
        fix="--state-dir on a local disk",
    ),
    _plane(name="room", worst="missing", judge=plane.judge_room, fix="2 GiB or more"),
    _plane(
        name="fsync",
        worst="warning",
        judge=plane.judge_fsync,
        fix="--state-dir on a solid-state disk: every step of a regroup waits for it",
    ),
    _plane(
        name="optical switch",
        worst="missing",
        judge=plane.judge_switches,
        fix="its address in the site file, its power, and the management network",
    ),
    _plane(
        name="open files",
        worst="warning",
        judge=plane.judge_files,
        fix="LimitNOFILE=65536 in `systemctl edit lightloom-controller`",
    ),
)


def examine_role(machine: MachineAccess, duty: Duty) -> list[CheckResult]:
    """Run the checks of a role. What cannot be read in time is ``unknown``."""
    rows = [row for row in ROWS if duty.role in row.roles]
    readers = list(dict.fromkeys(row.read for row in rows))
    answers = in_time([partial(read, machine, duty) for read in readers], READ_TIMEOUT_S)
    facts = dict(zip(readers, answers, strict=True))
    return [result for row in rows for result in _results(row, facts[row.read], duty)]


def _results(row: DoctorRow, report: Any, duty: Duty) -> Iterator[CheckResult]:
    if isinstance(report, OSError | ValueError | RecursionError):
        yield CheckResult(row.name, "unknown", str(report), row.fix)
        return
    if isinstance(report, Exception):
        raise report
    for said in row.judge(report, duty):
        states: dict[bool | None, State] = {True: "ok", False: row.worst, None: "unknown"}
        name = f"{row.name} of {said.part}" if said.part else row.name
        fix = (said.fix or row.fix).replace("{part}", said.part)
        yield CheckResult(name, states[said.good], said.found, "" if said.good else fix)

"""The agent daemon: one per server, runs as root, and keeps no state that a crash could lose."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import structlog

from base.addresses import join_address, split_address
from container_mgr import users
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.docker.arguments import ContainerLimits, Host, cgroup_parent
from container_mgr.docker.engine import DockerHost, EngineFacts, EngineFailure
from container_mgr.fence import Fence
from container_mgr.hardware import gpu_binding, sysfs
from container_mgr.hardware.gpus import Gpus
from container_mgr.hardware.inventory import Inventory, server_facts
from container_mgr.hardware.nic import NETNS_DIR, Nics
from container_mgr.hardware.nvml import DEFAULT_LIBRARY
from container_mgr.images.kept import KeepPolicy, KeptImages
from container_mgr.images.pulls import Pulls
from container_mgr.kernel import cgroup
from container_mgr.ranks import images
from container_mgr.ranks.policy import MAX_START_BYTES
from container_mgr.ranks.quotas import QuotaWatch
from container_mgr.ranks.ranks import Ranks
from container_mgr.recordings import asking, shown
from container_mgr.rpc.gate import TermGate
from container_mgr.rpc.service import AgentService
from container_mgr.scopes.groups import NODE, JobGroups
from container_mgr.scopes.scopes import Scopes
from container_mgr.scopes.slurm import SlurmGroups
from container_mgr.transfers.mover import PartMover
from container_mgr.users import DEFAULT, RankUsers
from container_mgr.values import Attach, LogLimits, ServedEndpoint
from container_mgr.volumes import offers
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.volumes import Volumes
from pki import Credentials, TrustError, agent_name
from protos import agent_pb2_grpc

MIN_LOG_BYTES = 2**20
"""Least output of one rank: some lines of the greatest length."""
_MAX_CALLS = 512
_STOP_GRACE_S = 2.0
_GPU_SETTLE_S = 10.0
_PRUNE_S = 600.0

OBSERVED: Mapping[str, Callable[[Sequence[tuple[int, Path]], Collection[str]], JobGroups]] = {
    "slurm": SlurmGroups
}
"""By kind of scheduler: where the cgroups of its jobs are."""

_log = structlog.get_logger("container_mgr")


class AgentStartError(Exception):
    """The agent cannot serve; ``hint`` is how to fix it."""

    def __init__(self, code: str, obj: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.obj = obj
        self.hint = hint


@dataclass(slots=True, frozen=True)
class AgentConfig:
    """The configuration of an agent.

    ``nic_netns`` is the network namespace of the server's NICs, None for the machine's own.
    With ``endpoints`` empty the agent serves every NIC in ``nic_netns``; a server without a
    namespace of its own must list them. ``tls`` is a directory of ``lightloom pki issue agent``:
    an agent runs as root and any local account can connect to loopback, so it requires mutual
    TLS there as well.
    """

    server: str
    tls: Path
    listen: str = "127.0.0.1:7701"
    transfer: str = ""
    """HOST:PORT at which parts of checkpoints are given to other agents; the host of ``listen``
    and any port if absent."""
    nic_netns: str | None = None
    docker_host: str | None = None
    endpoints: Sequence[ServedEndpoint] = ()
    state_dir: Path | None = None
    cgroup: str = "ll-rack"
    engine_timeout_s: int = 20
    nvml_library: str = DEFAULT_LIBRARY
    job_map: Path | None = None
    """The directory of dcgm-exporter's ``--hpc-job-mapping-dir``."""
    require_digest: bool = False
    """Refuse images named by a tag."""
    registries: Sequence[str] = ()
    """Registries that images may come from, HOST[:PORT][/PATH] each; none when empty."""
    volumes: Sequence[Offer] = ()
    """Directories of this server that jobs may mount by name."""
    users: RankUsers = DEFAULT
    """The users that ranks run as."""
    log_dir: Path | None = None
    """Where the output of removed containers is kept; see :attr:`logs_directory`."""
    checkpoint_dir: Path | None = None
    """Where checkpoints of ranks are kept; see :attr:`checkpoints_directory`."""
    rank_memory_bytes: int = 0
    """Most memory of one rank; 0 is the server's, divided by its endpoints."""
    logs: LogLimits = field(default_factory=LogLimits)
    image_space_bytes: int | None = None
    """Most bytes of images that this agent pulled; None for no limit."""
    keep_images_s: float | None = None
    """Longest time that a pulled image stays unused; None without limit."""
    ask_profilers: bool = False
    """Ask the profilers of TensorFlow's workers in jobs with ``record: full``: it may kill them."""
    observe: str = ""
    """The other scheduler whose jobs the agent may freeze and thaw: ``slurm``; none when empty."""
    observe_nodes: Sequence[str] = ()
    """Its nodes that are this server, when other agents serve others of the same machine."""
    observe_below: str = ""
    """The cgroup below which it makes its own; empty for the top."""
    dev: Path = Path("/dev")
    ready: Callable[[str], None] = field(default=lambda address: None)
    """Called with the agent's address once it accepts calls."""

    @property
    def directory(self) -> Path:
        """The directory of ranks' files."""
        return self.state_dir or Path(f"/run/lightloom/agent-{self.server}")

    @property
    def logs_directory(self) -> Path:
        """The directory of removed containers' output, by default on disk: it outlives a reboot."""
        beside = self.state_dir / "logs" if self.state_dir else None
        return self.log_dir or beside or Path(f"/var/lib/lightloom/agent-{self.server}/logs")

    @property
    def checkpoints_directory(self) -> Path:
        """The directory of ranks' checkpoints: on disk, and where those in memory are mounted."""
        beside = self.state_dir / "checkpoints" if self.state_dir else None
        usual = Path(f"/var/lib/lightloom/agent-{self.server}/checkpoints")
        return self.checkpoint_dir or beside or usual


def run(config: AgentConfig) -> None:
    """Serve until SIGTERM or SIGINT. Containers keep running. Raises AgentStartError."""
    asyncio.run(_until_signal(config))


async def serve(config: AgentConfig, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set. Raises AgentStartError."""
    check(config)
    credentials = _credentials(config)
    scopes = _scopes(config)
    async with AsyncExitStack() as closing:
        engine = DockerHost(config.docker_host, config.engine_timeout_s)
        closing.callback(engine.close)
        gpus = Gpus([e.watched for e in config.endpoints if e.watched], library=config.nvml_library)
        closing.callback(gpus.stop)
        gpus.start()
        fence = Fence(config.directory / "term")
        with _start_errors():
            facts = await engine.facts()
            inventory = _inventory(config, facts, gpus)
            volumes = _volumes(config, facts)
            closing.callback(volumes.close)
            checkpoints = _checkpoints(config, facts)
            closing.push_async_callback(checkpoints.close)
            await checkpoints.recover()
            mover = await _mover(config, checkpoints, volumes, credentials)
            closing.push_async_callback(mover.close)
            ranks = Ranks(
                engine=engine,
                nics=Nics(config.server, config.nic_netns),
                inventory=inventory,
                host=_host(config, facts),
                fence=fence,
                volumes=volumes,
                checkpoints=checkpoints,
                transfers=mover,
                state_dir=config.directory,
                log_dir=config.logs_directory,
                ask=asking.ask if config.ask_profilers else None,
            )
            closing.push_async_callback(ranks.close)
            await ranks.recover()
            await volumes.recover()
        await asyncio.to_thread(gpus.wait_until_settled, _GPU_SETTLE_S)
        kept = KeptImages(
            engine,
            config.directory / "images.json",
            KeepPolicy(config.image_space_bytes, config.keep_images_s),
        )
        await kept.load()
        pulls = Pulls(engine, kept)
        closing.push_async_callback(pulls.close)
        service = AgentService(
            config.server,
            engine,
            ranks,
            inventory,
            pulls=pulls,
            kept=kept,
            checkpoints=checkpoints,
            transfers=mover,
            scopes=scopes,
        )
        watch = QuotaWatch(volumes, ranks.observe, ranks.end)
        recordings = ranks.recordings
        chores = [service.sample_forever(), _prune_forever(ranks), kept.run()]
        chores += [recordings.run_reads(), recordings.run_looks(), recordings.run_asks()]
        if scopes is not None:
            chores.append(scopes.hold_forever())
        if config.volumes:
            chores += [watch.enforce_forever(), watch.measure_forever()]
        for chore in chores:
            closing.push_async_callback(_cancelled, asyncio.create_task(chore))
        server = _server(fence)
        closing.push_async_callback(server.stop, _STOP_GRACE_S)
        agent_pb2_grpc.add_AgentServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        port = _bind(server, config.listen, credentials)
        await server.start()
        address = join_address(split_address(config.listen)[0], port)
        _log.info("listening", address=address, server=config.server, engine=facts.version)
        config.ready(address)
        await stop.wait()


@contextmanager
def _start_errors() -> Iterator[None]:
    """Turn the failures of a start into AgentStartError."""
    try:
        yield
    except EngineFailure as error:
        raise AgentStartError(
            "unavailable", "docker", str(error), "is the Docker Engine running?"
        ) from error
    except OSError as error:
        raise AgentStartError(
            "failed",
            error.filename or "the agent's directories",
            f"cannot be used: {error.strerror}",
            "choose directories that can be written with --state-dir and --log-dir",
        ) from error


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _server(fence: Fence) -> grpc.aio.Server:
    return grpc.aio.server(
        interceptors=[TermGate(fence)],
        maximum_concurrent_rpcs=_MAX_CALLS,
        options=[
            ("grpc.max_receive_message_length", MAX_START_BYTES),
            # Close the streams of a controller that vanished without closing them.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.so_reuseport", 0),  # a second agent on the same address is an error
        ],
    )


async def _prune_forever(ranks: Ranks) -> None:
    """Drop output past its time, also while no job ends."""
    while True:
        await asyncio.sleep(_PRUNE_S)
        await asyncio.to_thread(ranks.archive.prune)


def _inventory(config: AgentConfig, facts: EngineFacts, gpus: Gpus) -> Inventory:
    return Inventory(
        {e.name: e for e in config.endpoints} or None,
        server_facts(facts.memory_bytes, config.rank_memory_bytes or _share(config, facts)),
        gpus=gpus,
        cdi=gpu_binding.cdi_devices(facts.cdi_directories),
        job_map=config.job_map,
        digest_only=config.require_digest,
        registries=config.registries,
        dev=config.dev,
    )


def _host(config: AgentConfig, facts: EngineFacts) -> Host:
    return Host(
        server=config.server,
        parent=cgroup_parent(config.cgroup, facts.cgroup_driver),
        entry=config.directory / "entry",
        limits=ContainerLimits(_share(config, facts)),
        block_device=sysfs.whole_disk(Path(facts.root)) if facts.root else "",
        dev=config.dev,
        remapped_users=facts.remapped_users,
        users=config.users,
        logs=config.logs,
        packages=shown.find(),
    )


def _share(config: AgentConfig, facts: EngineFacts) -> int:
    """Return the memory of a rank that asks for none: what all endpoints can have at a time."""
    return facts.memory_bytes // max(1, len(config.endpoints))


def _volumes(config: AgentConfig, facts: EngineFacts) -> Volumes:
    if config.volumes and facts.remapped_users and facts.remapped_base is None:
        raise AgentStartError(
            "unavailable",
            "docker",
            f"the engine remaps users, but {facts.root} does not show to which",
            "offer no volumes, or run the engine with its usual directories",
        )
    return Volumes(_offers(config), remapped=facts.remapped_base)


def _checkpoints(config: AgentConfig, facts: EngineFacts) -> DiskHolder:
    return DiskHolder(
        config.checkpoints_directory,
        endpoints={endpoint.name for endpoint in config.endpoints} or None,
        remapped=facts.remapped_base,
        remaps=facts.remapped_users,
    )


async def _mover(
    config: AgentConfig, checkpoints: DiskHolder, volumes: Volumes, credentials: Credentials
) -> PartMover:
    host, port = split_address(config.transfer or config.listen)
    address = (host, port if config.transfer else 0)
    mover = PartMover(checkpoints, volumes, config.server, credentials, address=address)
    try:
        await mover.start()
    except OSError as error:
        raise AgentStartError(
            "conflict",
            config.transfer or host,
            f"parts of checkpoints cannot be given there: {error.strerror}",
            "choose another address with --transfer HOST:PORT",
        ) from error
    return mover


def _scopes(config: AgentConfig) -> Scopes | None:
    if not config.observe:
        return None
    hierarchies = cgroup.freezer_hierarchies()
    if not hierarchies:
        raise AgentStartError(
            "unavailable",
            "--observe",
            "no cgroup hierarchy with a freezer is mounted writable",
            "run the agent on the server itself, not in a container without its /sys/fs/cgroup",
        )
    places = [(version, path / config.observe_below) for version, path in hierarchies]
    return Scopes(OBSERVED[config.observe](places, config.observe_nodes))


def _offers(config: AgentConfig) -> Mapping[str, Offer]:
    try:
        return offers.check(config.volumes)
    except ValueError as error:
        raise AgentStartError(
            "invalid", "--volume", str(error), "a name and a directory of its own for each volume"
        ) from error


def _credentials(config: AgentConfig) -> Credentials:
    try:
        return Credentials.load(config.tls, agent_name(config.server), now=datetime.now(UTC))
    except TrustError as error:
        raise AgentStartError(error.code, error.object, error.message, error.hint) from error


def _bind(server: grpc.aio.Server, address: str, credentials: Credentials) -> int:
    try:
        secure = grpc.ssl_server_credentials(
            [(credentials.key, credentials.certificate)],
            root_certificates=credentials.ca,
            require_client_auth=True,
        )
        return int(server.add_secure_port(address, secure))
    except RuntimeError as error:
        raise AgentStartError(
            "conflict", address, "the address is in use", "is an agent running already?"
        ) from error


def check(config: AgentConfig) -> None:
    """Raise AgentStartError for a configuration that cannot work or is not allowed."""
    given = {"--listen": config.listen, "--transfer": config.transfer}
    for option, address in given.items():
        try:
            if address or option == "--listen":
                split_address(address)
        except ValueError as error:
            hint = f"e.g. {option} 127.0.0.1:7701"
            raise AgentStartError("invalid", option, str(error), hint) from None
    invalid = next((r for r in config.registries if not images.is_registry(r)), None)
    if invalid is not None:
        raise AgentStartError(
            "invalid",
            "--registry",
            f"{invalid!r} is not a registry",
            "HOST[:PORT][/PATH] in lower case, e.g. registry.example:5000/team",
        )
    _offers(config)
    _check_observed(config)
    logs = config.logs
    if logs.keep_s <= 0 or not MIN_LOG_BYTES <= logs.rank_bytes <= logs.total_bytes:
        raise AgentStartError(
            "invalid",
            "--logs-per-rank",
            "--keep-logs must be positive and --logs-per-rank must not exceed --logs-total",
            f"--keep-logs above 0, --logs-per-rank from {MIN_LOG_BYTES} to --logs-total",
        )
    if config.nic_netns is None and not config.endpoints:
        raise AgentStartError(
            "invalid", config.server, "no endpoints", "list them with --endpoints"
        )
    if config.nic_netns is not None and not (NETNS_DIR / config.nic_netns).exists():
        raise AgentStartError(
            "not_found",
            config.nic_netns,
            "this network namespace does not exist",
            "`ip netns list` shows the existing ones",
        )


def _check_observed(config: AgentConfig) -> None:
    known = "|".join(OBSERVED)
    if config.observe and config.observe not in OBSERVED:
        raise AgentStartError(
            "invalid", "--observe", f"{config.observe!r} is not a scheduler", f"--observe {known}"
        )
    if config.observe_below.startswith("/") or ".." in config.observe_below.split("/"):
        raise AgentStartError(
            "invalid",
            "--observe-below",
            f"{config.observe_below!r} is not a path below the root of the cgroups",
            "as in /proc/PID/cgroup of the scheduler's daemon, without the first slash",
        )
    invalid = next((n for n in config.observe_nodes if not NODE.fullmatch(n)), None)
    if invalid is not None or (config.observe_nodes and not config.observe):
        raise AgentStartError(
            "invalid",
            "--observe-nodes",
            f"{invalid!r} is not the name of a node"
            if invalid is not None
            else "--observe-nodes needs --observe",
            f"as the scheduler itself names its nodes: --observe {known} --observe-nodes n0,n1",
        )


def parse_endpoints(text: str) -> tuple[ServedEndpoint, ...]:
    """Read ``--endpoints``: JSON ``[{"name", "nic", "gpu_uuid", "emulated"}]`` or ``name=nic,…``.

    Raises AgentStartError.
    """
    try:
        if text.lstrip().startswith("["):
            return tuple(_endpoint(item) for item in json.loads(text))
        pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError("an endpoint must be NAME=NIC")
        return tuple(ServedEndpoint(name.strip(), nic.strip()) for name, _, nic in pairs)
    except (ValueError, TypeError, KeyError) as error:
        raise AgentStartError(
            "invalid",
            "--endpoints",
            f"cannot be read: {error}",
            'e.g. gpu0=ens1f0 or [{"name": "gpu0", "nic": "ens1f0", "gpu_uuid": "GPU-…"}]',
        ) from error


def parse_volumes(texts: Sequence[str], file: Path | None) -> tuple[Offer, ...]:
    """Read every ``--volume`` and the file of ``--volumes``. Raises AgentStartError."""
    try:
        return (*map(offers.parse, texts), *(offers.read_file(file) if file else ()))
    except (ValueError, OSError) as error:
        raise AgentStartError(
            "invalid",
            "--volume",
            str(error),
            "e.g. imagenet=/srv/imagenet:ro,mount or scratch=/srv/scratch:rw",
        ) from error


def parse_users(user: str, uids: str) -> RankUsers:
    """Read ``--user`` and ``--uids``. Raises AgentStartError."""
    try:
        low, high = users.parse_range(uids)
        return RankUsers(users.parse_user(user), low, high)
    except ValueError as error:
        raise AgentStartError(
            "invalid", "--user, --uids", str(error), "e.g. --user 60600:60600 --uids 1000-60000"
        ) from error


def _endpoint(item: Any) -> ServedEndpoint:
    return ServedEndpoint(
        name=str(item["name"]),
        nic=str(item["nic"]),
        gpu_uuid=str(item.get("gpu_uuid", "")),
        emulated=bool(item.get("emulated", False)),
        attach=Attach(item.get("attach", Attach.MOVE)),
        stand_in=str(item.get("stand_in", "")),
    )


async def _until_signal(config: AgentConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    await serve(config, stop)

"""Checks what a job asks of a server. Pure: it reads the request only."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from agentlink.bounds import JOB, JOB_RULE, NEWER, endpoint_name
from agentlink.parts import possible_step
from agentlink.ranks import GPU, RankCheckpoint, RankKey, RankSpec
from agentlink.values import RankLimits, Where
from checkpoints.ledger import Key
from checkpoints.manifest import MAX_LENGTH
from checkpoints.rules import parse_rule
from checkpoints.values import MAX_RANKS
from container_mgr.checkpoints.layout import check_folder, check_key
from container_mgr.ranks import images
from container_mgr.recordings.shown import OUR_DIR
from container_mgr.values import AgentError, ServedEndpoint, ServerFacts, refusing

MAX_COMMAND_WORDS = 256
MAX_COMMAND_BYTES = 64 * 1024
MAX_ENV_ENTRIES = 128
MAX_ENV_VALUE_BYTES = 32 * 1024
MAX_RANKS_VALUE_BYTES = 128 * 1024 - 32
"""For the variables that name every rank of a job. Linux allows 128 KiB for one variable with its
name and its end (MAX_ARG_STRLEN)."""
MAX_ENV_BYTES = 512 * 1024
"""For all variables together. With the command that is well below Linux's limit (2 MiB)."""
MAX_SECRETS_BYTES = 64 * 1024
"""For the values of a rank's secrets together."""
MAX_START_BYTES = 16 * 2**20
"""For one call, which has all ranks of a job on one server."""
MAX_SEARCH = 1000
"""Characters of a text that is searched in output."""

MIN_MEMORY_BYTES = 16 * 2**20
MAX_PIDS = 65536
MIN_DISK_BPS = 64 * 1024

_LISTED = "does the agent's endpoint list match the site file?"
_NIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}")
_ENV_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")

_ENV_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    | {"GROUP_RANK", "ROLE_RANK", "HOME", "LANG", "TZ", "PYTHONUNBUFFERED", "PYTHONHASHSEED"}
)
_OF_MEASUREMENTS = ("PYTHONPATH", OUR_DIR)
"""Finds the package ``probe``, which the agent shows to ranks of measurements."""
_NAMES_RANKS = frozenset({"TF_CONFIG", "LIGHTLOOM_ADDRESSES"})
_ENV_PREFIXES = (
    *("LIGHTLOOM_", "TF_", "TORCH_", "NCCL_", "GLOO_", "KERAS_", "XLA_", "JAX_", "GRPC_"),
    *("PET_", "OMP_", "MKL_", "OPENBLAS_", "HF_", "WANDB_", "APP_", "USER_"),
)


def check(
    spec: RankSpec,
    endpoints: Mapping[str, ServedEndpoint] | None,
    facts: ServerFacts,
    *,
    disk: str = "",
    digest_only: bool = False,
) -> None:
    """Raise AgentError when ``spec`` asks for something that a job may not have.

    ``endpoints`` are this server's; None serves every NIC in the server's own network
    namespace (an emulated server has nothing else in it). ``disk`` is the disk to which I/O
    limits apply, empty without one. With ``digest_only`` an image must be named by its
    digest, not by a tag, which may move.
    """
    obj = spec.key.container
    check_job(spec.job)
    _require(spec.key.rank >= 0 and spec.key.epoch >= 0, obj, "rank and epoch must not be negative")
    check_endpoint(spec.endpoint, None, obj)
    images.check(spec.image, obj, digest_only=digest_only)
    check_command(obj, spec.command)
    check_env(obj, {**spec.env, **spec.secrets})
    check_secrets(obj, spec.env, spec.secrets)
    _check_nic(obj, spec)
    if spec.gpu_uuid and spec.emulated_share is not None:
        raise AgentError("invalid", obj, "a rank has a GPU or a stand-in, not both")
    _check_devices(obj, spec)
    if spec.emulated_share is not None:
        _require(
            0.01 <= spec.emulated_share <= 1024, obj, "emulated_share must be 0.01 to 1024 cores"
        )
    _check_limits(obj, spec.limits, facts, disk)
    _check_memory(obj, spec, facts)
    if spec.checkpoint is not None:
        _check_checkpoint(obj, spec.key, spec.checkpoint, facts)
    if endpoints is not None:
        _check_endpoint(obj, spec, endpoints)


def check_job(name: str) -> None:
    """Raise AgentError(invalid) for an invalid job name."""
    _require(JOB.fullmatch(name), name[:80], f"a job is named {JOB_RULE}")


def check_endpoint(name: str, endpoints: Mapping[str, ServedEndpoint] | None, obj: str) -> None:
    """Raise AgentError unless ``name`` is an endpoint of this server; None serves every one."""
    with refusing(obj):
        endpoint_name(name)
    if endpoints is not None and name not in endpoints:
        raise AgentError("not_found", obj, f"endpoint {name} is not on this server", _LISTED)


def check_folder_facts(obj: str, key: bytes, size_bytes: int, most: int) -> None:
    """Raise AgentError(invalid) for a key or a size that no folder of checkpoints has.

    ``most`` is what this server can hold. The key is in no message.
    """
    check_key(obj, key)
    _require(0 < size_bytes <= most, obj, f"checkpoints of {size_bytes} bytes: 1 to {most} fit")


def check_step(obj: str, key: Key) -> None:
    """Raise AgentError(invalid) for a step that no run can have."""
    with refusing(obj):
        possible_step(key)


def most_checkpoints(where: Where, facts: ServerFacts) -> int:
    """Return the most bytes of checkpoints that one rank's folder may have."""
    return facts.memory_bytes if where is Where.MEMORY else MAX_LENGTH


def check_search(obj: str, text: str) -> None:
    """Raise AgentError(invalid) for a text to search that is too long."""
    _require(len(text) <= MAX_SEARCH, obj, f"a text to search has at most {MAX_SEARCH} characters")


def distinct(specs: Sequence[RankSpec]) -> None:
    """Raise AgentError(invalid) when two ranks of one call share a key, an endpoint or a NIC."""
    for what, values in (
        ("container", [s.key.container for s in specs]),
        ("endpoint", [s.endpoint for s in specs]),
        ("NIC", [s.nic.name for s in specs]),
        ("address", [s.nic.ip for s in specs]),
    ):
        double = next((v for v in values if values.count(v) > 1), None)
        if double is not None:
            raise AgentError("invalid", double, f"two ranks of one call share this {what}")


def environment_allowed(name: str) -> bool:
    """Return whether a job may set this variable.

    Not allowed are variables that control the dynamic loader or the interpreter (``LD_*``,
    ``PATH``, ``PYTHONPATH``) or that make a GPU runtime show more than one GPU (``NVIDIA_*``,
    ``CUDA_*``).
    """
    return _ENV_NAME.fullmatch(name) is not None and (
        name in _ENV_NAMES or name.startswith(_ENV_PREFIXES)
    )


def _require(ok: object, obj: str, message: str) -> None:
    if not ok:
        raise AgentError("invalid", obj, message)


def check_command(obj: str, command: Sequence[str]) -> None:
    """Raise AgentError(invalid) when a command is too long or cannot be passed to a program."""
    _require(len(command) <= MAX_COMMAND_WORDS, obj, f"more than {MAX_COMMAND_WORDS} words")
    size = sum(len(word.encode()) + 1 for word in command)
    _require(size <= MAX_COMMAND_BYTES, obj, f"the command exceeds {MAX_COMMAND_BYTES} bytes")
    _require(all("\0" not in word for word in command), obj, "the command contains a NUL")


def check_env(obj: str, env: Mapping[str, str]) -> None:
    """Raise AgentError(invalid) for a variable that is not allowed or too long."""
    _require(len(env) <= MAX_ENV_ENTRIES, obj, f"more than {MAX_ENV_ENTRIES} variables")
    for name, value in env.items():
        if not environment_allowed(name) and (name, value) != _OF_MEASUREMENTS:
            raise AgentError(
                "invalid",
                obj,
                f"environment variable {name[:80]!r} is not allowed",
                f"allowed: {', '.join(f'{p}*' for p in _ENV_PREFIXES)} and launchers' names",
            )
        most = MAX_RANKS_VALUE_BYTES if name in _NAMES_RANKS else MAX_ENV_VALUE_BYTES
        size = len(value.encode())
        _require(size <= most, obj, f"{name} has {size} bytes, the limit is {most}")
        _require("\0" not in value, obj, f"{name} contains a NUL")
    total = sum(len(name) + len(value.encode()) + 2 for name, value in env.items())
    _require(total <= MAX_ENV_BYTES, obj, f"the variables exceed {MAX_ENV_BYTES} bytes together")


def check_secrets(obj: str, env: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Raise AgentError(invalid) for secrets that are too long, or variables with two values."""
    double = next((name for name in secrets if name in env), None)
    _require(double is None, obj, f"{double} is a secret and a plain variable")
    total = sum(len(value.encode()) for value in secrets.values())
    most = MAX_SECRETS_BYTES
    _require(total <= most, obj, f"its secrets have {total} bytes together, the limit is {most}")


def _check_nic(obj: str, spec: RankSpec) -> None:
    nic = spec.nic
    _require(_NIC.fullmatch(nic.name), obj, f"{nic.name!r} is not an interface name")
    _require(_MAC.fullmatch(nic.mac), obj, f"{nic.mac!r} is not a unicast MAC in lower case")
    _require(nic.mtu is None or 576 <= nic.mtu <= 9216, obj, "an MTU must be 576 to 9216")
    try:
        address = ipaddress.IPv4Interface(f"{nic.ip}/{nic.prefix_len}")
    except ValueError:
        raise AgentError("invalid", obj, f"{nic.ip}/{nic.prefix_len} is not an address") from None
    _require(nic.dscp is None or 0 <= nic.dscp <= 63, obj, "a DSCP must be 0 to 63")
    usable = not (address.is_multicast or address.is_loopback or address.is_unspecified)
    _require(usable and 8 <= nic.prefix_len <= 31, obj, f"{address} is not the address of a host")
    if spec.further_nics:
        raise AgentError("invalid", obj, "this agent gives a rank one NIC", NEWER)


def _check_devices(obj: str, spec: RankSpec) -> None:
    other = next((device.kind for device in spec.devices if device.kind != GPU), None)
    if other is not None:
        raise AgentError("invalid", obj, f"device kind {other[:40]!r} is unknown", NEWER)
    _require(len(spec.devices) <= 1, obj, "a rank has one GPU at most")


def memory_beside(spec: RankSpec, share: int) -> int:
    """Return the bytes of memory of a rank beside its checkpoints there.

    One that asks for none gets the rest of ``share``.
    """
    rest = share - memory_of_checkpoints(spec)
    return spec.limits.memory_bytes or max(MIN_MEMORY_BYTES, rest)


def memory_of_checkpoints(spec: RankSpec) -> int:
    """Return the bytes of memory for a rank's checkpoints."""
    asked = spec.checkpoint
    return asked.size_bytes if asked is not None and asked.where is Where.MEMORY else 0


def _check_memory(obj: str, spec: RankSpec, facts: ServerFacts) -> None:
    most, held = facts.most_memory_bytes, memory_of_checkpoints(spec)
    asked = spec.limits.memory_bytes or MIN_MEMORY_BYTES
    if asked < MIN_MEMORY_BYTES or asked + held > most:
        beside = f" beside {held} for checkpoints in memory" if held else ""
        raise AgentError(
            "invalid", obj,
            f"{asked} bytes of memory asked for{beside}, allowed are {MIN_MEMORY_BYTES} to {most}"
            " together",
            "change the job's limits, or have the server's agent allow more with --rank-memory",
        )  # fmt: skip


def _check_limits(obj: str, limits: RankLimits, facts: ServerFacts, disk: str) -> None:
    if limits.cores is not None and not 0.01 <= limits.cores <= facts.cores:
        raise AgentError(
            "invalid", obj, f"{limits.cores:g} cores asked for, the server has {facts.cores}",
            "ask for less in the job's limits",
        )  # fmt: skip
    pids = limits.pids
    _require(pids is None or 1 <= pids <= MAX_PIDS, obj, f"limits.pids must be 1 to {MAX_PIDS}")
    rates = [bps for bps in (limits.read_bps, limits.write_bps) if bps is not None]
    _require(
        all(bps >= MIN_DISK_BPS for bps in rates),
        obj,
        f"an I/O limit must be at least {MIN_DISK_BPS} bytes/s",
    )
    _require(disk or not rates, obj, "this server has no disk to which I/O limits could apply")


def _check_checkpoint(
    obj: str, key: RankKey, checkpoint: RankCheckpoint, facts: ServerFacts
) -> None:
    check_folder(checkpoint.folder)
    _require(
        key.rank < checkpoint.ranks <= MAX_RANKS,
        obj,
        f"{checkpoint.ranks} ranks have checkpoints: at most {MAX_RANKS}, and rank {key.rank}",
    )
    try:
        parse_rule(checkpoint.rule)
    except ValueError as error:
        raise AgentError("invalid", obj, str(error)) from None
    most = most_checkpoints(checkpoint.where, facts)
    check_folder_facts(obj, checkpoint.key, checkpoint.size_bytes, most)
    if checkpoint.resumed is not None:
        check_step(obj, checkpoint.resumed)


def _check_endpoint(obj: str, spec: RankSpec, endpoints: Mapping[str, ServedEndpoint]) -> None:
    check_endpoint(spec.endpoint, endpoints, obj)
    served = endpoints[spec.endpoint]
    _require(served.nic == spec.nic.name, obj, f"endpoint {served.name} has NIC {served.nic}")
    _require(served.gpu_uuid == spec.gpu_uuid, obj, f"endpoint {served.name} has another GPU")

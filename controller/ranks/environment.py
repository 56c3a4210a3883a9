"""Builds the environment of a rank's program: its identity and its peers' addresses. Pure.

Written for TensorFlow (``TF_CONFIG``, tf.distribute.cluster_resolver.TFConfigClusterResolver),
for PyTorch (``env://`` of torch.distributed, and ``PET_*``, which ``torchrun`` reads where a flag
is absent: torch/distributed/argparse_util.py), for NCCL and gloo
(:mod:`controller.ranks.nccl`), and for anything else as ``LIGHTLOOM_*``.

The order of the ranks is the order of the ring: workers are named in rank order, and both
TensorFlow's ring and NCCL's (one GPU a host) visit workers by their index. The scheduler sorts
ranks by aggregator, so that the ring crosses between aggregators as rarely as possible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from base.addresses import join_address
from base.figures import figure
from controller.ranks.nccl import NCCL_OWNED, NCCL_RULES, Network, nccl_environment
from controller.ranks.rules import Rule, number
from controller.ranks.tolerance import IB_MARGIN, IB_RETRIES, ib_budget_s

WORKER_PORT = 12345
"""TCP port of every TensorFlow worker; each rank has an address of its own."""
MASTER_PORT = 29500
"""PyTorch's own default."""

PREFIX = "LIGHTLOOM_"
"""Names reserved for lightloom."""

_RANKS = "it follows from the job's ranks"
OWNED: Mapping[str, str] = {
    "TF_CONFIG": _RANKS,
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), _RANKS),
    **dict.fromkeys(("GROUP_RANK", "ROLE_RANK", "MASTER_ADDR"), _RANKS),
    **dict.fromkeys(("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE"), _RANKS),
    **dict.fromkeys(("PET_MASTER_ADDR",), _RANKS),
    "PET_MASTER_PORT": "it follows MASTER_PORT; set that one",
    "GLOO_SOCKET_IFNAME": "a rank has one data NIC",
    **NCCL_OWNED,
}
"""Variables that a job may not set, and why."""
ADJUSTABLE: Mapping[str, Rule] = {"MASTER_PORT": number(1024, 65535), **NCCL_RULES}
"""Variables of lightloom that a job may override, and the valid values."""


@dataclass(slots=True, frozen=True)
class RefusedVariable:
    """A variable that a job cannot set, why, and what to do instead."""

    name: str
    reason: str
    fix: str


def refusals(own: Mapping[str, str], *, dark_s: float | None = None) -> list[RefusedVariable]:
    """Return the variables of a job that are refused; empty when all are accepted.

    ``dark_s`` is the dark time that the job states it tolerates: NCCL settings that give up earlier
    contradict it.
    """
    found = []
    for name, value in own.items():
        if name.startswith(PREFIX):
            found.append(
                RefusedVariable(name, f"{PREFIX}* is lightloom's own", "choose another name")
            )
        elif name in OWNED:
            found.append(RefusedVariable(name, f"lightloom sets it: {OWNED[name]}", "leave it out"))
        elif name in ADJUSTABLE and (wrong := ADJUSTABLE[name].wrong(value)):
            found.append(RefusedVariable(name, wrong, "correct it, or leave it out"))
    if not found and dark_s is not None:
        found += _timeout_too_short(own, dark_s)
    return found


def environment(
    job: str,
    rank: int,
    addresses: Sequence[str],
    own: Mapping[str, str],
    *,
    dark_s: float,
    network: Network,
) -> dict[str, str]:
    """Return the environment of ``rank``. ``addresses`` are in rank order.

    ``dark_s`` is the longest dark time that will be planned for the job while it is awake.
    ``own`` adds variables; it replaces only those of ADJUSTABLE, and only with valid values, even
    when :func:`refusals` was not called.
    """
    size = len(addresses)
    valid = {name: own[name] for name, rule in ADJUSTABLE.items() if _is_valid(own, name, rule)}
    port = valid.get("MASTER_PORT", str(MASTER_PORT))
    retries = int(valid.get("NCCL_IB_RETRY_CNT", IB_RETRIES))
    ours = {
        "LIGHTLOOM_JOB": job,
        "LIGHTLOOM_RANK": str(rank),
        "LIGHTLOOM_WORLD_SIZE": str(size),
        "LIGHTLOOM_ADDRESSES": ",".join(addresses),
        "TF_CONFIG": _tf_config(rank, addresses),
        **_torch(rank, addresses, port),
        "GLOO_SOCKET_IFNAME": network.interface,
        **nccl_environment(host=f"{job}-{rank}", dark_s=dark_s, network=network, retries=retries),
    }
    free = {
        name: value
        for name, value in own.items()
        if name not in OWNED and name not in ADJUSTABLE and not name.startswith(PREFIX)
    }
    return {**free, **ours, **valid}


def _is_valid(own: Mapping[str, str], name: str, rule: Rule) -> bool:
    return name in own and not rule.wrong(own[name])


def _timeout_too_short(own: Mapping[str, str], dark_s: float) -> list[RefusedVariable]:
    budget = ib_budget_s(own)
    if "NCCL_IB_TIMEOUT" not in own or budget is None or budget >= IB_MARGIN * dark_s:
        return []
    reason = (
        f"NCCL would give up after {figure(budget)} s; a dark time of {figure(dark_s, 6)} s "
        f"needs {figure(IB_MARGIN * dark_s)} s"
    )
    return [
        RefusedVariable(
            "NCCL_IB_TIMEOUT", reason, "raise it, leave it out, or lower dark_tolerance_s"
        )
    ]


def _tf_config(rank: int, addresses: Sequence[str]) -> str:
    workers = [join_address(address, WORKER_PORT) for address in addresses]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    return json.dumps(
        config, separators=(",", ":")
    )  # a large job nears the size limit of a variable


def _torch(rank: int, addresses: Sequence[str], port: str) -> dict[str, str]:
    """One process per container: each rank is a node of its own, with one local process."""
    place, size = str(rank), str(len(addresses))
    return {
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": port,
        "RANK": place,
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": place,
        "ROLE_RANK": place,
        "PET_NNODES": size,
        "PET_NODE_RANK": place,
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": addresses[0],
        "PET_MASTER_PORT": port,
    }

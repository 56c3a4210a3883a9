"""Defines the site file's section about a scheduler beside lightloom, whose jobs it watches."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from base.addresses import split_address
from base.engines import EngineKind
from sitefile import names
from sitefile.quantities import NUMBER

PROGRAMS = "/usr/bin"
HOOK_WAIT_S = 10.0
MAX_NODES = 65_536
_LONGEST_HOOK_S = 120.0

AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=4096)]
NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62})$")]
EndpointName = Annotated[str, StringConstraints(pattern=f"^{names.SITE_OBJECT}$")]


def _local_or_tls(text: str) -> str:
    """Refuse an address that would send the token over a network in clear. ValueError."""
    if text.startswith("unix:/"):
        return text
    url = urlsplit(text)
    if ":" in url.netloc and not url.netloc.endswith("]"):
        split_address(url.netloc, lowest=1)
    if url.scheme == "https" and url.hostname:
        return text.rstrip("/")
    if url.scheme == "http" and url.hostname and _loopback(url.hostname):
        return text.rstrip("/")
    raise ValueError("give unix:/PATH, http:// on a loopback address, or https://")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Api = Annotated[
    str,
    StringConstraints(pattern=r"^(unix:/[^\x00\s]+|https?://[^\s/@]+/?)$", max_length=300),
    AfterValidator(_local_or_tls),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TokenModel(_Strict):
    """A file with a JSON Web Token; it is read again when it changes."""

    file: AbsolutePath = Field(description="not readable by everybody")


class EngineTopologyModel(_Strict):
    """The file that tells the engine which nodes are near each other."""

    file: AbsolutePath = Field(description="topology.conf as slurmctld reads it")
    publish: bool = Field(True, description="false: it is examined and never written")


class HookModel(_Strict):
    """The hook that the engine runs when it has allocated a job."""

    wait_s: Annotated[float, Field(gt=0, le=_LONGEST_HOOK_S, allow_inf_nan=False), NUMBER] = Field(
        HOOK_WAIT_S, description="how long a job's start waits for its light, at most"
    )


class EngineModel(_Strict):
    """A scheduler that owns the jobs of some endpoints; lightloom moves their light."""

    kind: EngineKind
    transport: Literal["rest", "cli"] = Field(
        description="rest: slurmrestd, needs api and token; cli: Slurm's own programs"
    )
    api: Api | None = Field(
        None, description="slurmrestd: unix:/PATH, http:// on a loopback address, or https://"
    )
    user: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None = Field(
        None, description="user in whose name the token speaks; default: the token's own"
    )
    token: TokenModel | None = None
    programs: AbsolutePath = Field(PROGRAMS, description="folder of scontrol and squeue")
    prefix: list[Word] = Field(
        default=[], max_length=32, description="put before each of these programs, such as chroot"
    )
    nodes: dict[NodeName, list[EndpointName]] = Field(
        min_length=1,
        max_length=MAX_NODES,
        description="the engine's nodes and their endpoints, in the order of gres.conf",
    )
    topology: EngineTopologyModel | None = Field(None, description="absent: nothing is published")
    isolation: Literal["open", "job"] = Field(
        "open", description="open: the engine's endpoints reach each other; job: those of a job do"
    )
    hook: HookModel = HookModel()

    @model_validator(mode="after")
    def _whole_transport(self) -> EngineModel:
        if self.transport == "rest" and (self.api is None or self.token is None):
            raise ValueError("transport rest needs api and token")
        if self.transport == "cli" and self.api is not None:
            raise ValueError("transport cli uses no api: remove it, or use transport rest")
        for node, endpoints in self.nodes.items():
            if not endpoints:
                raise ValueError(f"node {node} has no endpoints: name them, or remove it")
        if self.prefix and not self.prefix[0].startswith("/"):
            raise ValueError("give the absolute path of the prefix's program")
        return self


@dataclass(slots=True, frozen=True, kw_only=True)
class EnginePolicy:
    """A scheduler beside lightloom and its nodes; seconds."""

    kind: str
    transport: Literal["rest", "cli"]
    nodes: Mapping[str, tuple[str, ...]]
    """Node -> endpoints in the order of its devices."""
    api: str = ""
    """``unix:/PATH`` or a URL; empty for ``cli``."""
    user: str = ""
    token: Path | None = None
    """File of the JSON Web Token."""
    programs: Path = Path(PROGRAMS)
    prefix: tuple[str, ...] = ()
    topology: Path | None = None
    """File of the topology; None when the site does not name it."""
    publish: bool = False
    """Whether the topology is written."""
    isolation: Literal["open", "job"] = "open"
    hook_wait_s: float = HOOK_WAIT_S

    def nodes_with(self, endpoints: Collection[str]) -> tuple[str, ...]:
        """Return the nodes that have one of these endpoints, such as those of a server."""
        held = frozenset(endpoints)
        return tuple(node for node, mine in self.nodes.items() if not held.isdisjoint(mine))

    def endpoints(self) -> frozenset[str]:
        """Return the endpoints that are the engine's."""
        return frozenset(name for names in self.nodes.values() for name in names)


def engine_of(model: EngineModel | None) -> EnginePolicy | None:
    """Convert the checked section; None without one."""
    if model is None:
        return None
    return EnginePolicy(
        kind=model.kind,
        transport=model.transport,
        nodes={node: tuple(endpoints) for node, endpoints in model.nodes.items()},
        api=model.api or "",
        user=model.user or "",
        token=Path(model.token.file) if model.token else None,
        programs=Path(model.programs),
        prefix=tuple(model.prefix),
        topology=Path(model.topology.file) if model.topology else None,
        publish=model.topology is not None and model.topology.publish,
        isolation=model.isolation,
        hook_wait_s=model.hook.wait_s,
    )


def engine_problems(
    model: EngineModel, servers: Mapping[str, str], spares: frozenset[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with the map of nodes: path, message and fix.

    ``servers`` is endpoint -> server of the whole site; ``spares`` stand by for all jobs.
    """
    owners: dict[str, str] = {}
    for node, endpoints in model.nodes.items():
        homes: set[str] = set()
        for i, name in enumerate(endpoints):
            path = f"engine.nodes.{node}[{i}]"
            if name not in servers:
                yield path, f"unknown endpoint {name!r}", "name one of endpoints"
                continue
            if name in owners:
                text = f"endpoint {name} is in node {owners[name]} already"
                yield path, text, "name it once"
            elif name in spares:
                text = f"endpoint {name} is the engine's and a spare"
                yield path, text, "remove it from recovery.spares, or from the node"
            owners.setdefault(name, node)
            homes.add(servers[name])
        if len(homes) > 1:
            text = f"node {node} has endpoints of several servers: {', '.join(sorted(homes))}"
            yield f"engine.nodes.{node}", text, "a node is one server or a part of it"

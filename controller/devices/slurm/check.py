"""Examines how Slurm is set up for lightloom: each line says what is found and what mends it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from controller.devices.observed import ObservedError, SetupCheck
from controller.devices.slurm.documents import clean, items_of
from controller.devices.slurm.gres import Node, node_of
from controller.devices.slurm.publisher import TopologyWriter, lives, version_of
from controller.devices.slurm.token import TokenFile
from controller.devices.slurm.transport import Setup, Transport
from sitefile import EnginePolicy

OLDEST = (23, 11)
TOKEN_SOON_S = 600.0
_SHOWN_NODES = 64
_DOWN = {"DOWN", "DRAIN", "DRAINED", "FAIL", "UNKNOWN", "NOT_RESPONDING"}
_NO_HOOK = "set PrologSlurmctld to lightloom's hook, or jobs start before their light is moved"
_END_HOOK = (
    "take it out: with any EpilogSlurmctld the next job starts only with Slurm's backfill, up to"
    " bf_interval (30 s) after nodes became free; lightloom sees ends within a second without it"
)


async def examine(
    policy: EnginePolicy,
    transport: Transport,
    setup: Setup,
    *,
    publisher: TopologyWriter | None,
    token: TokenFile | None,
    now: float,
) -> tuple[SetupCheck, ...]:
    """Return the examination, ``now`` in seconds since 1970. Never raises."""
    return (
        *await _of("token", _token(token, now)),
        *await _of("version", _version(transport)),
        *await _of("rights", _rights(transport)),
        *await _of("configuration", _configuration(policy, setup)),
        *await _of("publishing", _publishing(policy, transport, setup)),
        *await _of("topology", _topology(publisher, policy)),
        *await _of("nodes", _nodes(policy, transport)),
    )


async def _of(
    subject: str, part: Coroutine[Any, Any, Sequence[SetupCheck]]
) -> Sequence[SetupCheck]:
    try:
        return await part
    except ObservedError as error:
        return (SetupCheck(subject, "fault", error.message, error.hint or "see slurmctld's log"),)


async def _token(token: TokenFile | None, now: float) -> Sequence[SetupCheck]:
    if token is None:
        return ()
    end = await asyncio.to_thread(token.expires_at)
    if end is None:
        return (SetupCheck("token", "ok", "it does not say when it ends"),)
    if end <= now:
        mend = f"renew it: `scontrol token lifespan=86400` into the {token.obj}"
        return (SetupCheck("token", "fault", f"it ended {now - end:.0f} s ago", mend),)
    if end - now < TOKEN_SOON_S:
        mend = "see what renews it"
        return (SetupCheck("token", "warning", f"it ends in {end - now:.0f} s", mend),)
    return (SetupCheck("token", "ok", f"it ends in {(end - now) / 3600:.1f} h"),)


async def _version(transport: Transport) -> Sequence[SetupCheck]:
    release = await transport.release()
    await transport.states()
    found = f"Slurm {release} by {transport.name}"
    if version_of(release) < OLDEST:
        return (SetupCheck("version", "fault", found, "use Slurm 23.11 or later"),)
    return (SetupCheck("version", "ok", found),)


async def _rights(transport: Transport) -> Sequence[SetupCheck]:
    if await transport.administrates():
        return (SetupCheck("rights", "ok", "it may change jobs and nodes"),)
    mend = "sacctmgr modify user lightloom set adminlevel=Administrator, or act as SlurmUser"
    found = "it may change neither comments nor topology"
    return (SetupCheck("rights", "fault", found, mend),)


async def _configuration(policy: EnginePolicy, setup: Setup) -> Sequence[SetupCheck]:
    config = await setup.config()
    lines = []
    if policy.publish:
        plugin = config.get("TopologyPlugin", "")
        good = plugin == "topology/tree"
        mend = "" if good else "set TopologyPlugin=topology/tree and restart slurmctld"
        lines.append(
            SetupCheck("topology plugin", "ok" if good else "fault", _or_none(plugin), mend)
        )
    begins, ends = _programs(config, "PrologSlurmctld"), _programs(config, "EpilogSlurmctld")
    lines.append(
        SetupCheck("hook at allocation", "ok", begins)
        if begins
        else SetupCheck("hook at allocation", "warning", "none", _NO_HOOK)
    )
    lines.append(
        SetupCheck("hook at end", "warning", ends, _END_HOOK)
        if ends
        else SetupCheck("hook at end", "ok", "none")
    )
    tracking = config.get("ProctrackType", "")
    grouped = tracking == "proctrack/cgroup"
    mend = "" if grouped else "set ProctrackType=proctrack/cgroup, or jobs are not frozen as one"
    lines.append(SetupCheck("processes", "ok" if grouped else "warning", _or_none(tracking), mend))
    select = config.get("SelectType", "")
    devices = select == "select/cons_tres"
    mend = "" if devices else "set SelectType=select/cons_tres, or only whole nodes can be known"
    lines.append(SetupCheck("selection", "ok" if devices else "warning", _or_none(select), mend))
    return lines


async def _publishing(
    policy: EnginePolicy, transport: Transport, setup: Setup
) -> Sequence[SetupCheck]:
    if not policy.publish:
        return ()
    if lives(await transport.release()):
        return (SetupCheck("publishing", "ok", "live, node by node"),)
    held = (await setup.config()).get("SlurmctldTimeout", "120 sec")
    found = f"by scontrol reconfigure: it may hold a step that begins just then for {held},"
    found += " and the nodes of a job that ends for up to 120 sec"
    mend = "Slurm 25.05 changes it live; until then lightloom waits until no job begins or ends"
    return (SetupCheck("publishing", "warning", found, mend),)


def _programs(config: Mapping[str, str], key: str) -> str:
    """Return the programs that a key names, which may be a list; empty without any."""
    return ", ".join(
        value
        for name, value in sorted(config.items())
        if name.partition("[")[0] == key and value not in ("", "(null)")
    )


async def _topology(publisher: TopologyWriter | None, policy: EnginePolicy) -> Sequence[SetupCheck]:
    if publisher is None:
        return ()
    if why := await asyncio.to_thread(publisher.foreign):
        if not policy.publish:
            return (SetupCheck("topology file", "ok", why),)
        mend = "move it away, or set engine.topology.publish: false"
        return (SetupCheck("topology file", "fault", why, mend),)
    mark = await asyncio.to_thread(publisher.mark)
    found = "nothing is published yet" if mark is None else f"lightloom's, epoch {mark.epoch}"
    return (SetupCheck("topology file", "ok", found),)


async def _nodes(policy: EnginePolicy, transport: Transport) -> Sequence[SetupCheck]:
    body = await transport.nodes()
    try:
        nodes = await asyncio.to_thread(
            lambda: {node.name: node for node in map(node_of, items_of(body, "nodes"))}
        )
    except ValueError as error:
        return (SetupCheck("nodes", "fault", clean(str(error), 200), "see scontrol show nodes"),)
    lines = [_node(name, ends, nodes) for name, ends in policy.nodes.items()]
    wrong = [line for line in lines if line.grade != "ok"]
    if len(wrong) > _SHOWN_NODES:
        rest = f"{len(wrong) - _SHOWN_NODES} more nodes are not as the site file says"
        wrong = [*wrong[:_SHOWN_NODES], SetupCheck("nodes", "fault", rest, "correct engine.nodes")]
    found = f"{len(lines) - len(wrong)} nodes as the site file says"
    others = sorted(nodes.keys() - policy.nodes.keys())
    if others:
        names = ", ".join(others[:8]) + (" …" if len(others) > 8 else "")
        mend = "add them to engine.nodes if lightloom moves their light"
        wrong.append(
            SetupCheck("nodes", "warning", f"{len(others)} not in the site file: {names}", mend)
        )
    return (SetupCheck("nodes", "ok", found), *wrong) if len(wrong) < len(lines) else wrong


def _node(name: str, endpoints: tuple[str, ...], nodes: Mapping[str, Node]) -> SetupCheck:
    subject = f"node {name}"
    if (node := nodes.get(name)) is None:
        mend = "correct its name in engine.nodes"
        return SetupCheck(subject, "fault", "Slurm has no such node", mend)
    if node.gpus == 0 and len(endpoints) > 1:
        mend = f"add Gres=gpu:{len(endpoints)} to the node, and File= lines to gres.conf"
        found = "Slurm counts no GPUs: which of them a job uses is not known"
        return SetupCheck(subject, "warning", found, mend)
    if node.gpus not in (0, len(endpoints)):
        found = f"Slurm has {node.gpus} GPUs, the site file {len(endpoints)} endpoints"
        return SetupCheck(subject, "fault", found, "name one endpoint for each GPU, in their order")
    if down := sorted(node.states & _DOWN):
        return SetupCheck(subject, "warning", ", ".join(down), f"see `scontrol show node {name}`")
    return SetupCheck(subject, "ok", f"{len(endpoints)} endpoints")


def _or_none(text: str) -> str:
    return clean(text, 200) if text and text != "(null)" else "none"

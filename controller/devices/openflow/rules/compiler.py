"""Compiles attachments and jobs into the flow program of every aggregator. Pure.

Pipeline (OpenFlow 1.3):

- table 0 *admit*: a frame enters only with the addresses that are bound to its port (MAC, IPv4
  source or ARP sender, no VLAN), and is tagged with its job in the metadata. Uplinks admit members
  of a job that live in their direction. Everything else is dropped, and IGMP in any case
  (ADR 0067).
- table 1 *neighbour*: an ARP request for a member of the same job is turned into a unicast to the
  owner of the address. Nothing is ever flooded.
- table 2 *forward*: (job, destination MAC) leads to a local port or to the group of uplinks
  towards the member's aggregator. RoCEv2 gets the site's DSCP (26 when it names none) and its
  queue. Everything else is dropped.

Isolation between jobs and anti-spoofing follow from the construction: a forward rule
needs a tag, and only a bound triple gets one.

``Compiler.next`` compiles only what changed since the last time: the rules of a job
depend on that job alone, so those of all others are reused as they are, and so are the programs of
aggregators that no changed job touches. Members of a changed job whose rules on an aggregator do
not change keep their blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import is_

from controller.devices.aggregators import ROCE_DSCP, AttachPoint, Forwarding
from controller.devices.openflow.rules.blocks import RuleBlock, RuleSet
from controller.devices.openflow.rules.pipeline import Address, MemberRules, Probed, static_rules
from controller.devices.openflow.rules.program import FlowProgram
from controller.devices.openflow.rules.routes import Ways, Wiring
from controller.devices.openflow.rules.rule import (
    GroupRule,
    ToGroup,
    ToPort,
    pack_cookie,
)
from sitefile.model import CabledSite


class FlowError(ValueError):
    """The input contradicts the site or itself; ``obj`` names the culprit."""

    code = "invalid"

    def __init__(self, obj: str, message: str, hint: str) -> None:
        super().__init__(f"{obj}: {message}")
        self.obj = obj
        self.hint = hint


@dataclass(slots=True, frozen=True)
class Fragment:
    """The rules and groups of one job on one aggregator."""

    members: Mapping[str, MemberRules]
    """By endpoint."""
    groups: tuple[GroupRule, ...]


Members = tuple[tuple[str, AttachPoint], ...]
JobKey = tuple[int, Members, Ways]
"""All that a job's rules depend on: its tag, the places of members that are not held, its ways."""


@dataclass(slots=True, frozen=True)
class Compiled:
    """The programs of all aggregators, and the input for the next compilation."""

    programs: Mapping[str, FlowProgram] = field(default_factory=dict)
    keys: Mapping[str, JobKey] = field(default_factory=dict)
    fragments: Mapping[str, Mapping[str, Fragment]] = field(default_factory=dict)
    """Per job and aggregator."""
    present: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Jobs that have a fragment on an aggregator."""
    probed: Mapping[str, Mapping[str, Probed]] = field(default_factory=dict)
    """The rules for probes per aggregator and endpoint."""
    wiring: Wiring = field(default_factory=Wiring)


def compile(
    site: CabledSite,
    epoch: int,
    attachments: Mapping[str, AttachPoint],
    jobs: Mapping[str, tuple[str, ...]],
    held: frozenset[str] = frozenset(),
) -> Mapping[str, FlowProgram]:
    """Return the flow program of every aggregator of ``site``.

    ``attachments`` maps endpoints to attach points; an endpoint without one is dark and gets no
    rules. ``held`` endpoints are drained: no traffic from or to them passes, but probes do.
    Every rule's cookie carries ``epoch`` and the endpoint's number. Raises FlowError.
    """
    wanted = Forwarding(epoch, attachments, jobs, held, uplinks=site.uplinks)
    return Compiler(site).next(Compiled(), wanted).programs


def job_tags(jobs: Iterable[str]) -> dict[str, int]:
    """Return a 64-bit tag per job that depends on its name alone, so that no tag is ever reused.

    A job that ends therefore never passes its rules on to a job that starts. Should two names
    collide, the later one in sort order is hashed again.
    """
    tags: dict[str, int] = {}
    taken = {0}
    for job in sorted(jobs):
        text = job
        while (tag := int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])) in taken:
            text += "'"
        taken.add(tag)
        tags[job] = tag
    return tags


class Compiler:
    """Compiles for one site. Its state follows from the site alone."""

    def __init__(self, site: CabledSite) -> None:
        self._names = tuple(cable.name for cable in site.aggregators)
        self._addresses = {
            c.name: Address(c.name, c.mac.lower(), c.ip, number)
            for number, c in enumerate(site.endpoints, start=1)
        }
        self._ports = {cable.name: {*cable.fibers, *cable.fixed} for cable in site.aggregators}
        groups = {name: number for number, name in enumerate(self._names, start=1)}
        self._to_group = {name: ToGroup(number) for name, number in groups.items()}
        self._dscp = ROCE_DSCP if site.dscp is None else site.dscp

    def next(self, last: Compiled, wanted: Forwarding) -> Compiled:
        """Compile as ``compile`` does, from ``last`` (of this site) on; ``last`` stays as it is.

        The program of an aggregator without a change is the same object as in ``last``; a reused
        rule keeps the epoch that first asked for it in its cookie.
        """
        epoch, attachments = wanted.epoch, wanted.attachments
        self._check(attachments, wanted.jobs)
        tags = job_tags(wanted.jobs)
        same = last.wiring.uplinks == wanted.uplinks
        wiring = last.wiring if same else Wiring(wanted.uplinks)
        keys: dict[str, JobKey] = {}
        for job, names in wanted.jobs.items():
            tag, members = tags[job], _active(names, attachments, wanted.held)
            key = last.keys.get(job)
            if not same or key is None or key[0] != tag or key[1] != members:
                key = tag, members, wiring.ways([at.aggregator for _, at in members])
            keys[job] = key
        fragments, present = dict(last.fragments), dict(last.present)
        probed = self._probed(last.probed, attachments, epoch)
        touched = {n for n in self._names if probed.get(n) is not last.probed.get(n)}
        touched |= set(self._names) - last.programs.keys()
        for job in last.keys.keys() - keys.keys():
            self._forget(job, fragments, present, touched)
        for job, key in keys.items():
            if last.keys.get(job) != key:
                before = fragments.get(job, {})
                self._forget(job, fragments, present, touched)
                fragments[job] = self._fragments(key, epoch, before)
                for name in fragments[job]:
                    present[name] = present.get(name, frozenset()) | {job}
                    touched.add(name)
        programs = dict(last.programs)
        for name in touched:
            here = sorted(present.get(name, ()), key=tags.__getitem__)
            parts = [fragments[job][name] for job in here]
            ends = probed.get(name, {}).values()
            programs[name] = self._program(name, epoch, ends, parts, last.programs.get(name))
        return Compiled(programs, keys, fragments, present, probed, wiring)

    @staticmethod
    def _forget(
        job: str,
        fragments: dict[str, Mapping[str, Fragment]],
        present: dict[str, frozenset[str]],
        touched: set[str],
    ) -> None:
        for name in fragments.pop(job, {}):
            present[name] -= {job}
            touched.add(name)

    def _probed(
        self,
        last: Mapping[str, Mapping[str, Probed]],
        attachments: Mapping[str, AttachPoint],
        epoch: int,
    ) -> dict[str, Mapping[str, Probed]]:
        """Return the blocks for probes; those of ``last`` for an aggregator without a change."""
        ends: dict[str, dict[str, int]] = {}
        for name in self._addresses:
            at = attachments.get(name)
            if at is not None:
                ends.setdefault(at.aggregator, {})[name] = at.port
        found: dict[str, Mapping[str, Probed]] = {}
        for here, ports in ends.items():
            old = last.get(here, {})
            blocks = {name: self._probe(old.get(name), name, p, epoch) for name, p in ports.items()}
            unchanged = len(old) == len(blocks) and all(b is old.get(n) for n, b in blocks.items())
            found[here] = old if unchanged else blocks
        return found

    def _probe(self, old: Probed | None, name: str, port: int, epoch: int) -> Probed:
        if old is not None and old.port == port:
            return old
        address = self._addresses[name]
        return Probed(address, port, pack_cookie(epoch, address.number))

    def _fragments(
        self, key: JobKey, epoch: int, before: Mapping[str, Fragment]
    ) -> dict[str, Fragment]:
        return {here: self._fragment(here, key, epoch, before.get(here)) for here in key[2]}

    def _fragment(self, here: str, key: JobKey, epoch: int, before: Fragment | None) -> Fragment:
        tag, members, ways = key
        old = before.members if before is not None else {}
        blocks: dict[str, MemberRules] = {}
        groups: dict[int, GroupRule] = {}
        for (name, at), towards in zip(members, ways[here], strict=True):
            way: ToPort | ToGroup
            if at.aggregator == here:
                ports: tuple[int, ...] = (at.port,)
                way = ToPort(at.port)
            else:
                # Uplinks on a shortest path to the member are the only ones its frames arrive by.
                if not towards:
                    continue
                ports = towards
                way = self._to_group[at.aggregator]
                if way.group not in groups:
                    groups[way.group] = GroupRule(way.group, ports)
            block = old.get(name)
            if block is None or not block.asks(tag, ports, way):
                address = self._addresses[name]
                cookie = pack_cookie(epoch, address.number)
                block = MemberRules(address, tag, ports, way, cookie, self._dscp)
            blocks[name] = block
        return Fragment(blocks, tuple(groups.values()))

    @staticmethod
    def _program(
        name: str,
        epoch: int,
        ends: Iterable[Probed],
        parts: Iterable[Fragment],
        last: FlowProgram | None,
    ) -> FlowProgram:
        """Return the program; ``last`` itself when it does not change."""
        old: tuple[RuleBlock, ...] = ()
        if last is not None and isinstance(last.rules, RuleSet):
            old = last.rules.blocks
        blocks: list[RuleBlock] = [old[0] if old else static_rules(epoch), *ends]
        groups: dict[int, GroupRule] = {}
        for part in parts:
            blocks += part.members.values()
            groups.update((group.group, group) for group in part.groups)
        kept = tuple(groups[n] for n in sorted(groups))
        if (
            last is not None
            and len(old) == len(blocks)
            and all(map(is_, old, blocks))
            and last.groups == kept
        ):
            return last
        return FlowProgram(name, epoch, RuleSet(blocks), kept)

    def _check(
        self, attachments: Mapping[str, AttachPoint], jobs: Mapping[str, tuple[str, ...]]
    ) -> None:
        taken: dict[AttachPoint, str] = {}
        for name, at in attachments.items():
            if name not in self._addresses:
                raise FlowError(
                    name, "is attached but not in the site", "check the endpoint's name"
                )
            if at.port not in self._ports.get(at.aggregator, ()):
                text = f"is attached to {at}, no such port"
                raise FlowError(name, text, "check the site file")
            if at in taken:
                text = f"shares {at} with {taken[at]}"
                raise FlowError(name, text, "one endpoint per port")
            taken[at] = name
        owner: dict[str, str] = {}
        for job, names in jobs.items():
            for name in names:
                if name not in self._addresses:
                    text = f"has {name}, not in the site"
                    raise FlowError(job, text, "check the endpoint's name")
                if name in owner:
                    raise FlowError(job, f"wants {name} of {owner[name]}", "one job per endpoint")
                owner[name] = job


def _active(
    names: Iterable[str], attachments: Mapping[str, AttachPoint], held: frozenset[str]
) -> Members:
    return tuple(
        (name, at)
        for name in names
        if name not in held and (at := attachments.get(name)) is not None
    )

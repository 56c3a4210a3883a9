"""Flow tables as values: programs, and the difference between two of them.

Pure. A program is what an aggregator's tables must hold; ``diff`` returns the rules to remove
and to add.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from controller.devices.openflow.rules.blocks import TABLES, Loose, RuleBlock, RuleSet
from controller.devices.openflow.rules.rule import (
    FlowRule,
    GroupRule,
    MatchValue,
    ToGroup,
    WriteMetadata,
)


@dataclass(slots=True, frozen=True)
class FlowProgram:
    """The content of the tables of one aggregator, actual or wanted."""

    aggregator: str
    epoch: int
    rules: Sequence[FlowRule] = ()
    """A tuple when read from an aggregator; folded (``RuleSet``) when compiled."""
    groups: tuple[GroupRule, ...] = ()
    spared: frozenset[MatchValue] = frozenset()
    """MAC and IP addresses of endpoints whose present rules stay as they are."""


@dataclass(slots=True, frozen=True)
class FlowDiff:
    """Steps from one program to another, in the order in which they must be made."""

    remove: Sequence[FlowRule] = ()
    add_groups: tuple[GroupRule, ...] = ()
    change_groups: tuple[GroupRule, ...] = ()
    add: Sequence[FlowRule] = ()
    remove_groups: tuple[GroupRule, ...] = ()
    spared: int = 0
    """Number of rules that stay although the program does not ask for them: no steps."""

    def __bool__(self) -> bool:
        return any((self.remove, self.add_groups, self.change_groups, self.add, self.remove_groups))

    def describe(self) -> list[str]:
        """Return one line per difference, as an audit shows it."""
        lines = [f"surplus or stale: {rule}" for rule in self.remove]
        lines += [f"missing: {group}" for group in self.add_groups]
        lines += [f"different: {group}" for group in self.change_groups]
        lines += [f"missing or different: {rule}" for rule in self.add]
        lines += [f"surplus: {group}" for group in self.remove_groups]
        return lines


def diff(installed: FlowProgram, wanted: FlowProgram, *, admit_table: int = 0) -> FlowDiff:
    """Return the smallest set of steps that turns ``installed`` into ``wanted``.

    A rule that differs only in the epoch of its cookie stays untouched: the cookie then names the
    epoch that wrote the rule, and traffic of jobs that a change does not concern is never at risk
    (some aggregators lose packets while they rewrite an entry).

    A rule of ``admit_table`` whose effect changed is removed first and added last, never
    overwritten: no frame is admitted under an old tag while the forward table is rebuilt.
    Rules elsewhere are overwritten in place. Adds are ordered from the last table to the first,
    so that the target of a new rule exists before the rule.

    Two folded programs are compared block by block.

    Rules of endpoints that ``wanted`` spares stay, and the groups they point at, unless they bear
    the tag of a job that the program knows: rules of an earlier job must not lead into a later one.
    """
    remove: Sequence[FlowRule]
    add: Sequence[FlowRule]
    spared: list[FlowRule] = []
    if isinstance(installed.rules, RuleSet) and isinstance(wanted.rules, RuleSet):
        remove, add = _by_block(installed.rules, wanted.rules, admit_table)
    else:
        gone, come = _by_rule(installed.rules, wanted.rules, admit_table)
        if wanted.spared:
            tags = {_tag(rule) for rule in wanted.rules}
            spared = [rule for rule in gone if _is_spared(rule, wanted.spared, tags)]
            kept_keys = {rule.key for rule in spared}
            gone = [rule for rule in gone if rule.key not in kept_keys]
        remove = tuple(sorted(gone, key=_first_table_first))
        add = tuple(sorted(come, key=_last_table_first))
    have_groups = {group.group: group for group in installed.groups}
    want_groups = {group.group: group for group in wanted.groups}
    kept = {a.group for rule in spared for a in rule.actions if isinstance(a, ToGroup)}
    return FlowDiff(
        remove=remove,
        add_groups=tuple(g for n, g in want_groups.items() if n not in have_groups),
        change_groups=tuple(
            g for n, g in want_groups.items() if n in have_groups and have_groups[n] != g
        ),
        add=add,
        remove_groups=tuple(
            g for n, g in have_groups.items() if n not in want_groups and n not in kept
        ),
        spared=len(spared),
    )


def _tag(rule: FlowRule) -> MatchValue | None:
    """Return the job's tag that a rule writes or matches; None without one."""
    given = (action.value for action in rule.actions if isinstance(action, WriteMetadata))
    return next(given, dict(rule.match).get("metadata"))


def _is_spared(rule: FlowRule, spared: frozenset[MatchValue], tags: set[MatchValue | None]) -> bool:
    tag = _tag(rule)
    return tag is not None and tag not in tags and any(v in spared for _, v in rule.match)


def _by_rule(
    installed: Iterable[FlowRule], wanted: Iterable[FlowRule], admit_table: int
) -> tuple[list[FlowRule], list[FlowRule]]:
    """Return the rules to remove and those to add."""
    have = {rule.key: rule for rule in installed}
    want = {rule.key: rule for rule in wanted}
    add = [rule for key, rule in want.items() if key not in have or have[key].effect != rule.effect]
    remove = [
        rule
        for key, rule in have.items()
        if key not in want or (rule.table == admit_table and want[key].effect != rule.effect)
    ]
    return remove, add


def _by_block(installed: RuleSet, wanted: RuleSet, admit_table: int) -> tuple[RuleSet, RuleSet]:
    """Return the same as ``_by_rule``; unfold only blocks that are in both and differ."""
    have: dict[Hashable, RuleBlock] = {block.key: block for block in installed.blocks}
    remove: list[RuleBlock] = []
    add: list[RuleBlock] = []
    for block in wanted.blocks:
        old = have.pop(block.key, None)
        if old is None:
            add.append(block)
        elif old is not block and not old.same(block):
            gone, come = _by_rule(RuleSet((old,)), RuleSet((block,)), admit_table)
            if gone:
                remove.append(Loose(tuple(gone)))
            if come:
                add.append(Loose(tuple(come)))
    remove += have.values()
    return RuleSet(remove, TABLES), RuleSet(add, TABLES[::-1])


def _first_table_first(rule: FlowRule) -> int:
    return rule.table


def _last_table_first(rule: FlowRule) -> int:
    return -rule.table

"""Plans: what an installation or a removal does on a machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

from console.cli.install.values import (
    ROOT_USER,
    File,
    InstalledFolder,
    Machine,
    Part,
    PathStatus,
    StateDirectory,
    Step,
    StepAction,
    SystemAccount,
    SystemdUnit,
)


def install(parts: Sequence[Part], machine: Machine) -> list[Step]:
    """Return a step per part, in order; also for parts without a change.

    A file of the site is never changed.
    """
    steps: list[Step] = []
    for part in parts:
        match part:
            case SystemAccount():
                known = part.name in machine.accounts
                action = StepAction.UNCHANGED if known else StepAction.CREATED
                steps.append(Step(action, part, part.name))
            case File():
                steps.append(_file(part, machine))
            case InstalledFolder():
                steps.append(_folder(part, machine))
            case StateDirectory():
                pass  # made by the unit, at its start
            case SystemdUnit():
                steps.append(_reload(part, steps, machine))
    return steps


def _file(part: File, machine: Machine) -> Step:
    seen = machine.seen.get(part.path)
    if seen is None:
        return Step(StepAction.CREATED, part, part.path)
    if not part.ours and seen.content != part.content:
        return Step(StepAction.KEPT, part, part.path, "the site's own")
    if part.ours and seen.content != part.content:
        return Step(StepAction.REPLACED, part, part.path)
    if part.ours and (seen.mode, seen.uid, seen.gid) != (part.mode, 0, 0):
        return Step(StepAction.CORRECTED, part, part.path, f"mode {part.mode:04o}, owner root")
    return Step(StepAction.UNCHANGED, part, part.path)


def _folder(part: InstalledFolder, machine: Machine) -> Step:
    seen = machine.seen.get(part.path)
    if seen is None:
        return Step(StepAction.CREATED, part, part.path)
    _, gid = _ids(part.group, machine)
    if (seen.mode, seen.uid, seen.gid) != (part.mode, 0, gid):
        note = f"mode {part.mode:04o}, owner root:{part.group}"
        return Step(StepAction.CORRECTED, part, part.path, note)
    if seen.strangers:
        note = f"given to {part.readers}: {', '.join(seen.strangers)}"
        return Step(StepAction.CORRECTED, part, part.path, note)
    return Step(StepAction.UNCHANGED, part, part.path)


def _ids(name: str, machine: Machine) -> tuple[int, int]:
    """Return uid and gid of an account; ids that no file has for one that does not exist yet."""
    return (0, 0) if name == ROOT_USER else machine.accounts.get(name, (-1, -1))


def _reload(part: SystemdUnit, steps: Sequence[Step], machine: Machine) -> Step:
    new = any(
        s.action.changes and isinstance(s.part, File) and s.part.path.endswith(f"/{part.name}")
        for s in steps
    )
    if not new and part.name not in machine.outdated:
        return Step(StepAction.UNCHANGED, part, part.name)
    if machine.systemd:
        return Step(StepAction.RELOADED, part, part.name)
    return Step(StepAction.UNCHANGED, part, part.name, "systemd does not run here: it was not told")


def remove(
    parts: Sequence[Part], machine: Machine, *, others: Sequence[Part], purge: bool
) -> list[Step]:
    """Return a step per part that exists, the unit first.

    ``others`` are the parts of another role on this machine, none when it is not installed.
    Without ``purge`` all that the site or its jobs wrote stays, and the account that owns it.
    """
    shared = {_name(part) for part in others}
    steps: list[Step] = []
    last_first = tuple(reversed(parts))
    for part in sorted(last_first, key=_turn):
        name = _name(part)
        if isinstance(part, SystemdUnit):
            steps += [Step(StepAction.STOPPED, part, name)] if _has_unit(parts, machine) else []
        elif isinstance(part, StateDirectory):
            steps += [_removal(part, path, purge=purge) for path in machine.matches.get(name, ())]
        elif name not in machine.seen and name not in machine.accounts:
            continue
        elif name in shared:
            steps.append(
                Step(StepAction.KEPT, part, name, "the other role of this machine uses it")
            )
        elif isinstance(part, InstalledFolder):
            gone = {s.name for s in steps if s.action is StepAction.REMOVED}
            steps.append(_folder_removal(part, machine.seen[name], gone, purge=purge))
        elif isinstance(part, File) and part.ours:
            steps.append(Step(StepAction.REMOVED, part, name))
        else:
            steps.append(_removal(part, name, purge=purge))
    stopped = [s for s in steps if s.action is StepAction.STOPPED]
    return [
        *steps,
        *(Step(StepAction.RELOADED, s.part, s.name) for s in stopped if machine.systemd),
    ]


def _name(part: Part) -> str:
    return part.name if isinstance(part, SystemAccount | SystemdUnit) else part.path


def _turn(part: Part) -> int:
    """Order removals: the unit stops first, and the account goes after all that it owns."""
    return (SystemdUnit, File, StateDirectory, InstalledFolder, SystemAccount).index(type(part))


def _has_unit(parts: Sequence[Part], machine: Machine) -> bool:
    unit = next(part.name for part in parts if isinstance(part, SystemdUnit))
    return any(_name(part) in machine.seen for part in parts if _name(part).endswith(f"/{unit}"))


def _removal(part: Part, name: str, *, purge: bool) -> Step:
    if purge:
        return Step(StepAction.REMOVED, part, name)
    return Step(StepAction.KEPT, part, name, "--purge removes it")


def _folder_removal(
    part: InstalledFolder, seen: PathStatus, gone: Set[str], *, purge: bool
) -> Step:
    """Remove a folder with nothing left in it; a private one goes with its files at a purge."""
    left = [name for name in seen.entries if f"{part.path}/{name}" not in gone]
    if not left or (purge and part.private):
        return Step(StepAction.REMOVED, part, part.path)
    advice = "; --purge removes it" if part.private else ""
    return Step(StepAction.KEPT, part, part.path, f"contains {', '.join(left)}{advice}")

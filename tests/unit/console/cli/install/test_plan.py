"""Plans of installations and removals, on machines that are only values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.cli.install import plan
from console.cli.install.parts import ACCOUNT, AGENT_OPTIONS, SITE_FILE, UNITS, Given, parts
from console.cli.install.values import (
    File,
    InstalledFolder,
    Machine,
    MachineRole,
    Part,
    PathStatus,
    StateDirectory,
    Step,
    StepAction,
    SystemAccount,
)

IDS = (997, 997)
EMPTY = Machine({}, {})
CONTROLLER = parts(MachineRole.CONTROLLER, Given())
AGENT = parts(MachineRole.AGENT, Given(server="srv0"))
OF_THE_SITE = {SITE_FILE, AGENT_OPTIONS, "/etc/lightloom/controller.env"}


def unit_file(role: MachineRole) -> str:
    return f"{UNITS}/{role.unit}"


def done(steps: Sequence[Step], machine: Machine) -> Machine:
    """Return the machine after these steps."""
    seen, accounts, matches = dict(machine.seen), dict(machine.accounts), dict(machine.matches)
    for step in steps:
        part = step.part
        if step.action is StepAction.REMOVED:
            seen.pop(step.name, None)
            accounts.pop(step.name, None)
            matches = {k: tuple(p for p in v if p != step.name) for k, v in matches.items()}
        elif not step.action.changes:
            continue
        elif isinstance(part, SystemAccount):
            accounts[part.name] = IDS
        elif isinstance(part, File):
            seen[part.path] = PathStatus(part.mode, 0, 0, part.content)
        elif isinstance(part, InstalledFolder):
            gid = 0 if part.group == "root" else accounts[part.group][1]
            seen[part.path] = PathStatus(part.mode, 0, gid)
    for path, one in seen.items():
        below = (p.removeprefix(f"{path}/") for p in seen if p.startswith(f"{path}/"))
        children = {p.split("/")[0] for p in below}
        seen[path] = dataclasses.replace(one, entries=tuple(sorted(children)))
    return dataclasses.replace(machine, seen=seen, accounts=accounts, matches=matches)


def after(wanted: Sequence[Part], machine: Machine = EMPTY) -> Machine:
    return done(plan.install(wanted, machine), machine)


def with_file(machine: Machine, path: str, **changes: object) -> Machine:
    seen = {**machine.seen, path: dataclasses.replace(machine.seen[path], **changes)}  # type: ignore[arg-type]
    return dataclasses.replace(machine, seen=seen)


def by_name(steps: Sequence[Step]) -> dict[str, StepAction]:
    return {step.name: step.action for step in steps}


def changes(steps: Sequence[Step]) -> dict[str, StepAction]:
    return {step.name: step.action for step in steps if step.action.changes}


@pytest.mark.parametrize("wanted", [CONTROLLER, AGENT], ids=["controller", "agent"])
def test_a_second_installation_changes_nothing(wanted: Sequence[Part]) -> None:
    machine = after(wanted)
    assert changes(plan.install(wanted, machine)) == {}


@given(
    st.dictionaries(
        st.sampled_from(sorted(after(CONTROLLER).seen)),
        st.fixed_dictionaries(
            {},
            optional={
                "content": st.binary(max_size=3),
                "mode": st.sampled_from([0o600, 0o644, 0o777]),
                "uid": st.sampled_from([0, 5]),
                "gid": st.sampled_from([0, 5, IDS[1]]),
            },
        ),
    ),
    st.sets(st.sampled_from(sorted(after(CONTROLLER).seen))),
)
def test_any_state_leads_to_the_wanted_one_and_the_site_keeps_its_files(
    changed: dict[str, dict[str, object]], missing: set[str]
) -> None:
    machine = after(CONTROLLER)
    for path, fields in changed.items():
        machine = with_file(machine, path, **fields)
    left = {path: seen for path, seen in machine.seen.items() if path not in missing}
    machine = dataclasses.replace(machine, seen=left)
    repaired = after(CONTROLLER, machine)
    assert changes(plan.install(CONTROLLER, repaired)) == {}
    for path in OF_THE_SITE & set(left):
        assert repaired.seen[path].content == left[path].content
        assert repaired.seen[path].mode == left[path].mode


def test_a_new_unit_is_told_to_a_systemd_that_runs() -> None:
    machine = dataclasses.replace(after(CONTROLLER), systemd=True)
    old = with_file(machine, unit_file(MachineRole.CONTROLLER), content=b"[Unit]\n")
    assert changes(plan.install(CONTROLLER, old)) == {
        unit_file(MachineRole.CONTROLLER): StepAction.REPLACED,
        MachineRole.CONTROLLER.unit: StepAction.RELOADED,
    }
    assert changes(plan.install(CONTROLLER, machine)) == {}
    interrupted = dataclasses.replace(machine, outdated=frozenset({MachineRole.CONTROLLER.unit}))
    assert changes(plan.install(CONTROLLER, interrupted)) == {
        MachineRole.CONTROLLER.unit: StepAction.RELOADED
    }
    silent = dataclasses.replace(old, systemd=False)
    (unit,) = [s for s in plan.install(CONTROLLER, silent) if s.name == MachineRole.CONTROLLER.unit]
    assert not unit.action.changes
    assert "was not told" in unit.note


def test_keys_that_the_account_cannot_read_are_named() -> None:
    machine = with_file(after(CONTROLLER), "/etc/lightloom/controller-tls", strangers=("key.pem",))
    (step,) = [s for s in plan.install(CONTROLLER, machine) if s.action.changes]
    assert (step.action, step.name) == (StepAction.CORRECTED, "/etc/lightloom/controller-tls")
    assert "key.pem" in step.note


def with_state(machine: Machine, wanted: Sequence[Part]) -> Machine:
    patterns = [part.path for part in wanted if isinstance(part, StateDirectory)]
    return dataclasses.replace(machine, matches={p: (p.replace("*", "srv0"),) for p in patterns})


def test_a_removal_keeps_what_the_site_and_its_jobs_wrote() -> None:
    machine = with_state(after(CONTROLLER), CONTROLLER)
    gone = changes(plan.remove(CONTROLLER, machine, others=(), purge=False))
    assert gone[unit_file(MachineRole.CONTROLLER)] is StepAction.REMOVED
    assert not set(gone) & (OF_THE_SITE | {ACCOUNT, "/var/lib/lightloom/controller"})
    left = done(plan.remove(CONTROLLER, machine, others=(), purge=False), machine)
    assert (
        changes(plan.install(CONTROLLER, left))[unit_file(MachineRole.CONTROLLER)]
        is StepAction.CREATED
    )


@pytest.mark.parametrize("wanted", [CONTROLLER, AGENT], ids=["controller", "agent"])
def test_a_purge_leaves_nothing(wanted: Sequence[Part]) -> None:
    machine = with_state(after(wanted), wanted)
    steps = plan.remove(wanted, machine, others=(), purge=True)
    left = done(steps, machine)
    assert (dict(left.seen), dict(left.accounts)) == ({}, {})
    assert not any(left.matches.values())
    names = [step.name for step in steps]
    assert steps[0].action is StepAction.STOPPED
    assert ACCOUNT not in names[:-1]  # its files go before it
    assert plan.remove(wanted, left, others=(), purge=True) == []


def test_a_purge_keeps_files_that_lightloom_did_not_install() -> None:
    machine = after(AGENT)
    entries = ("agent.env", "pki", "site.yaml", "tls")
    machine = with_file(machine, "/etc/lightloom", entries=entries)
    steps = plan.remove(AGENT, machine, others=(), purge=True)
    (kept,) = [s for s in steps if s.action is StepAction.KEPT]
    assert (kept.name, kept.note) == ("/etc/lightloom", "contains pki")


def test_what_the_other_role_of_a_machine_needs_stays() -> None:
    machine = after(AGENT, after(CONTROLLER))
    left = done(plan.remove(CONTROLLER, machine, others=AGENT, purge=True), machine)
    assert changes(plan.install(AGENT, left)) == {}
    assert by_name(plan.remove(CONTROLLER, left, others=AGENT, purge=True)).keys() <= {
        "/etc/lightloom",
        SITE_FILE,
        "/var/lib/lightloom",
    }

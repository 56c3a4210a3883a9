"""What lightloom ships for an installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.cli.install.parts import Given, parts, shipped
from console.cli.install.values import File, InstalledFolder, MachineRole, SystemAccount
from sitefile import load_site

MOUNT_NAMESPACE = (
    *("ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset", "ProtectControlGroups"),
    *("ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "PrivateTmp"),
    *("PrivateDevices", "PrivateMounts", "PrivateIPC", "DynamicUser", "MountFlags"),
    *("RootDirectory", "RootImage", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths"),
    *("ExecPaths", "NoExecPaths", "BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem"),
    *("LogNamespace",),
)
"""Settings that give a unit a mount namespace of its own (systemd.exec(5))."""


def settings(role: MachineRole) -> list[str]:
    lines = shipped(f"systemd/{role.unit}").decode().splitlines()
    return [line.partition("=")[0] for line in lines if line and not line.startswith(("#", "["))]


def test_the_agents_mounts_are_those_of_the_machine() -> None:
    """Namespaces of containers are kept by mounts, which the next agent must find."""
    assert not set(settings(MachineRole.AGENT)) & set(MOUNT_NAMESPACE)
    assert set(settings(MachineRole.CONTROLLER)) & set(MOUNT_NAMESPACE)


def test_ranks_keep_their_files_while_an_agent_restarts() -> None:
    lines = shipped(f"systemd/{MachineRole.AGENT.unit}").decode().splitlines()
    assert "RuntimeDirectoryPreserve=yes" in lines


def test_the_example_of_a_site_is_correct(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_bytes(shipped("examples/site.yaml"))
    assert len(load_site(tmp_path / "site.yaml").servers) == 2


@pytest.mark.parametrize("role", MachineRole)
def test_units_run_the_program_that_installed_them(role: MachineRole) -> None:
    wanted = parts(role, Given("/opt/lightloom/bin", server="srv7"))
    (unit,) = [p for p in wanted if isinstance(p, File) and p.path.endswith(role.unit)]
    assert f"ExecStart=/opt/lightloom/bin/lightloom {role} ".encode() in unit.content
    rest = b"".join(part.content for part in wanted if isinstance(part, File))
    assert b"@BINDIR@" not in rest
    assert b"@SERVER@" not in rest


@pytest.mark.parametrize("role", MachineRole)
def test_each_part_comes_after_what_it_needs(role: MachineRole) -> None:
    known = {"root"}
    for part in parts(role, Given()):
        if isinstance(part, SystemAccount):
            known.add(part.name)
        elif isinstance(part, InstalledFolder):
            assert {part.group, part.readers or "root"} <= known


@pytest.mark.parametrize("role", MachineRole)
def test_only_the_account_and_root_read_keys_and_passwords(role: MachineRole) -> None:
    wanted = parts(role, Given())
    secret = [
        p for p in wanted if isinstance(p, InstalledFolder) and p.path.endswith(("tls", "words"))
    ]
    assert secret
    assert all(part.private for part in secret)
    options = [p for p in wanted if isinstance(p, File) and p.path.endswith(".env")]
    assert [part.mode for part in options] == [0o600]

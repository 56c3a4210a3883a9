"""The contract of an execution engine about scopes. Subclass it and provide a ``scope_rig``."""

from __future__ import annotations

from typing import Protocol

import pytest

from agentlink.values import ScopeState
from controller.devices.engine import EngineError, ExecutionEngine

SCOPE = "slurm:4711"
BOTH = ("srv0", "srv1")


class ScopeRig(Protocol):
    """An engine with the servers ``srv0`` and ``srv1``, on which no scope has processes."""

    engine: ExecutionEngine

    def begin(self, scope: str, server: str) -> None:
        """Let the other scheduler start processes of a scope."""
        ...

    def frozen(self, scope: str, server: str) -> bool:
        """Return whether the processes of a scope stand still, as the server itself has it."""
        ...

    async def lose(self, server: str) -> None:
        """Let the server's agent not answer any more."""
        ...

    def without_cgroups(self, server: str) -> None:
        """Let the other scheduler keep no cgroups on a server."""
        ...

    def forbid(self, server: str) -> None:
        """Let the server's operator not allow it."""
        ...


class ScopeContract:
    """The tests of the contract."""

    async def test_a_scope_freezes_on_all_its_servers_and_alone(self, scope_rig: ScopeRig) -> None:
        for server in BOTH:
            scope_rig.begin(SCOPE, server)
            scope_rig.begin("slurm:471", server)
        for _ in range(2):
            assert await scope_rig.engine.freeze_scope(SCOPE, BOTH, 0.01) is not False
        assert all(scope_rig.frozen(SCOPE, server) for server in BOTH)
        assert not any(scope_rig.frozen("slurm:471", server) for server in BOTH)
        for _ in range(2):
            await scope_rig.engine.thaw_scope(SCOPE, BOTH)
        assert not any(scope_rig.frozen(SCOPE, server) for server in BOTH)

    async def test_only_the_named_servers_are_touched(self, scope_rig: ScopeRig) -> None:
        for server in BOTH:
            scope_rig.begin(SCOPE, server)
        await scope_rig.engine.freeze_scope(SCOPE, ["srv1"])
        assert [scope_rig.frozen(SCOPE, server) for server in BOTH] == [False, True]

    async def test_what_is_frozen_is_looked_up(self, scope_rig: ScopeRig) -> None:
        """So a controller that starts again finds what a dead one left."""
        assert await scope_rig.engine.scopes(10.0) == {"srv0": {}, "srv1": {}}
        scope_rig.begin(SCOPE, "srv0")
        scope_rig.begin("slurm:9", "srv0")
        await scope_rig.engine.freeze_scope(SCOPE, BOTH)
        assert await scope_rig.engine.scopes(10.0) == {
            "srv0": {SCOPE: ScopeState.FROZEN, "slurm:9": ScopeState.RUNNING},
            "srv1": {},
        }

    async def test_a_server_without_its_processes_has_nothing_to_freeze(
        self, scope_rig: ScopeRig
    ) -> None:
        scope_rig.begin("slurm:9", "srv1")
        scope_rig.begin(SCOPE, "srv0")
        await scope_rig.engine.freeze_scope(SCOPE, BOTH)
        await scope_rig.engine.thaw_scope("slurm:1", BOTH)
        assert scope_rig.frozen(SCOPE, "srv0")

    async def test_a_fault_names_scope_and_server_and_leaves_the_others_frozen(
        self, scope_rig: ScopeRig
    ) -> None:
        for server in BOTH:
            scope_rig.begin(SCOPE, server)
        await scope_rig.lose("srv1")
        with pytest.raises(EngineError) as failed:
            await scope_rig.engine.freeze_scope(SCOPE, BOTH)
        assert (failed.value.code, failed.value.obj) == ("unavailable", f"scope/{SCOPE}")
        assert "srv1" in str(failed.value)
        assert scope_rig.frozen(SCOPE, "srv0"), "its thaw is the caller's"
        assert await scope_rig.engine.scopes(10.0) == {"srv0": {SCOPE: ScopeState.FROZEN}}
        with pytest.raises(EngineError) as still:
            await scope_rig.engine.thaw_scope(SCOPE, BOTH)
        assert still.value.code == "unavailable"
        assert not scope_rig.frozen(SCOPE, "srv0")

    async def test_processes_without_cgroups_cannot_be_frozen(self, scope_rig: ScopeRig) -> None:
        scope_rig.without_cgroups("srv1")
        scope_rig.begin(SCOPE, "srv0")
        with pytest.raises(EngineError) as failed:
            await scope_rig.engine.freeze_scope(SCOPE, BOTH)
        assert (failed.value.code, failed.value.obj) == ("not_found", f"scope/{SCOPE}")
        assert "srv1" in str(failed.value)
        await scope_rig.engine.thaw_scope(SCOPE, BOTH)
        assert not scope_rig.frozen(SCOPE, "srv0")

    async def test_a_server_whose_operator_has_not_allowed_it(self, scope_rig: ScopeRig) -> None:
        scope_rig.forbid("srv1")
        scope_rig.begin(SCOPE, "srv0")
        with pytest.raises(EngineError) as failed:
            await scope_rig.engine.freeze_scope(SCOPE, BOTH)
        assert (failed.value.code, failed.value.obj) == ("forbidden", f"scope/{SCOPE}")
        assert "srv1" in str(failed.value)
        assert (await scope_rig.engine.scopes(10.0)).keys() == {"srv0"}

    async def test_a_server_that_the_site_does_not_have(self, scope_rig: ScopeRig) -> None:
        for servers in (["srv9"], []):
            with pytest.raises(EngineError) as failed:
                await scope_rig.engine.freeze_scope(SCOPE, servers)
            assert (failed.value.code, failed.value.obj) == ("not_found", f"scope/{SCOPE}")
        await scope_rig.engine.thaw_scope(SCOPE, [])

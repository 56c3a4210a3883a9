"""Tests do not reach in: neither into each other, nor into what the product keeps to itself."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

# --- into each other --------------------------------------------------------------------------


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _imported(file: Path) -> set[str]:
    """Return the modules that a file imports, and for ``from a import b`` also ``a.b``."""
    found = set()
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(
    "top", ["contract", "fuzz", "integration", "parts", "stories", "unit", "web"]
)
def test_nothing_imports_from_a_test_file(top: str) -> None:
    """What several test files use has a module of its own: in ``tests/parts``, or beside them."""
    tests = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in TESTS.rglob("test_*.py")
    }
    found = {
        str(file.relative_to(TESTS)): sorted(wrong)
        for file in (TESTS / top).rglob("*.py")
        if (wrong := _imported(file) & tests)
    }
    assert found == {}


# --- into the product -------------------------------------------------------------------------

LEFT = {
    "contract/ocs_script.py": 1,
    "contract/test_checkpoint_agents.py": 2,
    "contract/test_ocs_driver.py": 1,
    "contract/test_ocs_invalid_replies.py": 6,
    "contract/test_ocs_netconf.py": 1,
    "contract/test_scopes.py": 1,
    "integration/test_agent_gpu.py": 1,
    "parts/agent/docker.py": 1,
    "parts/api/served.py": 1,
    "parts/controller/disk.py": 1,
    "parts/controller/see.py": 8,
    "parts/ocs/rig.py": 2,
    "stories/rack.py": 2,
    "unit/console/cli/verbs/test_execs.py": 2,
    "unit/container_mgr/checkpoints/test_removing.py": 1,
    "unit/container_mgr/hardware/test_gpus.py": 3,
    "unit/container_mgr/ranks/test_archive.py": 3,
    "unit/container_mgr/ranks/test_execs.py": 1,
    "unit/container_mgr/ranks/test_logs.py": 4,
    "unit/container_mgr/ranks/test_ranks.py": 2,
    "unit/container_mgr/recordings/test_recordings.py": 1,
    "unit/container_mgr/recordings/test_windows.py": 2,
    "unit/container_mgr/scopes/test_scopes.py": 1,
    "unit/container_mgr/transfers/test_mover.py": 3,
    "unit/container_mgr/transfers/virtual.py": 11,
    "unit/controller/api/gate/test_gate.py": 1,
    "unit/controller/api/gate/test_idempotency.py": 1,
    "unit/controller/api/routes/streams/test_execs.py": 1,
    "unit/controller/api/server/test_slow_readers.py": 2,
    "unit/controller/daemon/test_keeper.py": 1,
    "unit/controller/daemon/test_relay.py": 4,
    "unit/controller/devices/agents/test_compromised.py": 4,
    "unit/controller/devices/agents/test_logs.py": 2,
    "unit/controller/devices/openflow/conftest.py": 4,
    "unit/controller/devices/openflow/session/test_osken.py": 5,
    "unit/controller/devices/openflow/session/test_rogue_switch.py": 3,
    "unit/controller/devices/openflow/session/test_sessions_change.py": 8,
    "unit/controller/devices/openflow/test_flows.py": 2,
    "unit/controller/devices/slurm/test_engine.py": 1,
    "unit/controller/jobs/test_queue.py": 1,
    "unit/controller/people/test_audit.py": 2,
    "unit/controller/people/test_audit_files.py": 3,
    "unit/controller/plans/test_automatic.py": 1,
    "unit/controller/reconcile/test_adopt.py": 1,
    "unit/controller/store/test_store.py": 1,
    "unit/controller/stream/test_feed.py": 1,
    "unit/controller/stream/test_sinks.py": 2,
    "unit/controller/telemetry/test_gpu_history.py": 2,
    "unit/controller/views/test_large_answers.py": 3,
    "unit/demo/slurm/test_experiment.py": 1,
    "unit/demo/test_measure.py": 2,
    "unit/ocs_driver/test_ledger.py": 3,
    "unit/ocs_driver/test_matrix.py": 2,
    "unit/pki/test_pki.py": 2,
    "unit/probe/test_common.py": 1,
    "unit/testbed_guests/test_guests.py": 3,
    "unit/testbed_rack/test_down.py": 7,
    "unit/testbed_rack/test_engine.py": 1,
    "unit/testbed_rack/test_losses.py": 2,
}
"""How often a file still names what is private elsewhere. No entry is added and no number grows;
``parts/controller/see.py`` alone is there for it."""

_PRIVATE = re.compile(r"_[A-Za-z]\w*")


def _own(tree: ast.Module) -> set[str]:
    """Return the names that a file defines itself."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def _private(tree: ast.Module) -> Iterator[str]:
    """Yield the private names in a file that are none of its own objects'."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("self" | "cls" | "os" | "sys")):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name("super"))):
                pass
            case ast.Attribute(attr=name):
                yield name
            case ast.ImportFrom(names=names):
                yield from (alias.name for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr")
                | ast.Name("setattr" | "getattr" | "hasattr" | "delattr"),
                args=args,
            ):
                for text in args[:2]:
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield text.value.rpartition(".")[2]


def test_few_files_name_what_is_private_elsewhere() -> None:
    found = {}
    for file in TESTS.rglob("*.py"):
        tree = _tree(file)
        own = _own(tree)
        count = sum(bool(_PRIVATE.fullmatch(n)) and n not in own for n in _private(tree))
        if count:
            found[str(file.relative_to(TESTS))] = count
    assert found == LEFT


_CHANGES = {"put", "change", "add", "remove", "pop", "update", "discard", "clear", "commit"}


def _changed(tree: ast.Module) -> Iterator[str]:
    """Yield what a file assigns to, deletes, or calls a changing method of."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield ast.unparse(node)
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr=name)) if name in _CHANGES:
                yield ast.unparse(node.func)


def test_nothing_is_changed_by_what_a_test_sees() -> None:
    found = {
        str(file.relative_to(TESTS)): wrong
        for file in TESTS.rglob("*.py")
        if (wrong := [t for t in _changed(ast.parse(file.read_text())) if ".see." in t])
    }
    assert found == {}

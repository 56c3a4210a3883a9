"""The checked-in gRPC code is what the compiler makes of the .proto files today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {
    "agent": ("agent_pb2.py", "agent_pb2.pyi", "agent_pb2_grpc.py"),
    "profiler": ("profiler_pb2.py", "profiler_pb2.pyi"),
}


@pytest.mark.parametrize("proto", GENERATED)
def test_generated_code_is_up_to_date(tmp_path: Path, proto: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"protos/{proto}.proto"]
    outputs = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run([*command, *outputs], cwd=ROOT, check=True, timeout=60)
    for name in GENERATED[proto]:
        assert (tmp_path / "protos" / name).read_text() == (ROOT / "protos" / name).read_text(), (
            f"protos/{name} is stale: make protos"
        )

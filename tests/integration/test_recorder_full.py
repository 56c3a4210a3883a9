"""The recorder in a full file system: a mapped page without memory would kill the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recorder import layout

pytestmark = pytest.mark.root

PYTHON = Path(__file__).parents[2] / "recorder" / "python"
PROGRAM = """
import os, sys
from lightloom_writer import Writer
folder = os.environ["LIGHTLOOM_RECORD_DIR"]
try:
    writer = Writer(f"{folder}/torch-7.rec", "torch")
except OSError as error:
    print(error.strerror)
    sys.exit()
for size in range(1, 1001):
    row = writer.row("all_reduce", size, "float", "host")
    writer.end(writer.issue(row, 1, size, 1.0), row, 1.0, 2.0)
sys.stdout.flush()
sys.stdout.buffer.write(open(f"{folder}/torch-7.rec", "rb").read())
"""


def run(folder: Path, size: str) -> bytes:
    """Run the program where ``folder`` is a small file system, in a mount namespace of its own."""
    mount = f'mount -t tmpfs -o size={size} ll-test {folder} && exec "$@"'
    command = ("unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", PROGRAM)
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(PYTHON), "LIGHTLOOM_RECORD_DIR": str(folder)},
        check=True,
        timeout=60,
        capture_output=True,
    )
    return done.stdout


def test_without_room_for_the_file_there_is_none(tmp_path: Path) -> None:
    assert run(tmp_path, "64k") == b"No space left on device\n"


def test_without_room_for_all_rows_the_rest_is_other(tmp_path: Path) -> None:
    contents = layout.read(run(tmp_path, "200k"))
    assert contents.operations[0].op == "other"
    assert 63 < len(contents.operations) < 1000
    assert sum(operation.calls for operation in contents.operations) == 1000
    assert contents.damaged_rows == 0

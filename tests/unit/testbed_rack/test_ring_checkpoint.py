"""The ring that writes checkpoints: it goes on bit by bit, and notices what must never happen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import ring_checkpoint
from testbed.ring_checkpoint import FAULT, decode, encode, expected, first_state

STEPS, EVERY = 12, 3
TEXT = Path(ring_checkpoint.__file__).read_text(encoding="utf-8")


def ring(
    folder: Path, restore: int = 0, from_rank: int | None = None
) -> list[list[dict[str, object]]]:
    """Run two ranks on loopback addresses of their own; return what each printed."""
    ranks = []
    for rank in range(2):
        own = folder / str(rank)
        own.mkdir(exist_ok=True)
        source = folder / str(rank if from_rank is None else from_rank)
        env = os.environ | {
            "LIGHTLOOM_RANK": str(rank),
            "LIGHTLOOM_ADDRESSES": "127.77.0.1,127.77.0.2",
            "LIGHTLOOM_CHECKPOINT_DIR": str(own),
            "LIGHTLOOM_RESTORE_DIR": str(source),
            "LIGHTLOOM_RESTORE_STEP": str(restore or ""),
        }
        command = [sys.executable, "-c", TEXT, "0", "1000", str(STEPS), str(EVERY)]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    said = []
    for process in ranks:
        out, _ = process.communicate(timeout=60)
        said.append([json.loads(line) for line in out.splitlines()])
    return said


def test_a_restored_ring_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    whole = ring(tmp_path)
    assert [lines[-1]["digest"] for lines in whole] == expected(2, STEPS)
    assert sorted(path.name for path in (tmp_path / "0").iterdir()) == ["step-12", "step-9"]
    again = ring(tmp_path, restore=9)
    assert [lines[1]["step"] for lines in again] == [9, 9]
    assert [lines[-1]["digest"] for lines in again] == expected(2, STEPS)


def test_another_ranks_part_is_a_fault(tmp_path: Path) -> None:
    ring(tmp_path)
    for rank in (0, 1):
        done = subprocess.run(
            [sys.executable, "-c", TEXT, "0", "10", "12", "3"],
            env=os.environ
            | {
                "LIGHTLOOM_RANK": str(rank),
                "LIGHTLOOM_ADDRESSES": "127.77.0.1",
                "LIGHTLOOM_RESTORE_DIR": str(tmp_path / str(1 - rank)),
                "LIGHTLOOM_RESTORE_STEP": "9",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == FAULT
        assert f"of rank {1 - rank} instead of" in done.stdout


def test_a_torn_or_flipped_file_is_refused() -> None:
    data = encode(9, 1, first_state(1), 1000)
    assert decode(data, 9, 1) == first_state(1)
    for place in range(0, len(data), 7):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(ValueError):
            decode(flipped, 9, 1)
        with pytest.raises(ValueError):
            decode(data[:place], 9, 1)
    with pytest.raises(ValueError, match="step 9"):
        decode(data, 6, 1)

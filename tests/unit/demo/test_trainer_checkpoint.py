"""The trainer's checkpoint files: whole or absent, bit by bit, and only of the same training."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from checkpoints.rules import FolderEntry, Wholeness, find_steps, parse_rule
from testbed.trainer import RingMember, parse_arguments
from testbed.trainer_checkpoint import (
    CheckpointDirectory,
    Saved,
    Slow,
    TrainerCheckpoints,
    decode,
    encode,
    from_environment,
    shared,
)


def saved(step: int = 7) -> Saved:
    random = np.random.default_rng(step)
    weights, momentum = (random.standard_normal(1000).astype(np.float32) for _ in range(2))
    weights[:3] = np.nan, np.inf, -0.0
    return Saved(step, weights, momentum, 0.1 + 0.2, "vgg16")


def test_a_state_comes_back_bit_by_bit(tmp_path: Path) -> None:
    before = saved()
    CheckpointDirectory(tmp_path).write(before)
    after = CheckpointDirectory(tmp_path).read(7, "vgg16")
    assert after.weights.tobytes() == before.weights.tobytes()
    assert after.momentum.tobytes() == before.momentum.tobytes()
    assert (after.step, after.loss, after.of) == (7, before.loss, "vgg16")


def test_the_two_newest_stay_and_the_rule_finds_them_whole(tmp_path: Path) -> None:
    folder = CheckpointDirectory(tmp_path)
    for step in (5, 100, 20):
        folder.write(saved(step))
    assert folder.steps() == [20, 100]
    entries = [FolderEntry(path.name, size=path.stat().st_size) for path in tmp_path.iterdir()]
    found = find_steps(parse_rule("rename"), entries).steps
    assert [(one.step, one.state) for one in found] == [
        (100, Wholeness.WHOLE),
        (20, Wholeness.WHOLE),
    ]


def test_a_failed_write_leaves_the_older_steps_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointDirectory(tmp_path)
    folder.write(saved(5))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        folder.write(saved(10))
    assert [path.name for path in tmp_path.iterdir()] == ["step-5"]


def test_a_damaged_or_foreign_checkpoint_is_refused() -> None:
    data = b"".join(encode(saved()))
    for broken in (data[: len(data) // 2], data + b"\0", b"", b"{}\n", b"[]\n", bytes(100)):
        with pytest.raises(ValueError, match="damaged"):
            decode(broken, 7, "vgg16")
    with pytest.raises(ValueError, match="holds step 7"):
        decode(data, 8, "vgg16")
    with pytest.raises(ValueError, match="of vgg16"):
        decode(data, 7, "resnet1")


def test_lightlooms_variables_say_where_and_how_often(tmp_path: Path) -> None:
    CheckpointDirectory(tmp_path).write(saved())
    env = {
        "LIGHTLOOM_CHECKPOINT_DIR": str(tmp_path),
        "LIGHTLOOM_CHECKPOINT_EVERY": "5",
        "LIGHTLOOM_RESTORE_DIR": str(tmp_path),
        "LIGHTLOOM_RESTORE_STEP": "7",
    }
    found = from_environment(env, None)
    assert [done for done in range(12) if found.due(done)] == [0, 5, 10]
    restored = found.restored("vgg16")
    assert restored is not None
    assert restored.step == 7
    assert from_environment(env, 3).every == 3
    assert not from_environment(env, 0).due(5)
    nothing = from_environment({}, 5)
    assert not nothing.due(5)
    assert nothing.restored("vgg16") is None
    for wrong in ("-1", "often"):
        with pytest.raises(ValueError):
            from_environment({"LIGHTLOOM_CHECKPOINT_EVERY": wrong}, None)


def test_the_rivals_store_has_its_rate_and_one_writer(tmp_path: Path) -> None:
    size = len(b"".join(encode(saved())))
    first = shared(tmp_path / "store", 5, size / 0.2, 0, 2)
    assert first.folder is not None
    begin = time.monotonic()
    first.folder.write(saved())
    assert time.monotonic() - begin >= 0.2, "a store of this rate takes so long"
    other = shared(tmp_path / "store", 5, size / 0.1, 1, 2)
    assert other.alone
    assert not isinstance(other.folder, Slow)
    assert other.restore_step == 7
    begin = time.monotonic()
    assert other.restored("vgg16") is not None
    assert time.monotonic() - begin >= 0.2, "two ranks read at once"


def test_the_command_line_selects_the_rival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIGHTLOOM_CHECKPOINT_DIR", raising=False)
    assert parse_arguments([], RingMember(0, 2)).checkpoints == TrainerCheckpoints()
    words = ["--checkpoint-shared", str(tmp_path), "--checkpoint-every", "4"]
    options = parse_arguments(words, RingMember(1, 2))
    assert dataclasses.replace(options.checkpoints, folder=None) == TrainerCheckpoints(
        every=4, alone=True
    )
    for wrong in (words[:2], [*words, "--checkpoint-rate", "0"], ["--checkpoint-every", "-1"]):
        with pytest.raises(SystemExit):
            parse_arguments(wrong, RingMember(1, 2))

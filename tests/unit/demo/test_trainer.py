"""Tests the parts of the trainer that do not need TensorFlow."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from measure.scaling.nets import shapes
from testbed import trainer
from testbed.trainer import RingMember, parse_arguments, read_ring
from testbed.trainer_data import TRAIN_IMAGES, enlarge, sample_rows
from testbed.trainer_model import VGG16, initial_parameters

ROOT = Path(trainer.__file__).parent.parent


def tf_config(rank: int, size: int, kind: str = "worker") -> str:
    workers = [f"10.77.0.{10 + i}:12345" for i in range(size)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": kind, "index": rank}})


def test_place_in_the_ring() -> None:
    assert read_ring(None) == read_ring("") == RingMember(0, 1)
    assert read_ring(tf_config(0, 1)) == RingMember(0, 1)
    assert read_ring(tf_config(2, 4)) == RingMember(2, 4)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "not JSON", tf_config(4, 4), tf_config(-1, 4), tf_config(0, 4, "chief")]
)
def test_an_invalid_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_ring(text)


def test_samples_do_not_depend_on_how_they_are_split() -> None:
    whole = sample_rows(1, 0, 4 * TRAIN_IMAGES)
    for ranks in (1, 2, 3, 4):
        share = 192 // ranks
        parts = [
            sample_rows(1, step * 192 + rank * share, share)
            for step in range(31)
            for rank in range(ranks)
        ]
        assert np.array_equal(np.concatenate(parts), whole[: 31 * 192])


def test_every_pass_sees_every_image_once_in_another_order() -> None:
    first, second = (sample_rows(1, n * TRAIN_IMAGES, TRAIN_IMAGES) for n in (0, 1))
    assert sorted(first) == sorted(second) == list(range(TRAIN_IMAGES))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, sample_rows(2, 0, TRAIN_IMAGES))


def test_images_keep_corners_and_range_when_enlarged() -> None:
    small = np.random.default_rng(0).random((3, 8, 8)).astype(np.float32)
    large = enlarge(small, 32)
    assert large.shape == (3, 32, 32)
    assert np.allclose(
        large[:, [0, 0, -1, -1], [0, -1, 0, -1]], small[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    )
    assert large.min() >= small.min()
    assert large.max() <= small.max()


def test_the_model_has_the_documented_size() -> None:
    assert sum(int(np.prod(shape)) for shape in shapes(VGG16)) == 1_022_170
    start = initial_parameters(1)
    assert start.nbytes == 4_088_680
    assert start.dtype == np.float32
    assert np.array_equal(start, initial_parameters(1))
    assert not np.array_equal(start, initial_parameters(2))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--samples", "190"],
        ["--samples", "192", "--global-batch", "190"],
        ["--samples", "200", "--global-batch", "192"],
        ["--samples", "0", "--global-batch", "192"],
        ["--samples", "192", "--global-batch", "0"],
    ],
)
def test_inconsistent_sizes_are_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments, RingMember(0, 4))
    assert caught.value.code == 2


def test_defaults_train_some_minutes_at_48_images_a_rank() -> None:
    options = parse_arguments([], RingMember(0, 3))
    assert (options.global_batch, options.steps) == (144, 200)


def test_steps_of_a_run() -> None:
    options = parse_arguments(["--samples", "1920", "--global-batch", "192"], RingMember(0, 3))
    assert options.steps == 10


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed.trainer", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_broken_environment_is_a_usage_error() -> None:
    done = run("--samples", "1", "--global-batch", "1", TF_CONFIG=tf_config(3, 2))
    assert done.returncode == 2
    assert "names no worker" in done.stderr
    assert "Traceback" not in done.stderr


def test_sigterm_ends_also_a_blocked_trainer() -> None:
    code = (
        "import threading\nfrom testbed import trainer\n"
        "trainer._end_on_sigterm()\nprint('up', flush=True)\nthreading.Event().wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
    assert process.returncode == 143
    assert json.loads(rest)["event"] == "stopped"

"""Keras that survives a dead GPU: ``fit`` with BackupAndRestore, rule ``keras``.

    lightloom submit -f examples/keras_backup.yaml

The callback overwrites one backup in LIGHTLOOM_CHECKPOINT_DIR and finds it there again: after a
restart lightloom has put the newest whole one into that folder before the program starts. The
program is the same without lightloom. ``fit`` of Keras 3 does not speak to several workers, hence
one GPU. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

CLASSES = 10
READY = Path("/run/lightloom/ready")
"""Made when start-up is over: from then on a GPU's stand-in gets the CPU share of one GPU."""


def emit(event: str, **fields: Any) -> None:
    """Print one JSON line."""
    print(json.dumps({"event": event, **fields}), flush=True)


def network() -> tf.keras.Model:
    """Return a small net for 32x32 images."""
    layers = tf.keras.layers
    net = [layers.Input((32, 32, 3))]
    for channels in (16, 32, 64):
        net += [
            layers.Conv2D(channels, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
        ]
    model = tf.keras.Sequential([*net, layers.Flatten(), layers.Dense(CLASSES)])
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.02, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def images(count: int) -> tuple[Any, Any]:
    """Return images around ten fixed patterns, the same in every run."""
    random = np.random.default_rng(0)
    patterns = random.standard_normal((CLASSES, 32, 32, 3), dtype=np.float32)
    labels = random.integers(CLASSES, size=count)
    noise = random.standard_normal((count, 32, 32, 3), dtype=np.float32)
    return patterns[labels] + 0.5 * noise, labels


class Report(tf.keras.callbacks.Callback):  # type: ignore[misc]  # tensorflow has no types
    """Prints what happens."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Print the first one, which tells where training goes on."""
        emit("epoch", epoch=epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Print the loss."""
        emit("step", step=epoch, loss=float(logs["loss"]))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell the agent that start-up is over."""
        if READY.parent.is_dir() and not READY.exists():
            READY.touch()


def main() -> None:
    """Train, from the backup if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    model = network()
    folder = os.environ.get("LIGHTLOOM_CHECKPOINT_DIR", "backup")
    backup = tf.keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    x, y = images(options.images)
    emit("start", epochs=options.epochs)
    # In the order of the file: an epoch is then the same, whichever run trains it.
    done = model.fit(
        x,
        y,
        batch_size=options.batch,
        epochs=options.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[backup, Report()],
    )
    weights = float(sum(np.sum(v.numpy(), dtype=np.float64) for v in model.weights))
    emit("end", loss=float(done.history["loss"][-1]) if done.history else None, weights=weights)


if __name__ == "__main__":
    main()

"""Data-parallel training with TensorFlow: MultiWorkerMirroredStrategy, a ring of workers.

    lightloom submit -f examples/tf_vgg16.yaml

lightloom writes TF_CONFIG: the workers in the order of the ring, and which of them this one is.
NCCL reduces where there is a GPU, TensorFlow's own ring over gRPC on CPUs. The loop is written out,
because ``fit`` of Keras 3 does not speak to several workers: every worker keeps the same weights,
and a step's gradient goes round the ring as one vector.

The model is VGG16 for 32x32 images with ``--width`` times the usual channels. With ``--data`` it
reads a data set of ``examples/make_images.py``, else the images are drawn around ten fixed
patterns, so that there is something to learn and nothing to download. With ``--checkpoint``
worker 0 writes model and optimizer to a folder that all workers see, and a later run continues from
there. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

LEAVE_S = 1.0
BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
CLASSES = 10
READY = Path("/run/lightloom/ready")
"""Made when start-up is over: from then on a GPU's stand-in gets the CPU share of one GPU."""


def vgg16(width: float) -> tf.keras.Model:
    """VGG16 (Simonyan and Zisserman 2015, configuration D) without its large dense layers."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((32, 32, 3))])
    for convolutions, channels in BLOCKS:
        for _ in range(convolutions):
            filters = max(1, round(channels * width))
            model.add(
                layers.Conv2D(
                    filters, 3, padding="same", activation="relu", kernel_initializer="he_normal"
                )
            )
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(CLASSES))
    return model


class DrawnImages:
    """Images without a data set: one of ten patterns each, and noise."""

    def batch(self, rank: int, ranks: int, step: int, size: int) -> tuple[Any, Any]:
        """Return a rank's part of a step: ``size`` x 32 x 32 x 3 images, and their labels."""
        patterns = np.random.default_rng(0).standard_normal((CLASSES, 32, 32, 3), dtype=np.float32)
        random = np.random.default_rng((1, step * ranks + rank))
        labels = random.integers(CLASSES, size=size)
        noise = random.standard_normal((size, 32, 32, 3), dtype=np.float32)
        return tf.constant(patterns[labels] + 0.5 * noise), tf.constant(labels)


class StoredImages:
    """The images of a folder that ``examples/make_images.py`` wrote; read as they are needed."""

    def __init__(self, folder: Path) -> None:
        self._images = np.load(folder / "images.npy", mmap_mode="r")
        self._labels = np.load(folder / "labels.npy")

    def batch(self, rank: int, ranks: int, step: int, size: int) -> tuple[Any, Any]:
        """Return a rank's part of a step: ``size`` x 32 x 32 x 3 images, and their labels."""
        first = (step * ranks + rank) * size
        rows = np.arange(first, first + size) % len(self._labels)
        images = self._images[rows].astype(np.float32) / 64 - 2
        return tf.constant(images), tf.constant(self._labels[rows])


def emit(event: str, **fields: Any) -> None:
    """Print one JSON line."""
    print(json.dumps({"event": event, **fields}), flush=True)


class Worker:
    """One worker's model and the compiled parts of a step."""

    def __init__(self, strategy: Any, width: float, learning_rate: float) -> None:
        self._strategy = strategy
        tf.keras.utils.set_random_seed(0)  # every worker starts from the same weights
        self._model = vgg16(width)
        self._optimizer = tf.keras.optimizers.SGD(learning_rate, momentum=0.9)
        self._optimizer.build(self._model.trainable_variables)
        self._steps = tf.Variable(0, dtype=tf.int64)
        kept = {"model": self._model, "optimizer": self._optimizer, "steps": self._steps}
        self._checkpoint = tf.train.Checkpoint(**kept)
        self._gradient = tf.function(self._gradient_of_batch)
        self._reduce = tf.function(self._mean_over_workers)
        self._update = tf.function(self._apply)

    @property
    def weights(self) -> float:
        """The sum of all weights: equal on all workers, or something went wrong."""
        return float(sum(np.sum(v.numpy(), dtype=np.float64) for v in self._model.weights))

    @property
    def steps(self) -> int:
        """Number of steps trained so far, over all runs."""
        return int(self._steps.numpy())

    def restore(self, folder: Path) -> None:
        """Continue from the newest checkpoint of the folder, if it has one."""
        newest = tf.train.latest_checkpoint(str(folder))
        if newest:
            self._checkpoint.restore(newest).assert_existing_objects_matched()

    def save(self, folder: Path) -> str:
        """Write a checkpoint beside the earlier ones, of which two stay; return its path."""
        manager = tf.train.CheckpointManager(self._checkpoint, str(folder), max_to_keep=2)
        return str(manager.save(checkpoint_number=self.steps))

    def step(self, images: Any, labels: Any) -> float:
        """Train one step; return the loss over all workers."""
        message = self._reduce(self._gradient(images, labels))
        self._update(message)
        self._steps.assign_add(1)
        return float(message[-1])

    def _gradient_of_batch(self, images: Any, labels: Any) -> Any:
        """Return the gradient as one vector, the loss behind it."""
        with tf.GradientTape() as tape:
            scores = self._model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
        parts = tape.gradient(loss, self._model.trainable_variables)
        return tf.concat([tf.reshape(part, [-1]) for part in (*parts, loss)], axis=0)

    def _mean_over_workers(self, message: Any) -> Any:
        def body(value: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # The copy binds the value to this replica's device, which all_reduce asks for.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

        return self._strategy.run(body, args=(message,)) / self._strategy.num_replicas_in_sync

    def _apply(self, message: Any) -> None:
        variables = self._model.trainable_variables
        flat = tf.split(tf.clip_by_norm(message[:-1], 1.0), [np.prod(v.shape) for v in variables])
        parts = [tf.reshape(part, v.shape) for part, v in zip(flat, variables, strict=True)]
        self._optimizer.apply_gradients(zip(parts, variables, strict=True))


def main() -> None:
    """Join the ring and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=48, help="images a step and rank")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--data", type=Path, help="folder of a data set")
    parser.add_argument("--checkpoint", type=Path, help="folder to write to, and to continue from")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    options = parser.parse_args()
    rank = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})["index"]
    gpu = bool(tf.config.list_physical_devices("GPU"))
    if not gpu:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
    distribute = tf.distribute.experimental
    collective = distribute.CommunicationImplementation
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=distribute.CommunicationOptions(
            implementation=collective.NCCL if gpu else collective.RING
        )
    )
    worker = Worker(strategy, options.width, options.learning_rate)
    ranks = strategy.num_replicas_in_sync
    data = StoredImages(options.data) if options.data else DrawnImages()
    if options.checkpoint:
        worker.restore(options.checkpoint)
    first = worker.steps
    emit("start", rank=rank, ranks=ranks, step=first)
    loss = 0.0
    for step in range(first, options.steps):
        begin = time.perf_counter()
        loss = worker.step(*data.batch(rank, ranks, step, options.batch))
        if step == first and READY.parent.is_dir():
            READY.touch()
        if rank == 0:
            emit("step", step=step, loss=loss, step_s=time.perf_counter() - begin)
            last = step == options.steps - 1
            if options.checkpoint and (last or (step + 1) % options.checkpoint_every == 0):
                emit("checkpoint", step=step, path=worker.save(options.checkpoint))
    emit("end", rank=rank, loss=loss, weights=worker.weights)
    # Worker 0 serves the coordination of all and leaves last.
    time.sleep(LEAVE_S if rank else 2 * LEAVE_S)


if __name__ == "__main__":
    main()
    # The strategy's gRPC servers have no stop; an ordinary exit may hang on them.
    os._exit(0)

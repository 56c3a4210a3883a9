"""Data-parallel training with TensorFlow: MultiWorkerMirroredStrategy, a ring of workers.

    lightloom submit -f examples/tf_vgg16.yaml

lightloom writes TF_CONFIG: the workers in the order of the ring, and which of them this one is.
NCCL reduces where there is a GPU, TensorFlow's own ring over gRPC on CPUs. The loop is written out,
because ``fit`` of Keras 3 does not speak to several workers: every worker keeps the same weights,
and a step's gradient goes round the ring as one vector.

The model is VGG16 for 32x32 images with ``--width`` times the usual channels; the images are drawn
around ten fixed patterns, so that there is something to learn and nothing to download. Prints one
JSON object a line.
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


def batch(rank: int, step: int, size: int) -> tuple[Any, Any]:
    """This rank's part of a step's images: one of ten patterns each, and noise."""
    patterns = np.random.default_rng(0).standard_normal((CLASSES, 32, 32, 3), dtype=np.float32)
    random = np.random.default_rng((1, rank, step))
    labels = random.integers(CLASSES, size=size)
    noise = random.standard_normal((size, 32, 32, 3), dtype=np.float32)
    return tf.constant(patterns[labels] + 0.5 * noise), tf.constant(labels)


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
        self._gradient = tf.function(self._gradient_of_batch)
        self._reduce = tf.function(self._mean_over_workers)
        self._update = tf.function(self._apply)

    @property
    def weights(self) -> float:
        """The sum of all weights: equal on all workers, or something went wrong."""
        return float(sum(np.sum(v.numpy(), dtype=np.float64) for v in self._model.weights))

    def step(self, images: Any, labels: Any) -> float:
        """Train one step; return the loss over all workers."""
        message = self._reduce(self._gradient(images, labels))
        self._update(message)
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
    emit("start", rank=rank, ranks=strategy.num_replicas_in_sync)
    loss = 0.0
    for step in range(options.steps):
        begin = time.perf_counter()
        loss = worker.step(*batch(rank, step, options.batch))
        if step == 0 and READY.parent.is_dir():
            READY.touch()
        if rank == 0:
            emit("step", step=step, loss=loss, step_s=time.perf_counter() - begin)
    emit("end", rank=rank, loss=loss, weights=worker.weights)
    # Worker 0 serves the coordination of all and leaves last.
    time.sleep(LEAVE_S if rank else 2 * LEAVE_S)


if __name__ == "__main__":
    main()
    # The strategy's gRPC servers have no stop; an ordinary exit may hang on them.
    os._exit(0)

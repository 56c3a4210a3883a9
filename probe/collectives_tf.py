"""Times TensorFlow's ring collectives, as the demo's trainer uses them.

Every rank is one worker of ``MultiWorkerMirroredStrategy`` with the ring implementation; the
workers come from ``TF_CONFIG``. It has all_reduce and all_gather, both into new arrays.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from probe import common
from probe.collectives import (
    VALUES,
    CollectivePoint,
    CollectivesPlan,
    UnsupportedError,
    in_thread,
    read_plan,
    time_all,
)

LEAVE_S = 1.0
"""Rank 0 serves the coordination of all ranks and leaves last."""


class TensorFlowGroup:
    """A strategy over all ranks; it has no groups."""

    name = "ring"

    def __init__(self, tf: Any, plan: CollectivesPlan, rank: int) -> None:
        if len(plan.groups) != 1:
            raise ValueError("TensorFlow's strategy spans all ranks: it has no groups")
        self.note = ""
        self._tf, self._rank, self._size = tf, rank, len(plan.groups[0])
        distribute = tf.distribute.experimental
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=distribute.CommunicationOptions(
                implementation=distribute.CommunicationImplementation.RING
            )
        )
        most = plan.largest // 4
        self._from = tf.Variable(tf.zeros(most))
        self._sum = tf.function(self._all_reduce)
        self._gather = tf.function(self._all_gather)
        self._last: Any = None

    def prepare(self, point: CollectivePoint) -> Callable[[int], None]:
        """Return what starts the i-th operation, at the i-th offset of the array."""
        length = point.count
        places = max(int(self._from.shape[0]) // length, 1)
        operation = self._operation(point)
        parts = [
            self._tf.identity(self._from[place * length : (place + 1) * length])
            for place in range(min(places, 8))
        ]

        def run(number: int) -> None:
            self._last = operation(parts[number % len(parts)])

        run(0)  # traces
        self.finish()
        return run

    def finish(self) -> None:
        """Wait for the last operation; the ring executes them in order."""
        if self._last is not None:
            self._last[-1].numpy()

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.mean(0.0)

    def mean(self, value: float) -> float:
        """Return the mean over all ranks."""
        total = self._sum(self._tf.constant([value], dtype=self._tf.float32))
        return float(total[0].numpy()) / self._size

    def wrong(self, point: CollectivePoint, seed: int) -> int:
        """Count elements of this rank that differ from what the operation defines."""
        tf, length = self._tf, point.count
        found = self._operation(point)(self._values(self._rank, length, seed))
        parts = [self._values(rank, length, seed) for rank in range(self._size)]
        expected = tf.add_n(parts) if point.operation == "all_reduce" else tf.concat(parts, 0)
        return int(tf.math.count_nonzero(found != expected).numpy())

    def leave(self) -> None:
        """Part from the others."""
        self.barrier()
        time.sleep(LEAVE_S if self._rank else 2 * LEAVE_S)

    def _operation(self, point: CollectivePoint) -> Any:
        if point.operation == "all_reduce":
            return self._sum
        if point.operation == "all_gather":
            return self._gather
        raise UnsupportedError(f"TensorFlow's strategy has no {point.operation}")

    def _all_reduce(self, value: Any) -> Any:
        tf = self._tf

        def body(own: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # The copy binds the value to this replica's device, which all_reduce requires.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(own))

        return self._strategy.run(body, args=(value,))

    def _all_gather(self, value: Any) -> Any:
        tf = self._tf

        def body(own: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_gather(tf.identity(own), axis=0)

        return self._strategy.run(body, args=(value,))

    def _values(self, rank: int, count: int, seed: int) -> Any:
        tf = self._tf
        return tf.cast((tf.range(count) + 3 * rank + seed) % VALUES, tf.float32)


def main() -> None:
    """Time the plan of the first argument."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import tensorflow as tf  # noqa: PLC0415  (reads the environment set above)

    plan = read_plan(sys.argv[1])
    rank = common.identity().rank
    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    backend = TensorFlowGroup(tf, plan, rank)
    common.emit("start", framework="tensorflow", version=tf.__version__, backend=backend.name)
    time_all(backend, plan, rank)
    backend.leave()


if __name__ == "__main__":
    status = 0
    try:
        common.run_probe(lambda: in_thread(main))
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    # TensorFlow's server threads have no stop; a normal interpreter exit may hang on them.
    os._exit(status)

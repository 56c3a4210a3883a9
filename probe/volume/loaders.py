"""Three input pipelines with one face: each yields a batch's seconds of reading and decoding.

``builtin`` has threads that share a queue of samples. ``torch`` is a DataLoader with processes,
each of which makes whole batches. ``tf`` is a tf.data pipeline. All read the same samples in an
order of their own for each pass, as a training does.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from probe.volume.samples import SampleReader


@dataclass(slots=True, frozen=True)
class BatchTimes:
    """Times to make one batch: sums over its samples, in seconds."""

    read_s: float
    decode_s: float


@dataclass(slots=True, frozen=True)
class Pipeline:
    """How a loader works."""

    batch: int
    workers: int
    prefetch: int
    """Batches that are made ahead; of each worker for ``torch``."""
    count: int
    """Samples of the data set."""
    seed: int

    def order(self) -> Iterator[int]:
        """Yield samples without end, each pass in another order."""
        random_order = random.Random(self.seed)  # noqa: S311 - the order of samples, no secret
        indices = list(range(self.count))
        while True:
            random_order.shuffle(indices)
            yield from indices


class Builtin(AbstractContextManager["Builtin"], Iterator[BatchTimes]):
    """Threads that read samples, and a queue of batches ahead of the reader."""

    def __init__(self, pipeline: Pipeline, reader: SampleReader) -> None:
        self._pipeline = pipeline
        self._reader = reader
        self._order = pipeline.order()
        self._threads = ThreadPoolExecutor(pipeline.workers, "loader")
        self._ahead: deque[list[Future[tuple[float, float]]]] = deque()

    def __next__(self) -> BatchTimes:
        """Return the next batch when it is complete. Raises OSError of its reads."""
        # A batch removed here makes room for one more behind it.
        while len(self._ahead) < max(self._pipeline.prefetch, 1):
            self._submit()
        spent = [future.result() for future in self._ahead.popleft()]
        if self._pipeline.prefetch:
            self._submit()
        return BatchTimes(sum(read for read, _ in spent), sum(decode for _, decode in spent))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _submit(self) -> None:
        samples = [next(self._order) for _ in range(self._pipeline.batch)]
        self._ahead.append([self._threads.submit(self._reader, index) for index in samples])


class TorchLoader(AbstractContextManager["TorchLoader"], Iterator[BatchTimes]):
    """A DataLoader; the time inside ``next`` is what a training waits."""

    def __init__(self, pipeline: Pipeline, reader: SampleReader) -> None:
        from torch.utils.data import DataLoader  # noqa: PLC0415 - only where the image has it

        self._loader = DataLoader(
            _Dataset(pipeline.count, reader),
            batch_size=pipeline.batch,
            sampler=_Sampler(pipeline),
            num_workers=pipeline.workers,
            prefetch_factor=max(pipeline.prefetch, 1),
            collate_fn=_sums,
            multiprocessing_context="fork",  # they inherit the reader's count
        )
        self._batches = iter(self._loader)

    def __next__(self) -> BatchTimes:
        """Return the next batch."""
        return BatchTimes(*next(self._batches))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Its processes end when the iterator has no reference.
        del self._batches, self._loader


@dataclass(slots=True, frozen=True)
class _Dataset:
    count: int
    reader: SampleReader

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[float, float]:
        return self.reader(index)


@dataclass(slots=True, frozen=True)
class _Sampler:
    pipeline: Pipeline

    def __len__(self) -> int:
        return 2**40

    def __iter__(self) -> Iterator[int]:
        return self.pipeline.order()


def _sums(samples: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(read for read, _ in samples), sum(decode for _, decode in samples)


class TensorFlowLoader(AbstractContextManager["TensorFlowLoader"], Iterator[BatchTimes]):
    """A tf.data pipeline: parallel calls for samples, batches, prefetch."""

    def __init__(self, pipeline: Pipeline, reader: SampleReader) -> None:
        import tensorflow as tf  # noqa: PLC0415 - only where the image has it

        def read(index: Any) -> Any:
            return tf.constant(reader(int(index)), tf.float64)

        data = tf.data.Dataset.from_generator(
            pipeline.order, output_signature=tf.TensorSpec((), tf.int64)
        )
        data = data.map(
            lambda index: tf.py_function(read, [index], tf.float64),
            num_parallel_calls=pipeline.workers,
        ).batch(pipeline.batch)
        if pipeline.prefetch:
            data = data.prefetch(pipeline.prefetch)
        self._batches = iter(data)

    def __next__(self) -> BatchTimes:
        """Return the next batch."""
        read_s, decode_s = next(self._batches).numpy().sum(axis=0)
        return BatchTimes(float(read_s), float(decode_s))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._batches


Loader = Builtin | TorchLoader | TensorFlowLoader
LOADERS: dict[str, Callable[[Pipeline, SampleReader], Loader]] = {
    "builtin": Builtin,
    "torch": TorchLoader,
    "tf": TensorFlowLoader,
}

"""Times torch.distributed's collectives: gloo on CPUs, NCCL where there is a GPU.

The ranks find each other by lightloom's ``env://``. Runs with torch 1.13 and newer. NCCL was
tried with two ranks on one GPU (docs/measure.md).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
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

_LACKING = ("not support", "no support", "not implemented", "not available")
"""Text in torch's errors when a backend lacks an operation."""


class TorchGroup:
    """A process group, and arrays of the plan's largest size."""

    def __init__(self, torch: Any, plan: CollectivesPlan, rank: int) -> None:
        self._torch, self._dist = torch, torch.distributed
        gpu = torch.cuda.is_available()
        self._gpu = gpu
        self._device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else None
        if gpu:
            torch.cuda.set_device(self._device)
        else:
            torch.set_num_threads(1)
        self.name = "nccl" if gpu else "gloo"
        self._dist.init_process_group(
            self.name, init_method="env://", timeout=timedelta(seconds=plan.timeout_s)
        )
        self.note = ""
        own = plan.group_of(rank)
        # Every rank makes every group, in the same order: torch asks for that.
        groups = [self._dist.new_group(list(ranks)) for ranks in plan.groups]
        self._group, self._ranks = groups[own], list(plan.groups[own])
        self._at = self._ranks.index(rank)
        self._most = plan.largest // 4
        # Written once, so that all pages exist before anything is timed.
        self._from, self._to = (self._new(self._most).fill_(0) for _ in range(2))

    def prepare(self, point: CollectivePoint) -> Callable[[int], None]:
        """Return what starts the i-th operation, at the i-th offset of the array."""
        whole = point.size // 4
        places = max(self._most // whole, 1) if whole else 1
        start = self._starter(point.operation)
        self.note = ""

        def run(number: int) -> None:
            offset = number % places * whole
            start(self._from[offset : offset + whole], self._to[offset : offset + whole], point)

        try:
            run(0)
            self.finish()
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            if not _lacks(error):
                raise
            first = str(error).splitlines()[0]
            raise UnsupportedError(f"torch {self._torch.__version__}: {first}") from error
        if point.operation == "reduce_scatter" and self.name == "gloo":
            self.note = "gloo simulates reduce_scatter by all-reduces: not the bandwidth of a ring"
        return run

    def finish(self) -> None:
        """Wait for the GPU; gloo's operations are complete when they return."""
        if self._gpu:
            self._torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.mean(0.0)

    def mean(self, value: float) -> float:
        """Return the mean over all ranks."""
        total = self._torch.tensor([value], dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(total)
        return float(total.item()) / int(self._dist.get_world_size())

    def wrong(self, point: CollectivePoint, seed: int) -> int:
        """Count elements of this rank that differ from what the operation defines."""
        torch, at, ranks = self._torch, self._at, len(self._ranks)
        whole = point.size // 4
        given, found = self._from[:whole], self._to[:whole]
        length = point.count if point.operation == "all_gather" else whole
        given[:length].copy_(self._values(at, length, seed))
        found.fill_(-1)
        self._starter(point.operation)(given, found, point)
        self.finish()

        def summed(first: int, count: int) -> Any:
            parts = (self._values(r, first + count, seed)[first:] for r in range(ranks))
            return sum(parts, torch.zeros(count, device=self._device))

        def gathered(first: int) -> Any:
            end = first + point.count
            return torch.cat([self._values(r, end, seed)[first:] for r in range(ranks)])

        match point.operation:
            case "all_reduce":
                result, expected = given, summed(0, whole)
            case "broadcast":
                result, expected = given, self._values(0, whole, seed)
            case "reduce":  # the other ranks' arrays are undefined
                result, expected = given, summed(0, whole) if at == 0 else given
            case "all_gather":
                result, expected = found, gathered(0)
            case "alltoall":
                result, expected = found, gathered(at * point.count)
            case "reduce_scatter":
                result = found[: point.count]
                expected = summed(at * point.count, point.count)
            case _:
                result, expected = found, self._values((at - 1) % ranks, whole, seed)
        return int((result != expected).sum().item())

    def leave(self) -> None:
        """Part from the others; rank 0 keeps the store until all have.

        The barrier's tensor outlives the group. torch 2.6 joins its threads with the interpreter's
        lock held, and a thread that is the last to drop a tensor waits for that lock.
        """
        last = self._new(1)
        self._dist.all_reduce(last)
        self._dist.destroy_process_group()
        del last

    def _starter(self, operation: str) -> Callable[[Any, Any, CollectivePoint], None]:
        """Return the operation on (input, output); it works in place where torch does."""
        dist, group, ranks = self._dist, self._group, len(self._ranks)
        root = self._ranks[0]

        def all_gather(given: Any, found: Any, point: CollectivePoint) -> None:
            own = given[: point.count]
            if self._gpu:
                dist.all_gather_into_tensor(found, own, group=group)
            else:
                dist.all_gather(list(found.chunk(ranks)), own, group=group)

        def reduce_scatter(given: Any, found: Any, point: CollectivePoint) -> None:
            dist.reduce_scatter_tensor(found[: point.count], given, group=group)

        def sendrecv(given: Any, found: Any, point: CollectivePoint) -> None:
            after = self._ranks[(self._at + 1) % ranks]
            before = self._ranks[(self._at - 1) % ranks]
            both = [
                dist.P2POp(dist.isend, given, after, group),
                dist.P2POp(dist.irecv, found, before, group),
            ]
            for work in dist.batch_isend_irecv(both):
                work.wait()

        known: dict[str, Callable[[Any, Any, CollectivePoint], None]] = {
            "all_reduce": lambda given, found, point: dist.all_reduce(given, group=group),
            "all_gather": all_gather,
            "reduce_scatter": reduce_scatter,
            "alltoall": lambda given, found, point: dist.all_to_all_single(
                found, given, group=group
            ),
            "broadcast": lambda given, found, point: dist.broadcast(given, root, group=group),
            "reduce": lambda given, found, point: dist.reduce(given, root, group=group),
            "sendrecv": sendrecv,
        }
        if operation not in known:
            raise UnsupportedError(f"this probe does not support {operation}")
        return known[operation]

    def _values(self, rank: int, count: int, seed: int) -> Any:
        index = self._torch.arange(count, device=self._device)
        return ((index + 3 * rank + seed) % VALUES).to(self._torch.float32)

    def _new(self, count: int) -> Any:
        return self._torch.empty(count, dtype=self._torch.float32, device=self._device)


def _lacks(error: Exception) -> bool:
    said = str(error).lower()
    return isinstance(error, AttributeError | NotImplementedError) or any(
        words in said for words in _LACKING
    )


def main() -> None:
    """Time the plan of the first argument."""
    import torch  # noqa: PLC0415  (only the job's image has it)

    plan = read_plan(sys.argv[1])
    rank = common.identity().rank
    backend = TorchGroup(torch, plan, rank)
    common.emit("start", framework="torch", version=str(torch.__version__), backend=backend.name)
    time_all(backend, plan, rank)
    backend.leave()


if __name__ == "__main__":
    common.run_probe(lambda: in_thread(main))

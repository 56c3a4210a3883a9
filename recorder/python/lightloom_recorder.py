"""Records the collectives of an unchanged PyTorch program; for torch 1.13 and newer.

Calls from Python pass through methods of ``ProcessGroup``, which are wrapped. Calls from C++, such
as those of DistributedDataParallel, pass through the dispatcher, where a kernel before the
backend's records them. Both give exact calls and bytes, and pass arguments and results on as they
are. Durations:

* of tensors in main memory (gloo), from before the issue to the completion of the call's future:
  ``timing`` host;
* of calls from C++ before torch 2.2, whose results are opaque: to the end of the backward pass,
  which waits for them: ``timing`` issue, an upper bound;
* of other devices (NCCL), and of sends and receives, which have no future: none, ``timing`` issue.
  Where NCCL loads its plug-in, it records the calls of GPUs, and this module skips them.

Calls are timed one in k, a power of two, where timing them all costs more than 1 % of the time. An
error of the recorder is counted and never reaches the program.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from recorder.python.lightloom_writer import Writer
else:
    from lightloom_writer import Writer

FOLDER = os.environ.get("LIGHTLOOM_RECORD_DIR", "/lightloom/record")
PLUGIN_SINCE = (2, 23)
"""NCCL that loads plug-ins; older ones are recorded here, without durations."""
TIMING_SHARE = 0.008
"""Share of the time that timing may cost before fewer calls are timed."""
WINDOW = 128
"""Calls after which the share is checked."""
MOST_RARELY = 64
EXIT_WAIT_S = 0.2
"""Wait for futures at exit: their callbacks must not run in an interpreter that ends."""

_NAMES = {
    "torch.float32": "float",
    "torch.float64": "double",
    "torch.float16": "half",
    "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float8_e5m2": "fp8_e5m2",
}


class _Rule:
    """How a function of a process group is counted."""

    __slots__ = ("op", "p2p", "part", "tag", "whole")

    def __init__(self, op: str, part: int | None = 0, whole: bool = True, tag: str = "") -> None:
        self.op = op
        self.part = part
        """Which argument has the tensors; None without."""
        self.whole = whole
        """Whether they are S, the whole array of nccl-tests; else they are one rank's part."""
        self.tag = tag
        self.p2p = op in ("send", "recv")


_RULES = {
    "allreduce": _Rule("all_reduce"),
    "allreduce_coalesced": _Rule("all_reduce", tag="coalesced"),
    "broadcast": _Rule("broadcast"),
    "reduce": _Rule("reduce"),
    "allgather": _Rule("all_gather"),
    "_allgather_base": _Rule("all_gather"),
    "allgather_coalesced": _Rule("all_gather", tag="coalesced"),
    "allgather_into_tensor_coalesced": _Rule("all_gather", tag="coalesced"),
    "gather": _Rule("gather", part=1, whole=False),
    "scatter": _Rule("scatter", whole=False),
    "reduce_scatter": _Rule("reduce_scatter", part=1),
    "_reduce_scatter_base": _Rule("reduce_scatter", part=1),
    "reduce_scatter_tensor_coalesced": _Rule("reduce_scatter", part=1, tag="coalesced"),
    "alltoall": _Rule("alltoall", part=1),
    "alltoall_base": _Rule("alltoall", part=1),
    "send": _Rule("send"),
    "recv": _Rule("recv"),
    "recv_anysource": _Rule("recv"),
    "barrier": _Rule("barrier", part=None),
    "monitored_barrier": _Rule("barrier", part=None),
}
"""Methods of ``ProcessGroup``. The dispatcher's names are these, most with ``_`` at the end."""
_DISPATCHED = {"recv_anysource": "recv_any_source_"}


class _Group:
    """A communicator: its number, the same on all its ranks, and its calls so far."""

    __slots__ = ("number", "private", "sequence", "sequence_p2p", "size")

    def __init__(self, name: str, ranks: list[int], rank: int) -> None:
        self.number = _digest(f"{name} {ranks}")
        self.private = _digest(f"{name} {ranks} of {rank}")
        """For sends and receives, which the other ranks do not issue in the same order."""
        self.size = max(len(ranks), 1)
        self.sequence = 0
        self.sequence_p2p = 0


class Recorder:
    """Records calls into a file that it makes at the first one."""

    def __init__(self, note: str, folder: str = FOLDER) -> None:
        self.rarely = 1
        """Calls of which one is timed."""
        self._note = note
        self._folder = folder
        self._writer: Writer | None = None
        self._failed = False
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._steps: int | None = None
        """The optimizer whose steps count."""
        self._step_ended_s: float | None = None
        self._seen = 0
        self._spent_s = 0.0
        self._window_s = time.monotonic()
        self._running = 0
        atexit.register(self._leave)

    def writer(self) -> Writer | None:
        """Return the file's writer; None where the file cannot be written."""
        if self._writer is None and not self._failed:
            with self._lock:
                if self._writer is None and not self._failed:
                    try:
                        path = f"{self._folder}/torch-{os.getpid()}.rec"
                        self._writer = Writer(path, "torch", self._note)
                    except Exception:
                        self._failed = True
        writer = self._writer
        return writer if writer is not None and writer.open else None

    def call(
        self,
        rule: _Rule,
        group: _Group,
        arguments: tuple[Any, ...],
        issue: Callable[[], Any],
        future: Callable[[Any], Any] | None,
    ) -> Any:
        """Return what ``issue`` returns, and record it; what it raises passes through.

        ``future`` finds the future of its result; None where it is opaque.
        """
        before = time.monotonic()
        try:
            visible = future is not None and not rule.p2p
            prepared = self._prepare(rule, group, arguments, visible)
        except Exception:
            prepared = None
            self._lose()
        issued = time.monotonic()
        result = issue()
        returned = time.monotonic()
        if prepared is not None:
            try:
                self._follow(prepared, issued, returned, result, future)
            except Exception:
                self._lose()
        self._spent(time.monotonic() - returned + issued - before)
        return result

    def wait(self, op: str, seconds: float) -> None:
        """Record a wait, or a step."""
        writer = self.writer()
        if writer is not None:
            writer.wait(writer.row(op, 0, "", "host"), seconds)

    def stepped(self, optimizer: object) -> None:
        """Record a step of the program: one of the first optimizer that makes one."""
        if self._steps is None:
            self._steps = id(optimizer)
        if self._steps == id(optimizer):
            now, before = time.monotonic(), self._step_ended_s
            self._step_ended_s = now
            if before is not None:
                self.wait("step", now - before)

    def group(self, name: str, ranks: Callable[[], list[int]], rank: Callable[[], int]) -> _Group:
        """Return the communicator of a name; its members are asked for once."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = _Group(name, ranks(), rank())
        return found

    def _prepare(
        self, rule: _Rule, group: _Group, arguments: tuple[Any, ...], visible: bool
    ) -> tuple[Writer, int, int, int, bool] | None:
        """Return writer, row, communicator, sequence and whether the end can be seen.

        Counts the call and returns None where it is not to be timed.
        """
        writer = self.writer()
        if writer is None:
            return None
        size, dtype, host = 0, "", True
        if rule.part is not None:
            for tensor in _tensors(arguments[rule.part]):
                size += tensor.numel() * tensor.element_size()
                name = _type_name(tensor.dtype)
                dtype = name if dtype in ("", name) else "mixed"
                host = host and tensor.device.type == "cpu"
        if not rule.whole:
            size *= group.size
        timing = "host" if host and visible else "issue"
        row = writer.row(rule.op, size, dtype, timing, rule.tag)
        if rule.p2p:
            communicator, sequence = group.private, group.sequence_p2p
            group.sequence_p2p = sequence + 1
        else:
            communicator, sequence = group.number, group.sequence
            group.sequence = sequence + 1
        if sequence % self.rarely:
            writer.count(row)
            return None
        return writer, row, communicator, sequence, host and not rule.p2p

    def _follow(
        self,
        prepared: tuple[Writer, int, int, int, bool],
        issued: float,
        returned: float,
        result: Any,
        future: Callable[[Any], Any] | None,
    ) -> None:
        writer, row, communicator, sequence, timed = prepared
        ticket = writer.issue(row, communicator, sequence, issued)
        if not timed:
            return
        if future is None:
            _after_backward(lambda: writer.end(ticket, row, issued, time.monotonic()))
            return
        if result is None:  # it has waited itself
            writer.end(ticket, row, issued, returned)
            return
        self._running += 1

        def ended(_: Any) -> None:
            try:
                now = time.monotonic()
                self._running -= 1
                writer.end(ticket, row, issued, now)
                self._spent_s += time.monotonic() - now
            except Exception:
                self._lose()

        future(result).add_done_callback(ended)

    def _spent(self, seconds: float) -> None:
        """Time fewer calls while it costs too much, more when it costs little."""
        self._spent_s += seconds
        self._seen += 1
        if self._seen < WINDOW:
            return
        now = time.monotonic()
        share = self._spent_s / max(now - self._window_s, 1e-9)
        if share > TIMING_SHARE:
            self.rarely = min(2 * self.rarely, MOST_RARELY)
        elif share < TIMING_SHARE / 4:
            self.rarely = max(self.rarely // 2, 1)
        self._seen, self._spent_s, self._window_s = 0, 0.0, now

    def _lose(self) -> None:
        writer = self._writer
        if writer is not None:
            writer.lose()

    def _leave(self) -> None:
        until = time.monotonic() + EXIT_WAIT_S
        while self._running > 0 and time.monotonic() < until:
            time.sleep(0.005)


def distributed(module: ModuleType) -> None:
    """Record from the first ``init_process_group`` on; ``module`` has the function."""
    start = module.init_process_group

    @functools.wraps(start)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        if not _installed:
            _installed.append(True)
            with contextlib.suppress(Exception):  # not recorded, and not harmed
                _Taps(module).install()
        return start(*arguments, **options)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]


def loaders(module: ModuleType) -> None:
    """Record the time in which the program waits for a batch of a ``DataLoader``."""
    iterator = module._BaseDataLoaderIter
    following = iterator.__next__

    @functools.wraps(following)
    def next_batch(self: Iterator[Any]) -> Any:
        begin = time.monotonic()
        batch = following(self)
        with contextlib.suppress(Exception):
            recorder().wait("input_wait", time.monotonic() - begin)
        return batch

    iterator.__next__ = next_batch


def optimizers(module: ModuleType) -> None:
    """Record the steps of the program's first optimizer."""

    def stepped(optimizer: object, *_: object) -> None:
        with contextlib.suppress(Exception):
            recorder().stepped(optimizer)

    if hasattr(module, "register_optimizer_step_post_hook"):
        module.register_optimizer_step_post_hook(stepped)
        return
    prepare = module.Optimizer._hook_for_profile

    @functools.wraps(prepare)
    def hook(self: Any) -> None:
        prepare(self)
        step = type(self).step
        if getattr(step, "_lightloom", False):
            return

        @functools.wraps(step)
        def recorded(self: Any, *arguments: Any, **options: Any) -> Any:
            result = step(self, *arguments, **options)
            stepped(self)
            return result

        recorded._lightloom = True  # type: ignore[attr-defined]
        type(self).step = recorded

    module.Optimizer._hook_for_profile = hook


@functools.lru_cache(maxsize=1)
def recorder() -> Recorder:
    """Return the process's recorder."""
    import torch  # noqa: PLC0415 - loaded by the program, never by this module

    return Recorder(f"torch {torch.__version__}")


_installed: list[Any] = []


class _Taps:
    """The places at which the collectives of a process are seen."""

    def __init__(self, module: ModuleType) -> None:
        """``module`` is ``torch.distributed.distributed_c10d``."""
        import torch  # noqa: PLC0415

        self._torch = torch
        self._module: Any = module
        self._kind: Any = self._module.ProcessGroup
        self._work: Any = torch._C._distributed_c10d.Work
        self._visible = hasattr(self._kind, "unbox") and hasattr(self._work, "unbox")
        """Whether a kernel can see the future of a call."""
        self._below: Any = torch._C._AutoDispatchBelowAutograd
        """While one of it lives, calls pass by the kernels."""
        self._library: Any = None
        self._recorder = recorder()
        self._plugin = _plugin_records(torch)
        self._loaded = False
        """Whether NCCL has loaded the plug-in: it has made its file."""

    def install(self) -> None:
        """Wrap the process group's methods and register the kernels."""
        for name, rule in _RULES.items():
            if name in vars(self._kind):
                setattr(self._kind, name, self._method(rule, getattr(self._kind, name)))
        keys = ["AutogradCPU"]
        if not self._plugin:
            keys.append("AutogradCUDA")
        has_kernel = self._torch._C._dispatch_has_kernel_for_dispatch_key
        self._library = self._torch.library.Library("c10d", "IMPL")
        for name, rule in _RULES.items():
            for found in (_DISPATCHED.get(name, name), name + "_"):
                operator = getattr(getattr(self._torch.ops.c10d, found, None), "default", None)
                if operator is None:
                    continue
                for key in keys:
                    if not has_kernel(f"c10d::{found}", key):
                        self._library.impl(found, self._kernel(rule, operator), key)
        _installed.append(self)  # with the library, whose kernels end with it

    def _method(self, rule: _Rule, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(group: Any, *arguments: Any, **options: Any) -> Any:
            if self._plugin and self._by_nccl(rule, arguments):
                return original(group, *arguments, **options)

            def issue() -> Any:
                guard = self._below()
                try:
                    return original(group, *arguments, **options)
                finally:
                    del guard

            try:
                ours = self._group(group)
                given = arguments + tuple(options.values())
            except Exception:
                return original(group, *arguments, **options)
            return self._recorder.call(rule, ours, given, issue, _future)

        return call

    def _kernel(self, rule: _Rule, operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            def issue() -> Any:
                guard = self._below()
                try:
                    return operator(*arguments)
                finally:
                    del guard

            try:
                ours = self._boxed_group(arguments) if _plain(arguments) else None
            except Exception:
                ours = None
            if ours is None:
                return issue()
            future = self._boxed_future if self._visible else None
            return self._recorder.call(rule, ours, arguments, issue, future)

        return call

    def _by_nccl(self, rule: _Rule, arguments: tuple[Any, ...]) -> bool:
        """Whether NCCL's plug-in records this call: one of a GPU's tensors."""
        if rule.part is None:
            return False
        try:
            if _tensors(arguments[rule.part])[0].device.type != "cuda":
                return False
        except Exception:  # no tensor, or not where it is expected
            return False
        self._loaded = self._loaded or os.access(f"{FOLDER}/nccl-{os.getpid()}.rec", os.F_OK)
        return self._loaded

    def _group(self, group: Any) -> _Group:
        name = getattr(group, "group_name", None)
        if name is None:
            name = self._module._pg_names.get(group, "")
        rank = self._module.get_rank
        return self._recorder.group(name, lambda: _ranks(self._module, group), rank)

    def _boxed_group(self, arguments: tuple[Any, ...]) -> _Group:
        """Return the group of a kernel's arguments; the first one where it is opaque."""
        if not self._visible:
            return self._group(self._module._get_default_group())
        # It comes before the operator of a reduction, which is boxed as well.
        boxed = next(value for value in arguments if type(value).__name__ == "ScriptObject")
        return self._group(self._kind.unbox(boxed))

    def _boxed_future(self, result: Any) -> Any:
        work = result[-1] if isinstance(result, (tuple, list)) else result
        return self._work.unbox(work).get_future()


def _after_backward(end: Callable[[], None]) -> None:
    """Call ``end`` when the backward pass has waited for its collectives; not outside of one.

    The pass runs callbacks in the order in which they are queued, and a callback may queue another:
    the second one comes after DistributedDataParallel's, which waits.
    """
    import torch  # noqa: PLC0415

    queue = torch.autograd.Variable._execution_engine.queue_callback

    def second() -> None:
        with contextlib.suppress(Exception):
            end()

    def first() -> None:
        with contextlib.suppress(Exception):
            queue(second)

    with contextlib.suppress(RuntimeError):  # outside of it the end of a call is unknown
        queue(first)


def _plugin_records(torch: Any) -> bool:
    """Whether NCCL loads lightloom's plug-in, which records better."""
    if not os.environ.get("NCCL_PROFILER_PLUGIN", "").startswith("/lightloom/recorder/"):
        return False
    try:
        return tuple(torch.cuda.nccl.version())[:2] >= PLUGIN_SINCE
    except Exception:
        return False


def _future(work: Any) -> Any:
    return work.get_future()


def _plain(arguments: tuple[Any, ...]) -> bool:
    """Whether no argument is a tensor of a compiler's trial run."""
    return all(
        type(tensor).__name__ in ("Tensor", "Parameter", "Buffer")
        for argument in arguments
        for tensor in _tensors(argument)
    )


def _tensors(value: Any) -> list[Any]:
    """Return the tensors of an argument: of one, or of a list, or of lists of them."""
    if hasattr(value, "element_size"):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _ranks(module: ModuleType, process_group: Any) -> list[int]:
    if hasattr(module, "get_process_group_ranks"):
        return list(module.get_process_group_ranks(process_group))
    return sorted(module._pg_group_ranks.get(process_group, {})) or list(
        range(process_group.size())
    )


@functools.lru_cache(maxsize=64)
def _type_name(dtype: Any) -> str:
    text = str(dtype)
    return _NAMES.get(text, text.rpartition(".")[2])


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")

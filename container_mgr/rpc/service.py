"""The gRPC service of ``protos/agent.proto``. It completes every change that it has started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import grpc
import structlog

from agentlink.codec import read, write
from base import clock
from container_mgr.checkpoints.contract import Holder, Transfers
from container_mgr.docker.attached import Stream
from container_mgr.docker.engine import (
    DockerHost,
    EngineFailure,
    EngineTimeoutError,
    RegistryDeniedError,
)
from container_mgr.hardware.inventory import Inventory
from container_mgr.images.kept import KeptImages
from container_mgr.images.pulls import Pulls
from container_mgr.ranks import images, logs, policy
from container_mgr.ranks.batch import BatchOutcome
from container_mgr.ranks.execs import ExecCommand
from container_mgr.ranks.ranks import Ranks
from container_mgr.rpc import messages
from container_mgr.rpc.calls import CODES, hinted, refuse
from container_mgr.rpc.checkpoints import CheckpointCalls
from container_mgr.rpc.scopes import ScopeCalls
from container_mgr.scopes.scopes import Scopes
from container_mgr.values import AgentError, Container, Health, ServedEndpoint
from protos import agent_pb2 as pb

SAMPLE_INTERVAL_S = 1.0
PULL_REPORT_S = 1.0
"""Between two messages about a pull."""
MAX_RANKS_PER_CALL = 64
MAX_GRACE_S = 300.0
MAX_SETTLE_S = 1.0
MAX_LOG_READERS = 128
MAX_IMAGES = 1000
"""In one list."""
MAX_LISTENERS = 16
"""Concurrent streams of telemetry; a controller uses one."""

_QUEUE_BATCHES = 4
_FIRST_INPUT_S = 10.0
_OF_THE_REQUEST = frozenset({"invalid", "not_found", "conflict"})
"""Codes of a refused request; the others would describe the agent itself."""

_T = TypeVar("_T")

_log = structlog.get_logger("container_mgr.rpc.service")


class AgentService(CheckpointCalls, ScopeCalls):
    """Answers the controller. A change completes even when its caller disconnects.

    Without ``checkpoints`` and ``transfers`` the agent keeps no checkpoints, without ``scopes`` it
    touches no process of another scheduler, and reports so.
    """

    def __init__(
        self,
        server: str,
        engine: DockerHost,
        ranks: Ranks,
        inventory: Inventory,
        *,
        pulls: Pulls,
        kept: KeptImages,
        checkpoints: Holder | None = None,
        transfers: Transfers | None = None,
        scopes: Scopes | None = None,
    ) -> None:
        CheckpointCalls.__init__(self, inventory, checkpoints=checkpoints, transfers=transfers)
        ScopeCalls.__init__(self, scopes, self._changes)
        self._server = server
        self._engine = engine
        self._ranks = ranks
        self._pulls = pulls
        self._images = kept
        self._listeners: set[asyncio.Queue[pb.TelemetryBatch]] = set()
        self._readers = 0

    async def sample_forever(self) -> None:
        """Measure once a second. A listener that falls behind loses the oldest samples."""
        while True:
            started = clock.monotonic()
            try:
                samples, server = self._ranks.sample(), self._inventory.server()
                self._send(messages.telemetry_of(clock.time(), samples, server))
            except Exception:
                # A failed second must not stop the loop, which also applies CPU shares.
                _log.exception("not measured")
            await asyncio.sleep(max(0.0, started + SAMPLE_INTERVAL_S - clock.monotonic()))

    def _send(self, batch: pb.TelemetryBatch) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(batch)

    async def Command(  # noqa: N802
        self, request: pb.CommandRequest, context: grpc.aio.ServicerContext
    ) -> pb.CommandReply:
        """Confirm that the caller commands; the gate has checked and stored its term."""
        return pb.CommandReply(term=self._ranks.term)

    async def Describe(  # noqa: N802
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DescribeReply:
        """Describe this server."""
        facts = await self._or_abort(context, self._engine.facts())
        return pb.DescribeReply(
            server=self._server,
            agent_version=_version(),
            engine=f"docker {facts.version}",
            endpoints=[self._endpoint(e) for e in (self._inventory.endpoints or {}).values()],
            cores=self._inventory.facts.cores,
            memory_bytes=self._inventory.facts.memory_bytes,
            gpu_binding=self._binding(),
        )

    async def ImageStatus(  # noqa: N802
        self, request: pb.ImageRequest, context: grpc.aio.ServicerContext
    ) -> pb.ImageReply:
        """Return whether the engine has an image, and what its registry has under the name."""
        reply = await self._image(request, context)
        if request.resolve:
            if reply.refusal:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reply.refusal)
            login = messages.login_of(request)
            try:
                reply.digest = await self._engine.registry_digest(request.image, login)
            except EngineFailure as error:
                _log.warning("registry not asked", image=request.image, reason=str(error))
                await self._not_pulled(request.image, error, context)
        return reply

    async def PullImage(  # noqa: N802
        self, request: pb.ImageRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.PullProgress]:
        """Pull an image that is missing, or any image when asked to refresh it."""
        status = await self._image(request, context)
        if status.refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, status.refusal)
        if not status.present or request.refresh:
            try:
                pull = self._pulls.join(request.image, messages.login_of(request))
            except AgentError as error:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
                raise  # abort() never returns
            while not pull.task.done():
                yield write(pb.PullProgress, pull.state)
                await asyncio.wait({pull.task}, timeout=PULL_REPORT_S)
            try:
                pull.task.result()
            except EngineFailure as error:
                await self._not_pulled(request.image, error, context)
            status = await self._image(pb.ImageRequest(image=request.image), context)
        self._images.used(status.image_id)
        yield pb.PullProgress(image=status)

    async def Images(  # noqa: N802
        self, request: pb.ImagesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ImagesReply:
        """List the images of this server."""
        held = await self._or_abort(context, self._engine.images())
        in_use = await self._or_abort(context, self._engine.images_in_use())
        return pb.ImagesReply(
            images=[
                pb.HeldImage(
                    image_id=image.id,
                    names=image.names,
                    size_bytes=image.size_bytes,
                    jobs=sorted(in_use.get(image.id, ())),
                    used_at=self._images.used_at(image.id),
                )
                for image in held[:MAX_IMAGES]
            ]
        )

    async def _image(
        self, request: pb.ImageRequest, context: grpc.aio.ServicerContext
    ) -> pb.ImageReply:
        await self._allowed(
            context,
            lambda: images.check(
                request.image, request.image[:80], digest_only=self._inventory.digest_only
            ),
        )
        image = await self._or_abort(context, self._engine.image(request.image))
        reply = pb.ImageReply(present=image is not None)
        if image is not None:
            reply.image_id, reply.size_bytes = image.id, image.size_bytes
            reply.names.extend(image.names)
        if image is None or request.refresh or request.resolve:
            try:
                images.check_pull(request.image, request.image, self._inventory.registries)
            except AgentError as error:
                reply.refusal = hinted(error.message, error.hint)
        return reply

    async def _not_pulled(
        self, name: str, error: EngineFailure, context: grpc.aio.ServicerContext
    ) -> None:
        """Abort without the engine's words: a job must not use them to probe networks."""
        if isinstance(error, RegistryDeniedError):
            registry = images.repository(name).partition("/")[0]
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                f"registry {registry} refuses image {name} to the user of the site file, or has"
                " no such image",
            )
        late = isinstance(error, EngineTimeoutError)
        await context.abort(
            grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.NOT_FOUND,
            f"image {name} cannot be fetched; the reason is in the log of the server's agent",
        )

    async def _allowed(self, context: grpc.aio.ServicerContext, check: Callable[[], None]) -> None:
        try:
            check()
        except AgentError as error:
            text = hinted(error.message, error.hint)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)

    async def Start(  # noqa: N802
        self, request: pb.StartRequest, context: grpc.aio.ServicerContext
    ) -> pb.RanksReply:
        """Start ranks."""
        if len(request.ranks) > MAX_RANKS_PER_CALL:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"at most {MAX_RANKS_PER_CALL} ranks per call"
            )
        try:
            specs = [messages.spec_of(rank) for rank in request.ranks]
        except AgentError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await self._outcome(lambda: self._ranks.start(specs))

    async def Stop(  # noqa: N802
        self, request: pb.StopRequest, context: grpc.aio.ServicerContext
    ) -> pb.RanksReply:
        """End a job's ranks."""
        grace_s = min(MAX_GRACE_S, max(0.0, request.grace_s))
        until = request.until_epoch if request.HasField("until_epoch") else None
        return await self._outcome(lambda: self._ranks.stop(request.job, grace_s, until))

    async def Freeze(  # noqa: N802
        self, request: pb.FreezeRequest, context: grpc.aio.ServicerContext
    ) -> pb.RanksReply:
        """Freeze a job's ranks."""
        settle_s = min(MAX_SETTLE_S, max(0.0, request.settle_s))
        return await self._outcome(lambda: self._ranks.freeze(request.job, settle_s))

    async def Thaw(  # noqa: N802
        self, request: pb.JobRequest, context: grpc.aio.ServicerContext
    ) -> pb.RanksReply:
        """Thaw a job's ranks."""
        return await self._outcome(lambda: self._ranks.thaw(request.job))

    async def Observe(  # noqa: N802
        self, request: pb.ObserveRequest, context: grpc.aio.ServicerContext
    ) -> pb.RanksReply:
        """Report all ranks, or one job's."""
        containers = await self._or_abort(context, self._ranks.observe(request.job or None))
        await self._inventory.look_after(
            {c.endpoint: c.id for c in containers if c.state == "exited"}
        )
        reply = self._reply(BatchOutcome(tuple(containers)))
        health = self._inventory.health(self._ranks.carriers())
        reply.health.extend(map(messages.health_message, health))
        return reply

    async def Telemetry(  # noqa: N802
        self, request: pb.TelemetryRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.TelemetryBatch]:
        """Stream samples."""
        if len(self._listeners) >= MAX_LISTENERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_LISTENERS} streams of telemetry are open"
            )
        queue: asyncio.Queue[pb.TelemetryBatch] = asyncio.Queue(_QUEUE_BATCHES)
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    async def Logs(  # noqa: N802
        self, request: pb.LogsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.LogBatch]:
        """Stream the output of a rank."""
        await self._allowed(context, lambda: policy.check_job(request.job))
        await self._allowed(context, lambda: policy.check_search(request.job, request.search))
        if self._readers >= MAX_LOG_READERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_LOG_READERS} log streams are open on {self._server}",
            )
        self._readers += 1
        try:
            async for batch in self._logs(request, context):
                yield batch
        finally:
            self._readers -= 1

    async def _logs(
        self, request: pb.LogsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.LogBatch]:
        newest = await self._newest(request, context)
        path = self._log_path(newest, request)
        if path is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"{self._server} keeps no output of rank {request.rank} of job {request.job}",
            )
            return

        async def alive() -> bool:
            return newest is not None and await self._ranks.is_written(newest)

        tail = request.tail if request.HasField("tail") else None
        since = request.since if request.HasField("since") else None
        matching = logs.LineFilter(since, request.search)
        async for lines in logs.read(
            path, tail=tail, follow=request.follow, alive=alive, matching=matching
        ):
            yield messages.logs_of(lines)

    async def _newest(
        self, request: pb.LogsRequest, context: grpc.aio.ServicerContext
    ) -> Container | None:
        """Return the container to read; None if only the archive can have its output."""
        try:
            containers = await self._ranks.observe(request.job)
        except EngineFailure as error:
            if self._archived(request) is None:
                await self._abort(context, error)
            containers = []
        mine = [c for c in containers if c.key.rank == request.rank]
        if request.HasField("epoch"):
            mine = [c for c in mine if c.key.epoch == request.epoch]
        return max(mine, key=lambda c: c.key.epoch, default=None)

    def _log_path(self, container: Container | None, request: pb.LogsRequest) -> Path | None:
        if container is not None and not container.log_path:
            return None
        if container is not None and logs.exists(Path(container.log_path)):
            return Path(container.log_path)
        # Removed, perhaps at this moment: its log was archived before.
        return self._archived(request)

    def _archived(self, request: pb.LogsRequest) -> Path | None:
        epoch = request.epoch if request.HasField("epoch") else None
        return self._ranks.archive.find(request.job, request.rank, epoch)

    async def Volumes(  # noqa: N802
        self, request: pb.VolumesRequest, context: grpc.aio.ServicerContext
    ) -> pb.VolumesReply:
        """Report the volumes of this server."""
        found = await self._or_abort(context, self._ranks.volumes())
        return pb.VolumesReply(volumes=[messages.volume_message(facts) for facts in found])

    async def RemoveData(  # noqa: N802
        self, request: pb.RemoveDataRequest, context: grpc.aio.ServicerContext
    ) -> pb.RemoveDataReply:
        """Remove the data of one owner."""
        try:
            key = messages.data_key_of(request)
            removed = await self._or_abort(
                context, self._changes.kept(self._ranks.remove_data(key))
            )
        except AgentError as error:
            known = error.code in _OF_THE_REQUEST
            code = CODES[error.code] if known else grpc.StatusCode.UNKNOWN
            await context.abort(code, hinted(str(error), error.hint))
            raise  # abort() never returns
        return pb.RemoveDataReply(removed=removed)

    async def Recordings(  # noqa: N802
        self, request: pb.RecordingsRequest, context: grpc.aio.ServicerContext
    ) -> pb.RecordingsReply:
        """Report what ranks have communicated."""
        if request.job:
            await self._allowed(context, lambda: policy.check_job(request.job))
        return await asyncio.to_thread(
            messages.recordings_of,
            self._ranks.recordings.of(request.job),
            request.most_bytes if request.HasField("most_bytes") else None,
        )

    async def Exec(  # noqa: N802
        self, requests: AsyncIterator[pb.ExecInput], context: grpc.aio.ServicerContext
    ) -> None:
        """Run a command in a rank; it ends when the caller leaves."""
        first: pb.ExecInput | None = None
        with suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_FIRST_INPUT_S):
                first = await anext(aiter(requests))
        if first is None or first.WhichOneof("input") != "start":
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first input must be the start of a command"
            )
            return

        async def send(piece: tuple[Stream, bytes]) -> None:
            await context.write(messages.output_message(*piece))

        start = read(ExecCommand, first.start)
        _log.info("command begins", job=start.job, rank=start.rank)
        try:
            ending = await self._ranks.execs.run(start, messages.inputs_of(requests), send)
        except AgentError as error:
            await refuse(context, error)
            return
        await context.write(pb.ExecOutput(end=write(pb.ExecEnd, ending)))

    async def _outcome(self, work: Callable[[], Awaitable[BatchOutcome]]) -> pb.RanksReply:
        outcome = await self._changes.kept(work())
        for fault in outcome.faults:
            _log.warning("fault", code=fault.code, object=fault.obj, reason=fault.message)
        return self._reply(outcome)

    def _reply(self, outcome: BatchOutcome) -> pb.RanksReply:
        ranks = self._ranks
        return pb.RanksReply(
            ranks=[
                messages.status_of(c, ranks.reason_for(c), ranks.fault_for(c), ranks.report(c))
                for c in outcome.containers
            ],
            faults=[messages.fault_message(fault) for fault in outcome.faults],
            settled=outcome.settled,
        )

    def _endpoint(self, endpoint: ServedEndpoint) -> pb.Endpoint:
        unfit = self._inventory.unfit(endpoint.name)
        nic = self._inventory.nic(endpoint.nic)
        return pb.Endpoint(
            name=endpoint.name,
            nic=endpoint.nic,
            gpu_uuid=endpoint.gpu_uuid,
            emulated=endpoint.emulated,
            health=messages.health_message(Health(endpoint.name, unfit)),
            rdma_device=nic.rdma_device if nic else "",
            mtu=nic.mtu if nic else 0,
        )

    def _binding(self) -> str:
        served = (self._inventory.endpoints or {}).values()
        uuid = next((e.gpu_uuid for e in served if e.gpu_uuid), "")
        binding = self._inventory.gpu(uuid)
        return binding.method if binding else ""

    async def _or_abort(self, context: grpc.aio.ServicerContext, work: Awaitable[_T]) -> _T:
        try:
            return await work
        except EngineFailure as error:
            await self._abort(context, error)
            raise  # abort() never returns

    async def _abort(self, context: grpc.aio.ServicerContext, error: EngineFailure) -> None:
        late = isinstance(error, EngineTimeoutError)
        code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.UNAVAILABLE
        await context.abort(code, str(error))


def _version() -> str:
    try:
        return version("lightloom")
    except PackageNotFoundError:
        return "unknown"

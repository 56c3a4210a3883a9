"""The built-in execution engine: our agents, one per server, over gRPC.

One call per server and operation, all servers at the same time, a deadline on each. A
server that does not answer delays no other server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

import grpc
import structlog

from agentlink import codec
from agentlink.ranks import RankKey, RankSpec
from agentlink.values import DataKey, RegistryLogin, Scope, Typed, WindowSize
from base import clock
from controller.devices.agents.checkpoints import AgentCheckpoints
from controller.devices.agents.connections import BACKOFF_S, AgentConnections, read
from controller.devices.agents.merge import merge
from controller.devices.agents.messages import (
    DIGEST,
    held_of,
    image_of,
    input_message,
    output_of,
    progress_of,
    rank_message,
    recordings_of,
    rpc_fault,
    samples_of,
    server_of,
    volumes_of,
)
from controller.devices.agents.scopes import AgentScopes
from controller.devices.agents.trust import AgentTrust, foreign, too_long
from controller.devices.engine import (
    EngineError,
    EngineFault,
    ExecEnd,
    ExecOutput,
    ExecStart,
    Fenced,
    HeldImage,
    LogLine,
    OfferedVolume,
    PullProgress,
    RankSample,
    RankStatus,
    Recording,
    RecordingLimits,
    ServerImage,
    ServerSample,
)
from protos import agent_pb2 as pb

_NO_FAULT = frozenset({"library", "unread"})
"""Codes of faults of the driver, not of an endpoint for all of them."""
_CALL_TIMEOUT_S = 25.0
"""Longer than an agent's own time-out for its container engine, so that its answer arrives."""
_OBSERVE_S = 5.0
_OBSERVE_SILENT_S = 2.0
"""An observation changes nothing, so it does not wait long for a server that hangs, and even less
for one that was silent at the last observation."""
_STOP_MARGIN_S = 30.0
_PULL_TIMEOUT_S = 1800.0
_CLEANUP_GRACE_S = 1.0
_QUEUE_SAMPLES = 4096
_BETWEEN_BATCHES_S = 0.25
_LOGS_S = 600.0
"""Limit for a log that is not followed; its reader may be slow."""
_LOGS_SILENT_S = 20.0
"""A server that sends nothing for so long, while a log is not followed, is given up."""
_EXEC_MARGIN_S = 60.0
"""An agent ends a command itself; this limit is for one that does not."""
_REFUSAL_CHARS = 1000
_REGISTRY_TRIES = 2
"""Servers that ask an image's registry, one after the other, until one has an answer."""
_KEPT_PLACES = 4096
"""Ended jobs whose servers are remembered, for their logs."""
_T = TypeVar("_T")

_log = structlog.get_logger("controller.agents")


class AgentEngine(AgentCheckpoints, AgentScopes):
    """Implements :class:`controller.devices.engine.ExecutionEngine` over the agents of a site.

    And :class:`controller.devices.checkpoints.CheckpointEngine`, by its first base class.
    """

    def __init__(
        self,
        agents: Mapping[str, str],
        *,
        endpoints: Mapping[str, Collection[str]] | None = None,
        trust: AgentTrust | None = None,
        call_timeout_s: float = _CALL_TIMEOUT_S,
    ) -> None:
        """Take server name -> ``host:port``. Use inside a running event loop.

        ``endpoints`` of each server: a server that reports others is not trusted any more.
        ``trust`` makes the connections secure; without it they are plain text.
        """
        connections = AgentConnections(agents, endpoints, trust or AgentTrust(None))
        AgentCheckpoints.__init__(self, connections)
        AgentScopes.__init__(self, connections, call_timeout_s)
        self._timeout_s = call_timeout_s
        self._endpoints = endpoints
        self._unfit: dict[str, dict[str, str]] = {}
        self._unready: dict[str, dict[str, str]] = {}
        self._carriers: dict[str, dict[str, bool]] = {}
        self._silent: set[str] = set()
        # Which servers hold a job's ranks, so that a lost server harms only its own jobs.
        self._places: defaultdict[str, set[str]] = defaultdict(set)
        self._seen: dict[str, set[str]] = {}
        """Jobs that each server reported at its last observation."""
        self._places_of_ended: dict[str, frozenset[str]] = {}

    async def close(self) -> None:
        """Close all channels; ranks continue."""
        await self._agents.close()

    def reachable(self) -> Mapping[str, bool]:
        """Return for each server whether it answered the last call."""
        return self._agents.reachable()

    def unfit(self) -> Mapping[str, str]:
        """Return the endpoints that no job should get, and why."""
        found = {e: why for reasons in self._unfit.values() for e, why in reasons.items()}
        for server, why in self._agents.liars.items():
            found |= dict.fromkeys((self._endpoints or {}).get(server, ()), why)
        return found

    def unready(self) -> Mapping[str, str]:
        """Return the endpoints that no job should get for now, and why."""
        return {e: why for reasons in self._unready.values() for e, why in reasons.items()}

    def carriers(self) -> Mapping[str, bool]:
        """Return whether the NICs of running ranks have a carrier, as agents that answer say."""
        answering, liars = self.reachable(), self._agents.liars
        return {
            endpoint: up
            for server, carriers in self._carriers.items()
            if answering.get(server, False) and server not in liars
            for endpoint, up in carriers.items()
        }

    def placed(self, job: str, servers: Collection[str]) -> None:
        """Add the site's servers among these to those that may hold the job."""
        self._places[job].update(self._agents.servers & set(servers))

    def leave(self, job: str, servers: Collection[str]) -> None:
        """Take servers from those that may hold the job."""
        self._places[job].difference_update(servers)
        for server in servers:
            self._seen.get(server, set()).discard(job)

    def command(self, term: int) -> None:
        """Act as the controller of this term; each server receives it with its next observation."""
        self._agents.command(term)

    async def find_image(
        self, image: str, servers: Collection[str], *, refresh: bool, timeout_s: float
    ) -> list[ServerImage]:
        """Ask servers for an image; return the answers. Raises EngineError ``invalid``."""
        request = pb.ImageRequest(image=image, refresh=refresh)

        async def ask(server: str) -> ServerImage:
            return image_of(
                server, await self._agents.ask(server, "ImageStatus", request, timeout_s)
            )

        answering = self.reachable()
        asked = [ask(server) for server in sorted(servers) if answering.get(server)]
        found: list[ServerImage] = []
        refused: list[EngineError] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, ServerImage):
                found.append(answer)
            elif not isinstance(answer, EngineError):
                raise answer
            elif answer.code == "invalid":
                refused.append(answer)
        if refused and not found:
            raise refused[0]
        return found

    async def registry_digest(
        self, image: str, servers: Collection[str], login: RegistryLogin | None, timeout_s: float
    ) -> str:
        """Return the digest that the image's registry has. Raises EngineError."""
        request = pb.ImageRequest(
            image=image,
            resolve=True,
            login=_login(login),
        )
        answering = self.reachable()
        failed = EngineError(
            [EngineFault("unavailable", f"image/{image}", "no server answers", "try again")]
        )
        for server in [s for s in sorted(servers) if answering.get(s)][:_REGISTRY_TRIES]:
            try:
                reply: pb.ImageReply = await self._agents.ask(
                    server, "ImageStatus", request, timeout_s
                )
            except EngineError as error:
                failed = error
                continue
            if DIGEST.fullmatch(reply.digest):
                return str(reply.digest)
            text = f"its agent reports {reply.digest[:80]!r} as the digest of {image}"
            failed = EngineError([EngineFault("failed", f"server/{server}", text)])
        raise failed

    async def images(self, timeout_s: float) -> list[HeldImage]:
        """Return the images of every server that answers."""

        async def ask(server: str) -> list[HeldImage]:
            return held_of(
                server, await self._agents.ask(server, "Images", pb.ImagesRequest(), timeout_s)
            )

        asked = [ask(server) for server, answers in self.reachable().items() if answers]
        found: list[HeldImage] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, list):
                found += answer
            elif not isinstance(answer, EngineError):
                raise answer
        return found

    async def pull_image(
        self, server: str, image: str, login: RegistryLogin | None, *, refresh: bool = False
    ) -> AsyncGenerator[PullProgress]:
        """Fetch an image to a server, with its progress. Raises EngineError."""
        self._agents.check(server)
        request = pb.ImageRequest(
            image=image,
            refresh=refresh,
            login=_login(login),
        )
        pull = self._agents.stream(server, "PullImage", request, _PULL_TIMEOUT_S)
        async with contextlib.aclosing(pull):
            async for message in pull:
                yield progress_of(server, message)

    async def volumes(self, timeout_s: float) -> Mapping[str, tuple[OfferedVolume, ...]]:
        """Return what each reachable server offers, and what jobs left there."""

        async def ask(server: str) -> tuple[OfferedVolume, ...]:
            # Slow storage says nothing about the agent: observations show whether it answers.
            request = pb.VolumesRequest()
            reply = await self._agents.ask_storage(server, "Volumes", request, timeout_s)
            return await asyncio.to_thread(volumes_of, reply, clock.time())

        asked = [server for server, answers in self.reachable().items() if answers]
        answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        offered: dict[str, tuple[OfferedVolume, ...]] = {}
        for server, answer in zip(asked, answers, strict=True):
            if isinstance(answer, tuple):
                offered[server] = answer
            elif not isinstance(answer, EngineError):
                raise answer
        return offered

    async def remove_data(self, server: str, volume: str, scope: Scope, owner: str) -> bool:
        """Remove an owner's directory; return whether there was one. Raises EngineError."""
        self._agents.check(server)
        request = codec.write(pb.RemoveDataRequest, DataKey(volume, scope, owner))
        reply: pb.RemoveDataReply = await self._agents.ask(
            server, "RemoveData", request, self._timeout_s
        )
        return bool(reply.removed)

    async def recordings(
        self, timeout_s: float, job: str = "", limits: RecordingLimits | None = None
    ) -> list[Recording]:
        """Return the recordings of all ranks, or of one job's, from the servers that answer.

        ``limits`` None takes all that the servers report.
        """
        jobs = None if limits is None else limits.jobs

        async def ask(server: str) -> list[Recording]:
            most = None if limits is None else limits.servers.get(server, 0)
            request = pb.RecordingsRequest(job=job, most_bytes=most)
            # An older agent has no recordings: observations show whether it answers.
            reply = await self._agents.ask_storage(server, "Recordings", request, timeout_s)
            return await asyncio.to_thread(recordings_of, server, reply, clock.time(), jobs)

        asked = [ask(server) for server, answers in self.reachable().items() if answers]
        found: list[Recording] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, list):
                found += answer
            elif not isinstance(answer, EngineError):
                raise answer
        return found

    async def confirm_command(self, servers: Iterable[str], timeout_s: float) -> None:
        """Confirm that no newer controller commands ``servers``. Raises Fenced, EngineError."""
        believed = self._agents.servers - self._agents.liars.keys()
        touched = believed & set(servers)
        rounds = [names for names in (touched, believed - touched) if names]
        for names in rounds:
            if await self._confirmed(sorted(names), timeout_s / len(rounds)):
                return
        if self._agents.servers:
            raise EngineError(
                [
                    EngineFault(
                        "unavailable",
                        "controller",
                        "no agent confirms that this controller still commands the site",
                        "see `lightloom get nodes`: is the controller cut off from its servers?",
                    )
                ]
            )

    async def _confirmed(self, servers: Sequence[str], limit_s: float) -> bool:
        """Return whether any of the servers confirms our term. Raises Fenced when one refuses."""
        asked = (self._take_command(server, limit_s) for server in servers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if refused := [a for a in answers if isinstance(a, Fenced)]:
            raise Fenced([fault for answer in refused for fault in answer.faults])
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EngineError):
                raise answer
        return any(answer is None for answer in answers)

    async def _take_command(self, server: str, limit_s: float) -> None:
        """Tell a server our term. Raises Fenced when it has seen a newer one, EngineError."""
        term = self._agents.term
        request = pb.CommandRequest()
        try:
            await self._agents.ask(server, "Command", request, limit_s)
        except Fenced as error:
            _log.error("a newer controller commands this server", server=server, reason=str(error))
            raise
        if term == self._agents.term:
            self._agents.told.add(server)

    async def _announce(self, server: str, limit_s: float) -> None:
        """Tell a server our term once; older controllers may still observe. Raises EngineError."""
        try:
            await self._take_command(server, limit_s)
        except Fenced:
            self._agents.told.add(server)
        except EngineError as error:
            if error.code in ("unavailable", "timeout"):
                raise  # an observation would not be answered either

    async def start(self, ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        """Start every rank or none. Raises EngineError."""
        by_server: defaultdict[str, list[RankSpec]] = defaultdict(list)
        for spec in ranks:
            by_server[spec.server].append(spec)
        unknown = [
            EngineFault("not_found", f"server/{name}", "the site has no such server")
            for name in by_server
            if name not in self._agents.servers
        ]
        if unknown:
            raise EngineError(unknown)

        requests = {
            server: pb.StartRequest(ranks=[_message(s) for s in specs])
            for server, specs in by_server.items()
        }
        for spec in ranks:
            self._places[spec.job].add(spec.server)

        def call(server: str) -> Awaitable[pb.RanksReply]:
            return self._agents.ask(server, "Start", requests[server], deadline_s)

        statuses, faults = await self._fan_out(call, by_server)
        faults.extend(self._check_asked(ranks, statuses))
        if faults:
            await self._undo({spec.job for spec in ranks}, by_server)
            raise EngineError(faults)
        return statuses

    async def stop(
        self,
        job: str,
        grace_s: float,
        servers: Collection[str] | None = None,
        *,
        until: int | None = None,
    ) -> list[RankStatus]:
        """End the job's ranks on every server; returns how they ended. Raises EngineError.

        With ``servers`` on those only, with ``until`` only ranks of that epoch and earlier ones;
        where the others of its ranks are stays known.
        """
        asked = self._servers_of(job) if servers is None else servers
        ended = await self._stop(job, grace_s, asked, until)
        if servers is None:
            self._forget(job)
        elif until is None:  # else a later run may be there
            self.leave(job, servers)
        return ended

    async def freeze(self, job: str, settle_s: float = 0.0) -> bool | None:
        """Freeze all ranks of the job at once. Raises EngineError."""
        request = pb.FreezeRequest(job=job, settle_s=settle_s)
        replies = await self._job_call("Freeze", job, request, settle_s)
        seen = {reply.settled if reply.HasField("settled") else None for reply in replies}
        return None if None in seen else False not in seen

    async def thaw(self, job: str) -> None:
        """Let all ranks of the job continue. Raises EngineError."""
        await self._job_call("Thaw", job, pb.JobRequest(job=job))

    async def observe(self) -> list[RankStatus]:
        """Return every rank on every server that answers."""

        async def call(server: str) -> pb.RanksReply:
            limit_s = _OBSERVE_SILENT_S if server in self._silent else _OBSERVE_S
            if server not in self._agents.told:
                await self._announce(server, limit_s)
            request = pb.ObserveRequest()
            reply: pb.RanksReply = await self._agents.ask(server, "Observe", request, limit_s)
            return reply

        statuses, _ = await self._fan_out(call, self._agents.servers)
        self._silent = self._agents.silent()
        seen: defaultdict[str, set[str]] = defaultdict(set)
        for status in statuses:
            seen[status.server].add(status.job)
        for server in self._agents.servers - self._silent:
            self._seen[server] = seen[server]
        return statuses

    async def logs(
        self,
        job: str,
        rank: int | None,
        tail: int | None,
        follow: bool,
        placed: Mapping[int, str] | None = None,
        *,
        since: float | None = None,
        search: str = "",
        epoch: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """Lines of one rank or of all, merged as they come. Raises EngineError when none exists.

        Only servers that hold the job, or held it last, are asked; all where that is not known.
        A rank whose container is removed is read from the server that ``placed`` names: its
        agent may still hold the log.
        """
        known = {
            r: s
            for r, s in (placed or {}).items()
            if s in self._agents.servers and rank in (None, r)
        }
        servers = (
            self._holders(job)
            or set(known.values())
            or self._places_of_ended.get(job)
            or self._agents.servers
        )
        where = [
            (s.server, s.rank) for s in await self._ranks_of(job, servers) if rank in (None, s.rank)
        ]
        seen_ranks = {number for _, number in where}
        where += [(server, number) for number, server in known.items() if number not in seen_ranks]
        if not where and rank is not None:
            where = [(server, rank) for server in servers]

        def read(server: str, number: int) -> AsyncIterator[pb.LogBatch]:
            request = pb.LogsRequest(
                job=job,
                rank=number,
                tail=tail,
                follow=follow,
                since=since,
                search=search,
                epoch=epoch,
            )
            return self._batches(server, request)

        async with contextlib.aclosing(merge(job, where, read)) as lines:
            async for line in lines:
                yield line

    async def _batches(self, server: str, request: pb.LogsRequest) -> AsyncIterator[pb.LogBatch]:
        """Read a rank's output from a server. Raises EngineError, also when it becomes silent."""
        limit_s = None if request.follow else _LOGS_S
        call = self._agents.invoke(server, "Logs", request, limit_s)
        try:
            while True:
                # An agent that searches sends empty batches; a program may write nothing for days.
                async with asyncio.timeout(None if request.follow else _LOGS_SILENT_S):
                    batch = await call.read()
                if batch is grpc.aio.EOF:
                    return
                yield read(server, batch)
        except grpc.aio.AioRpcError as error:
            raise EngineError([rpc_fault(server, error)]) from error
        except TimeoutError as error:
            fault = EngineFault("timeout", f"server/{server}", "no answer")
            raise EngineError([fault]) from error
        finally:
            call.cancel()

    async def _ranks_of(self, job: str, servers: Collection[str]) -> list[RankStatus]:
        """Observe one job's ranks on some servers; omit servers that do not answer."""

        def call(server: str) -> Awaitable[pb.RanksReply]:
            request = pb.ObserveRequest(job=job)
            return self._agents.ask(server, "Observe", request, _OBSERVE_S)

        statuses, _ = await self._fan_out(call, servers)
        return [status for status in statuses if status.job == job]

    async def exec(
        self, start: ExecStart, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Run a command in a running rank; the last item is its end. Raises EngineError."""
        server = start.server
        if server not in self._agents.servers or server in self._agents.liars:
            why = self._agents.liars.get(server, "the site has no such server")
            raise EngineError([EngineFault("not_found", f"server/{server}", why)])

        call = self._agents.invoke(server, "Exec", None, start.total_s + _EXEC_MARGIN_S)

        async def feed() -> None:
            await call.write(pb.ExecInput(start=codec.write(pb.ExecStart, start)))
            async for item in given:
                await call.write(input_message(item))

        feeds = asyncio.create_task(feed())
        try:
            async for message in call:
                piece = output_of(read(server, message))
                yield piece
                if isinstance(piece, ExecEnd):
                    return
        except grpc.aio.AioRpcError as error:
            fenced = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            raise (Fenced if fenced else EngineError)([rpc_fault(server, error)]) from error
        finally:
            feeds.cancel()
            call.cancel()
            await asyncio.gather(feeds, return_exceptions=True)
        raise EngineError([EngineFault("failed", f"server/{server}", "its agent told no end")])

    async def telemetry(self) -> AsyncIterator[RankSample | ServerSample]:
        """Samples of all servers, merged; a lost server is tried again with back-off."""
        queue: asyncio.Queue[RankSample | ServerSample] = asyncio.Queue(_QUEUE_SAMPLES)
        pumps = [asyncio.create_task(self._pump_samples(s, queue)) for s in self._agents.servers]
        try:
            while True:
                yield await queue.get()
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump_samples(
        self, server: str, queue: asyncio.Queue[RankSample | ServerSample]
    ) -> None:
        shortest, longest = BACKOFF_S
        wait_s = shortest
        while True:
            try:
                request = pb.TelemetryRequest()
                async for batch in self._agents.stream(server, "Telemetry", request, None):
                    self._agents.note_answer(server, True)
                    wait_s = shortest
                    samples: list[RankSample | ServerSample] = []
                    if batch.HasField("readings"):
                        samples.append(server_of(server, batch))
                    samples += [
                        sample
                        for sample in samples_of(batch, clock.time())
                        if self._agents.owns(server, sample.endpoint)
                    ]
                    for sample in samples:
                        if queue.full():  # a slow reader gets the newest samples
                            queue.get_nowait()
                        queue.put_nowait(sample)
                    # Flow control then slows a server that sends more than one batch a second.
                    await asyncio.sleep(_BETWEEN_BATCHES_S)
            except EngineError:
                self._agents.note_answer(server, False)
            # Random, so that not all agents are called at once after an outage.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
            wait_s = min(longest, wait_s * 2)

    async def _stop(
        self, job: str, grace_s: float, servers: Collection[str], until: int | None = None
    ) -> list[RankStatus]:
        def call(server: str) -> Awaitable[pb.RanksReply]:
            request = pb.StopRequest(job=job, grace_s=grace_s, until_epoch=until)
            limit_s = grace_s + _STOP_MARGIN_S
            return self._agents.ask(server, "Stop", request, limit_s)

        ended, faults = await self._fan_out(call, servers)
        if faults:
            raise EngineError(faults)
        return ended

    async def _undo(self, jobs: set[str], servers: Collection[str]) -> None:
        for job in sorted(jobs):
            try:
                await self._stop(job, _CLEANUP_GRACE_S, servers)
            except EngineError as error:
                _log.warning("half-started job not cleaned up", job=job, reason=str(error))

    async def _job_call(
        self, method: str, job: str, request: Any, margin_s: float = 0.0
    ) -> list[pb.RanksReply]:
        replies: list[pb.RanksReply] = []
        limit_s = self._timeout_s + margin_s

        async def call(server: str) -> pb.RanksReply:
            reply: pb.RanksReply = await self._agents.ask(server, method, request, limit_s)
            replies.append(reply)
            return reply

        _, faults = await self._fan_out(call, self._servers_of(job))
        if faults:
            raise EngineError(faults)
        return replies

    def _forget(self, job: str) -> None:
        """Forget where a job's ranks are; remember where its logs are."""
        places = self._holders(job)
        self._places.pop(job, None)
        for jobs in self._seen.values():
            jobs.discard(job)
        if places:
            self._places_of_ended.pop(job, None)  # goes to the end
            self._places_of_ended[job] = frozenset(places)
        while len(self._places_of_ended) > _KEPT_PLACES:
            del self._places_of_ended[next(iter(self._places_of_ended))]

    def _servers_of(self, job: str) -> Collection[str]:
        """Return the servers known to hold the job; all servers while none is known."""
        return self._holders(job) or self._agents.servers

    def _holders(self, job: str) -> set[str]:
        """Return the servers that were given ranks of the job; else those that report some."""
        return self._places.get(job) or {s for s, jobs in self._seen.items() if job in jobs}

    async def _fan_out(
        self, call: Callable[[str], Awaitable[pb.RanksReply]], servers: Collection[str]
    ) -> tuple[list[RankStatus], list[EngineFault]]:
        """Call all servers at the same time; return states and faults, also of lost servers."""
        names = sorted(servers)
        replies = await asyncio.gather(*(call(name) for name in names), return_exceptions=True)
        statuses: list[RankStatus] = []
        faults: list[EngineFault] = []
        for server, reply in zip(names, replies, strict=True):
            if isinstance(reply, EngineError):
                faults.extend(reply.faults)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                faults.extend(self._verify(server, reply))
                if server not in self._agents.liars:
                    statuses.extend(
                        codec.read(RankStatus, message, server=server) for message in reply.ranks
                    )
                    faults.extend(codec.read(EngineFault, message) for message in reply.faults)
        return statuses, faults

    def _verify(self, server: str, reply: pb.RanksReply) -> list[EngineFault]:
        """Check what an agent reports; ignore an agent that lied from then on."""
        lie = too_long(reply)
        if lie is None and self._endpoints:
            lie = foreign(reply, self._endpoints.get(server, ()))
        if lie is not None and server not in self._agents.liars:
            self._agents.liars[server] = f"its agent reports {lie}, which is not its own"
            _log.error("agent not trusted", server=server, reason=self._agents.liars[server])
        if server in self._agents.liars:
            hint = "is the agent's endpoint list the site file's? then restart the controller"
            return [EngineFault("forbidden", f"server/{server}", self._agents.liars[server], hint)]
        if reply.health:
            bad = [h for h in reply.health if not h.ok]
            self._unfit[server] = {h.endpoint: h.reason for h in bad if h.fault not in _NO_FAULT}
            self._unready[server] = {h.endpoint: h.reason for h in bad if h.fault in _NO_FAULT}
            self._carriers[server] = {
                h.endpoint: h.carrier for h in reply.health if h.HasField("carrier")
            }
        return []

    def _check_asked(
        self, ranks: Sequence[RankSpec], statuses: Sequence[RankStatus]
    ) -> list[EngineFault]:
        """Stop trusting an agent that reports the start of a rank that was not requested."""
        asked = {spec.key for spec in ranks}
        found = []
        for status in statuses:
            if RankKey(status.job, status.rank, status.epoch) not in asked:
                why = f"its agent says it started rank {status.rank} of {status.job}, unasked"
                self._agents.liars[status.server] = why
                found.append(EngineFault("forbidden", f"server/{status.server}", why))
        return found


def _login(login: RegistryLogin | None) -> pb.RegistryLogin | None:
    return None if login is None else codec.write(pb.RegistryLogin, login)


def _message(spec: RankSpec) -> pb.Rank:
    """Write one rank. EngineError for a text or a figure that cannot be sent."""
    try:
        return rank_message(spec)
    except ValueError as error:  # a lone surrogate, or a figure that no field holds
        fault = EngineFault(
            "invalid", f"job/{spec.job}", f"rank {spec.key.rank} cannot be sent: {error}"
        )
        raise EngineError([fault]) from error

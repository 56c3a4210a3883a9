"""All aggregators of a site over OpenFlow 1.3, for asyncio.

os-ken runs on threads of its own. They pass values on with ``call_soon_threadsafe``; only the loop
touches the state here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from base import clock
from controller.devices.aggregators import (
    AggregatorConnected,
    AggregatorError,
    AggregatorEvent,
    AggregatorLost,
    AggregatorRefused,
    PortStatus,
)
from controller.devices.counters import PortBlock
from controller.devices.openflow.rules.pipeline import PROBE_MAC
from controller.devices.openflow.rules.program import FlowProgram
from controller.devices.openflow.session.app import (
    AggregatorApp,
    ClaimRefused,
    Incoming,
    PortChanged,
    ProbeAnswered,
    Rejected,
    Reply,
    SessionDown,
    SessionUp,
)
from controller.devices.openflow.session.conversation import Conversation
from controller.devices.openflow.session.listen import Listener, listening_socket
from controller.devices.openflow.session.osken import OpenFlowSession, Runtime
from controller.devices.profile import Profile
from sitefile.model import CabledSite

GREETING_DEADLINE_S = 30.0
SHORT_S = 10.0
"""A session that begins so soon after the previous one continues a row of sessions."""
QUICK_GREETINGS = 4
"""Sessions in a row that are greeted at once; reading the tables costs time at both ends."""
LONGEST_PAUSE_S = 30.0
AUDIT_DEADLINE_S = 30.0
COUNTERS_DEADLINE_S = 5.0
PROFILE_DEADLINE_S = 15.0

log = structlog.get_logger(__name__)


class OpenFlowAggregators:
    """All aggregators of a site. Start it in the loop that will use it; one per process.

    ``post`` is called on the loop with every AggregatorEvent. All methods raise AggregatorError.
    ``listener``: a socket that listens already, if one was opened early; ``stop`` closes it.
    """

    def __init__(
        self,
        site: CabledSite,
        post: Callable[[AggregatorEvent], None],
        listener: Listener | None = None,
    ) -> None:
        self._site = site
        self._post = post
        self._conversations = {cable.name: Conversation(cable.name) for cable in site.aggregators}
        self._names = {cable.dpid: cable.name for cable in site.aggregators}
        self._greetings: set[asyncio.Task[None]] = set()
        self._begun: dict[str, tuple[float, int]] = {}
        """Per aggregator: when its last session began, and its position in the row."""
        self._listener = listener
        self._runtime: Runtime | None = None

    async def start(self) -> tuple[str, int]:
        """Listen on the site's OpenFlow address and return it. OSError when that is impossible."""
        loop = asyncio.get_running_loop()
        inbox: list[Incoming] = []
        lock = threading.Lock()

        def deliver(incoming: Incoming) -> None:
            with lock:
                inbox.append(incoming)
                first = len(inbox) == 1
            # One call takes all that arrived; a loop that is closed needs no more news.
            if first:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(drain_inbox)

        def drain_inbox() -> None:
            with lock:
                taken = inbox.copy()
                inbox.clear()
            for incoming in taken:
                loop.call_soon(self._handle, incoming)

        listener = self._listener or listening_socket(
            self._site.openflow_listen, self._site.openflow_netns
        )
        self._runtime = Runtime(
            AggregatorApp,
            {"deliver": deliver},
            self._site.aggregators,
            lambda dpid, peer, reason: deliver(ClaimRefused(dpid, peer, reason)),
        )
        address = self._runtime.start(listener)
        log.info("openflow_listening", address=address, netns=self._site.openflow_netns)
        return address

    async def stop(self) -> None:
        """Close all sessions and the socket. The aggregators keep forwarding."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await asyncio.to_thread(runtime.stop)
        for task in self._greetings:
            task.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)

    def connected(self) -> frozenset[str]:
        """Return the aggregators whose session is up and whose tables are known."""
        return frozenset(
            name for name, conversation in self._conversations.items() if conversation.ready
        )

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        """Return the last known carrier of every port of a connected aggregator."""
        return dict(self._conversation(as_name).ports)

    def lacking(self, programs: Mapping[str, FlowProgram]) -> frozenset[str]:
        """Return the aggregators that are not known to hold exactly their program."""
        return frozenset(
            n for n, program in programs.items() if not self._conversation(n).settled(program)
        )

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        """Make every aggregator in ``programs`` hold its program; others do not change.

        Only differences are sent, so a repeated call sends nothing. The programs are remembered:
        an aggregator that is away gets its program when it comes back. All aggregators are tried;
        the first error is raised after the last has finished.
        """
        conversations = [(self._conversation(name), program) for name, program in programs.items()]
        results = await asyncio.gather(
            *(
                conversation.converge(program, deadline_s=deadline_s)
                for conversation, program in conversations
            ),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors[1:]:
            log.error("aggregator_install_failed", error=str(error))
        if errors:
            raise errors[0]

    async def audit(self, as_name: str) -> list[str]:
        """Read the tables and list every difference from what was last installed."""
        steps = await self._conversation(as_name).compare(deadline_s=AUDIT_DEADLINE_S)
        return steps.describe()

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        """Prove the path to an endpoint and back: a probe leaves by ``port`` and is answered there.

        The installed program must attach the endpoint at that port, because a rule of its own
        matches the answer; jobs and held endpoints do not matter. Returns the round trip in
        seconds, None when no answer came in time. Leaves no neighbour entry
        (RFC 5227 sender 0.0.0.0).
        """
        return await self._conversation(as_name).probe(
            port, ip, mac, PROBE_MAC, deadline_s=deadline_s
        )

    async def port_counters(self, as_name: str) -> PortBlock:
        """Read the counters of every port; rates come from differences of ``duration_s``."""
        return await self._conversation(as_name).counters(deadline_s=COUNTERS_DEADLINE_S)

    async def profile(self, as_name: str) -> Profile:
        """Measure what the switch is and can do, with trial rules that are removed again."""
        return await self._conversation(as_name).profile(deadline_s=PROFILE_DEADLINE_S)

    def _conversation(self, as_name: str) -> Conversation:
        try:
            return self._conversations[as_name]
        except KeyError:
            raise AggregatorError(
                "not_found", as_name, "no such aggregator", "see `lightloom get aggregators`"
            ) from None

    def _handle(self, incoming: Incoming) -> None:
        if isinstance(incoming, ClaimRefused):
            name = self._names.get(incoming.dpid)
            if name is not None:
                self._post(AggregatorRefused(name, str(incoming.peer), incoming.reason))
            return
        name = self._names[incoming.session.id]
        conversation = self._conversations[name]
        if isinstance(incoming, SessionUp):
            conversation.attach(incoming.session, incoming.ports)
            task = asyncio.get_running_loop().create_task(
                self._greet(conversation, incoming.session)
            )
            self._greetings.add(task)
            task.add_done_callback(self._greetings.discard)
            return
        if not conversation.holds(incoming.session):
            return
        match incoming:
            case SessionDown():
                was_ready = conversation.ready
                conversation.detach()
                # Sessions that stop() ends are not lost.
                if was_ready and self._runtime is not None:
                    log.warning("aggregator_lost", aggregator=name)
                    self._post(AggregatorLost(name))
            case Reply(_, xid, msg):
                conversation.reply(xid, msg)
            case Rejected(_, xid, reason):
                conversation.rejected(xid, reason)
            case PortChanged(_, port, up):
                conversation.port_changed(port, up=up)
                self._post(PortStatus(name, port, up))
            case ProbeAnswered():
                conversation.probe_answered(incoming)

    def _pause_s(self, name: str) -> float:
        """Return how long a new session waits for its greeting: longer in a row of sessions."""
        now = clock.monotonic()
        last, row = self._begun.get(name, (-SHORT_S, 0))
        row = row + 1 if now - last < SHORT_S else 1
        self._begun[name] = (now, row)
        late = row - QUICK_GREETINGS
        return min(2.0 ** (late - 2), LONGEST_PAUSE_S) if late > 0 else 0.0

    async def _greet(self, conversation: Conversation, session: OpenFlowSession) -> None:
        """Read a new session's tables and repair what differs; never start from an empty table.

        A session that cannot be greeted is ended, so that the aggregator starts a new one; that
        one may begin before the end of this one is known, and gets a greeting of its own.
        """
        repaired: list[str] = []
        await asyncio.sleep(self._pause_s(conversation.name))
        if not conversation.holds(session):
            return
        try:
            repaired = (await conversation.converge(deadline_s=GREETING_DEADLINE_S)).describe()
        except AggregatorError as error:
            log.error("aggregator_greeting_failed", aggregator=conversation.name, error=str(error))
            if error.code != "failed":
                session.close()
                return
        except Exception:  # no content of its tables may leave it half greeted
            log.exception("aggregator_greeting_broke", aggregator=conversation.name)
            session.close()
            return
        if not conversation.holds(session):
            return
        conversation.ready = True
        log.info("aggregator_connected", aggregator=conversation.name, repaired=len(repaired))
        self._post(AggregatorConnected(conversation.name, tuple(repaired)))

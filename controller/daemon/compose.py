"""The composition root: makes the parts, connects them, and serves until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

import ocs_driver
from base.addresses import join_address
from base.processes import Worker
from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.daemon.garbage import Garbage, OwnMemory
from controller.daemon.listen import PeopleOptions
from controller.daemon.pulse import READY, Pulse, beat, report_moving
from controller.daemon.trust import read_trust
from controller.devices.agents.engine import AgentEngine
from controller.devices.aggregators import AggregatorEvent, Aggregators
from controller.devices.observed import ObservedEngine
from controller.devices.openflow.aggregators import OpenFlowAggregators
from controller.devices.openflow.flows import FlowKeeper
from controller.devices.openflow.session.listen import Listener
from controller.devices.optical import SwitchBank
from controller.people.projects import SharedProjects
from controller.reconcile.drift_policy import DriftPolicy
from controller.service.service import Service
from controller.store.store import Store
from ocs_driver.ledger import given_folder, user_folder
from sitefile import CabledSite, EnginePolicy
from sitefile.model import SwitchCable

if TYPE_CHECKING:
    import uvicorn

log = structlog.get_logger(__name__)

UNCOLLECTED_S = 30.0
"""Garbage collection starts after this time even if the recovery still waits for a device."""


def run(
    site: CabledSite,
    state_dir: Path,
    openflow: Listener,
    api: socket.socket,
    *,
    image: str,
    drift: DriftPolicy,
    people: PeopleOptions,
    agent_tls: Path | None,
    take_command: bool,
    pulse: Pulse,
) -> None:
    """Serve until SIGTERM or SIGINT; jobs, flows and circuits stay as they are.

    ``openflow`` listens for aggregators already (``controller.daemon.start``), ``api`` is bound to
    the API's address. ``agent_tls`` is a directory of ``lightloom pki issue controller``.
    ``take_command`` makes agents obey this controller that obeyed another store's. ``pulse`` gets
    the signs of life. ServiceError for everything that prevents the start.
    Prints one JSON line on stdout when it serves: ``{"event": "listening", "api": …, "openflow":
    …}``.
    """
    with failpoints.armed(os.environ.get(failpoints.VARIABLE, "")):
        asyncio.run(
            _serve(
                site,
                state_dir,
                openflow,
                api,
                image=image,
                drift=drift,
                people=people,
                agent_tls=agent_tls,
                take_command=take_command,
                pulse=pulse,
            )
        )


async def _serve(
    site: CabledSite,
    state_dir: Path,
    listener: Listener,
    api: socket.socket,
    *,
    image: str,
    drift: DriftPolicy,
    people: PeopleOptions,
    agent_tls: Path | None,
    take_command: bool,
    pulse: Pulse,
) -> None:
    async with AsyncExitStack() as stack:
        ours = Tasks()
        stack.push_async_callback(ours.stop)
        ours.spawn(beat(pulse), "signs of life")
        store = Store(state_dir / "controller.sqlite")
        stack.push_async_callback(store.close)
        engine = AgentEngine(
            {server.name: server.agent for server in site.servers},
            endpoints={s.name: _endpoints_of(site, s.name) for s in site.servers},
            trust=read_trust(site, agent_tls),
        )
        stack.push_async_callback(engine.close)
        drivers = {switch.name: make_driver(switch, state_dir) for switch in site.switches}
        made: list[Aggregators] = []

        def aggregators(post: Callable[[AggregatorEvent], None]) -> Aggregators:
            made.append(FlowKeeper(site, OpenFlowAggregators(site, post, listener)))
            return made[0]

        projects = SharedProjects(site)
        observed: ObservedEngine | None = None
        if site.engine is not None:
            observed = await asyncio.to_thread(ENGINES[site.engine.kind], site, site.engine)
        service = Service(
            site,
            store,
            switches=lambda on_change: SwitchBank(drivers, on_change),
            aggregators=aggregators,
            engine=engine,
            default_image=image,
            drift=drift,
            history=state_dir / "telemetry",
            take_command=take_command,
            projects=projects,
            observed=observed,
            planner=Worker("scheduler"),
        )
        stack.push_async_callback(made[0].stop)
        stack.push_async_callback(service.stop)
        await service.start()
        ours.spawn(report_moving(pulse, lambda: service.moving), "report transactions")
        ours.keep("collect garbage", lambda: _collect_after(service))
        # Only now, because events of the aggregators need the state that start() has loaded.
        address = await made[0].start()
        host, port = api.getsockname()[:2]
        ready = {
            "event": "listening",
            "api": join_address(host, port),
            "openflow": join_address(*address) if address else None,
        }
        # The recovery runs by now and mostly waits for devices: time to load the rest.
        await asyncio.to_thread(importlib.import_module, "controller.daemon.serving")
        from controller.daemon import serving  # noqa: PLC0415 - loaded off the loop by now

        access = await serving.open_access(state_dir, people, stack)
        if access.accounts is not None:
            await projects.open(access.accounts)
        tally = serving.start_followers(service, people, stack)
        server = serving.server_of(service, access, tally, service.journal, people)
        await _serve_api(server, api, json.dumps(ready), pulse)


def _slurm(site: CabledSite, policy: EnginePolicy) -> ObservedEngine:
    # Only sites with Slurm pay for its HTTP client at the start.
    from controller.devices.slurm.engine import slurm_engine  # noqa: PLC0415

    return slurm_engine(site, policy)


ENGINES: Mapping[str, Callable[[CabledSite, EnginePolicy], ObservedEngine]] = {"slurm": _slurm}
"""By kind: makes the engine beside lightloom that a site file names, off the event loop."""


async def _collect_after(service: Service) -> None:
    """Collect garbage after the recovery, of which it would take half of the time.

    Objects that exist by then stay.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(UNCOLLECTED_S):
            await service.recovered.wait()
    await Garbage(gc, OwnMemory(), lambda: service.moving).keep()


def _endpoints_of(site: CabledSite, server: str) -> frozenset[str]:
    return frozenset(e.name for e in site.endpoints if e.server == server)


async def _serve_api(server: uvicorn.Server, api: socket.socket, ready: str, pulse: Pulse) -> None:

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop)
    api.listen()
    print(ready, flush=True)
    pulse(READY)
    log.info("serving", ready=ready)
    await server.serve(sockets=[api])
    log.info("stopping")


def make_driver(switch: SwitchCable, state_dir: Path) -> ocs_driver.OcsDriver:
    """Make the driver of a switch; the password comes by reference, or from the environment.

    For switches that cannot record an owner, the list of our circuits is kept below ``state_dir``,
    and is moved there from its older place. ServiceError.
    """
    what = f"switch/{switch.name}"
    try:
        if switch.password is not None:
            password: str | None = switch.password.resolve()
        else:
            password = os.environ.get("LIGHTLOOM_OCS_PASSWORD")
        given = given_folder()
        return ocs_driver.open(
            switch.url,
            password=password,
            state_dir=given or state_dir / "ocs",
            older_state_dir=None if given else user_folder(),
        )
    except KeyError as error:
        raise ServiceError(
            "failed",
            f"the password of {switch.name} should be in {error}, which is not set",
            object=what,
            hint="set it, or name another place in the site file",
        ) from None
    except (OSError, ocs_driver.OcsError) as error:
        raise ServiceError("failed", str(error), object=what, hint="see the site file") from error

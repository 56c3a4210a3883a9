"""What every feature of the controller stands on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from controller.base.tasks import Tasks
from controller.checkpoints.keeper import CheckpointKeeper
from controller.devices.aggregators import Aggregators
from controller.devices.checkpoints import CheckpointEngine
from controller.devices.engine import ExecutionEngine
from controller.devices.switches import Switches
from controller.fabric.intent import FabricIntent
from controller.fabric.mover import Mover
from controller.images.keeper import ImageKeeper
from controller.people.projects import SharedProjects
from controller.ranks.ends import JobEnder
from controller.ranks.secrets import SecretFolder
from controller.ranks.starter import RankStarter
from controller.state.state import Reachability, State
from controller.store.store import Store
from scheduler.queue.model import ProjectShare
from sitefile import CabledSite


class Engine(ExecutionEngine, CheckpointEngine, Protocol):
    """What the agents can do: ranks, and their checkpoints."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Core:
    """The state, the devices, and what moves light and runs ranks."""

    state: State
    switches: Switches
    aggregators: Aggregators
    engine: Engine
    tasks: Tasks
    default_image: str
    images: ImageKeeper
    secrets: SecretFolder
    checkpoints: CheckpointKeeper
    ender: JobEnder
    starter: RankStarter
    intent: FabricIntent
    mover: Mover


def core_of(
    site: CabledSite,
    store: Store,
    *,
    switches: Switches,
    aggregators: Aggregators,
    engine: Engine,
    default_image: str,
    projects: Callable[[], Iterable[ProjectShare]] | None,
    clock: Callable[[], float],
) -> Core:
    """Make the core over the devices; see ``Service`` for the arguments."""
    connections = Reachability(aggregators.connected, switches.connected, engine.reachable)
    state = State(site, store, clock, connections, projects or SharedProjects(site))
    tasks = Tasks()
    ender = JobEnder(state, aggregators, engine, tasks)
    images = ImageKeeper(state, engine, default_image)
    secrets = SecretFolder(site.secrets)
    checkpoints = CheckpointKeeper(state, engine, tasks)
    starter = RankStarter(
        state, engine, ender, images=images, checkpoints=checkpoints, secrets=secrets
    )
    intent = FabricIntent(state, aggregators, engine)
    mover = Mover(state, switches, aggregators, engine, intent=intent, starter=starter, ender=ender)
    return Core(
        state=state,
        switches=switches,
        aggregators=aggregators,
        engine=engine,
        tasks=tasks,
        default_image=default_image,
        images=images,
        secrets=secrets,
        checkpoints=checkpoints,
        ender=ender,
        starter=starter,
        intent=intent,
        mover=mover,
    )

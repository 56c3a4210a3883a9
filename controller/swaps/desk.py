"""What the rest of the controller asks of recoveries: one object that holds their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controller.base.tasks import Tasks
from controller.devices.aggregators import Aggregators
from controller.devices.engine import ExecutionEngine
from controller.devices.switches import Switches
from controller.fabric.intent import FabricIntent
from controller.fabric.mover import Mover
from controller.ranks.ends import JobEnder
from controller.ranks.starter import ImagePreparer, RankStarter
from controller.state.records import JobRecord
from controller.state.state import State
from controller.swaps.contract import JobCheckpoints, Requeuer
from controller.swaps.drains import DrainKeeper
from controller.swaps.first import FirstSteps
from controller.swaps.other_runs import LeftRuns
from controller.swaps.progress import StepProgress
from controller.swaps.relight import Relighter
from controller.swaps.rows import Rows
from controller.swaps.spares import Spares
from controller.swaps.swapper import Swapper
from controller.swaps.watch import LossWatch


@dataclass(slots=True, frozen=True, kw_only=True)
class SwapParts:
    """What recoveries need of others. The functions are asked once the service runs."""

    state: State
    engine: ExecutionEngine
    aggregators: Aggregators
    switches: Switches
    tasks: Tasks
    mover: Mover
    intent: FabricIntent
    starter: RankStarter
    ender: JobEnder
    images: ImagePreparer
    checkpoints: JobCheckpoints
    queue: Requeuer
    sent_bps: Callable[[str], float | None]
    """What an endpoint sends."""
    communicates: Callable[[JobRecord], bool]
    """Whether the recorder has counted an operation of a job's present run."""


class SwapDesk:
    """Recoveries from lost hardware."""

    def __init__(self, parts: SwapParts) -> None:
        self.checkpoints = parts.checkpoints
        self._progress = StepProgress(parts.state, parts.checkpoints)
        self.rows = Rows(parts.state, parts.checkpoints, self._progress)
        self._spares = Spares(parts.state)
        self.swapper = Swapper(
            parts.state,
            parts.engine,
            parts.tasks,
            mover=parts.mover,
            intent=parts.intent,
            starter=parts.starter,
            ender=parts.ender,
            images=parts.images,
            checkpoints=parts.checkpoints,
            rows=self.rows,
            spares=self._spares,
            queue=parts.queue,
        )
        self._losses = LossWatch(
            parts.state, parts.aggregators, parts.switches, parts.engine, self.swapper
        )
        self._relighter = Relighter(parts.state, parts.mover, parts.tasks)
        self._left = LeftRuns(parts.state, parts.engine, self._relighter, parts.tasks)
        self.drains = DrainKeeper(
            parts.state,
            parts.tasks,
            mover=parts.mover,
            swapper=self.swapper,
            spares=self._spares,
            relighter=self._relighter,
            ender=parts.ender,
            queue=parts.queue,
            progress=self._progress,
        )
        self._first = FirstSteps(
            parts.state,
            self.rows,
            parts.checkpoints,
            sent_bps=parts.sent_bps,
            communicates=parts.communicates,
        )

    @property
    def relight(self) -> Callable[[Iterable[str]], None]:
        """Gives light back to endpoints that are dark; the caller makes it durable."""
        return self._relighter.request

    def resume(self) -> None:
        """Go on with what an earlier controller had begun."""
        self.swapper.resume()

    async def check(self) -> None:
        """Look once at what is under way; called about once a second."""
        self._progress.update()
        self._losses.check()
        self._left.check()
        self._spares.tend(self.swapper.has)
        self.drains.check()
        self._relighter.check()
        await self._first.check()

"""A controller over the real driver of an emulated switch."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.daemon.compose import make_driver
from ocs_driver.base import OcsDriver
from ocs_driver.grid import Grid
from sitefile.model import SwitchCable
from testbed.ocs_emulator import Emulator, load_personality
from tests.parts.controller.rack import Rack
from tests.parts.controller.switch import FakeOcs


@dataclass(slots=True, frozen=True)
class Kind:
    scheme: str
    personality: str
    front_end: int
    grid: str

    def __str__(self) -> str:
        return self.scheme


KINDS = (
    Kind("polatis+tl1", "polatis-48xCC", 0, "2x2x8"),
    Kind("polatis+scpi", "polatis-48xCC", 1, "2x2x8"),
    Kind("glimmerglass+tl1", "glimmerglass-48", 0, "2x2x8@10001"),
)


class Emulated(FakeOcs):
    """A switch over a real driver, whose light is read from the emulator."""

    def __init__(self, emulator: Emulator, kind: Kind, state_dir: Path) -> None:
        super().__init__()
        host, port = emulator.addresses[kind.front_end]
        self.emulator, self.grid = emulator, Grid.parse(kind.grid)
        url = f"{kind.scheme}://admin@{host}:{port}?ports={kind.grid}"
        self.driver = make_driver(SwitchCable("ocs0", url, None), state_dir)
        for name in OcsDriver.__abstractmethods__ | {"adopt"}:
            setattr(self, name, getattr(self.driver, name))

    def lit(self) -> list[tuple[str, str]]:
        fiber, name = self.emulator.personality.fiber, self.grid.name
        return [(name(fiber(c.a)), name(fiber(c.b))) for c in self.emulator.model.circuits.values()]

    def foreign(self, a: str, b: str) -> None:
        """Make a circuit on the switch itself, as another client would."""
        beside = {f: o for o, f in self.emulator.personality.partner.items()}
        one, other = self.grid.number(a), self.grid.number(b)
        pairs = [(one, beside[other]), (other, beside[one])] if beside else [(one, other)]
        for pair in pairs:
            self.emulator.model.connect(*pair, "", self.emulator.switch.now())
        self.emulator.switch.poke()

    def names(self) -> set[frozenset[str]]:
        """Return the ends of all circuits."""
        return {frozenset(pair) for pair in self.lit()}


@contextlib.asynccontextmanager
async def rack_on(kind: Kind, folder: Path) -> AsyncIterator[Rack]:
    """Yield a controller, not started yet, with an emulated switch.

    Its state is in ``folder``; the home directory of its user is beside that.
    """
    folder.mkdir()  # noqa: ASYNC240 - nothing else runs yet
    personality = load_personality(kind.personality)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LIGHTLOOM_OCS_PASSWORD", "x")
        environment.delenv("LIGHTLOOM_OCS_STATE_DIR", raising=False)
        environment.setenv("XDG_STATE_HOME", str(folder.parent / "home"))
        async with Emulator(personality, [("127.0.0.1", 0)] * (kind.front_end + 1)) as emulator:
            rack = Rack(folder)
            rack.switch = Emulated(emulator, kind, folder)
            yield rack
            await rack.down()


def switch_of(rack: Rack) -> Emulated:
    assert isinstance(rack.switch, Emulated)
    return rack.switch


def told(rack: Rack, reason: str) -> list[str]:
    return [e.message for e in rack.parts.state.events.newer(0) if e.reason == reason]

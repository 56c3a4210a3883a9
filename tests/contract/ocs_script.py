"""Runs random desired maps under random fault scripts and checks the invariants.

* ``apply`` either reaches the requested state or reports the exact reason per circuit;
* it ends by its deadline;
* a circuit without a requested change never drops a frame;
* a foreign circuit never changes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ocs_driver
from ocs_driver import (
    ApplyResult,
    CircuitOutcome,
    CircuitRequest,
    CircuitState,
    Mode,
    OcsDriver,
    OcsError,
)
from testbed.ocs_emulator import Emulator, Personality, load_personality
from testbed.ocs_emulator.control import Control
from testbed.ocs_emulator.matrix import MatrixSwitch
from testbed.ocs_emulator.netconf_rpc import NetconfDialect
from testbed.ocs_emulator.personality import read_personality
from tests.contract.ocs_netconf import LocalNetconf

FRAMES_PER_LOOK = 1
_CREDENTIAL = "x"
_DEADLINE_S = 4.0
_LATE_S = 0.001
"""Tolerance for the rounding of a sum of times."""
_SHAPES: Mapping[str, str] = {
    "calient-s320": "{banks: 1, rows: 2, columns: 6}",
    "polatis-24x24": "{inputs: 12, outputs: 12, first_input: 1, first_output: 13}",
    "polatis-48xCC": "{any: 12}",
    "glimmerglass-48": "{inputs: 12, outputs: 12, first_input: 10001, first_output: 20001}",
}


@dataclass(slots=True, frozen=True)
class Dialect:
    """The protocol and the personality that a script runs against."""

    scheme: str
    personality: str
    front_end: int

    def __str__(self) -> str:
        return f"{self.scheme}:{self.personality}"


DIALECTS = (
    Dialect("calient+tl1", "calient-s320", 0),
    Dialect("calient+tl1", "calient-s320", 1),
    Dialect("polatis+tl1", "polatis-24x24", 0),
    Dialect("polatis+tl1", "polatis-48xCC", 0),
    Dialect("polatis+scpi", "polatis-24x24", 1),
    Dialect("polatis+scpi", "polatis-48xCC", 1),
    Dialect("polatis+netconf", "polatis-24x24", 2),
    Dialect("polatis+netconf", "polatis-48xCC", 2),
    Dialect("glimmerglass+tl1", "glimmerglass-48", 0),
)


def small(name: str) -> Personality:
    """Return a personality with a dozen ports: scripts test behaviour, not size."""
    whole = load_personality(name)
    text = (
        Path(ocs_driver.__file__).parents[1] / "testbed/ocs_emulator/personalities" / f"{name}.yaml"
    ).read_text("utf-8")
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("ports:"))
    rest = next(i for i in range(at + 1, len(lines)) if not lines[i].startswith(" "))
    lines[at:rest] = [f"ports: {_SHAPES[name]}"]
    cut = read_personality(name, "\n".join(lines))
    model = whole.model.replace("24x24", "12x12").replace("48xCC", "12xCC")
    return dataclasses.replace(cut, model=model)


@dataclass(slots=True)
class Tally:
    """The result of a run of scripts."""

    scripts: int = 0
    converged: int = 0
    explained: int = 0
    frames: int = 0
    dropped: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name in ("scripts", "converged", "explained", "frames", "dropped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wrong += other.wrong


async def play(dialect: Dialect, personality: Personality, seed: int, state: Path) -> Tally:
    """Run one script."""
    _forget(state)
    chance = random.Random(seed)  # noqa: S311 - reproducible, no secret
    tally = Tally(scripts=1)
    # SSH needs threads, for which virtual time does not wait: NETCONF runs without SSH.
    plain = [name for name in personality.front_ends if not name.endswith("netconf")]
    listen = [("switch", n) for n in range(1, len(plain) + 1)]
    busy = chance.choice(["reject", "displace"])
    emulator = Emulator(personality.behaving(busy=busy), listen)
    async with emulator:
        driver = _driver(dialect, emulator, state)
        async with driver:
            script = _Script(dialect, emulator, driver, chance=chance, tally=tally, seed=seed)
            await script.run()
    return tally


def _forget(state: Path) -> None:
    """Start each script with an empty ledger."""
    for file in state.iterdir():
        file.unlink()


def _driver(dialect: Dialect, emulator: Emulator, state: Path) -> OcsDriver:
    if dialect.scheme == "polatis+netconf":
        address = ocs_driver.OcsAddress.parse("polatis+netconf://admin@switch:830")
        address = dataclasses.replace(address, state_dir=state)
        driver = ocs_driver.DRIVERS[dialect.scheme].from_address(address, _CREDENTIAL, "lightloom")
        matrix = MatrixSwitch(emulator.switch)
        driver._session = LocalNetconf(NetconfDialect(matrix), emulator)  # type: ignore[attr-defined]
        return driver
    host, port = emulator.addresses[dialect.front_end]
    url = f"{dialect.scheme}://admin@{host}:{port}"
    return ocs_driver.open(url, password=_CREDENTIAL, state_dir=state)


class _Script:
    def __init__(
        self,
        dialect: Dialect,
        emulator: Emulator,
        driver: OcsDriver,
        *,
        chance: random.Random,
        tally: Tally,
        seed: int,
    ) -> None:
        self.dialect = dialect
        self.emulator = emulator
        self.model = emulator.model
        self.driver = driver
        self.chance = chance
        self.tally = tally
        self.seed = seed
        self.control = Control(emulator)
        self.fibers = list(emulator.personality.fibers)
        self.beside = {f: o for o, f in emulator.personality.partner.items()}
        self.bystanders: dict[str, str] = {}
        self.story: list[Any] = []

    async def run(self) -> None:
        self.chance.shuffle(self.fibers)
        split = self.chance.randrange(0, 3) * 2
        foreign, ours = self.fibers[:split], self.fibers[split:]
        self._foreign(foreign)
        before = _pairing(ours, self.chance)
        first = await self.driver.apply([], before, deadline_s=5.0)
        self._expect(first.ok, f"a healthy switch refuses {first.results}")
        desired = self._desired(ours, before)
        staying = [r for r in before if r in desired]
        going = [r for r in before if r not in desired]
        coming = [r for r in desired if r not in before]
        self.bystanders = {
            a: b
            for circuit in self.model.circuits.values()
            for a, b in circuit.pairs()
            if self._fiber(a) in foreign or any(self._fiber(a) in (r.a, r.b) for r in staying)
        }
        others = self._others(foreign)
        self.model.on_change = self._frames
        await self._break(sorted({p for r in (*going, *coming) for p in (r.a, r.b)}))
        mode = self.chance.choice([Mode.SAFE, Mode.UPDATE])
        await self._attempt(going, [*staying, *coming], desired, mode)
        self.model.on_change = lambda: None
        self._frames()
        self._expect(self._others(foreign) == others, "a foreign circuit was changed")

    def _foreign(self, fibers: Sequence[str]) -> None:
        for a, b in zip(fibers[::2], fibers[1::2], strict=True):
            pairs = [(a, self.beside[b]), (b, self.beside[a])] if self.beside else [(a, b)]
            for source, sink in pairs:
                name = f"{source}-{sink}"
                self.model.enter(name, source, sink, duplex=not self.beside, group="FOREIGN")
                self.model.activate(name, self.emulator.switch.now())
        self.model.set_tuned(self.emulator.switch.now() + 1.0)
        for circuit in self.model.circuits.values():
            circuit.ready_at = self.emulator.switch.now()

    def _desired(
        self, fibers: Sequence[str], before: Sequence[CircuitRequest]
    ) -> list[CircuitRequest]:
        kept = [r for r in before if self.chance.random() < 0.4]
        taken = {p for r in kept for p in (r.a, r.b)}
        return kept + _pairing([f for f in fibers if f not in taken], self.chance)

    async def _break(self, ports: Sequence[str]) -> None:
        """Inject up to three random faults that do not affect unrelated circuits by themselves."""
        orders: list[dict[str, Any]] = [
            {"fault": self.chance.choice(["deny", "no-effect", "no-reply"])},
            {"fault": self.chance.choice(["cut-before", "cut-after", "half-reply"])},
            {"fault": "slow", "seconds": self.chance.choice([0.2, 3.0])},
            {"fault": "stuck"},
            {"fault": "delay", "seconds": self.chance.choice([0.01, 0.3])},
            {"fault": "segments", "bytes": self.chance.choice([1, 7, 100])},
            {"fault": "shuffle-rows"},
            {"fault": "firmware", "release": self.chance.choice(["old", "new"])},
            {"fault": "storm", "count": 20, "interleave": 2},
            {"fault": "idle-logout", "seconds": 0.05},
            {"fault": "login-race", "seconds": 0.3},
        ]
        if ports and self.dialect.scheme != "polatis+scpi":  # SCPI measures no light
            free = self.chance.choice(ports)
            orders += [{"fault": "stray", "port": self.beside.get(free, free)}]
            orders += [{"fault": "dark", "port": free}, {"fault": "creep", "port": free, "db": 9}]
        if ports:
            orders.append({"fault": "fail", "port": self.chance.choice(ports)})
        for order in self.chance.sample(orders, self.chance.randrange(0, 4)):
            order.setdefault("count", self.chance.randrange(1, 4))
            if self.chance.random() < 0.2 and order["fault"] in ("cut-after", "no-reply"):
                order["match"] = self.chance.choice(["RTRV-", "STAT?", "GET"])
            answer = await self.control.order(order)
            self._expect(answer["ok"], f"{order}: {answer}")
            self.story.append(order)

    async def _attempt(
        self,
        delete: Sequence[CircuitRequest],
        make: Sequence[CircuitRequest],
        desired: Sequence[CircuitRequest],
        mode: Mode,
    ) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _DEADLINE_S
        try:
            done = await self.driver.apply(delete, make, mode=mode, deadline_s=_DEADLINE_S)
        except OcsError as error:
            self._expect(loop.time() <= until + _LATE_S, f"late by {loop.time() - until:.3f} s")
            self._expect(bool(error.code and error.hint and error.obj), f"bare {error!r}")
            self.tally.explained += 1
            return
        self._expect(loop.time() <= until + _LATE_S, f"late by {loop.time() - until:.3f} s")
        if done.ok:
            self.tally.converged += 1
            self._check_map(desired)
        else:
            self.tally.explained += 1
            for result in done.results:
                failed = result.outcome is CircuitOutcome.FAILED
                self._expect(not failed or bool(result.code), f"no reason: {result}")
        self._check_read_back(done)

    def _check_map(self, desired: Sequence[CircuitRequest]) -> None:
        """Check that light passes exactly as requested after the driver reports success."""
        now = self.emulator.switch.now()
        wanted = {}
        for request in desired:
            for pair in request.pairs:
                wanted[pair.a] = pair.b
        foreign = {a for a in self.bystanders if a not in wanted}
        for fiber in self.fibers:
            lands = self.model.forward(fiber, now)
            if fiber not in foreign:
                got = None if lands is None else self._fiber(lands)
                self._expect(got == wanted.get(fiber), f"{fiber} -> {got}, not {wanted.get(fiber)}")

    def _check_read_back(self, done: ApplyResult) -> None:
        shown = {(c.a, c.b) for c in done.circuits.circuits if c.state is CircuitState.TUNED}
        held = {(c.a, c.b) for c in self.model.circuits.values()}
        held |= {(b, a) for a, b in held}
        if not self.beside:
            self._expect(shown <= held, f"shows {shown - held}, which are not there")

    def _frames(self) -> None:
        """Send a frame along every path without a requested change."""
        now = self.emulator.switch.now()
        for a, b in self.bystanders.items():
            self.tally.frames += FRAMES_PER_LOOK
            if self.model.forward(a, now) != b:
                self.tally.dropped += FRAMES_PER_LOOK
                self._expect(False, f"bystander {a} -> {b} dropped a frame")

    def _others(self, foreign: Sequence[str]) -> list[tuple[Any, ...]]:
        return sorted(
            (c.name, c.a, c.b, c.group, c.ready_at)
            for c in self.model.circuits.values()
            if self._fiber(c.a) in foreign
        )

    def _fiber(self, port: str) -> str:
        return self.emulator.personality.fiber(port)

    def _expect(self, holds: bool, what: str) -> None:
        if not holds and len(self.tally.wrong) < 5:
            self.tally.wrong.append(f"{self.dialect} seed {self.seed} {self.story}: {what}")


def _pairing(fibers: Sequence[str], chance: random.Random) -> list[CircuitRequest]:
    shuffled = list(fibers)
    chance.shuffle(shuffled)
    count = chance.randrange(0, len(shuffled) // 2 + 1)
    return [CircuitRequest(shuffled[2 * i], shuffled[2 * i + 1]) for i in range(count)]
